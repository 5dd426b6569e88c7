"""Supervised jobs beside others: what carries their mark from an image, has a PID or the name of an image that was theirs,
or is of their group.
"""

import ctypes
import glob
import json
import os
import signal
import struct
import unittest

from harness import jobs, procfs, waiting
from harness.cli import FAILED, Cli, Daemon
from harness.reporting import ReportingTest
from test_supervision import NOBODY, SupervisedTest, lines_of

_CLONE3 = 435
_MACHINE_ID = "/etc/machine-id"


def start_with_pid(pid):
    """A process that has this number, and leads a session of its own. None: somebody has it still."""
    child = os.fork()
    if child == 0:
        number = ctypes.c_int(pid)
        arguments = struct.pack("11Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(number), 1, 0)
        started = ctypes.CDLL(None).syscall(_CLONE3, arguments, len(arguments))
        if started == 0:
            os.setsid()
            os.execvp("sleep", ["sleep", "1000"])
        os._exit(0 if started > 0 else 1)
    _, status = os.waitpid(child, 0)
    return pid if os.waitstatus_to_exitcode(status) == 0 else None


class OthersTest(SupervisedTest):
    def record(self, name="job"):
        with open(os.path.join(self.store, "supervised", f"{name}.json"), encoding="utf-8") as file:
            return json.load(file)

    def points(self):
        return [point["image"] for point in self.record().get("points", [])]

    def count_in_log(self, words):
        return self.daemon.log_text().count(words)

    def wait_for_words(self, words, count=1, seconds=60):
        waiting.until(lambda: self.count_in_log(words) >= count, f"'{words}' {count} times in the log", seconds, 0.02)

    def one(self, name):
        return next((job for job in self.succeed("ps", "--all", cli=self.remote)["jobs"] if job["name"] == name), None)


class MarkTest(OthersTest):
    def setUp(self):
        super().setUp()
        self.start(100000, options=["--every", "300ms", "--restarts", "5"])
        self.wait_for_image()
        self.succeed("ckpt", "job", "-t", "base:1", cli=self.remote)

    def wait_until_it_carries_the_mark(self, pid):
        """Of a copy the page comes when it is asked for, or later."""

        def carries():
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    return b"REKINDLE_JOB_FILE=" in file.read()
            except OSError:
                return False

        waiting.until(carries, "its environment", 60)

    def end_pagers(self):
        """They stay for a while after their last job."""
        for pid in procfs.descendants(os.getpid()):
            if procfs.command_line(pid).split(" ")[0].endswith("/rekindle-pager"):
                os.kill(pid, signal.SIGKILL)

    def test_clones_of_its_image_outlive_its_deaths(self):
        self.addCleanup(self.end_pagers)
        clone = self.succeed("restore", "base:1", "--clone", "--detach", "--name", "copy", cli=self.remote)["job"]["pid"]
        self.addCleanup(jobs.kill_tree, clone)
        self.wait_until_it_carries_the_mark(clone)
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        self.assertTrue(procfs.alive(clone))
        self.succeed("stop", "job", "--grace", "1s", cli=self.remote)
        self.assertTrue(procfs.alive(clone))

    def test_a_job_from_its_image_outlives_another_of_its_name(self):
        self.succeed("stop", "job", "--grace", "1s", cli=self.remote)
        self.succeed("run", "--from", "base:1", "--name", "exp", "--every", "1h", "--restarts", "5", "--detach",
                     cli=self.remote)  # fmt: skip
        self.addCleanup(self.remote.run, "stop", "exp", "--grace", "1s")
        pid = self.one("exp")["pid"]
        self.wait_until_it_carries_the_mark(pid)
        for uid in (NOBODY, 0):
            other = self.make_cli(host=self.daemon.host, uid=uid)
            self.succeed("run", "--restarts", "1", "--name", "job", "--", "true", cli=other)
        self.assertEqual(self.count_in_log("job 'exp' (PID"), 0)  # its end
        self.assertTrue(procfs.alive(pid))

    def test_a_job_from_its_image_keeps_its_pids_while_it_waits(self):
        """Who has been restored meanwhile is not ended for the one that wants to come back."""
        self.daemon.kill()
        pid = self.record()["pid"]
        jobs.kill_tree(pid)
        self.restart_daemon()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        self.succeed("stop", "job", "--grace", "1s", cli=self.remote)
        self.succeed("run", "--from", "base:1", "--name", "job", "--backoff", "10s", "--restarts", "5", "--detach",
                     cli=self.remote)  # fmt: skip
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        other = self.restored_while_it_waits("base:1")
        self.assertEqual(other, pid)
        restarts = self.job()["supervised"]["restarts"]
        self.wait_for_words("can't be brought back yet", 2)
        self.assertTrue(procfs.alive(other))
        jobs.kill_tree(other)
        self.wait_for(lambda job: job["supervised"]["restarts"] == restarts + 1, "a restart", 120)

    def restored_while_it_waits(self, image):
        """The PID of another job from the image."""
        for _ in range(3):
            # The second death in a row without an image is followed by a wait, and each further one by one twice as
            # long: a busy machine may have missed one.
            self.kill_job()
            self.wait_for(lambda job: job["supervised"]["phase"] == "waiting", "its wait")
            done = self.remote.run("restore", image, "--name", "other", "--detach")
            if done.code == 0:
                other = done.data["job"]["pid"]
                self.addCleanup(jobs.kill_tree, other)
                return other
            self.wait_for(lambda job: job["supervised"]["phase"] == "running", "a restart")
        self.fail(done)


class ReportingFromTest(ReportingTest):
    def test_under_another_name_it_reports_and_is_found_after_the_daemon_was_killed(self):
        self.start_reporting_with("run", "--detach", "--name", "train", "--every", "1s", "--restarts", "5")
        self.wait_for_event("continued")
        self.succeed("ckpt", "train", "-t", "base:1")
        self.succeed("stop", "train", "--grace", "1s")
        self.assertEqual(os.listdir(os.path.join(self.runtime, "progress")), [])
        self.succeed("run", "--from", "base:1", "--name", "exp", "--every", "1s", "--restarts", "5", "--detach")
        self.addCleanup(self.cli.run, "stop", "exp", "--grace", "1s")
        at = self.last_step()
        waiting.until(lambda: (said := self.job("exp")["progress"]) and said["step"] > at, "it reports", 60)
        images = self.job("exp")["supervised"]["checkpoints"]
        waiting.until(lambda: self.job("exp")["supervised"]["checkpoints"] > images + 1, "images at boundaries", 60)
        self.assert_no_step_is_missing()
        # As if the daemon had died while it brought it back.
        self.daemon.kill()
        pid = self.record("exp", coming_to_life=True)["pid"]
        pidfd = os.pidfd_open(pid)
        self.addCleanup(os.close, pidfd)
        self.daemon = self.start_daemon("--standby", "0")
        self.addCleanup(self.cli.run, "stop", "exp", "--grace", "1s")  # before this daemon is
        waiting.until(self.is_back, "it is brought back", 60)
        self.assertIn("1 of its processes ended with it", self.daemon.log_text())
        with self.assertRaises(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, 0)

    def is_back(self):
        jobs.reap_orphans()  # of a killed daemon: nobody else takes their exit status
        return self.job("exp")["supervised"]["restarts"] == 1

    def record(self, name, **change):
        path = os.path.join(self.store, "supervised", name + ".json")
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**content, **change}, file)
        return content


