"""One process, stopped and restored again and again: it stays the same, and the store grows by what changed
alone.
"""

import os
import unittest

from harness import jobs, procfs, waiting
from harness.case import MIB, RekindleTest

ROUNDS = 100
SETTLED = 5  # rounds after which nothing may change any more


class RoundsTest(RekindleTest):
    def shape(self, pid):
        with open(f"/proc/{pid}/maps", encoding="ascii") as maps:
            areas = len(maps.readlines())
        return {"threads": procfs.threads(pid), "descriptors": procfs.descriptors(pid), "areas": areas}

    def test_no_drift(self):
        log = self.path("lines")
        job = self.start_job([jobs.PYTHON, jobs.workload("ticker.py"), log], "ticker")
        self.wait_for_lines(log, 3)
        started_as = {key: value for key, value in self.shape(job.pid).items() if key != "areas"}
        pid, settled = job.pid, None
        for number in range(1, ROUNDS + 1):
            self.checkpoint(pid, f"rounds:{number}", "--stop")
            job.reap()
            written = os.path.getsize(log)
            self.assertEqual(self.restore_quietly(f"rounds:{number}"), job.pid)
            waiting.until(lambda: os.path.getsize(log) > written, f"it writes on in round {number}")
            if number == SETTLED:
                settled = (self.shape(pid), procfs.memory_bytes(pid, "Anonymous"), self.store_bytes())
        self.assertEqual({key: value for key, value in self.shape(pid).items() if key != "areas"}, started_as)
        shape, anonymous, stored = settled
        self.assertEqual(self.shape(pid), shape)
        self.assertLess(abs(procfs.memory_bytes(pid, "Anonymous") - anonymous), 256 * 1024)
        growth = (self.store_bytes() - stored) / (ROUNDS - SETTLED)
        self.assertLess(growth, MIB, "bytes of the store per round")

        with open(log, encoding="ascii") as file:
            numbers = [int(line) for line in file.read().split("\n")[:-1]]
        self.assertEqual(numbers, list(range(1, len(numbers) + 1)), "every line once, none missing")
        self.assertEqual(len(self.references()), ROUNDS)
        self.assert_store_whole([f"rounds:{number}" for number in range(1, ROUNDS + 1)])

    def restore_quietly(self, reference):
        pidfile = self.path("pid")
        self.succeed("restore", reference, "--detach", "--pidfile", pidfile)
        with open(pidfile, encoding="ascii") as file:
            return int(file.read())

    def wait_for_lines(self, log, count):
        def enough():
            return os.path.exists(log) and os.path.getsize(log) >= 2 * count

        waiting.until(enough, f"{count} lines")


if __name__ == "__main__":
    unittest.main()
