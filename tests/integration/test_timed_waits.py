"""Waits do not notice a checkpoint: not in the job that runs on, not in the one that comes back."""

import errno
import os
import platform
import signal
import unittest
from concurrent.futures import ThreadPoolExecutor

from harness import jobs, procfs, waiting
from harness.case import RekindleTest

_MILLISECONDS = 3000
_WAITS = {"poll", "thread-poll", "nanosleep", "in-place", "semaphore"}
_SYSTEM_CALLS = {7, 34, 202, 230}  # poll, pause, futex, clock_nanosleep


def _waits_in(pid):
    """How many of its threads are in a wait."""
    count = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/syscall", encoding="ascii") as file:
            word = file.read().split()[0]
        count += word.isdigit() and int(word) in _SYSTEM_CALLS
    return count


@unittest.skipUnless(platform.machine() == "x86_64", "waits are kept on x86-64 alone")
class TimedWaitsTest(RekindleTest):
    def start(self):
        job = self.start_job([jobs.program("timed_waits"), str(_MILLISECONDS)], "waits")
        waiting.until(lambda: _waits_in(job.pid) == len(_WAITS), "each thread waits")
        return job

    def lines(self, job):
        with open(job.log, encoding="ascii") as file:
            return file.read().splitlines()

    def results(self, job):
        """What each wait wrote, {name: (result, error, milliseconds)}, once all have."""
        waiting.until(lambda: "done" in self.lines(job), "every wait has ended", 60)
        found = {}
        for line in self.lines(job):
            if line != "done":
                name, *numbers = line.split()
                found[name] = tuple(int(number) for number in numbers)
        self.assertEqual(found.keys(), _WAITS)
        return found

    def assert_timed_out(self, found):
        for name, (result, error, milliseconds) in found.items():
            expected = (-1, errno.ETIMEDOUT) if name == "semaphore" else (0, 0)
            self.assertEqual((result, error), expected, f"{name}: {found}")
            self.assertGreaterEqual(milliseconds, _MILLISECONDS - 1, f"{name}: {found}")

    def test_images_one_after_the_other(self):
        """If each image made them begin anew, they would never end."""
        job = self.start()
        taken = 0
        while procfs.alive(job.pid):
            result = self.cli.run("ckpt", job.pid, "-t", f"waits:{taken}")
            if result.code != 0 and not procfs.alive(job.pid):
                break
            # It may end while it is looked at.
            if result.code == 0:
                taken += 1
        job.reap()
        self.assertGreater(taken, 3)
        self.assert_timed_out(self.results(job))

    def test_in_images(self):
        job = self.start()
        self.checkpoint(job.pid, "waits:first")
        # The kernel has gone on with the waits; now they are interrupted once more.
        self.checkpoint(job.pid, "waits:second", "--stop")
        job.reap()
        for image in ("waits:first", "waits:second"):
            os.truncate(job.log, 0)
            pid = self.restore(image)
            self.assert_timed_out(self.results(job))
            waiting.for_exit(pid)
            jobs.reap_orphans()

    def test_a_signal_ends_a_wait_although_it_comes_while_the_job_is_frozen(self):
        job = self.start_job([jobs.program("timed_waits"), "signals"], "signals")
        for image in range(5):
            waiting.until(lambda: _waits_in(job.pid) == 1, "it waits")
            with ThreadPoolExecutor(1) as beside:
                checkpoint = beside.submit(self.checkpoint, job.pid, f"signals:{image}")
                waiting.until(lambda: procfs.state(job.pid) == "t", "it is frozen", poll_seconds=0)
                os.kill(job.pid, signal.SIGUSR1)
                checkpoint.result()
            waiting.until(lambda: len(self.lines(job)) == image + 1, "the wait has ended")


if __name__ == "__main__":
    unittest.main()