class PidTest(OthersTest):
    def test_a_checkpoint_while_it_waits(self):
        self.start(100000, options=["--restarts", "9", "--backoff", "5m"])
        self.succeed("ckpt", "job", "-t", "mine:1", cli=self.remote)
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["phase"] == "waiting", "its wait")
        refused = self.remote.run("ckpt", "job", "-t", "mine:2")
        self.assertEqual(refused.code, FAILED, str(refused))
        self.assertIn("job 'job' is being brought back from mine:1: try again", refused.message)

    def test_who_has_its_pid_meanwhile_is_not_ended(self):
        self.start(100000, options=["--restarts", "9", "--backoff", "5s"])
        self.succeed("ckpt", "job", "-t", "mine:1", cli=self.remote)
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        pid = self.kill_job()
        self.wait_for(lambda job: job["supervised"]["phase"] == "waiting", "its wait")
        stranger = waiting.until(lambda: start_with_pid(pid), "the number")
        self.addCleanup(jobs.kill_tree, stranger)
        self.wait_for_words("can't be brought back yet", 3)
        self.assertTrue(procfs.alive(stranger))
        self.assertEqual(procfs.command_line(stranger), "sleep 1000")
        jobs.kill_tree(stranger)
        self.wait_for(lambda job: job["supervised"]["restarts"] == 2, "a restart")


