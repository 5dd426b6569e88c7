"""Two daemons with one runtime folder: one of them gives the leases of its GPU jobs."""

import os
import unittest

from harness import waiting
from harness.cli import DONE, FAILED, Daemon
from harness.gpu_case import GpuTest
from harness.gpu_sim import FIRST, MIB


class TwoDaemonsTest(GpuTest):
    def setUp(self):
        super().setUp()
        self.sim.stop()
        self.sim = self.start_sim(gpus=((FIRST, "NVIDIA H200", 160 * MIB),))
        self.first = self.start_daemon()
        self.at_first = self.cli = self.make_cli(host=self.first.host)

    def start_second(self):
        """With a socket and a store of its own."""
        folder = self.path("second")
        os.mkdir(folder)
        daemon = Daemon(folder, os.path.join(folder, "store"), self.environment)
        self.addCleanup(daemon.stop)
        return daemon, self.make_cli(host=daemon.host)

    def leases(self, cli, job):
        return next(entry["leases"] for entry in self.succeed("gpu", "ps", cli=cli)["jobs"] if entry["pid"] == job.pid)

    def test_the_first_has_them_until_its_end(self):
        job = self.start_vector_job("one", bytes=100 * MIB)
        self.succeed("gpu", "lease", job.pid)
        daemon, at_second = self.start_second()
        self.assertIn("another daemon", daemon.log_text())
        for arguments in (("lease", job.pid, "--timeout", "0.2"), ("release", job.pid), ("release", job.pid, "--unpin")):
            with self.subTest(arguments[0]):
                result = at_second.run("gpu", *arguments)
                self.assert_refused(result, FAILED, f"process {self.first.pid}", "--runtime-dir")
                self.assertEqual(result.data["error"]["code"], "UNAVAILABLE")
        alone = self.make_cli(store=self.store)
        for cli in (at_second, alone):
            self.assert_refused(cli.run("gpu", "park", job.pid), FAILED, "leased", "release it")
        self.assertEqual(self.leases(self.at_first, job), 1)
        self.assert_runs(job)
        self.first.kill()
        # What it has left is the other's.
        other = self.start_vector_job("two", bytes=16 * MIB)
        self.succeed("gpu", "lease", other.pid, cli=at_second)
        self.assertEqual(self.leases(at_second, job), 1)
        self.assert_refused(at_second.run("gpu", "park", job.pid), FAILED, "leased")
        self.succeed("gpu", "release", job.pid, cli=at_second)
        self.succeed("gpu", "park", job.pid, cli=at_second)
        # And stays so.
        third = self.start_daemon()
        self.assertIn("another daemon", third.log_text())
        self.assertEqual(self.leases(at_second, other), 1)

    def test_a_lease_while_the_first_one_ends(self):
        job = self.start_vector_job(bytes=16 * MIB)
        hold = self.at_first.start("gpu", "lease", job.pid, "--hold")
        waiting.until(lambda: self.leases(self.at_first, job) == 1, "the lease")
        _, at_second = self.start_second()
        lease = at_second.start("gpu", "lease", job.pid, "--timeout", "60")
        self.first.stop()
        result = at_second.finish(lease)
        self.assertEqual(result.code, DONE, str(result))
        self.assert_refused(self.at_first.finish(hold), FAILED, "rekindled ends", str(job.pid))
        self.assertEqual(self.leases(at_second, job), 1)


if __name__ == "__main__":
    unittest.main()
