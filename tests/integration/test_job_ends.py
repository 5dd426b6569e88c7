"""How jobs ended that nobody was in the foreground with, and what they have written: `wait`, `ps --all`, `logs`."""

import os
import signal
import unittest

from harness import jobs, waiting
from harness.case import RekindleTest
from harness.cli import DONE, FAILED

NOT_FOUND, NOT_PERMITTED, TIMED_OUT, UNKNOWN = 3, 4, 124, 255
KILLED = 128 + signal.SIGKILL
# Writes a line, and another one before it ends as it is told.
WRITER = """
echo first
while ! test -e "$0"; do sleep 0.02; done
echo last
exit 7
"""


class EndsCase(RekindleTest):
    def setUp(self):
        super().setUp()
        self.daemon = self.start_daemon()
        self.alone, self.cli = self.cli, self.make_cli(host=self.daemon.host)

    def detached(self, name, *command, options=(), cli=None):
        data = self.succeed("run", "--detach", "--name", name, *options, "--", *command, cli=cli)
        self.kill_job_at_end(data["job"]["pid"])
        return data["job"]

    def writer(self, name="writer", **options):
        job = self.detached(name, "sh", "-c", WRITER, self.path(f"{name}.end"), **options)
        waiting.until(lambda: "first" in self.read(job["log"]), "it writes", 30)
        return job

    def end(self, name="writer"):
        with open(self.path(f"{name}.end"), "w", encoding="ascii"):
            pass

    @staticmethod
    def read(path):
        with open(path, encoding="ascii") as file:
            return file.read()

    def table(self):
        """The state of each job, as people see it."""
        lines = self.cli.run("ps", "--all", json_output=False).out.splitlines()[1:]
        return {line.split()[1]: line for line in lines if line.strip()}

    def begin(self, *arguments, json_output=True, cli=None):
        command = (cli or self.cli).start(*arguments, json_output=json_output)
        self.addCleanup(command.stdout.close)
        self.addCleanup(command.stderr.close)
        self.addCleanup(command.wait)
        self.addCleanup(command.kill)
        return command

    def one(self, name):
        return next(job for job in self.succeed("ps", "--all")["jobs"] if job["name"] == name)


class WaitTest(EndsCase):
    def wait(self, *arguments):
        return self.cli.run("wait", *arguments)

    def begin_to_wait(self, name, cli=None):
        """It has told the end of another one when this returns."""
        self.detached("ended", "true", cli=cli)
        command = self.begin("wait", "ended", name, cli=cli)
        self.assertIn('"name":"ended"', command.stdout.readline())
        return command

    def test_how_they_ended_is_told(self):
        self.detached("seven", "sh", "-c", "exit 7")
        self.detached("killed", "sh", "-c", "kill -9 $$")
        pid = self.detached("fine", "true")["pid"]
        self.assertEqual(self.wait("seven").code, 7)
        result = self.wait("fine", "killed", "seven")
        self.assertEqual(result.code, KILLED, str(result))
        self.assertEqual(len(result.out.splitlines()), 3)
        result = self.wait(pid)
        self.assertEqual(result.code, DONE, str(result))
        self.assertEqual((result.data["name"], result.data["unknown"]), ("fine", False))
        told = self.cli.run("wait", "killed", json_output=False)
        self.assertEqual(told.out, "killed has ended: killed by signal 9\n")

        table = self.table()
        self.assertIn(" exited (7) ", table["seven"])
        self.assertIn(" killed (SIGKILL) ", table["killed"])
        self.assertIn(" exited (0) ", table["fine"])
        for name, code, number in (("seven", 7, None), ("killed", None, signal.SIGKILL), ("fine", 0, None)):
            job = self.one(name)
            self.assertEqual((job["state"], job["exit_code"], job["signal"]), ("exited", code, number))
        self.assertIn("exit status 7", self.cli.run("ckpt", "seven", "-t", "x:1").message)
        self.assert_refused(self.wait("seven", "nobody"), NOT_FOUND, "nobody")

    def test_no_longer_than_it_may_take(self):
        self.writer()
        self.assert_refused(self.wait("writer", "--timeout", "50ms"), TIMED_OUT, "'writer' has not ended within 50ms")
        self.assertEqual(self.wait("writer", "--timeout", "0s").data["error"]["exit_code"], TIMED_OUT)
        command = self.begin("wait", "writer", "--timeout", "1h")
        self.end()
        self.assertEqual(self.cli.finish(command).code, 7)

    def test_a_supervised_one_ends_for_good(self):
        """The first time it dies it is brought back."""
        died = self.path("died")
        script = 'test -e "$0" && exit 3; touch "$0"; kill -9 $$'
        options = ("--every", "1h", "--restarts", "1", "--backoff", "10ms")
        log = self.detached("supervised", "sh", "-c", script, died, options=options)["log"]
        result = self.wait("supervised")
        self.assertEqual((result.code, result.data["exit_code"]), (3, 3), str(result))
        self.assertIn("restart", result.data["report"])
        self.assertEqual(self.one("supervised")["exit_code"], 3)
        told = self.cli.run("ps", "--all", json_output=False).out
        self.assertIn(f"supervised: its output is in {log}\n", told)

    def test_others_may_not(self):
        self.writer()
        stranger = self.make_cli(host=self.daemon.host, uid=65534)
        self.assert_refused(stranger.run("wait", "writer"), NOT_PERMITTED, "wait for it", "belongs to uid 0")

    def test_the_daemon_is_started_anew(self):
        """It sees how the jobs end that the one before it had started."""
        self.writer()
        self.writer("other")
        command = self.begin_to_wait("writer")
        self.daemon.kill()
        self.assertIn("the daemon has gone", command.stderr.readline())
        self.daemon = self.start_daemon()
        self.end()
        result = self.cli.finish_as_parent(command)
        self.assertEqual(result.code, 7, str(result))
        self.end("other")

        def known():
            jobs.reap_orphans()
            return self.one("other")["exit_code"] == 7

        waiting.until(known, "its end is recorded", 30)

    def test_nobody_saw_it(self):
        pid = self.writer(cli=self.alone)["pid"]
        self.end()
        waiting.for_exit(pid)
        jobs.reap_orphans()
        result = self.wait("writer")
        self.assertEqual((result.code, result.data["unknown"]), (UNKNOWN, True), str(result))
        self.assertIn("nobody saw how job 'writer'", result.err)
        self.assertIn(" exited ", self.table()["writer"])
        self.assertNotIn("exited (", self.table()["writer"])
        job = self.one("writer")
        self.assertEqual((job["exit_code"], job["signal"]), (None, None))

    def test_whoever_waits_sees_it(self):
        """Without a daemon, too."""
        self.writer(cli=self.alone)
        command = self.begin_to_wait("writer", cli=self.alone)
        self.end()
        result = self.cli.finish_as_parent(command)
        self.assertEqual(result.code, 7, str(result))