class PointsTest(OthersTest):
    def test_an_image_that_took_the_name_of_its_own_is_not_gone_on_from(self):
        self.start(100000, options=["--restarts", "5"])
        self.succeed("ckpt", "job", "-t", "base:1", cli=self.remote)
        other = self.start_job([jobs.PYTHON, jobs.workload("counting.py"), self.path("other"), "100000"], "other")
        self.succeed("ckpt", other.pid, "-t", "base:1", "--replace", cli=self.remote)
        self.kill_job()
        self.wait_for_end("failed")
        self.assertIn("its images are gone", self.state()["report"])
        self.assertNotIn("goes on from", self.daemon.log_text())

    def test_an_image_that_somebody_imported_is_kept(self):
        self.start(100000, options=["--every", "200ms", "--restarts", "5", "--keep", "1"])
        self.wait_for_image()
        archive = self.path("archive")
        self.daemon.kill()
        self.succeed("export", self.points()[-1], "--file", archive)
        self.succeed("import", "--file", archive, "-t", "keep:forever")
        self.restart_daemon()
        self.wait_for(lambda job: job["supervised"]["checkpoints"] > 0, "it is taken over")
        self.wait_for_image(self.state()["checkpoints"])
        self.assertIn("keep:forever", self.points())
        self.wait_for_image(self.state()["checkpoints"] + 2)
        images = [image["reference"] for image in self.succeed("ls", cli=self.remote)["images"]]
        self.assertIn("keep:forever", images)

    def group(self, *options):
        return self.remote.run("group", "ckpt", "grp:1", "--member", "job", *options)

    def test_an_image_of_a_group_that_is_given_up_is_none_of_its_points(self):
        self.start(100000, options=["--restarts", "5"])
        self.succeed("ckpt", "job", "-t", "mine:1", cli=self.remote)
        first = self.group()
        self.assertEqual(first.code, 0, str(first))
        self.assertEqual(self.points(), ["mine:1", "grp/0:1"])
        self.succeed("ckpt", "job", "-t", "mine:2", cli=self.remote)
        lines = len(lines_of(self.numbers))
        self.daemon.kill()
        self.environment["REKINDLE_GROUP_POINT"] = "coordinator-deciding=KILL"
        self.restart_daemon()
        self.assertEqual(self.group("--replace").code, FAILED)
        waiting.for_exit(self.daemon.pid)
        del self.environment["REKINDLE_GROUP_POINT"]
        self.restart_daemon()
        self.wait_for_words("of group", 1)
        self.assertEqual(self.points(), ["mine:1", "grp/0:1", "mine:2"])
        self.kill_job()
        self.wait_for_words("goes on from mine:2")
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        self.assertGreaterEqual(len(lines_of(self.numbers)), lines - 10)


    def test_an_image_of_a_group_that_is_published_later_is_one(self):
        self.start(100000, options=["--restarts", "5"])
        self.daemon.kill()
        self.environment["REKINDLE_GROUP_POINT"] = "coordinator-decided=KILL"
        self.restart_daemon()
        self.group()
        waiting.for_exit(self.daemon.pid)
        del self.environment["REKINDLE_GROUP_POINT"]
        self.restart_daemon()
        waiting.until(lambda: "grp/0:1" in self.references(cli=self.remote), "it is published", 30)
        self.kill_job()
        self.wait_for_words("goes on from grp/0:1")
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        self.assertEqual(self.record()["points"][0].get("ours", False), False)


