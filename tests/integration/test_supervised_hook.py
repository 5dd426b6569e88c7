"""Jobs under a real supervisor that report and offer moments for an image."""

import json
import os
import re
import signal
import subprocess
import time

from harness import jobs, procfs, waiting
from harness.case import RekindleTest, shell
from harness.cli import DONE
from harness.clones import HOOK_PYTHON, CloneTest, hook_library
from harness.reporting import JobFile, Reporting, ReportingTest
from harness.small_disk import SmallDisk

_LOADS_FOR_LONG = """import os, sys, time, rekindle
if not os.path.exists(sys.argv[1]):
    open(sys.argv[1], "w").close()
    rekindle.progress(1, 2)
    os.abort()
for _ in range(40):
    print("loading", flush=True)
    time.sleep(0.1)
"""

# An image can be taken until the file is there; then it reports once, and dies.
_LOADS_FOR_LONG_AFTER_ITS_IMAGE = """import os, sys, time, rekindle
while not os.path.exists(sys.argv[1]):
    print("loading", flush=True)
    time.sleep(0.1)
if not os.path.exists(sys.argv[1] + ".lived"):
    open(sys.argv[1] + ".lived", "w").close()
    rekindle.progress(1, 2)
    os.abort()
for _ in range(40):
    print("loading", flush=True)
    time.sleep(0.1)
"""

_HANGS_ONCE_TOLD = """import os, sys, time
while not os.path.exists(sys.argv[1]):
    print("works", flush=True)
    time.sleep(0.05)
time.sleep(3600)
"""

_STANDS_AT_A_BOUNDARY_ONCE_TOLD = """import os, sys, time, rekindle
for _ in range(5):
    rekindle.checkpoint_here()
    time.sleep(0.2)
open(sys.argv[1], "w").close()
while not os.path.exists(sys.argv[1] + ".go-on"):
    time.sleep(0.05)
rekindle.checkpoint_here()
time.sleep(3600)
"""

_STANDS_AT_A_BOUNDARY_TWICE = """import sys, time, rekindle
for _ in range(5):
    rekindle.checkpoint_here()
    time.sleep(0.2)
open(sys.argv[1], "w").close()
time.sleep(3600)
"""

# It makes the file after its supervisor has looked for files, if one looks before it comes to its boundary.
_REMOVES_BEHIND_EACH_BOUNDARY = """import itertools, os, sys, time, rekindle
for step in itertools.count():
    path = f"{sys.argv[1]}/{step}"
    open(path, "w").close()
    rekindle.checkpoint_here()
    os.remove(path)
    time.sleep(0.05)
"""


