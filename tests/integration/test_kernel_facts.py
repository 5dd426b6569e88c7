"""CRIU does not keep what it finds out about the kernel where /run is no tmpfs, as in most containers, and throws away
what a CRIU of another build has kept.
"""

import os
import subprocess
import unittest

from harness import jobs
from harness.case import MIB, RekindleTest


class KeptTest(RekindleTest):
    def mount(self):
        folder = self.path("run-folder")
        os.mkdir(folder)
        subprocess.run(["mount", "--bind", folder, "/run"], check=True)

    def other_criu(self):
        """It runs between two of ours."""

    def setUp(self):
        super().setUp()
        self.mount()
        self.addCleanup(subprocess.run, ["umount", "--lazy", "/run"], check=True)
        # CRIU runs that when it looks at the kernel, wherever it finds it.
        self.programs, self.asked = self.path("programs"), self.path("asked")
        os.mkdir(self.programs)
        for name in ("iptables", "ip6tables"):
            path = os.path.join(self.programs, name)
            with open(path, "w", encoding="ascii") as file:
                file.write(f"#!/bin/sh\necho x >> {self.asked}\nexit 1\n")
            os.chmod(path, 0o755)

    def times_asked(self):
        with open(self.asked, encoding="ascii") as file:
            return len(file.readlines())

    def test_it_is_asked_once(self):
        self.cli = self.make_cli(store=self.store, env={"PATH": f"{self.programs}:{os.environ['PATH']}"})
        job, _ = self.start_memory_job(MIB)
        self.checkpoint(job.pid, "one:1")
        once = self.times_asked()
        self.assertGreater(once, 0)
        self.other_criu()
        self.checkpoint(job.pid, "one:2")
        jobs.kill_tree(job.pid)
        self.other_criu()
        self.restore("one:2")
        self.assertEqual(self.times_asked(), once)


class OtherCriuTest(KeptTest):
    def mount(self):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)

    def other_criu(self):
        with open("/run/criu.kdat", "wb") as file:
            file.write(b"of another build" * 64)


if __name__ == "__main__":
    unittest.main()