class EndedTest(OthersTest):
    def watches(self):
        """Of all instances of inotify that the daemon has."""
        count = 0
        for number, target in procfs.descriptor_targets(self.daemon.pid).items():
            if target.endswith("inotify"):
                with open(f"/proc/{self.daemon.pid}/fdinfo/{number}", encoding="ascii") as info:
                    count += sum(line.startswith("inotify wd:") for line in info)
        return count

    def test_ended_jobs_hold_nothing(self):
        before = self.watches()
        for number in range(3):
            self.succeed("run", "--restarts", "1", "--name", f"short{number}", "--", "true", cli=self.remote)
        self.assertLessEqual(self.watches(), before)
        self.assertEqual(glob.glob(os.path.join(self.runtime, "progress", "*")), [])


# A CRIU whose dump fails when it is told to.
_FAILING_CRIU = """#!/bin/sh
if [ "$1" = --version ]; then echo "Version: 4.2.1"; exit; fi
: > {path}.there
until [ -e {path}.go ]; do sleep 0.02; done
exit 1
"""


class TwoStopsTest(OthersTest):
    def test_one_with_an_image_that_comes_too_late_for_it_says_so(self):
        self.succeed("run", "--name", "job", "--detach", "--restarts", "1", "--", "sh", "-c",
                     "trap '' TERM; while :; do sleep 0.1; done", cli=self.remote)  # fmt: skip
        plain = self.remote.start("stop", "job", "--grace", "4s")
        waiting.until(lambda: self.record().get("stopping"), "the first stop")
        refused = self.remote.run("stop", "job", "--ckpt", "--grace", "600s")
        self.assert_refused(refused, FAILED, "has ended, and without a last image: another call stopped it")
        self.assertEqual(self.remote.finish(plain).code, 0)
        self.assertEqual(self.references(), [])

    def test_one_that_fails_with_its_image_does_not_undo_the_other(self):
        criu = self.path("criu")
        with open(criu, "w", encoding="ascii") as file:
            file.write(_FAILING_CRIU.format(path=criu))
        os.chmod(criu, 0o755)
        self.daemon.stop()
        self.environment["REKINDLE_CRIU"] = criu
        self.restart_daemon()
        self.start(100000, options=["--restarts", "5"])
        pid = self.job()["pid"]
        with_image = self.remote.start("stop", "job", "--ckpt")
        waiting.until(lambda: os.path.exists(criu + ".there"), "an image in work", 60)
        plain = self.remote.start("stop", "job", "--grace", "1s")
        waiting.until(lambda: self.record().get("stopping"), "the other stop")
        with open(criu + ".go", "w", encoding="ascii"):
            pass
        result = self.remote.finish(plain)
        self.assertEqual(result.code, 0, str(result))
        self.assert_refused(self.remote.finish(with_image), FAILED, "another call stopped the job, without an image")
        self.assertFalse(procfs.alive(pid))
        self.assertEqual(self.state()["phase"], "done")


class RequestTest(OthersTest):
    def test_a_daemon_that_is_to_end_does_not_wait_for_a_job_that_waits(self):
        self.succeed("run", "--name", "job", "--detach", "--restarts", "9", "--backoff", "5m", "--", "sh", "-c", "exit 3",
                     cli=self.remote)  # fmt: skip
        self.wait_for(lambda job: job["supervised"]["phase"] == "waiting", "its wait")
        os.kill(self.daemon.pid, signal.SIGUSR1)
        self.wait_for_words("no last image of job 'job': job 'job' waits to be brought back")
        os.kill(self.daemon.pid, signal.SIGTERM)
        waiting.for_exit(self.daemon.pid, 15)


