"""Where /run is no tmpfs, as in most containers, CRIU does not keep what it finds out about the kernel."""

import os
import subprocess
import unittest

from harness import jobs
from harness.case import MIB, RekindleTest


class KeptTest(RekindleTest):
    def setUp(self):
        super().setUp()
        folder = self.path("run-folder")
        os.mkdir(folder)
        subprocess.run(["mount", "--bind", folder, "/run"], check=True)
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
        self.checkpoint(job.pid, "one:2")
        jobs.kill_tree(job.pid)
        self.restore("one:2")
        self.assertEqual(self.times_asked(), once)


if __name__ == "__main__":
    unittest.main()
