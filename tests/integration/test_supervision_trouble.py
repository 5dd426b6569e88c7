"""Supervised jobs whose daemon, machine or clock fails them at an unlucky moment."""

import contextlib
import fcntl
import glob
import json
import os
import resource
import signal
import unittest

from harness import jobs, procfs, waiting
from harness.case import shell
from harness.small_disk import SmallDisk
from test_supervision import SupervisedTest, lines_of

# Says that it was asked to end, and does not.
_STUBBORN = 'trap "echo >>$0.asked" TERM; while :; do sleep 0.05; done'
# Needs a while to end, until there is a file for that.
_SLOW_TO_END = '''trap "echo >>$0.asked; until test -e $0.end; do sleep 0.05; done; exit 130" TERM
echo >$0.runs; while :; do sleep 0.05; done'''

_DEAF = "trap '' INT TERM; echo >$0.runs; while :; do sleep 0.05; done"

# CRIU can't save an io_uring, which it has until there is a file for that.
_CAN_NOT_BE_SAVED = """import ctypes, os, sys, time
io_uring = ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(120))
assert io_uring >= 0
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
os.close(io_uring)
time.sleep(3600)
"""

_CLEANS_ITS_WORKER = """import ctypes, os, sys, time
if os.fork() == 0:
    os.setsid()
    with open("/proc/self/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    begin, end = int(fields[47]), int(fields[48])
    ctypes.memset(begin, 0, end - begin)
    open(sys.argv[1], "w").close()
time.sleep(3600)
"""


class TroubleTest(SupervisedTest):
    def kill_both(self):
        pid = self.job()["pid"]
        self.daemon.kill()
        jobs.kill_tree(pid)

    @contextlib.contextmanager
    def record(self):
        """What is remembered of the job, to be changed while nobody supervises it."""
        (path,) = glob.glob(os.path.join(self.store, "supervised", "*.json"))
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        before = json.dumps(content)
        yield content
        if json.dumps(content) != before:
            with open(path, "w", encoding="utf-8") as file:
                json.dump(content, file)

    def wait_for_words(self, words, seconds=30):
        """In the daemon's log, which it writes whatever else it can't do."""
        waiting.until(lambda: words in self.daemon.log_text(), f"'{words}' in the log", seconds, 0.02)


class AskedForTest(TroubleTest):
    def test_an_image_that_was_asked_for_is_tried_again(self):
        """As before the machine goes, of a job of which none are taken by interval."""
        ready = self.path("may-be-saved")
        self.succeed("run", "--name", "job", "--restarts", "1", "--detach", "--",
                     jobs.PYTHON, "-c", _CAN_NOT_BE_SAVED, ready, cli=self.remote)
        os.kill(self.daemon.pid, signal.SIGUSR1)
        self.wait_for_words("no image was taken of job 'job'")
        with open(ready, "w", encoding="ascii"):
            pass
        state = self.wait_for_image()["supervised"]
        self.assertEqual(state["last_error"], "")
        waiting.until(lambda: self.job()["supervised"]["next_checkpoint_unix_ns"] == 0, "no next image is due")
        self.assertEqual(self.daemon.log_text().count("no image was taken of job 'job'"), 1)


