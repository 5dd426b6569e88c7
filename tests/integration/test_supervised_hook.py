"""Jobs under a real supervisor that report and offer moments for an image."""

import os
import signal

from harness import procfs, waiting
from harness.clones import CloneTest
from harness.reporting import Reporting, ReportingTest


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
        for restart in range(1, 3):
            pid = self.job("train")["pid"]
            at = self.last_step()
            os.kill(pid, signal.SIGKILL)
            waiting.until(lambda: self.restarts() == restart, "it is brought back", 60)
            waiting.until(lambda: self.last_step() > at, "further than before", 60)
            self.assertTrue(any(line.startswith("restored at ") for line in self.lines()), self.lines()[-20:])
            self.assert_no_step_is_missing()
            waiting.until(lambda: self.job("train")["progress"]["step"] > at, "it reports")

    def test_an_image_that_it_asks_for(self):
        self.start_supervised("--restarts", "5")
        waiting.until(self.lines, "a step")
        with open(self.log + ".ask", "w", encoding="ascii"):
            pass
        step = self.wait_for_event("continued", 60)
        waiting.until(lambda: self.job("train")["supervised"]["checkpoints"] == 1, "it is counted")
        os.kill(self.job("train")["pid"], signal.SIGKILL)
        self.assertEqual(self.wait_for_event("restored", 60), step)

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