class SupervisedHookTest(ReportingTest):
    def start_supervised(self, *options):
        self.start_reporting_with("run", "--detach", "--name", "train", *options)
        self.addCleanup(self.cli.run, "stop", "train", "--grace", "1s")

    def restarts(self):
        return self.job("train")["supervised"]["restarts"]

    def test_images_at_boundaries_and_back_from_one(self):
        """What the log has behind the image is cut off when the job is brought back: no step twice."""
        self.start_supervised("--every", "1s", "--restarts", "5")
        self.wait_for_event("continued")
        waiting.until(lambda: self.job("train")["supervised"]["checkpoints"] > 0, "it is stored", 60)
        for restart in range(1, 3):
            pid = self.job("train")["pid"]
            at = self.last_step()
            os.kill(pid, signal.SIGKILL)
            waiting.until(lambda: self.restarts() == restart, "it is brought back", 60)
            waiting.until(lambda: self.last_step() > at, "further than before", 60)
            self.assertTrue(any(line.startswith("restored at ") for line in self.lines()), self.lines()[-20:])
            self.assert_no_step_is_missing()
            waiting.until(lambda: self.job("train")["progress"]["step"] > at, "it reports")

    def test_an_image_that_somebody_asks_for_is_of_a_boundary(self):
        self.start_supervised("--restarts", "5")
        waiting.until(lambda: (self.job("train")["progress"] or {}).get("boundaries"), "boundaries")
        # It stands there until the image has all of its memory.
        self.succeed("ckpt", "train", "-t", "mine:1")
        step = self.wait_for_event("continued")
        waiting.until(lambda: self.last_step() > step, "it goes on")
        os.kill(self.job("train")["pid"], signal.SIGKILL)
        self.assertEqual(self.wait_for_event("restored", 60), step)
        self.assert_no_step_is_missing()

    def test_what_it_removes_right_after_an_image_is_there_again(self):
        for asked in (True, False):
            with self.subTest(asked=asked):
                work = self.path(str(asked))
                os.mkdir(work)

                def last_step(work=work):
                    return max((int(name) for name in os.listdir(work) if name.isdigit()), default=0)

                self.run_script("2", _REMOVES_BEHIND_EACH_BOUNDARY, work,
                                "--every", "1h" if asked else "1s", "--keep-removed", work)  # fmt: skip
                waiting.until(lambda: last_step() > 2, "boundaries")
                if asked:
                    self.succeed("ckpt", "train", "-t", "mine:1")
                else:
                    waiting.until(lambda: self.job("train")["supervised"]["checkpoints"], "an image")
                os.kill(self.job("train")["pid"], signal.SIGSTOP)
                at = last_step()
                os.kill(self.job("train")["pid"], signal.SIGKILL)
                waiting.until(lambda: self.restarts() > 0, "a restart", 60)
                waiting.until(lambda: last_step() > at + 5 or self.restarts() > 1, "it goes on", 60)
                self.assertEqual(self.restarts(), 1, self.job("train")["supervised"]["deaths"])
                self.succeed("stop", "train", "--grace", "0s")

    def test_who_asks_for_an_image_and_gives_it_up_holds_nobody(self):
        self.run_script("3", _STANDS_AT_A_BOUNDARY_TWICE, self.path("stands"))
        waiting.until(lambda: os.path.exists(self.path("stands")), "no more boundaries", 60)
        folder = os.path.join(self.runtime, "progress")
        file = JobFile(os.path.join(folder, os.listdir(folder)[0]), make=False)
        before = file.daemon()
        asks = self.cli.start("ckpt", "train", "-t", "mine:1")
        waiting.until(lambda: file.daemon().due > before.due, "it is waited for", 60)
        began = time.monotonic()
        asks.send_signal(signal.SIGINT)
        waiting.until(lambda: file.daemon().released == file.daemon().due, "it need not wait any more", 60)
        self.assertNotEqual(self.cli.finish(asks).code, 0)
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual((file.daemon().taken, self.succeed("ls").get("images", [])), (before.taken, []))
        waiting.until(lambda: self.job("train")["supervised"]["phase"] == "running", "it runs")

    def test_an_image_that_it_asks_for(self):
        self.start_supervised("--restarts", "5")
        waiting.until(self.lines, "a step")
        with open(self.log + ".ask", "w", encoding="ascii"):
            pass
        step = self.wait_for_event("continued", 60)
        waiting.until(lambda: self.job("train")["supervised"]["checkpoints"] == 1, "it is counted")
        os.kill(self.job("train")["pid"], signal.SIGKILL)
        self.assertEqual(self.wait_for_event("restored", 60), step)

    def test_one_that_begins_anew_may_be_quiet_until_it_reports(self):
        """Its first life has reported; in its second one it loads for longer than it may be silent."""
        self.run_script("3", _LOADS_FOR_LONG, self.path("lived"), "--hang", "2s")
        ended = waiting.until(lambda: self.ended("train"), "its end", 60)
        self.assertEqual((ended["phase"], ended["restarts"]), ("done", 1), ended)

    def test_one_that_goes_on_from_before_its_first_report_may_be_quiet_until_it_reports(self):
        self.run_script("3", _LOADS_FOR_LONG_AFTER_ITS_IMAGE, self.path("report"), "--hang", "2s")
        self.succeed("ckpt", "train", "-t", "mine:1")
        with open(self.path("report"), "w", encoding="ascii"):
            pass
        ended = waiting.until(lambda: self.ended("train"), "its end", 60)
        self.assertEqual((ended["phase"], ended["restarts"]), ("done", 1), ended)

    def test_it_is_told_where_its_reports_are_not_heard(self):
        self.start_supervised("--every", "1h", "--restarts", "5")
        self.succeed("ckpt", "train", "-t", "mine:1")
        self.assertEqual(self.job("train")["supervised"]["warnings"], [])
        self.succeed("stop", "train", "--grace", "1s")
        self.daemon.stop()
        other = self.path("other")
        self.daemon = self.start_daemon("--standby", "0", "--runtime-dir", other)
        self.succeed("run", "--from", "mine:1", "--name", "train", "--detach", "--every", "1h")
        self.addCleanup(self.cli.run, "stop", "train", "--grace", "1s")  # before this daemon is
        (warning,) = self.job("train")["supervised"]["warnings"]
        self.assertIn(f"where the runtime folder is {self.runtime}, and here it is {other}", warning)
        self.assertIn(f"--runtime-dir {self.runtime}", warning)

    def test_a_signal_after_which_it_went_on_is_forgotten(self):
        self.start_supervised("--every", "1s", "--restarts", "5")
        self.wait_for_event("continued")
        waiting.until(lambda: self.job("train")["supervised"]["checkpoints"] > 0, "it is stored", 60)
        self.daemon.kill()
        path = os.path.join(self.store, "supervised", "train.json")
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**record, "will_end_until_ns": "1"}, file)  # it was sent long ago
        self.daemon = self.start_daemon("--standby", "0")
        self.addCleanup(self.cli.run, "stop", "train", "--grace", "1s")  # before this daemon is

        def is_forgotten():
            with open(path, encoding="utf-8") as file:
                return "will_end_until_ns" not in json.load(file)

        waiting.until(is_forgotten, "a further step", 60, 0.05)
        os.kill(self.job("train")["pid"], signal.SIGKILL)

        def is_back():
            jobs.reap_orphans()  # of the killed daemon
            return any(job["name"] == "train" and job["supervised"]["restarts"] == 1 for job in self.succeed("ps")["jobs"])

        waiting.until(is_back, "it is brought back", 60)

    def test_a_stop_does_not_wait_for_an_image_under_way(self):
        self.run_script("3", _STANDS_AT_A_BOUNDARY_TWICE, self.path("stands"))
        waiting.until(lambda: os.path.exists(self.path("stands")), "no more boundaries", 60)
        # It is waited for in vain, for 20 s.
        os.kill(self.daemon.pid, signal.SIGUSR1)
        waiting.until(lambda: self.job("train")["supervised"]["phase"] == "checkpointing", "an image", 60)
        began = time.monotonic()
        self.succeed("stop", "train", "--grace", "0s")
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual(self.ended("train")["phase"], "done")
        self.assertNotIn("no image was taken", self.daemon.log_text())

    def end_with_a_last_image(self, signum):
        """The command, once that is waited for: the job comes to a boundary when `stands`.go-on is there."""
        command = self.cli.start("run", "--name", "train", "--restarts", "3", "--stop-on", "INT,USR1", "--", jobs.PYTHON,
                                 "-c", _STANDS_AT_A_BOUNDARY_ONCE_TOLD, self.path("stands"), json_output=False,
                                 env={"PYTHONPATH": HOOK_PYTHON, "REKINDLE_HOOK_LIBRARY": hook_library()})  # fmt: skip
        self.addCleanup(self.cli.run, "stop", "train", "--grace", "0s")
        waiting.until(lambda: os.path.exists(self.path("stands")), "no more boundaries", 60)
        command.send_signal(signum)
        waiting.until(lambda: self.job("train")["supervised"]["phase"] == "checkpointing", "the last image", 60)
        return command

    def test_a_second_ctrl_c_gives_the_last_image_up(self):
        command = self.end_with_a_last_image(signal.SIGINT)
        command.send_signal(signal.SIGINT)
        result = self.cli.finish(command)
        self.assertEqual(result.code, 128 + signal.SIGINT, str(result))
        self.assertIn("without a last image", result.err)
        self.assertNotIn("was to end the job", result.err)
        self.assertEqual(self.succeed("ls").get("images", []), [])

    def test_what_asks_for_the_end_again_leaves_the_last_image_be(self):
        command = self.end_with_a_last_image(signal.SIGUSR1)
        command.send_signal(signal.SIGUSR1)
        command.send_signal(signal.SIGTERM)  # as schedulers send when the time is over
        with open(self.path("stands") + ".go-on", "w", encoding="ascii"):
            pass
        result = self.cli.finish(command)
        self.assertEqual(result.code, 128 + signal.SIGUSR1, str(result))
        (image,) = self.references()
        self.assertIn("its last image is " + image, result.err)

    def run_script(self, restarts, script, argument, *options):
        self.succeed("run", "--detach", "--name", "train", "--restarts", restarts, *options, "--",
                     jobs.PYTHON, "-c", script, argument,
                     env={"PYTHONPATH": HOOK_PYTHON, "REKINDLE_HOOK_LIBRARY": hook_library()})  # fmt: skip
        self.addCleanup(self.cli.run, "stop", "train", "--grace", "0s")

    def ended(self, name):
        (job,) = [job for job in self.succeed("ps", "--all")["jobs"] if job["name"] == name]
        return job["supervised"]["phase"] in ("done", "failed") and job["supervised"]

    def test_the_daemon_dies_while_the_job_goes_on(self):
        self.start_supervised("--every", "1s", "--restarts", "5")
        self.wait_for_event("continued")
        pid = self.job("train")["pid"]
        self.daemon.kill()
        at = self.last_step()
        waiting.until(lambda: self.last_step() > at + 10, "more steps without a daemon", 60)
        self.daemon = self.start_daemon("--standby", "0")
        self.addCleanup(self.cli.run, "stop", "train", "--grace", "1s")  # before this daemon is
        images = self.job("train")["supervised"]["checkpoints"]
        waiting.until(lambda: self.job("train")["supervised"]["checkpoints"] > images, "more images", 60)
        self.assertEqual(self.job("train")["pid"], pid)
        self.assertTrue(procfs.alive(pid))
        self.assert_no_step_is_missing()