class StopTest(TroubleTest):
    """`rekindle stop` of a job that does not want to end."""

    def begin_to_stop(self, grace):
        name = self.path("stubborn")
        self.succeed("run", "--name", "job", "--detach", "--every", "1h", "--restarts", "3", "--",
                     "sh", "-c", _STUBBORN, name, cli=self.remote)  # fmt: skip
        stop = self.remote.start("stop", "job", "--grace", grace)
        waiting.until(lambda: os.path.exists(name + ".asked"), "it was asked to end", 30, 0.005)
        return stop

    def stop_halfway(self, grace):
        """The daemon is killed in the middle of it."""
        stop = self.begin_to_stop(grace)
        pid = self.job()["pid"]
        self.daemon.kill()
        self.assertNotEqual(self.remote.finish(stop).code, 0)
        self.assertTrue(procfs.alive(pid))
        return pid

    def test_the_next_daemon_finishes_it(self):
        pid = self.stop_halfway("1s")
        self.restart_daemon()
        self.wait_for_end()
        self.assertFalse(procfs.alive(pid))
        self.assertEqual((self.state()["restarts"], self.state()["report"]), (0, "it was stopped"))

    def test_it_ends_before_the_next_daemon_is_there(self):
        jobs.kill_tree(self.stop_halfway("60s"))
        self.restart_daemon()
        self.wait_for_end()
        self.assertEqual((self.state()["restarts"], self.state()["report"]), (0, "it was stopped"))


    def test_another_call_has_less_patience(self):
        stop = self.begin_to_stop("10m")
        self.succeed("stop", "job", "--grace", "100ms", cli=self.remote)
        self.assertEqual(self.remote.finish(stop).code, 0)
        self.assertEqual(self.state()["report"], "it was stopped")

    def test_a_daemon_that_is_to_end_does_not_wait_for_it(self):
        stop = self.begin_to_stop("10m")
        pid = self.job()["pid"]
        self.daemon.stop()
        self.assertNotEqual(self.remote.finish(stop).code, 0)
        self.assertTrue(procfs.alive(pid))
        self.restart_daemon()
        self.succeed("stop", "job", "--grace", "100ms", cli=self.remote)
        self.assertFalse(procfs.alive(pid))


class SignalTest(TroubleTest):
    def test_one_that_takes_its_time_to_end_was_meant_to(self):
        """A program that writes a last checkpoint of its own, for longer than anybody can foresee."""
        name = self.path("slow")
        run = self.remote.start("run", "--name", "job", "--restarts", "3", "--", "sh", "-c", _SLOW_TO_END, name,
                                json_output=False)  # fmt: skip
        waiting.until(lambda: os.path.exists(name + ".runs"), "it runs", 30, 0.005)
        self.succeed("ckpt", "job", "-t", "of:1", cli=self.remote)
        run.send_signal(signal.SIGTERM)
        waiting.until(lambda: os.path.exists(name + ".asked"), "it was asked to end", 30, 0.005)
        self.daemon.kill()
        with self.record() as record:
            record["will_end_until_ns"] = "1"  # as if it were long ago; it has not been seen to go on
        self.restart_daemon()
        self.wait_for_words("it is supervised again")
        with open(name + ".end", "w", encoding="ascii"):
            pass
        self.wait_for_end()
        self.assertEqual(self.state()["restarts"], 0)
        self.assertIn("as was asked for", self.state()["report"])
        self.remote.finish(run)


    def test_one_that_survives_ctrl_c_stays_protected(self):
        """It reports no steps: that it still runs long after is what shows it."""
        name = self.path("deaf")
        self.succeed("run", "--detach", "--name", "job", "--restarts", "3", "--",
                     "sh", "-c", _DEAF, name, cli=self.remote)  # fmt: skip
        waiting.until(lambda: os.path.exists(name + ".runs"), "it runs", 30, 0.005)
        self.succeed("ckpt", "job", "-t", "of:1", cli=self.remote)
        attached = self.remote.start("attach", "job")
        json.loads(attached.stdout.readline())
        attached.send_signal(signal.SIGINT)
        (path,) = glob.glob(os.path.join(self.store, "supervised", "*.json"))

        def recorded():
            with open(path, encoding="utf-8") as file:
                return json.load(file)

        waiting.until(lambda: "will_end_quietly_until_ns" in recorded(), "it was sent the signal", 30, 0.05)
        self.daemon.kill()
        with self.record() as record:
            self.assertEqual(record["will_end_quietly_until_ns"], record["will_end_until_ns"], "as of steps")
            record["will_end_until_ns"] = record["will_end_quietly_until_ns"] = "1"  # as if it were long ago
        self.restart_daemon()
        self.wait_for_words("has gone on: when it dies it is brought back again")
        self.assertNotIn("will_end_until_ns", recorded())
        jobs.kill_tree(self.job()["pid"])
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "it is brought back")
        self.assertIn("has gone on", "".join(self.state()["warnings"]))
        self.succeed("stop", "job", "--grace", "0s", cli=self.remote)
        self.remote.finish(attached)

    def test_another_signal_may_take_its_time(self):
        name = self.path("deaf")
        self.succeed("run", "--detach", "--name", "job", "--restarts", "3", "--",
                     "sh", "-c", _DEAF, name, cli=self.remote)  # fmt: skip
        waiting.until(lambda: os.path.exists(name + ".runs"), "it runs", 30, 0.005)
        attached = self.remote.start("attach", "job")
        json.loads(attached.stdout.readline())
        attached.send_signal(signal.SIGTERM)
        (path,) = glob.glob(os.path.join(self.store, "supervised", "*.json"))

        def limits():
            with open(path, encoding="utf-8") as file:
                record = json.load(file)
            return [int(record.get(key, 0)) for key in ("will_end_until_ns", "will_end_quietly_until_ns")]

        steps, quiet = waiting.until(lambda: limits() if all(limits()) else None, "it was sent the signal", 30, 0.05)
        self.assertGreater(quiet, steps)
        self.succeed("stop", "job", "--grace", "0s", cli=self.remote)
        self.remote.finish(attached)


