"""Several nodes on one machine: each has a network namespace, a store, a runtime folder and a daemon of its own, with
mutual TLS between the daemons. They share the PIDs and the file system.
"""

import os
import signal
import subprocess
import unittest

from harness import jobs, procfs, waiting
from harness.case import RekindleTest, shell
from harness.cli import Cli, Daemon

_PORT = 7443
_NETWORK = "10.77.0."


def why_impossible():
    """The reason why this machine has no network namespaces with bridges; None when it has."""
    probe = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "probe", "type", "bridge"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return None if probe.returncode == 0 else f"no network namespaces with bridges: {probe.stderr.strip()}"


class Namespace:
    """A network namespace, which lives as long as a process in it."""

    def __init__(self):
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo there; exec sleep infinity"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        jobs.waited_elsewhere.add(self._holder.pid)
        self._holder.stdout.readline()
        self.pid = self._holder.pid

    def prefix(self):
        return ["nsenter", "--target", str(self.pid), "--net", "--"]

    def run(self, *argv):
        return shell(*self.prefix(), *argv)

    def close(self):
        self._holder.kill()
        self._holder.wait()
        self._holder.stdout.close()
        jobs.waited_elsewhere.discard(self._holder.pid)


class Node:
    """One of them. `start` and `stop` are its daemon's."""

    def __init__(self, test, name, number, switch):
        self.name = name
        self.address = f"{_NETWORK}{number}"
        self.host = f"{self.address}:{_PORT}"
        self.directory = test.path(name)
        os.mkdir(self.directory)
        self.store = os.path.join(self.directory, "store")
        self.environment = {
            "REKINDLE_RUNTIME_DIR": os.path.join(self.directory, "run"),
            "REKINDLE_LOG_DIR": os.path.join(self.directory, "logs"),
        }
        self.namespace = Namespace()
        test.addCleanup(self.namespace.close)
        self._port = f"to-{name}"
        self._switch = switch
        switch.run("ip", "link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", str(self.namespace.pid))
        switch.run("ip", "link", "set", self._port, "master", "bridge", "up")
        self.namespace.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            self.namespace.run("ip", "link", "set", link, "up")
        self._certificates = test.certificates
        test.certificates.issue(name, self.address)
        self.daemon = None
        self.cli = None
        self.wrapper = []  # what runs the daemon, in the namespace
        self.options = []  # of the daemon, besides the usual ones
        test.addCleanup(self.stop)

    def start(self, point=None):
        """`point`: where in a group's protocol the daemon kills or stops itself, "member-frozen=KILL"."""
        environment = dict(self.environment)
        if point:
            environment["REKINDLE_GROUP_POINT"] = point
        file = self._certificates.file
        self.daemon = Daemon(
            self.directory,
            self.store,
            environment,
            ["--listen", self.host, "--tls-cert", file(self.name + ".pem"), "--tls-key", file(self.name + ".key")]
            + ["--tls-client-ca", file("ca.pem"), "--standby", "0", *self.options],
            prefix=[*self.namespace.prefix(), *self.wrapper],
        )
        self.cli = Cli(host=self.daemon.host, env=self.environment)

    def start_second(self, test):
        """Another daemon with the same store, which can't ask other nodes, and a command for it."""
        directory = os.path.join(self.directory, "second")
        os.makedirs(directory)
        environment = {"REKINDLE_RUNTIME_DIR": directory, "REKINDLE_LOG_DIR": directory}
        arguments = ["--standby", "0", "-v"]
        second = Daemon(directory, self.store, environment, arguments, prefix=self.namespace.prefix())
        test.addCleanup(second.stop)
        return second, Cli(host=second.host, env=environment)

    def stop(self):
        if self.daemon is not None:
            if procfs.state(self.daemon.pid) == "T":
                os.kill(self.daemon.pid, signal.SIGCONT)
            self.daemon.stop()

    def restart(self, point=None):
        self.stop()
        self.start(point)

    def cut(self):
        """Nothing reaches it any more, or leaves it."""
        self._switch.run("ip", "link", "set", self._port, "down")

    def mend(self):
        self._switch.run("ip", "link", "set", self._port, "up")

    def wait_until_stopped(self):
        """At a point with "=STOP"."""
        waiting.until(lambda: procfs.state(self.daemon.pid) == "T", f"the daemon of {self.name} at its point")

    def go_on(self):
        os.kill(self.daemon.pid, signal.SIGCONT)

    def wait_until_dead(self):
        waiting.for_exit(self.daemon.pid)

    def start_job(self, test, argv, name, **options):
        return test.start_job([*self.namespace.prefix(), *argv], f"{self.name}-{name}", **options)

    def images(self):
        return sorted(image["reference"] for image in _data_of(self.cli.run("ls")).get("images", []))

    def groups(self):
        return _data_of(self.cli.run("group", "ls"))


