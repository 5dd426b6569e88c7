"""A training process with torch: killed after its checkpoint, it goes on at the very step where the image
was taken.
"""

import os
import signal
import unittest

from harness import jobs, procfs, waiting
from harness.case import MIB, RekindleTest


def steps_in(path):
    """[(number, digest)], whole lines alone."""
    with open(path, encoding="ascii") as file:
        lines = file.read().split("\n")[:-1]
    return [(int(line.split()[0]), line.split()[1]) for line in lines]


class TorchTest(RekindleTest):
    def start_training(self, name):
        log = self.path(name + ".steps")
        job = self.start_job([jobs.PYTHON, jobs.workload("torch_training.py"), log], name)
        self.wait_for_steps(log, 3)
        return job, log

    def wait_for_steps(self, log, count):
        waiting.until(
            lambda: os.path.exists(log) and len(steps_in(log)) >= count, f"{count} steps in {log}", 90, 0.02
        )
        return steps_in(log)

    def test_goes_on_at_the_step_of_the_image(self):
        job, log = self.start_training("training")
        self.assertGreater(procfs.memory_bytes(job.pid), 250 * MIB)
        threads = procfs.threads(job.pid)
        self.assertGreater(threads, 4)

        self.checkpoint(job.pid, "torch:first")
        at_image = steps_in(log)
        self.assertTrue(procfs.alive(job.pid), "the job runs on after its checkpoint")
        self.wait_for_steps(log, at_image[-1][0] + 3)
        os.kill(job.pid, signal.SIGKILL)
        job.reap()
        before_death = steps_in(log)

        pid = self.restore("torch:first")
        self.assertEqual(pid, job.pid)
        self.assertEqual(procfs.threads(pid), threads)
        after = self.wait_for_log_from(log, before_death, 4)

        # It went back to the image's step, not on from where it was killed.
        self.assertLessEqual(after[0][0], at_image[-1][0] + 1)
        self.assertGreater(after[0][0], 1)
        jobs.kill_tree(pid)

        # A training that nobody touched says what every step's tensors must be.
        last = max(before_death[-1][0], after[-1][0])
        reference = self.path("reference.steps")
        untouched = self.start_job(
            [jobs.PYTHON, jobs.workload("torch_training.py"), reference, str(last)], "reference"
        )
        untouched.reap(120)
        truth = dict(steps_in(reference))
        for number, digest in before_death + after:
            self.assertEqual(digest, truth[number], f"tensors after step {number}")

        self.assert_store_whole(["torch:first"])

    def wait_for_log_from(self, log, known, count):
        """The steps that were appended after `known`."""

        def appended():
            steps = steps_in(log)
            return steps[len(known) :] if len(steps) >= len(known) + count else None

        return waiting.until(appended, "steps after the restore", 60, 0.02)


if __name__ == "__main__":
    unittest.main()
