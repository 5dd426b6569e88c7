"""Tests with jobs on the simulated driver."""

from harness.case import RekindleTest
from harness.gpu_sim import FIRST, GpuSim, start_tree_job, start_vector_job


class GpuTest(RekindleTest):
    def setUp(self):
        super().setUp()
        self.sim = self.start_sim()

    def start_sim(self, **options):
        """From here on the commands see these GPUs."""
        sim = GpuSim(self.directory, **options)
        self.addCleanup(sim.stop)
        self.environment.update(sim.environment)
        self.cli = self.make_cli(store=self.store)
        return sim

    def start_vector_job(self, name="vector", **options):
        return start_vector_job(self, self.sim, name, **options)

    def start_tree_job(self, children, name="tree", **options):
        return start_tree_job(self, self.sim, children, name, **options)

    def gpu_job(self, pid):
        """What `gpu ps` says of it; None when it is not listed."""
        return next((job for job in self.succeed("gpu", "ps")["jobs"] if job["pid"] == pid), None)

    def used_bytes(self, uuid=FIRST):
        return next(
            gpu["total_bytes"] - gpu["free_bytes"] for gpu in self.succeed("gpu", "ps")["devices"] if gpu["uuid"] == uuid
        )

    def assert_runs(self, job):
        """Its CUDA calls work, what it computes is right, and nobody thinks that it is parked."""
        job.wait_for_steps()
        entry = self.gpu_job(job.pid)
        self.assertIsNotNone(entry)
        self.assertEqual(entry["state"], "running")
        self.assertFalse(entry["parked"], entry)

    def kill(self, job):
        job.job.kill_tree()

    def come_back(self, reference, job, *options):
        self.assertEqual(self.restore(reference, *options), job.pid)
        job.wait_for_steps()
