"""Supervised jobs that come back while something outside of them is amiss, which their images are not to blame for."""

import os
import signal
import unittest

from harness import phases, procfs, waiting
from test_supervision import SupervisedTest, lines_of


class OutsideTest(SupervisedTest):
    def wait_for_words(self, words, times=1, seconds=60):
        waiting.until(lambda: self.daemon.log_text().count(words) >= times, f"'{words}' in the log", seconds, 0.02)

    def assert_goes_on(self):
        """From its newest image: none was passed over."""
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        log = self.daemon.log_text()
        self.assertNotIn("could not be brought back from", log)
        self.assertNotIn("further back", log)
        at = len(lines_of(self.numbers))
        waiting.until(lambda: len(lines_of(self.numbers)) > at, "more lines", 30, 0.02)


class KilledRestoreTest(OutsideTest):
    """As the kernel does where memory is short, more often than a job has images."""

    KILLS = 4

    def begin(self):
        self.start(100000, "memory=64", options=["--every", "300ms", "--restarts", "1"])
        self.wait_for_image()

    def test_criu(self):
        self.begin()
        self.kill_job()
        for kills in range(1, self.KILLS + 1):
            phases.wait_for_restore_phase("criu", self.daemon.pid, 0, lambda: False)
            for pid in phases.criu_processes(self.daemon.pid, "swrk") or phases.criu_processes(
                self.daemon.pid, "restore"
            ):
                os.kill(pid, signal.SIGKILL)
                break
            self.wait_for_words("can't be brought back yet", kills)
        self.assert_goes_on()

    def test_the_process_that_is_coming_back(self):
        self.begin()
        pid = self.job()["pid"]
        seen = {None, procfs.start_ticks(pid)}
        self.kill_job()
        for kills in range(1, self.KILLS + 1):
            waiting.until(lambda: procfs.start_ticks(pid) not in seen, "it comes back", 60, 0.0005)
            seen.add(procfs.start_ticks(pid))
            os.kill(pid, signal.SIGKILL)
            self.wait_for_words("can't be brought back yet", kills)
        self.assert_goes_on()


if __name__ == "__main__":
    unittest.main()
