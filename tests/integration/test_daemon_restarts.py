"""A daemon that is restarted, or dies: the jobs run on, and the commands in the foreground stay with them."""

import os
import signal
import time
import unittest

from harness import procfs, waiting
from harness.cli import DONE, FAILED
from harness.clones import CloneTest

# Says that it goes on at SIGTERM, and with which status it is to end.
WAITER = """
trap 'echo term >>"$0.signals"' TERM
echo $$ >"$0.pid"
while ! test -e "$0.end"; do sleep 0.05; done
exit "$(cat "$0.end")"
"""


class DaemonRestartsTest(CloneTest):
    def begin_daemon(self):
        self.daemon = self.start_daemon(*self.daemon_arguments)

    def end_daemon(self, how):
        (self.daemon.kill if how == signal.SIGKILL else self.daemon.stop)()

    def begin(self, *arguments, prefix=()):
        """A command in the foreground."""
        command = self.cli.start(*arguments, prefix=prefix)
        self.addCleanup(command.stderr.close)
        self.addCleanup(command.stdout.close)
        self.addCleanup(command.wait)
        self.addCleanup(command.kill)
        return command

    def wait_until_started(self, command):
        """The command knows of its job."""
        while '"job"' not in (line := command.stdout.readline()):
            self.assertTrue(line, "it has ended")

    def run_waiter(self, *options, prefix=()):
        command = self.begin("run", "--name", "waiter", "--log", self.path("log"), *options, "--", "sh", "-c", WAITER,
                             self.path("waiter"), prefix=prefix)  # fmt: skip
        self.wait_until_started(command)
        waiting.until(lambda: self.read("waiter.pid").strip(), "the job runs", 30)
        self.kill_job_at_end(self.pid())
        return command

    def read(self, name):
        try:
            with open(self.path(name), encoding="ascii") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def pid(self):
        return int(self.read("waiter.pid"))

    def end_job(self, status):
        with open(self.path("status"), "w", encoding="ascii") as file:
            file.write(str(status))
        os.rename(self.path("status"), self.path("waiter.end"))

    def wait_until_told(self, command):
        """The command has noticed that the daemon has gone."""
        line = command.stderr.readline()
        self.assertIn("the daemon has gone", line)
        self.assertTrue(procfs.alive(self.pid()))
        self.assertIsNone(command.poll())

    def test_run_ends_as_the_job_does(self):
        """Without a daemon, and with the next one."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            for comes_back in (True, False):
                with self.subTest(how=how, comes_back=comes_back):
                    command = self.run_waiter()
                    self.end_daemon(how)
                    self.wait_until_told(command)
                    if comes_back:
                        self.begin_daemon()
                    self.end_job(7)
                    self.assertEqual(self.cli.finish_as_parent(command).code, 7)
                    if not comes_back:
                        self.begin_daemon()
                    os.unlink(self.path("waiter.end"))
                    os.unlink(self.path("waiter.pid"))

    def test_restore_ends_as_the_job_does(self):
        command = self.run_waiter()
        pid = self.pid()
        self.succeed("ckpt", pid, "-t", "waiter:1", "--stop")
        self.assertEqual(self.cli.finish_as_parent(command).code, 128 + signal.SIGKILL)
        command = self.begin("restore", "waiter:1")
        self.wait_until_started(command)
        self.end_daemon(signal.SIGKILL)
        self.wait_until_told(command)
        self.begin_daemon()
        self.succeed("ckpt", pid, "-t", "waiter:2")
        self.end_job(7)
        self.assertEqual(self.cli.finish_as_parent(command).code, 7)

    def test_clones_end_as_they_do(self):
        command = self.run_waiter()
        pid = self.pid()
        self.succeed("ckpt", pid, "-t", "waiter:1", "--stop")
        self.cli.finish_as_parent(command)
        command = self.begin("restore", "waiter:1", "--clone", "--count", "2", "--name", "copy")
        self.wait_until_started(command)
        self.wait_until_started(command)
        self.end_daemon(signal.SIGTERM)
        self.assertIn("the daemon has gone", command.stderr.readline())
        self.begin_daemon()
        self.assertEqual(len(self.succeed("ps")["jobs"]), 2)
        self.end_job(7)
        self.assertEqual(self.cli.finish_as_parent(command).code, 7)

    def test_signals_come_to_the_job(self):
        command = self.run_waiter()
        self.end_daemon(signal.SIGTERM)
        self.wait_until_told(command)
        os.kill(command.pid, signal.SIGTERM)
        waiting.until(lambda: "term" in self.read("waiter.signals"), "without a daemon", 30)
        self.begin_daemon()
        os.kill(command.pid, signal.SIGTERM)
        waiting.until(lambda: self.read("waiter.signals").count("term") == 2, "through the next one", 30)
        os.kill(self.pid(), signal.SIGKILL)
        self.assertEqual(self.cli.finish_as_parent(command).code, 128 + signal.SIGKILL)

    def test_a_process_of_another_namespace_is_not_taken_for_the_job(self):
        command = self.run_waiter(prefix=("unshare", "--pid", "--fork", "--mount-proc"))
        self.end_daemon(signal.SIGTERM)
        result = self.cli.finish_as_parent(command)
        self.assertEqual(result.code, FAILED, str(result))
        self.assertIn("the job runs on", result.message)
        self.assertTrue(procfs.alive(self.pid()))

    def test_a_supervised_job_is_followed_again(self):
        # Not because gRPC looks every 5 seconds at a connection of which nobody waits for anything.
        command = self.run_waiter("--restarts", "0", prefix=("env", "GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS=0"))
        for how in (signal.SIGTERM, signal.SIGKILL):
            self.end_daemon(how)
            self.wait_until_told(command)
            # It is taken when somebody can tell it from a failure.
            os.kill(command.pid, signal.SIGTERM)
            self.begin_daemon()
            waiting.until(lambda: "term" in self.read("waiter.signals"), "the signal", 30)
            self.wait_until_started(command)  # it is told of this daemon's end, too
            os.unlink(self.path("waiter.signals"))
        self.end_job(7)
        result = self.cli.finish_as_parent(command)
        self.assertEqual(result.code, 7, str(result))

    def test_a_supervised_job_is_left_at_the_second_signal(self):
        command = self.run_waiter("--restarts", "0")
        self.end_daemon(signal.SIGKILL)
        self.wait_until_told(command)
        os.kill(command.pid, signal.SIGINT)
        # Each is taken: two of one kind could be one.
        os.kill(command.pid, signal.SIGTERM)
        result = self.cli.finish_as_parent(command)
        self.assertEqual(result.code, FAILED, str(result))
        self.assertIn("rekindle stop waiter", result.message)
        self.assertTrue(procfs.alive(self.pid()))

    def test_old_logs_go_unless_somebody_has_use_for_them(self):
        quiet = self.succeed("run", "--name", "quiet", "--detach", "--", "sleep", "1000")["job"]
        self.kill_job_at_end(quiet["pid"])
        listed = self.succeed("run", "--name", "listed", "--detach", "--", "true")["job"]
        supervised = self.succeed("run", "--name", "kept", "--restarts", "1", "--detach", "--", "sleep", "1000")["job"]
        self.kill_job_at_end(supervised["pid"])
        folder = os.path.dirname(quiet["log"])
        kept = [quiet["log"], quiet["log"] + ".1.gz", listed["log"], supervised["log"],
                os.path.join(folder, "by-hand.log")]  # fmt: skip
        gone = [os.path.join(folder, "gone-20261001-000000.log"), os.path.join(folder, "gone-20261001-000000.log.1.gz")]
        for log in kept + gone:
            with open(log, "ab"):
                pass
            os.utime(log, (time.time() - 31 * 86400,) * 2)
        self.end_daemon(signal.SIGTERM)
        self.begin_daemon()
        waiting.until(lambda: "2 logs of ended jobs removed" in self.daemon.log_text(), "the old ones are removed", 60)
        self.assertEqual([log for log in kept + gone if os.path.exists(log)], kept)

    def test_what_has_not_begun_fails(self):
        self.end_daemon(signal.SIGTERM)
        result = self.cli.finish_as_parent(self.begin("run", "--", "true"))
        self.assertEqual(result.code, FAILED, str(result))
        self.begin_daemon()
        self.assertEqual(self.cli.finish_as_parent(self.begin("run", "--log", self.path("log"), "--", "true")).code, DONE)


if __name__ == "__main__":
    unittest.main()
