"""`rekindle run --every …` of jobs that use GPUs: they go on from their last image, device memory included, and what is
done to their GPU meanwhile is no death of theirs.
"""

import os
import signal
import time
import unittest

from harness import jobs, waiting
from harness.cli import DONE
from harness.gpu_case import GpuTest
from harness.gpu_sim import FIRST, GIB, MIB


class SupervisedGpuTest(GpuTest):
    def setUp(self):
        super().setUp()
        self.restart_daemon()
        self.state_file = self.path("vector.state")
        self.addCleanup(self._end_job)

    def restart_daemon(self):
        self.daemon = self.start_daemon("--standby", "0")
        self.cli = self.make_cli(host=self.daemon.host)

    def _end_job(self):
        if not self.daemon.running():
            self.restart_daemon()
        self.sim.clear()
        self.cli.run("stop", "job", "--grace", "1s")

    def start(self, *options, job_options=("--bytes", 32 * MIB)):
        argv = [jobs.program("gpu_vector_job"), "--state-file", self.state_file, *job_options]
        self.succeed("run", "--name", "job", "--detach", *options, "--", *argv)
        self.wait_for_steps()

    def listed(self):
        jobs.reap_orphans()  # of a killed daemon: nobody else takes their exit status
        return [job for job in self.succeed("ps", "--all")["jobs"] if job["name"] == "job" and job["supervised"]]

    def job(self):
        return waiting.until(self.listed, "the job")[0]

    def pid(self):
        return self.job()["pid"]

    def supervised(self):
        return self.job()["supervised"]

    def wait_for(self, condition, what, seconds=60):
        return waiting.until(lambda: condition(self.supervised()), what, seconds, 0.02)

    def wait_for_images(self, more):
        wanted = self.supervised()["checkpoints"] + more
        self.wait_for(lambda state: state["checkpoints"] >= wanted, f"{more} more images")

    def step(self):
        """How many steps were made and found right; a job that finds its device memory wrong ends."""
        try:
            with open(self.state_file, encoding="ascii") as file:
                return int(file.read().split()[0])
        except (FileNotFoundError, IndexError, ValueError):
            return -1

    def wait_for_steps(self, more=3):
        wanted = self.step() + more
        waiting.until(lambda: self.step() >= wanted, f"{more} more steps")

    def assert_goes_on(self):
        """From the step that it had at an image, not from its beginning."""
        self.wait_for_steps()
        # An image may just be taken.
        self.assertIn(self.supervised()["phase"], ("running", "checkpointing"))


