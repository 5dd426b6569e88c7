"""A daemon that may use the kernel's marks on written pages: images are right whether the kernel has them or
not, and the log says which it is.
"""

import unittest

from harness.case import MIB, RekindleTest

IMAGES = 5
TOUCHED = 50  # pages between two images


class DirtyPagesTest(RekindleTest):
    def test_a_chain_of_images(self):
        daemon = self.start_daemon("--track-dirty-pages")
        self.cli = self.make_cli(host=daemon.host)
        checks = {check["name"]: check["result"] for check in self.succeed("doctor")["checks"]}
        tracks = checks["soft_dirty"] == "ok"

        job, memory = self.start_memory_job(64 * MIB)
        digests = []
        for number in range(IMAGES):
            memory.touch(TOUCHED)
            digests.append(memory.digest())
            self.checkpoint(job.pid, f"m:{number}")
        self.assertEqual(len(set(digests)), IMAGES)
        log = daemon.log_text()
        self.assertEqual("--track-dirty-pages has no effect" in log, not tracks, log)
        self.assertEqual("was not copied" in log, tracks, log)

        job.kill_tree()
        job.reap()
        self.restore(f"m:{IMAGES - 1}")
        memory.wait_for_tick()
        self.assertEqual(memory.digest(), digests[-1])
        self.assert_store_whole([f"m:{number}" for number in range(IMAGES)])


if __name__ == "__main__":
    unittest.main()