class SlowStoreTest(Reporting, RekindleTest):
    """The store's file system takes nothing for a while."""

    def setUp(self):
        super().setUp()
        self.disk = SmallDisk(self, "ext4")
        self.store = os.path.join(self.disk.path, "store")
        self.daemon = self.start_daemon("--standby", "0")
        self.cli = self.make_cli(host=self.daemon.host)

    def file(self):
        folder = os.path.join(self.runtime, "progress")
        return JobFile(os.path.join(folder, os.listdir(folder)[0]), make=False)

    def images(self):
        return self.job("train")["supervised"]["checkpoints"]

    def freeze_disk(self):
        shell("fsfreeze", "--freeze", self.disk.path)
        self.addCleanup(subprocess.run, ["fsfreeze", "--unfreeze", self.disk.path], check=False, capture_output=True)

    def stop_until_waited_for(self, pid, file):
        """Stops the job, so that it does not come to the boundary at which its next image is due: of which this is the
        number. The daemon, which waits for that, has nothing to write meanwhile.
        """
        os.kill(pid, signal.SIGSTOP)

        def waited_for():
            daemon = file.daemon()
            return daemon.due if daemon.due > daemon.released and file.job().waiting != daemon.due else None

        return waiting.until(waited_for, "an image is due", 60)

    def test_a_job_that_hangs_while_its_image_is_stored(self):
        hangs = self.path("hangs")
        self.succeed("run", "--detach", "--name", "train", "--every", "300ms", "--hang", "4s", "--restarts", "0", "--",
                     jobs.PYTHON, "-c", _HANGS_ONCE_TOLD, hangs)  # fmt: skip
        waiting.until(lambda: self.images() > 0, "a first image", 60)
        with open(hangs, "w", encoding="ascii"):
            pass
        images = self.images()
        waiting.until(lambda: self.images() > images + 1, "an image of the job that hangs", 60)
        self.freeze_disk()
        stuck_at = time.monotonic()
        waiting.until(lambda: time.monotonic() > stuck_at + 8, "longer than it may be quiet", 60, 0.1)
        shell("fsfreeze", "--unfreeze", self.disk.path)

        def quiet_seconds():
            found = re.search(r"has not got any further for (\d+) seconds", self.daemon.log_text())
            return found and int(found.group(1))

        self.assertGreaterEqual(waiting.until(quiet_seconds, "it is killed", 60), 7)

    def test_the_job_waits_for_its_memory_to_be_copied_and_no_longer(self):
        self.start_reporting_with("run", "--detach", "--name", "train", "--every", "500ms", "--restarts", "5")
        self.addCleanup(self.cli.run, "stop", "train", "--grace", "1s")
        waiting.until(lambda: self.images() > 0, "a first image", 60)
        pid, file = self.job("train")["pid"], self.file()
        due = self.stop_until_waited_for(pid, file)
        self.freeze_disk()
        images, at = self.images(), self.last_step()
        os.kill(pid, signal.SIGCONT)
        waiting.until(lambda: file.daemon().released >= due, "it may go on", 60)
        waiting.until(lambda: self.last_step() > at + 100, "it goes on", 60)
        self.assertEqual((self.images(), file.daemon().taken), (images, due))
        shell("fsfreeze", "--unfreeze", self.disk.path)
        waiting.until(lambda: self.images() > images, "the image is stored", 60)
        os.kill(pid, signal.SIGKILL)
        self.wait_for_event("restored", 60)
        self.assert_no_step_is_missing()

    def test_one_that_it_asks_for_is_waited_for_as_long_as_it_is_being_stored(self):
        patience = 2
        self.start_reporting_with("run", "--detach", "--name", "train", "--every", "500ms", "--restarts", "5",
                                  env={"REKINDLE_BOUNDARY_SECONDS": str(patience)})  # fmt: skip
        self.addCleanup(self.cli.run, "stop", "train", "--grace", "1s")
        waiting.until(lambda: self.images() > 0, "a first image", 60)
        pid, file = self.job("train")["pid"], self.file()
        due = self.stop_until_waited_for(pid, file)
        with open(self.log + ".ask", "w", encoding="ascii"):
            pass
        self.freeze_disk()
        asked = file.job().wanted
        os.kill(pid, signal.SIGCONT)
        waiting.until(lambda: file.job().wanted > asked, "it asks for one", 60)
        at, told = self.last_step(), file.daemon().storing
        # Once a second.
        waiting.until(lambda: file.daemon().storing > told + 2 * patience, "that it is being stored is told", 60)
        self.assertEqual((file.job().waiting, file.daemon().released), (due, due - 1))
        shell("fsfreeze", "--unfreeze", self.disk.path)
        waiting.until(lambda: f"continued at {at}" in self.lines(), "it goes on", 60)
        self.assertEqual(file.daemon().taken, due)

    def test_nor_does_it_wait_for_an_image_of_a_caller_to_be_stored(self):
        self.start_reporting_with("run", "--detach", "--name", "train", "--restarts", "5")
        self.addCleanup(self.cli.run, "stop", "train", "--grace", "1s")
        waiting.until(lambda: (self.job("train")["progress"] or {}).get("boundaries"), "boundaries", 60)
        pid, file = self.job("train")["pid"], self.file()
        os.kill(pid, signal.SIGSTOP)
        asks = self.cli.start("ckpt", "train", "-t", "mine:1")
        waiting.until(lambda: file.daemon().due > file.daemon().released, "it is waited for", 60)
        due = file.daemon().due
        self.freeze_disk()
        at = self.last_step()
        os.kill(pid, signal.SIGCONT)
        waiting.until(lambda: file.daemon().released >= due, "it may go on", 60)
        waiting.until(lambda: self.last_step() > at + 100, "it goes on", 60)
        self.assertEqual((file.daemon().taken, asks.poll()), (due, None))
        shell("fsfreeze", "--unfreeze", self.disk.path)
        self.assertEqual(self.cli.finish(asks).code, 0)
        os.kill(pid, signal.SIGKILL)
        self.wait_for_event("restored", 60)
        self.assert_no_step_is_missing()

    def test_an_image_for_a_caller_while_the_supervisor_stores_its_own(self):
        """It comes after that: there is one capture of a job at a time."""
        self.start_reporting_with("run", "--detach", "--name", "train", "--every", "500ms", "--restarts", "5")
        self.addCleanup(self.cli.run, "stop", "train", "--grace", "1s")
        waiting.until(lambda: self.images() > 0, "a first image", 60)
        pid, file = self.job("train")["pid"], self.file()
        due = self.stop_until_waited_for(pid, file)
        self.freeze_disk()
        os.kill(pid, signal.SIGCONT)
        waiting.until(lambda: file.daemon().released >= due, "its memory is copied", 60)
        asked = self.cli.start("ckpt", "train", "-t", "train:asked")
        at = self.last_step()
        waiting.until(lambda: self.last_step() > at + 200, "the job works on", 60)
        self.assertIsNone(asked.poll(), "it waits")
        shell("fsfreeze", "--unfreeze", self.disk.path)
        result = self.cli.finish(asked)
        self.assertEqual(result.code, DONE, str(result))