def _data_of(result):
    if result.code != 0:
        raise AssertionError(str(result))
    return result.data


class Certificates:
    """A certificate authority of the test's own."""

    # Made in no time, unlike RSA's.
    _NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")

    def __init__(self, directory):
        self._directory = directory
        os.mkdir(directory)
        self._openssl(
            "req", "-x509", *self._NEW_KEY, "-days", "2", "-subj", "/CN=test-ca",
            "-keyout", self.file("ca.key"), "-out", self.file("ca.pem"),
        )  # fmt: skip

    def file(self, name):
        return os.path.join(self._directory, name)

    def issue(self, name, address, days=2, subject="admin"):
        """For a daemon: it acts as "admin" at others, and others know it by its address."""
        self._openssl(
            "req", *self._NEW_KEY, "-subj", "/CN=" + subject.replace("+", "\\+"),
            "-keyout", self.file(name + ".key"), "-out", self.file(name + ".csr"),
        )  # fmt: skip
        with open(self.file(name + ".ext"), "w", encoding="ascii") as extensions:
            extensions.write(f"subjectAltName=IP:{address}\n")
        self._openssl(
            "x509", "-req", "-in", self.file(name + ".csr"), "-CA", self.file("ca.pem"), "-CAkey", self.file("ca.key"),
            "-CAcreateserial", "-days", str(days), "-extfile", self.file(name + ".ext"), "-out", self.file(name + ".pem"),
        )  # fmt: skip

    def _openssl(self, *arguments):
        shell("openssl", *arguments)


class NodesTest(RekindleTest):
    """Three nodes on one switch; their daemons run. `a` coordinates."""

    NAMES = ("a", "b", "c")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        reason = why_impossible()
        if reason:
            raise unittest.SkipTest(reason)

    def setUp(self):
        super().setUp()
        self.certificates = Certificates(self.path("certificates"))
        switch = Namespace()
        self.addCleanup(switch.close)
        switch.run("ip", "link", "add", "bridge", "type", "bridge")
        switch.run("ip", "link", "set", "bridge", "up")
        self.nodes = [Node(self, name, number + 1, switch) for number, name in enumerate(self.NAMES)]
        self.a, self.b, self.c = self.nodes
        for node in self.nodes:
            node.start()

    def member(self, node, pid):
        """As node a's command names it."""
        return str(pid) if node is self.a else f"{node.host}/{pid}"

    def group_arguments(self, reference, members, *options):
        words = ["group", "ckpt", reference, *options]
        for node, pid in members:
            words += ["--member", self.member(node, pid)]
        return words

    def checkpoint_group(self, reference, members, *options):
        return self.succeed(*self.group_arguments(reference, members, *options), cli=self.a.cli)

    def restore_group(self, reference, *options):
        data = self.succeed("group", "restore", reference, *options, cli=self.a.cli)
        pids = [member["job"]["pid"] for member in data["members"]]
        for pid in pids:
            self.kill_job_at_end(pid)
        return pids

    def wait_until_settled(self):
        """Nobody is in doubt, and no coordinator waits for anybody."""

        def settled():
            listed = [node.groups() for node in self.nodes]
            return all(not groups.get("in_doubt") for groups in listed) and all(
                group.get("complete") and not group.get("removed")
                for groups in listed
                for group in groups.get("groups", [])
            )

        waiting.until(settled, "all parts settled", 60, 0.2)
