"""A process of the job is killed while it is brought back, at moments at which CRIU tells it as something else, or goes
on waiting for the dead one.
"""

import os
import signal
import unittest

from harness import jobs, procfs, waiting
from harness.case import MIB, RekindleTest
from harness.cli import FAILED
from harness.stock_criu import KillingCriu
from test_clone import ProbeTest
from test_supervision import lines_of
from test_supervision_trouble import TroubleTest


class CommandTest(RekindleTest):
    """Without a daemon."""

    def setUp(self):
        super().setUp()
        self.criu = KillingCriu(self.path("criu"))
        self.environment["REKINDLE_CRIU"] = self.criu.path
        self.cli = self.make_cli(store=self.store)

    def assert_told(self, reference, pid, request):
        self.criu.kill_once(pid, request)
        refused = self.cli.run("restore", reference, "--detach", seconds=60)
        self.assert_refused(refused, FAILED, "killed while it was being restored", "try again", "out-of-memory")
        self.assertTrue(self.criu.has_killed())

    def test_it_is_told_and_comes_back_the_next_time(self):
        job, memory = self.start_memory_job(4 * MIB)
        digest = memory.digest()
        self.checkpoint(job.pid, "x:1", "--stop")
        job.reap()
        for request in (KillingCriu.INTERRUPT, KillingCriu.DETACH):
            with self.subTest(request=request):
                self.assert_told("x:1", job.pid, request)
                self.assertFalse(procfs.alive(job.pid))
        self.restore("x:1")
        memory.wait_for_tick()
        self.assertEqual(memory.digest(), digest)

    def test_one_of_many(self):
        """The root, whose children are nobody's then, or one of these."""
        numbers = self.path("numbers")
        job = self.start_job([jobs.PYTHON, jobs.workload("counting.py"), numbers, "100000", "child"], "counting")
        waiting.until(lambda: lines_of(numbers), "it counts")
        tree = [job.pid, *procfs.descendants(job.pid)]
        self.assertGreater(len(tree), 1)
        self.checkpoint(job.pid, "x:1", "--stop")
        job.reap()
        for pid in tree:
            with self.subTest(root=pid == job.pid):
                self.assert_told("x:1", pid, KillingCriu.INTERRUPT)
                self.assertEqual([one for one in tree if procfs.alive(one)], [])
                jobs.reap_orphans()  # of the dead root, to whose place we have come
        self.restore("x:1")


class SupervisedTest(TroubleTest):
    def setUp(self):
        self.criu = None
        super().setUp()

    def restart_daemon(self):
        if self.criu is None:
            self.criu = KillingCriu(self.path("criu"))
            self.environment["REKINDLE_CRIU"] = self.criu.path
        super().restart_daemon()

    def test_no_image_is_blamed(self):
        """Nor does it cost a restart."""
        self.start(100000, options=["--every", "1h", "--restarts", "2"])
        os.kill(self.daemon.pid, signal.SIGUSR1)  # asks for an image
        self.wait_for_image()
        for restarts, request in enumerate((KillingCriu.DETACH, KillingCriu.INTERRUPT), 1):
            with self.subTest(request=request):
                self.criu.kill_once(self.job()["pid"], request)
                self.kill_job()
                back = self.wait_for(
                    lambda job, n=restarts: (job["supervised"]["restarts"] == n and job["state"] == "running")
                    or job["supervised"]["phase"] == "failed",
                    "it is back",
                )
                self.assertTrue(back, self.state())
                self.assertEqual(self.state()["restarts"], restarts, self.state())
                self.assertTrue(self.criu.has_killed())
                count = len(lines_of(self.numbers))
                waiting.until(lambda c=count: len(lines_of(self.numbers)) > c, "it counts")
        log = self.daemon.log_text()
        self.assertEqual(log.count("can't be brought back yet"), 2, log)
        self.assertNotIn("file locks again", log)


class CloneTest(ProbeTest):
    def setUp(self):
        self.criu = None
        super().setUp()

    def restart_daemon(self, **extra):
        if self.criu is None:
            self.criu = KillingCriu(self.path("criu"))
            self.environment["REKINDLE_CRIU"] = self.criu.path
        super().restart_daemon(**extra)

    def test_a_clone(self):
        image = self.prepare()
        for request in (KillingCriu.INTERRUPT, KillingCriu.DETACH):
            with self.subTest(request=request):
                self.criu.kill_once(self.root, request)
                refused = self.cli.run("restore", image, "--clone", "--detach", "--name", "killed", seconds=60)
                self.assert_refused(refused, FAILED, "killed while it was being restored", "try again")
                self.assertTrue(self.criu.has_killed())
                self.wait_for_no_sandbox()
        self.end(self.clone(image, "--name", "next")["job"]["pid"], "next")
        self.wait_for_no_sandbox()


if __name__ == "__main__":
    unittest.main()