@unittest.skipUnless(os.path.exists(_MACHINE_ID), f"this machine has no {_MACHINE_ID}")
class MachineTest(OthersTest):
    """Machines that share a store: the other one's record says so."""

    OTHER = "0123456789abcdef0123456789abcdef"

    def move_to_another_machine(self):
        """Its processes are of another boot, and of other numbers, wherever they run."""
        record = self.record()
        with open(_MACHINE_ID, encoding="ascii") as file:
            self.assertEqual(record["machine"], file.read().strip())
        record.update(machine=self.OTHER, host="node-b", boot_id="00000000-0000-4000-8000-000000000000")
        with open(os.path.join(self.store, "supervised", "job.json"), "w", encoding="utf-8") as file:
            json.dump(record, file)

    def test_a_job_of_another_machine_is_left_to_it(self):
        self.start(100000, options=["--every", "300ms", "--restarts", "5", "--at-boot"])
        image = self.wait_for_image()["image"]
        pid = self.record()["pid"]
        self.kill_job_at_end(pid)
        self.daemon.kill()
        self.move_to_another_machine()
        self.restart_daemon()
        self.wait_for_words("is the machine node-b's")
        self.assertIsNone(self.one("job")["supervised"])  # the process is in this machine's list, in truth
        refused = self.remote.run("stop", "job")
        self.assertNotEqual(refused.code, 0, str(refused))
        self.assertIn("node-b", refused.message)
        self.assertTrue(procfs.alive(pid))
        self.assertEqual(self.record()["host"], "node-b")
        jobs.kill_tree(pid)
        self.succeed("run", "--from", image, "--name", "here", "--every", "1h", "--detach", cli=self.remote)
        self.addCleanup(self.remote.run, "stop", "here", "--grace", "1s")
        self.assertTrue(procfs.alive(self.one("here")["pid"]))

    def test_each_machine_has_a_daemon_that_supervises(self):
        """Stopped is that of one machine: the job of it runs on, and nobody else takes it."""
        self.start(100000, options=["--every", "300ms", "--restarts", "5", "--at-boot"])
        self.wait_for_image()
        pid = self.record()["pid"]
        machine_id = self.path("machine-id")
        with open(machine_id, "w", encoding="ascii") as file:
            file.write(self.OTHER + "\n")
        there = self.path("there")
        os.mkdir(there)
        environment = dict(self.environment, REKINDLE_RUNTIME_DIR=os.path.join(there, "run"))
        prefix = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" ' + _MACHINE_ID + ' && exec "$@"', machine_id]
        other = Daemon(there, self.store, environment, prefix=prefix)
        self.addCleanup(other.stop)
        theirs = Cli(host=other.host, env=environment)
        refused = theirs.run("run", "--name", "job", "--every", "1h", "--", "true")
        self.assertNotEqual(refused.code, 0, str(refused))
        self.assertIn(os.uname().nodename, refused.message)
        self.assertNotIn("kill", refused.message)
        started = self.succeed("run", "--name", "another", "--every", "1h", "--detach", "--", "sleep", "1000", cli=theirs)
        self.kill_job_at_end(started["job"]["pid"])
        self.daemon.stop()
        other.stop()
        other = Daemon(there, self.store, environment, prefix=prefix)
        self.addCleanup(other.stop)
        waiting.until(lambda: "nobody supervises it now" in other.log_text(), "the other has seen it", 60, 0.05)
        self.assertTrue(procfs.alive(pid))
        self.restart_daemon()
        self.wait_for(lambda job: job["pid"] == pid and job["supervised"]["phase"] == "running", "it is supervised again")
        self.assertEqual(self.state()["restarts"], 0)


if __name__ == "__main__":
    unittest.main()