class BusyTest(TroubleTest):
    def test_who_keeps_its_images_away_for_long_is_told_of(self):
        """As a group does that waits for its other members."""
        self.start(100000, options=["--every", "200ms"])
        self.wait_for_image()
        follower = self.remote.start("attach", "job")
        told = (event["why"] for event in map(json.loads, follower.stdout) if set(event) == {"why"})
        with open(f"/proc/{self.job()['pid']}/personality", "rb") as claimed:
            fcntl.flock(claimed, fcntl.LOCK_EX)  # as whoever captures it does
            self.assertIn("another checkpoint of it is under way", next(told))
        self.assertEqual(next(told), "")
        self.succeed("stop", "job", "--grace", "0s", cli=self.remote)
        self.assertEqual(list(told), [])
        self.remote.finish(follower)


class KilledDaemonTest(TroubleTest):
    def put_off(self):
        with self.record() as record:
            return record.get("images_put_off", 0)

    def test_images_that_were_put_off_count_over_daemons(self):
        """Of one that never waits for its killed child: where daemons come and go there would be none."""
        self.succeed("run", "--name", "job", "--detach", "--every", "1s", "--", jobs.PYTHON, "-c",
                     "import os, time\nif os.fork() == 0: os.kill(os.getpid(), 9)\nwhile True: time.sleep(0.1)",
                     cli=self.remote)  # fmt: skip
        waiting.until(lambda: self.put_off() >= 2, "it is put off")
        self.assertIn("put off", self.state()["last_error"])
        self.daemon.kill()
        before = self.put_off()
        self.restart_daemon()
        waiting.until(lambda: self.put_off() != before, "it is put off once more")
        self.assertGreater(self.put_off(), before)
        self.wait_for_image()
        waiting.until(lambda: not self.state()["last_error"], "that it was is told no more")

    def test_in_the_first_moments_of_a_job(self):
        """It is begun anew; that there is no life in the record is not taken for one of another boot."""
        self.start(100000, options=["--every", "1h", "--restarts", "1"])
        pid = self.job()["pid"]
        self.daemon.kill()
        with self.record() as record:
            record["coming_to_life"] = True
            for field in ("pid", "start_ticks", "life_began_unix_ns", "life_began_ns"):
                record.pop(field, None)
        self.restart_daemon()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "it is begun anew")
        self.assertFalse(procfs.alive(pid) and self.job()["pid"] != pid, "what was begun is there besides")
        self.assertIn(self.state()["phase"], ("running", "checkpointing"))

    def test_dying_together_often(self):
        """A job that takes images is not to blame for the end of its node."""
        self.start(100000, options=["--every", "200ms", "--restarts", "10"])
        for restarts in range(1, 7):
            self.wait_for_image(self.job()["supervised"]["checkpoints"])
            self.kill_both()
            self.restart_daemon()
            self.wait_for(lambda job, n=restarts: job["supervised"]["restarts"] == n, f"restart {restarts}")
            self.wait_for(lambda job: job["supervised"]["phase"] in ("running", "checkpointing"), "it runs")
        self.assertNotIn("further back", self.daemon.log_text())

    def test_a_worker_that_cleans_its_environment_goes_with_its_job(self):
        """As setproctitle does it: nothing tells any more whose it is, and it has a PID that the job needs."""
        self.succeed("run", "--name", "job", "--detach", "--every", "300ms", "--restarts", "3", "--",
                     jobs.PYTHON, "-c", _CLEANS_ITS_WORKER, self.path("clean"), cli=self.remote)  # fmt: skip
        waiting.until(lambda: os.path.exists(self.path("clean")), "a worker without an environment", 30, 0.02)
        self.wait_for_image(self.state()["checkpoints"] + 1)
        pid = self.job()["pid"]
        self.assertEqual(len(procfs.descendants(pid)), 1)
        self.daemon.kill()
        os.kill(pid, signal.SIGKILL)
        self.restart_daemon()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        self.assertNotIn("can't be brought back yet", self.daemon.log_text())

    def test_an_unseen_death_is_no_success(self):
        self.start(100000, options=["--every", "1h", "--restarts", "0"])
        self.kill_both()
        self.restart_daemon()
        self.wait_for_end("failed")
        self.assertEqual(self.remote.run("attach", "job", json_output=False).code, 128 + signal.SIGKILL)


