"""Addresses of daemons, and the files with which they prove who they are."""

import os
import select
import shutil
import signal
import socket
import ssl
import subprocess
import unittest

from harness import jobs, procfs, waiting
from harness.case import RekindleTest
from harness.cli import DONE, FAILED, NOT_PERMITTED, USAGE, Cli, Daemon, binary, environment
from harness.nodes import Certificates


_CONNECTS = """import socket, sys
taken = []
for _ in range(int(sys.argv[2])):
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(60)
    one.connect(sys.argv[1])
    try:
        if one.recv(1) == b"":
            continue
    except ConnectionResetError:
        continue
    taken.append(one)
print(len(taken))
"""


class AddressTest(RekindleTest):
    def setUp(self):
        super().setUp()
        self.certificates = Certificates(self.path("certificates"))
        for name in ("node", "other"):
            self.certificates.issue(name, "127.0.0.1")
        self.address = f"127.0.0.1:{jobs.free_port()}"

    def tls(self, certificate="node.pem", key="node.key"):
        file = self.certificates.file
        return ["--tls-cert", file(certificate), "--tls-key", file(key), "--tls-client-ca", file("ca.pem")]

    def settings(self, name):
        folder = self.path(name)
        os.makedirs(folder, exist_ok=True)
        return folder, {"REKINDLE_RUNTIME_DIR": folder, "REKINDLE_LOG_DIR": folder}

    def listen(self):
        folder, settings = self.settings("first")
        daemon = Daemon(folder, folder + "/store", settings, ["--standby", "0", "--listen", self.address, *self.tls()])
        self.addCleanup(daemon.stop)
        return daemon

    def refused(self, *arguments):
        """The status and the log of a daemon that is not to start."""
        folder, settings = self.settings("refused")
        done = subprocess.run(
            [binary("rekindled"), "--store", folder + "/store", "--socket", folder + "/d.sock", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=environment(settings),
        )
        return done.returncode, done.stderr

    def test_folders_seen_from_where_a_program_was_started(self):
        """CRIU and the pager have other working directories."""
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.directory)
        settings = {"REKINDLE_RUNTIME_DIR": "run-here", "REKINDLE_LOG_DIR": "logs-here"}
        job = self.start_job(["sleep", "1000"])
        self.checkpoint(job.pid, "job:1", cli=Cli(store="store-here", env=settings))
        daemon = Daemon(self.directory, "store-here", settings, ["--standby", "0"])
        self.addCleanup(daemon.stop)
        cli = Cli(host=daemon.host, env=settings)
        self.checkpoint(job.pid, "job:2", "--stop", cli=cli)
        job.reap()
        self.restore("job:2", cli=cli)
        self.assertEqual(self.references(cli), ["job:1", "job:2"])

    def test_a_connection_that_is_not_taken(self):
        """The cure is not to start a daemon that is there."""
        path = self.path("there.sock")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            command = self.make_cli(host="unix://" + path).start("ls")
            while command.poll() is None:
                if select.select([listener], [], [], 0.1)[0]:
                    listener.accept()[0].close()
            refused = self.cli.finish(command)
        self.assert_refused(refused, FAILED, "no answer from the daemon", path, "its log says why")

    def test_a_connection_over_tcp_that_is_closed_at_once(self):
        """As by a proxy that reaches nobody: that says nothing of the certificate."""
        file = self.certificates.file
        options = ["--tls-ca", file("ca.pem"), "--tls-cert", file("other.pem"), "--tls-key", file("other.key")]
        for heard in (0, 10, 10000):
            with self.subTest(heard=heard), socket.create_server(("127.0.0.1", 0)) as listener:
                address = f"127.0.0.1:{listener.getsockname()[1]}"
                command = self.make_cli(host=address).start(*options, "ls")
                while command.poll() is None:
                    if select.select([listener], [], [], 0.1)[0]:
                        connection = listener.accept()[0]
                        if heard:
                            connection.recv(heard)
                        connection.close()
                refused = self.cli.finish(command)
                self.assert_refused(refused, FAILED, "could not be reached", address, "try again")
                self.assertNotIn("does not accept", str(refused))

    def test_a_port_has_one_daemon(self):
        daemon = self.listen()
        for options in (("--listen", self.address, *self.tls()), ("--functions-http", self.address)):
            status, log = self.refused(*options)
            self.assertEqual(status, FAILED, log)
            self.assertIn(f"{options[0]}: listening on {self.address}: Address already in use", log)
            self.assertIn("choose another address, or end what has this one", log)
        daemon.kill()
        self.listen()

    def test_what_is_no_port(self):
        for option in ("--listen", "--metrics", "--functions-http"):
            for address in ("7443", "127.0.0.1:99999", "127.0.0.1"):
                with self.subTest(option=option, address=address):
                    status, log = self.refused(option, address, *(self.tls() if option == "--listen" else ()))
                    self.assertEqual(status, USAGE, log)
                    for word in (option, f"'{address}'", "HOST:PORT"):
                        self.assertIn(word, log)

    def test_a_setting_that_is_none(self):
        config = self.path("rekindled.toml")
        with open(config, "w", encoding="ascii") as file:
            file.write("grease = 5\n")
        status, log = self.refused("--config", config)
        self.assertEqual(status, USAGE, log)
        self.assertIn(f"--config {config}: 'grease' is no option of rekindled: did you mean 'grace'?", log)
        for text, told in (("[daemon]", "no sections"), ("grace", "no value"), ('store = ""', "the value is empty")):
            with open(config, "w", encoding="ascii") as file:
                file.write(text + "\n")
            status, log = self.refused("--config", config)
            self.assertEqual(status, USAGE, log)
            self.assertIn(f"--config {config}: line 1, '{text}': ", log)
            self.assertIn(told, log)

    def test_an_option_that_is_none(self):
        for word, told in (("--metrcs=x", "no option '--metrcs': did you mean '--metrics'?"),
                           ("--frobnicate", "no option '--frobnicate' (see"),
                           ("ls", "'ls': rekindled takes options alone")):  # fmt: skip
            status, log = self.refused(word)
            self.assertEqual(status, USAGE, log)
            self.assertIn(told, log)

    def test_numbers_are_decimal(self):
        """Octal it would be in the range, which ends at 86400."""
        status, log = self.refused("--grace", "0250000")
        self.assertEqual(status, USAGE, log)
        self.assertIn("0250000 not in range", log)
        config = self.path("rekindled.toml")
        with open(config, "w", encoding="ascii") as file:
            file.write("grace = 0250000\n")
        status, log = self.refused("--config", config)
        self.assertEqual(status, USAGE, log)
        self.assertIn("0250000 not in range", log)

    def test_what_is_no_number_of_days(self):
        for days in ("nan", "-1", "4000", "often"):
            with self.subTest(days=days):
                status, log = self.refused(f"--scrub-days={days}")
                self.assertEqual(status, USAGE, log)
                for word in ("--scrub-days", f"'{days}'", "0 to 3650"):
                    self.assertIn(word, log)

    def test_renewed_certificates(self):
        """By another authority even: the daemon goes by them without being started anew."""
        self.listen()
        cli, file = Cli(host=self.address), self.certificates.file
        options = ["--tls-ca", file("ca.pem"), "--tls-cert", file("other.pem"), "--tls-key", file("other.key")]
        self.succeed(*options, "version", cli=cli)
        later = Certificates(self.path("later"))
        for name in ("node", "client"):
            later.issue(name, "127.0.0.1")
        renewed = ["--tls-ca", later.file("ca.pem")]
        renewed += ["--tls-cert", later.file("client.pem"), "--tls-key", later.file("client.key")]
        self.assertNotEqual(cli.run(*renewed, "version").code, DONE)
        for name in ("node.key", "node.pem", "ca.pem"):
            os.rename(file(name), file("old-" + name))
            shutil.copy(later.file(name), file(name))
        waiting.until(lambda: cli.run(*renewed, "version").code == DONE, "the new certificates", 60)
        options[1] = later.file("ca.pem")
        refused = cli.run(*options, "version")
        self.assert_refused(refused, NOT_PERMITTED, "does not accept", "--tls-cert", "--tls-client-ca")

    def test_clients_that_tls_refuses_are_logged(self):
        """gRPC tells nobody, and whoever looks for them has the daemon's log alone."""
        daemon = self.listen()
        strangers = Certificates(self.path("strangers"))
        strangers.issue("stranger", "127.0.0.1")
        port = int(self.address.split(":")[1])

        def refuse(certificate):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_alpn_protocols(["h2"])
            if certificate is not None:
                context.load_cert_chain(strangers.file("stranger.pem"), strangers.file("stranger.key"))
            with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
                ours = "127.0.0.1:%d" % plain.getsockname()[1]
                with self.assertRaises(OSError), context.wrap_socket(plain) as client:
                    # With TLS 1.3 a client knows only when it reads.
                    if client.recv(1) == b"":
                        raise ConnectionResetError
            return ours

        for certificate, why in ((None, "did not return a certificate"), ("stranger", "verify failed")):
            with self.subTest(why=why):

                def told(certificate=certificate, why=why):
                    # A second has one such line.
                    ours = refuse(certificate)
                    return any(ours in line and why in line for line in daemon.log_text().splitlines())

                waiting.until(told, "the warning", 60)

    def test_a_certificate_of_no_user(self):
        self.listen()
        file = self.certificates.file
        for subject in ("uid:+0", "uid: 0", "uid:", "uid:0x0", "root"):
            with self.subTest(subject=subject):
                self.certificates.issue("strange", "127.0.0.1", subject=subject)
                options = ["--tls-ca", file("ca.pem"), "--tls-cert", file("strange.pem")]
                options += ["--tls-key", file("strange.key")]
                refused = Cli(host=self.address).run(*options, "ps")
                self.assert_refused(refused, NOT_PERMITTED, f"'{subject}'", '"uid:N"')

    def test_a_certificate_that_is_expired(self):
        self.certificates.issue("old", "127.0.0.1", days=-1)
        file = self.certificates.file
        options = ["--tls-ca", file("ca.pem"), "--tls-cert", file("old.pem"), "--tls-key", file("old.key")]
        daemon = self.listen()
        refused = Cli(host=self.address).run(*options, "version")
        self.assert_refused(refused, NOT_PERMITTED, "--tls-cert", "old.pem has expired on", "renewed")
        daemon.stop()
        folder, settings = self.settings("expired")
        tls = self.tls("old.pem", "old.key")
        daemon = Daemon(folder, folder + "/store", settings, ["--standby", "0", "--listen", self.address, *tls])
        self.addCleanup(daemon.stop)
        self.assertRegex(daemon.log_text(), r"--tls-cert: .*old\.pem has expired on")

    def test_a_user_who_has_gone_leaves_room_for_others(self):
        """Another group of his makes no other user of him, and what he had is free again."""
        folder, settings = self.settings("few")
        os.chmod(folder, 0o755)
        limit = ["prlimit", "--nofile=1024:1024"]
        daemon = Daemon(folder, folder + "/store", settings, ["--standby", "0"], prefix=limit)
        self.addCleanup(daemon.stop)

        def connected(user, group, count):
            """As many of so many connections as the daemon takes, which says the first word on them."""
            done = subprocess.run(
                [jobs.PYTHON, "-c", _CONNECTS, daemon.socket, str(count)],
                user=user, group=group, extra_groups=[], cwd="/", stdout=subprocess.PIPE, check=True, timeout=120,
            )
            return int(done.stdout)

        for user, group in ((61001, 61001), (61001, 62001), (61002, 61002), (61003, 61003)):
            with self.subTest(user=user, group=group):
                # What the one before has closed the daemon notices a moment later.
                waiting.until(lambda user=user, group=group: connected(user, group, 256) == 256, "256 connections")
        waiting.until(lambda: connected(61001, 61001, 300) == 256, "256 of 300 connections")

    def test_connections_that_nobody_vouches_for(self):
        """They leave descriptors for the users of the machine, and for others over TCP."""
        folder, settings = self.settings("flooded")
        limit = ["prlimit", "--nofile=512:512"]
        listens = ["--standby", "0", "--listen", f"0.0.0.0:{self.address.split(':')[1]}", *self.tls()]
        daemon = Daemon(folder, folder + "/store", settings, listens, prefix=limit)
        self.addCleanup(daemon.stop)
        port = int(self.address.split(":")[1])
        flood = []
        self.addCleanup(lambda: [each.close() for each in flood])
        for _ in range(1000):
            flood.append(socket.create_connection(("127.0.0.2", port), 30, source_address=("127.0.0.2", 0)))
        local = Cli(host=daemon.host, env=settings)
        self.succeed("ps", cli=local)
        file = self.certificates.file
        options = ["--tls-ca", file("ca.pem"), "--tls-cert", file("other.pem"), "--tls-key", file("other.key")]
        self.succeed(*options, "version", cli=Cli(host=self.address))
        self.assertLess(len(os.listdir(f"/proc/{daemon.pid}/fd")), 512 // 2)
        self.assertIn("from 127.0.0.2 is one too many", daemon.log_text())
        for each in flood:
            each.close()
        self.succeed(*options, "version", cli=Cli(host=self.address))

    def test_sockets_that_another_daemon_has(self):
        """They stay its own."""
        folder, settings = self.settings("first")
        paths = {option: f"{folder}/{option}.sock" for option in ("metrics", "functions-http")}
        options = [word for option, path in paths.items() for word in (f"--{option}", "unix:" + path)]
        daemon = Daemon(folder, folder + "/store", settings, ["--standby", "0", *options])
        self.addCleanup(daemon.stop)
        for option, path in paths.items():
            before = os.stat(path).st_ino
            status, log = self.refused(f"--{option}", "unix:" + path)
            self.assertEqual(status, FAILED, log)
            for word in (f"--{option}", path, "another"):
                self.assertIn(word, log)
            self.assertEqual(os.stat(path).st_ino, before)
        daemon.kill()
        daemon = Daemon(folder, folder + "/store", settings, ["--standby", "0", *options])
        self.addCleanup(daemon.stop)

    def test_limits_that_leave_too_little(self):
        folder, settings = self.settings("limited")
        for limit, command, words in (
            ("--nofile=20", ["rekindled", "--store", folder + "/store"], ("20 files", "ulimit -n")),
            ("--nofile=5", ["rekindle", "--host", "unix:///x", "ps"], ("5 files", "ulimit -n")),
            ("--as=200000000", ["rekindled", "--store", folder + "/store"], ("ulimit -v",)),
        ):
            with self.subTest(limit=limit, command=command[0]):
                done = subprocess.run(["prlimit", limit, binary(command[0]), *command[1:]], stdin=subprocess.DEVNULL,
                                      capture_output=True, text=True, check=False, timeout=60,
                                      env=environment(settings))  # fmt: skip
                self.assertEqual(done.returncode, FAILED, done.stderr)
                for word in words:
                    self.assertIn(word, done.stderr)

    def test_a_daemon_that_is_stopped(self):
        folder, settings = self.settings("stopped")
        daemon = Daemon(folder, folder + "/store", settings, ["--standby", "0"])
        self.addCleanup(daemon.stop)
        self.addCleanup(os.kill, daemon.pid, signal.SIGCONT)
        os.kill(daemon.pid, signal.SIGSTOP)
        # Until then a thread of it may take the connection, and no answer comes by it.
        waiting.until(lambda: procfs.stands(daemon.pid), "it stands still")
        refused = Cli(host=daemon.host, env=settings).run("ps")
        self.assert_refused(refused, FAILED, f"its process {daemon.pid} is stopped", f"kill -CONT {daemon.pid}")

    def test_http_for_other_machines_is_warned_of(self):
        folder, settings = self.settings("http")
        address = f"0.0.0.0:{jobs.free_port()}"
        daemon = Daemon(folder, folder + "/store", settings, ["--standby", "0", "--functions-http", address])
        self.addCleanup(daemon.stop)
        self.assertIn(f"--functions-http {address} can be reached from other machines", daemon.log_text())

    def test_files_that_do_not_belong_together(self):
        status, log = self.refused("--listen", self.address, *self.tls(key="other.key"))
        self.assertEqual(status, FAILED, log)
        for word in ("--tls-key", "other.key", "node.pem"):
            self.assertIn(word, log)
        self.listen()
        file = self.certificates.file
        for ca, certificate, key, status, word in (
            ("ca.pem", "node.pem", "other.key", FAILED, "--tls-key"),
            ("node.csr", "node.pem", "node.key", USAGE, "--tls-ca"),
            ("ca.pem", "node.csr", "node.key", USAGE, "--tls-cert"),
            ("ca.pem", "node.pem", "node.csr", USAGE, "--tls-key"),
            ("other.pem", "node.pem", "node.key", FAILED, "vouches"),
        ):
            with self.subTest(ca=ca, certificate=certificate, key=key):
                options = ["--tls-ca", file(ca), "--tls-cert", file(certificate), "--tls-key", file(key)]
                self.assert_refused(Cli(host=self.address).run(*options, "ls"), status, word)


if __name__ == "__main__":
    unittest.main()
