"""Jobs for which threads of the kernel work that are in no descriptor: such a thread can't be stopped for an image."""

import os
import signal

from harness import jobs, procfs, waiting
from harness.case import RekindleTest
from harness.cli import FAILED
from test_supervision import lines_of

NO_IO_URING = 77  # the program's exit status


class RingThreadsTest(RekindleTest):
    def start(self, way):
        numbers = self.path("numbers")
        job = self.start_job([jobs.program("ring_threads"), way, numbers], way)
        waiting.until(lambda: lines_of(numbers) or procfs.state(job.pid) == "Z", "it counts")
        if procfs.state(job.pid) == "Z":
            self.assertEqual(os.waitstatus_to_exitcode(jobs.reap(job.pid)), NO_IO_URING)
            self.skipTest("no io_uring of this kind here (kernel.io_uring_disabled, or before Linux 6.5)")
        return job, numbers

    def assert_counts_on(self, job, numbers):
        count = len(lines_of(numbers))
        waiting.until(lambda: len(lines_of(numbers)) > count + 2, "it counts on")
        self.assertEqual(procfs.traced_by(job.pid), 0)

    def test_is_refused_and_runs_on(self):
        for way, name in (("lone-sqpoll", "iou-sqp-"), ("lone-worker", "iou-wrk-")):
            with self.subTest(way):
                job, numbers = self.start(way)
                result = self.cli.run("ckpt", job.pid, "-t", "ring:1")
                self.assert_refused(result, FAILED, f"process {job.pid}", name, "io_uring", "UV_USE_IO_URING=0")
                self.assert_counts_on(job, numbers)
                job.kill_tree()
                os.unlink(numbers)

    def test_the_image_of_one_that_has_closed_its_ring(self):
        job, numbers = self.start("closed")
        waiting.until(lambda: procfs.threads(job.pid) == 1, "its worker has ended")
        self.checkpoint(job.pid, "ring:1", "--stop")
        job.reap()
        count = len(lines_of(numbers))
        pid = self.restore("ring:1")
        waiting.until(lambda: len(lines_of(numbers)) > count + 2, "it counts on")
        os.kill(pid, signal.SIGKILL)