class ClockTest(TroubleTest):
    def test_the_newest_image_is_that_of_the_greatest_number(self):
        """As if the clock had been set back between any two of them."""
        self.start(100000, options=["--every", "200ms", "--restarts", "3"])
        self.wait_for_image(2)
        self.kill_both()
        with self.record() as record:
            points = record["points"]
            self.assertGreaterEqual(len(points), 2)
            numbers = [int(point["number"]) for point in points]
            self.assertEqual(numbers, sorted(set(numbers)))
            times = sorted(int(point["taken_unix_ns"]) for point in points)
            for point, time in zip(points, reversed(times)):
                point["taken_unix_ns"] = str(time)
            points.reverse()
            older = [point["image"] for point in points[1:]]
        self.restart_daemon()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        log = self.daemon.log_text()
        self.assertIn("goes on from job:", log)
        self.assertFalse([image for image in older if f"goes on from {image}" in log], log)


class HinderedTest(TroubleTest):
    """The daemon may open no more files: a trouble of the machine."""

    def hinder(self, options):
        self.start(100000, options=["--every", "300ms", "--restarts", "3", *options])
        self.wait_for_image(1)
        pid = self.job()["pid"]
        self.limits = resource.prlimit(self.daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.daemon.pid, resource.RLIMIT_NOFILE, (4, self.limits[1]))
        os.kill(pid, signal.SIGKILL)
        self.wait_for_words("can't be brought back yet")
        self.assertIn("Too many open files", self.daemon.log_text())

    def relieve(self):
        resource.prlimit(self.daemon.pid, resource.RLIMIT_NOFILE, self.limits)

    def test_it_comes_back_from_the_same_image_when_that_is_over(self):
        self.hinder([])
        self.relieve()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        self.assertNotIn("could not be brought back from", self.daemon.log_text())
        self.assertNotIn("brought back", self.state()["last_error"])
        at = len(lines_of(self.numbers))
        waiting.until(lambda: len(lines_of(self.numbers)) > at, "more lines", 30, 0.02)

    def test_it_is_given_up_when_that_lasts(self):
        self.hinder(["--retry-for", "1s"])
        self.wait_for_words("ended for good")
        self.relieve()
        self.assertEqual(self.state()["phase"], "failed")


