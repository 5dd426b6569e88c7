"""An eventfd that is a semaphore is one when it comes back, and no other becomes one."""

import os
import signal
import subprocess
import unittest

from harness import jobs, waiting
from harness.case import RekindleTest
from harness.cli import DONE
from harness.stock_criu import criu_command


class EventfdTest(RekindleTest):
    # In each: what a read takes, O_NONBLOCK, O_APPEND, whether programs that it starts get it. The last has the flags that the first was given.
    EXPECTED = (
        "1 False False True, 3 False False True, 1 True False True, 5 True False False, 1 True False False"
    )

    def setUp(self):
        super().setUp()
        self.job = self.start_job([jobs.PYTHON, jobs.workload("eventfds.py")], "eventfds")
        waiting.until(lambda: self.lines() == ["ready"], "its eventfds made")

    def lines(self):
        if not os.path.exists(self.job.log):
            return []
        with open(self.job.log, encoding="ascii") as file:
            return file.read().splitlines()

    def assert_as_made(self, pid, expected=EXPECTED):
        os.kill(pid, signal.SIGUSR1)
        waiting.until(lambda: len(self.lines()) > 1, "it has looked at them")
        self.assertEqual(self.lines(), ["ready", expected])

    def test_in_the_job_that_runs_on(self):
        self.checkpoint(self.job.pid, "eventfds:1")
        self.assert_as_made(self.job.pid)

    def test_in_the_one_that_comes_back(self):
        self.checkpoint(self.job.pid, "eventfds:1", "--stop")
        self.job.reap()
        pid = self.restore("eventfds:1")
        # The image of one that was restored tells the same.
        self.checkpoint(pid, "eventfds:2", "--stop")
        waiting.for_exit(pid)
        jobs.reap_orphans()
        self.assert_as_made(self.restore("eventfds:2"))

    def test_stock_criu_makes_counters_of_them(self):
        self.checkpoint(self.job.pid, "eventfds:1", "--stop")
        self.job.reap()
        result = self.cli.run("export", "eventfds:1", "--criu", self.path("images"))
        self.assertEqual(result.code, DONE, str(result))
        self.assertIn("2 eventfds of the job are semaphores", "".join(result.data["warnings"]))
        self.assertIn("2 eventfds of the job are semaphores", result.err)
        restored = [*criu_command(), "restore", "-D", self.path("images"), "-d", "-o", self.path("restore.log")]
        subprocess.run(restored, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
        self.kill_job_at_end(self.job.pid)
        self.assert_as_made(
            self.job.pid,
            "3 False True True, 3 False False True, 5 True True True, 5 True False False, None True True False",
        )


if __name__ == "__main__":
    unittest.main()