class CloneOfSupervisedTest(Reporting, CloneTest):
    def test_a_clone_leaves_the_jobs_file_alone(self):
        self.start_reporting_with("run", "--detach", "--name", "train", "--restarts", "5")
        self.addCleanup(self.cli.run, "stop", "train", "--grace", "1s")
        waiting.until(self.lines, "a step")
        with open(self.log + ".ask", "w", encoding="ascii"):
            pass
        taken_at = self.wait_for_event("continued", 60)
        pid = self.job("train")["pid"]
        image = waiting.until(lambda: self.job("train")["image"], "the image is known")
        waiting.until(lambda: self.last_step() > taken_at, "more steps")
        # Whatever is reported from now on, it is not the job that does.
        os.kill(pid, signal.SIGSTOP)
        self.addCleanup(os.kill, pid, signal.SIGCONT)
        folder = os.path.join(self.runtime, "progress")
        path = os.path.join(folder, os.listdir(folder)[0])
        with open(path, "rb") as file:
            before = file.read()
        self.clone(image)
        # It has the job's log, and asks for an image itself, which nobody takes.
        self.assertEqual(self.wait_for_event("restored", 60), taken_at)
        steps = len(self.lines())
        waiting.until(lambda: len(self.lines()) > steps + 300, "the clone's steps", 60)
        with open(self.log + ".ask", "w", encoding="ascii"):
            pass
        waiting.until(lambda: not os.path.exists(self.log + ".ask"), "the clone asks for an image")
        steps = len(self.lines())
        waiting.until(lambda: len(self.lines()) > steps, "it goes on")
        with open(path, "rb") as file:
            self.assertEqual(file.read(), before)