class FullStoreTest(TroubleTest):
    def setUp(self):
        super().setUp()
        self.daemon.kill()
        self.disk = SmallDisk(self, "ext4")
        self.store = os.path.join(self.disk.path, "store")
        self.restart_daemon()

    def test_no_room_in_the_store_keeps_no_job_from_coming_back(self):
        self.start(100000, options=["--every", "300ms", "--restarts", "3"])
        self.wait_for_image()
        self.disk.fill()
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        at = len(lines_of(self.numbers))
        waiting.until(lambda: len(lines_of(self.numbers)) > at, "more lines", 30, 0.02)
        self.disk.give_back()
        self.wait_for_image(self.state()["checkpoints"])
        self.remote.run("stop", "job", "--grace", "1s")
        self.daemon.stop()

    def test_a_life_that_could_not_be_recorded_is_when_there_is_room(self):
        self.start(100000, options=["--restarts", "3"])
        self.succeed("ckpt", "job", "-t", "x:1", cli=self.remote)
        self.disk.fill()
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        started = procfs.start_ticks(self.job()["pid"])
        self.disk.give_back()

        def is_recorded():
            with self.record() as record:
                return record["start_ticks"] == str(started)

        waiting.until(is_recorded, "its new life is recorded", 30, 0.1)
        self.daemon.kill()
        self.restart_daemon()
        self.wait_for_words("it is supervised again")
        self.assertEqual(procfs.start_ticks(self.job()["pid"]), started)
        at = len(lines_of(self.numbers))
        waiting.until(lambda: len(lines_of(self.numbers)) > at, "more lines", 30, 0.02)
        self.remote.run("stop", "job", "--grace", "1s")
        self.daemon.stop()


class HangingDiskTest(TroubleTest):
    """The disk with the records takes nothing for a while, as an NFS server does that has gone."""

    def setUp(self):
        super().setUp()
        self.disk = SmallDisk(self, "ext4")
        records = os.path.join(self.store, "supervised")
        os.makedirs(records, exist_ok=True)
        shell("mount", "--bind", self.disk.path, records)
        self.addCleanup(shell, "umount", records)
        self.daemon.kill()  # it has the lock of the folder below
        self.restart_daemon()
        self.start(100000, options=["--every", "1h", "--restarts", "3"])
        shell("fsfreeze", "--freeze", self.disk.path)
        self.frozen = True
        self.addCleanup(self.thaw)

    def thaw(self):
        if self.frozen:
            shell("fsfreeze", "--unfreeze", self.disk.path)
        self.frozen = False

    def waits_for_disk(self):
        """Threads of the daemon that do."""
        tasks = [int(task) for task in os.listdir(f"/proc/{self.daemon.pid}/task")]
        return [task for task in tasks if procfs.state(task) == "D"]

    def seen(self):
        """As `ps` shows it, which must not wait for the disk."""
        (job,) = self.succeed("ps", "--all", cli=self.remote, seconds=10)["jobs"]
        return job

    def written(self):
        (path,) = glob.glob(os.path.join(self.store, "supervised", "*.json"))
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def test_a_dead_job_is_shown_and_comes_back_when_the_disk_does(self):
        os.kill(self.seen()["pid"], signal.SIGKILL)
        waiting.until(self.waits_for_disk, "the death is being recorded", 30, 0.02)
        self.assertEqual(self.seen()["supervised"]["phase"], "waiting")
        self.thaw()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        waiting.until(lambda: self.written().get("restart_count") == 1, "the restart is recorded", 30, 0.02)

    def test_an_end_is_shown_as_one_when_it_is_recorded(self):
        pid = self.seen()["pid"]
        stop = self.remote.start("stop", "job", "--grace", "30s")
        waiting.until(lambda: len(self.waits_for_disk()) >= 1, "the stop is being recorded", 30, 0.02)
        # The next daemon would not know that it is to end.
        self.assertTrue(procfs.alive(pid))
        self.assertEqual(self.seen()["supervised"]["phase"], "running")
        self.assertIsNone(stop.poll())
        self.thaw()
        self.assertEqual(self.remote.finish(stop).code, 0)
        self.assertFalse(procfs.alive(pid))
        self.assertEqual(self.seen()["supervised"]["phase"], "done")
        self.assertTrue(self.written()["ended"])


if __name__ == "__main__":
    unittest.main()