class LogsTest(EndsCase):
    def logs(self, *arguments, cli=None):
        return (cli or self.cli).run("logs", *arguments, json_output=False)

    def test_one_that_runs_and_one_that_has_ended(self):
        job = self.writer()
        self.assertEqual(self.logs(job["pid"]).out, "first\n")
        command = self.begin("logs", "writer", "--follow", json_output=False)
        self.assertEqual(command.stdout.readline(), "first\n")
        self.end()
        self.assertEqual(self.cli.finish(command).out, "last\n")
        self.assertEqual(self.cli.run("wait", "writer").code, 7)
        for options, expected in (
            ((), "first\nlast\n"),
            (("--follow",), "first\nlast\n"),
            (("--tail", "1"), "last\n"),
            (("-n", "0"), ""),
            (("-n", "9"), "first\nlast\n"),
        ):
            result = self.logs("writer", *options)
            self.assertEqual((result.code, result.out), (DONE, expected), str(result))

    def test_supervised(self):
        self.writer(options=("--every", "1h", "--restarts", "0"))
        command = self.begin("logs", "writer", "-f", "-n", "1", json_output=False)
        self.assertEqual(command.stdout.readline(), "first\n")
        self.end()
        self.assertEqual(self.cli.finish(command).out, "last\n")
        self.assertEqual(self.logs("writer").out, "first\nlast\n")

    def test_what_can_not_be_shown(self):
        job = self.writer()
        self.assert_refused(self.logs("nobody"), NOT_FOUND, "there is no job 'nobody'", "ps --all")
        self.assert_refused(self.cli.run("attach", "writer"), NOT_FOUND, "not supervised", "rekindle logs writer")
        self.assert_refused(self.cli.run("logs", "writer"), 2, "--json")
        os.unlink(job["log"])
        self.assert_refused(self.logs("writer"), FAILED, job["log"], "No such file")
        self.detached("nowhere", "sleep", "1000", options=("--log", "/dev/null"))
        self.assert_refused(self.logs("nowhere"), FAILED, "/dev/null is no file")

    def test_with_the_rights_of_the_caller(self):
        """Whoever may see the job need not be able to read its log."""
        os.chmod(self.daemon.socket, 0o777)
        user = self.make_cli(host=self.daemon.host, uid=65534)
        log = self.path("log")
        with open(log, "w", encoding="ascii") as file:
            file.write("secret\n")
        os.chown(log, 65534, 65534)
        self.detached("his", "sleep", "1000", options=("--log", log), cli=user)
        self.assertEqual(self.logs("his", cli=user).out, "secret\n")
        os.chown(log, 0, 0)
        os.chmod(log, 0o600)
        self.assert_refused(self.logs("his", cli=user), NOT_PERMITTED, log)


class OutputPlaceTest(EndsCase):
    """Where the output of a job goes that is detached."""

    def image_of_one_with_a_file(self):
        job = self.start_job([jobs.workload("counter.sh"), self.path("count")])
        waiting.until(lambda: os.path.exists(self.path("count")), "it counts", 30)
        self.checkpoint(job.pid, "counted:1", "--stop")
        job.reap()
        return job.log

    def test_in_a_file_of_its_own(self):
        log = self.image_of_one_with_a_file()
        result = self.cli.run("restore", "counted:1", "--detach", json_output=False)
        self.assertIn(f", its output goes to {log}\n", result.out, str(result))
        job = self.succeed("ps")["jobs"][0]
        self.kill_job_at_end(job["pid"])
        self.assertEqual((job["log"], job["output"]), ("", log))
        self.assertEqual(self.cli.run("logs", job["pid"], json_output=False).code, DONE)
        jobs.kill_tree(job["pid"])
        self.assertEqual(self.cli.run("wait", job["pid"]).code, KILLED)

        options = ("--from", "counted:1", "--every", "1h", "--detach", "--name", "on")
        result = self.cli.run("run", *options, json_output=False)
        self.assertIn(f"  name on  its output goes to {log}\n", result.out, str(result))
        self.assertEqual(self.one("on")["output"], log)
        self.succeed("stop", "on", "--grace", "0s")

    def test_one_that_fails_to_start_is_no_success(self):
        result = self.cli.run("run", "--hold", "--detach", "--name", "h", "--", "true", json_output=False)
        self.assertEqual(result.code, FAILED, str(result))
        self.assertIn("does it call ready()", result.err)
        self.assertEqual(result.out, "")


if __name__ == "__main__":
    unittest.main()
