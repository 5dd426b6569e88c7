"""Where Rekindle may not read a job's memory itself, CRIU does it: slower, and just as right."""

import os
import unittest

from harness import forbid_call
from harness.case import MIB, RekindleTest


class ForbiddenReadsTest(RekindleTest):
    def test_criu_copies_it(self):
        kernel = tuple(int(number) for number in os.uname().release.split("-")[0].split(".")[:2])
        if kernel < (6, 7):
            self.skipTest("before Linux 6.7 CRIU copies all memory anyway")
        job, memory = self.start_memory_job(64 * MIB)
        digest = memory.digest()
        captured = self.cli.run("ckpt", job.pid, "-t", "slow:1", prefix=forbid_call.prefix("process_vm_readv"))
        self.assertEqual(captured.code, 0, str(captured))
        self.assertIn("copying memory past CRIU failed, so CRIU copies it", captured.err)
        self.assertIn("Operation not permitted", captured.err)
        # It was let go, frozen again, and goes on.
        memory.wait_for_tick()
        self.assertEqual(memory.digest(), digest)
        # The usual way has the same memory: nothing but what the job wrote in between is new.
        stored = self.store_bytes()
        self.checkpoint(job.pid, "usual:1", "--stop")
        job.reap()
        self.assertLess(self.store_bytes() - stored, 4 * MIB)
        self.restore("slow:1")
        memory.wait_for_tick()
        self.assertEqual(memory.digest(), digest)
        self.assert_store_whole(["slow:1", "usual:1"])


if __name__ == "__main__":
    unittest.main()