class DeathTest(SupervisedGpuTest):
    def test_killed_jobs_go_on_from_their_last_image(self):
        self.start("--every", "300ms", "--restarts", "5")
        for killed in range(1, 4):
            self.wait_for_images(2)
            steps = self.step()
            os.kill(self.pid(), signal.SIGKILL)
            self.wait_for(lambda state, n=killed: state["restarts"] == n, "a restart")
            self.wait_for_steps()
            self.assertGreater(self.step(), steps // 2)
        state = self.supervised()
        self.assertEqual(len([death for death in state["deaths"] if "signal 9" in death]), 3, state)

    def test_the_daemon_is_killed_while_the_memory_is_off_the_gpu(self):
        self.start("--every", "500ms", "--restarts", "2")
        self.wait_for_images(1)
        pid = self.pid()
        self.sim.inject("checkpoint", "--delay-ms", 300)
        waiting.until(lambda: self.used() == 0, "the memory off the GPU", 30, 0.002)
        self.daemon.kill()
        self.sim.clear()
        self.restart_daemon()
        self.wait_for_images(1)
        self.assertEqual(self.pid(), pid)
        self.assert_goes_on()
        self.assertEqual(self.supervised()["restarts"], 0)

    def used(self):
        stats = self.sim.stats()
        return sum(gpu["used"] for gpu in stats["gpus"])

    def test_both_are_killed(self):
        self.start("--every", "300ms", "--restarts", "2")
        self.wait_for_images(2)
        pid = self.pid()
        self.daemon.kill()
        jobs.kill_tree(pid)
        waiting.for_exit(pid)
        self.restart_daemon()
        self.wait_for(lambda state: state["restarts"] == 1, "the job back")
        self.assert_goes_on()

    def test_an_image_that_fails_on_the_gpu_leaves_the_job_alone(self):
        self.start("--every", "300ms", "--restarts", "2")
        self.wait_for_images(1)
        pid = self.pid()
        self.sim.inject("checkpoint", "--fail", 999)
        self.wait_for(lambda state: state["last_error"], "a failed image")
        self.assert_goes_on()
        self.sim.clear()
        self.wait_for_images(2)
        self.assertEqual((self.pid(), self.supervised()["restarts"]), (pid, 0))


class LostTest(SupervisedGpuTest):
    def start_sim(self, **options):
        return super().start_sim(gpus=((FIRST, "NVIDIA H200", 4 * GIB),), **options)

    def test_a_job_waits_for_a_gpu_that_has_gone_until_somebody_has_seen_to_it(self):
        """As after Xid 79: the machine is restarted, or the GPU reset, much later than a job is tried again."""
        self.start("--every", "300ms", "--restarts", "2", "--retry-for", "1s")
        self.wait_for_images(2)
        self.sim.control("set", "lost-gpu", FIRST)
        os.kill(self.pid(), signal.SIGKILL)
        self.wait_for(lambda state: state["phase"] == "waiting" and FIRST in state["last_error"], "that it waits")
        until = time.monotonic() + 2
        waiting.until(lambda: time.monotonic() > until, "more than a second")
        self.assertIn(self.supervised()["phase"], ("waiting", "restarting"))
        self.sim.control("set", "lost-gpu", "none")
        self.wait_for(lambda state: state["restarts"] == 1, "a restart")
        self.assertNotIn("could not be brought back from", self.daemon.log_text())
        self.assert_goes_on()


class ParkedTest(SupervisedGpuTest):
    def test_a_parked_job_is_not_taken_for_hung(self):
        self.start("--restarts", "2", "--hang", "3s")
        pid = self.pid()
        self.succeed("gpu", "park", pid)
        # Another one, which does nothing from then on, tells that the time is over.
        self.succeed("run", "--name", "idle", "--detach", "--restarts", "0", "--hang", "5s", "--", "sleep", "1000")
        waiting.until(lambda: self.phase_of("idle") == "failed", "the other job taken for hung", 60, 0.05)
        self.assertEqual((self.pid(), self.supervised()["restarts"]), (pid, 0), self.supervised())
        self.assertTrue(self.gpu_job(pid)["parked"])
        self.succeed("gpu", "resume", pid)
        self.assert_goes_on()
        self.assertEqual(self.supervised()["restarts"], 0, self.supervised())

    def park_between_images(self, pid):
        """While one is taken it is refused: its memory is being moved, or it stands still."""

        def park():
            result = self.cli.run("gpu", "park", pid)
            if result.code == DONE:
                return True
            self.assertRegex(result.message, "being moved|is stopped", str(result))
            return False

        waiting.until(park, "the job parked", 60, 0.05)

    def test_images_of_a_parked_job(self):
        self.start("--every", "300ms", "--restarts", "2")
        self.wait_for_images(1)
        pid = self.pid()
        self.park_between_images(pid)
        self.wait_for_images(2)
        self.assertTrue(self.gpu_job(pid)["parked"])
        steps = self.step()
        os.kill(pid, signal.SIGKILL)
        self.wait_for(lambda state: state["restarts"] == 1, "a restart")
        if self.gpu_job(self.pid())["parked"]:
            self.succeed("gpu", "resume", self.pid())
        self.assert_goes_on()
        self.assertGreaterEqual(self.step(), steps)

    def phase_of(self, name):
        jobs.reap_orphans()
        return next(job["supervised"]["phase"] for job in self.succeed("ps", "--all")["jobs"] if job["name"] == name)


if __name__ == "__main__":
    unittest.main()
