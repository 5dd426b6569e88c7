"""Threads that were bound to processors are so when they come back."""

import ctypes
import os
import unittest

from harness import jobs, procfs, waiting
from harness.case import RekindleTest


def placements(pid):
    return sorted(sorted(os.sched_getaffinity(int(thread))) for thread in os.listdir(f"/proc/{pid}/task"))


@unittest.skipUnless({0, 1} <= os.sched_getaffinity(0), "processors 0 and 1 are needed")
class PlacementTest(RekindleTest):
    def setUp(self):
        super().setUp()
        self.all = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, self.all)
        self.job = self.start_job([jobs.PYTHON, jobs.workload("bound_threads.py")], "bound")
        waiting.until(self.is_bound, "its threads are bound")
        self.checkpoint(self.job.pid, "bound:1", "--stop")
        self.job.reap()

    def is_bound(self):
        if not os.path.exists(self.job.log):
            return False
        with open(self.job.log, encoding="ascii") as file:
            return file.read() == "bound\n"

    def test_each_thread_has_its_own(self):
        pid = self.restore("bound:1")
        self.assertEqual(placements(pid), sorted([[0], [1], sorted(self.all)]))

    def test_not_beyond_what_the_caller_has(self):
        os.sched_setaffinity(0, {1})
        self.kill_job_at_end(self.job.pid)
        started = self.succeed("restore", "bound:1", "--detach")
        self.assertEqual(placements(started["job"]["pid"]), [[1], [1], [1]])
        (warning,) = started["warnings"]
        self.assertIn("1 thread of the job ran on processors 0 alone", warning)

    def test_the_daemon_gives_what_the_caller_has(self):
        daemon = self.start_daemon()
        os.sched_setaffinity(0, {1})
        self.kill_job_at_end(self.job.pid)
        started = self.succeed("restore", "bound:1", "--detach", cli=self.make_cli(host=daemon.host))
        self.assertEqual(placements(started["job"]["pid"]), [[1], [1], [1]])


class MannersTest(RekindleTest):
    """What CRIU keeps not, and what it would end the job by."""

    def io_priority(self, pid):
        return ctypes.CDLL(None).syscall(252, 1, pid) >> 13  # ioprio_get on x86-64

    def timer_slack(self, pid):
        with open(f"/proc/{pid}/timerslack_ns", encoding="ascii") as file:
            return int(file.read())

    def test_come_back(self):
        job = self.start_job([jobs.PYTHON, jobs.workload("mannered.py")], "mannered")
        waiting.until(lambda: os.path.exists(job.log) and os.path.getsize(job.log), "the job ready")
        self.assertEqual((self.io_priority(job.pid), self.timer_slack(job.pid)), (3, 123456))
        self.checkpoint(job.pid, "mannered:1", "--stop")
        job.reap()
        pid = self.restore("mannered:1")
        self.assertEqual((self.io_priority(pid), self.timer_slack(pid)), (3, 123456))
        self.assertEqual(os.sched_getscheduler(pid), os.SCHED_BATCH | os.SCHED_RESET_ON_FORK)
        # Its parent was CRIU, which has ended.
        waiting.until(lambda: procfs.state(pid) == "S", "it waits")
        self.assertTrue(procfs.alive(pid))


if __name__ == "__main__":
    unittest.main()
