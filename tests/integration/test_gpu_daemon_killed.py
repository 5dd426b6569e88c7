"""Jobs with a GPU, simulated, whose daemon is killed."""

import os
import signal
import unittest

from harness import procfs, waiting
from harness.cli import DONE
from harness.gpu_case import GpuTest
from harness.gpu_sim import MIB


class GpuDaemonKilledTest(GpuTest):
    """kill -9 of the daemon in each state of a move; what starts next puts things right."""

    def test_in_each_state(self):
        self.kill_in_each_state(self.start_vector_job(bytes=32 * MIB), (False, True))

    def test_of_a_job_that_synchronizes_all_the_time(self):
        """It would die of that without its memory: it stands until that has been put back."""
        self.kill_in_each_state(self.start_vector_job(bytes=32 * MIB, first_call="stream", step_ms=20), (False, True))

    def kill_in_each_state(self, job, helper_too):
        for call in ("lock", "checkpoint", "restore", "unlock"):
            for both in helper_too:
                self.kill_in(job, call, both)

    def kill_in(self, job, call, helper_too):
        daemon = self.start_daemon()
        cli = self.make_cli(host=daemon.host)
        self.sim.inject(call, "--delay-ms", 3000, nth=1)
        command = cli.start("ckpt", job.pid, "-t", f"{call}:{helper_too}", "--replace")

        def under_way():
            if command.poll() is not None:
                self.fail(f"{call}: {cli.finish(command)}")
            return any(entry["call"] == call and entry["result"] is None for entry in self.sim.calls())

        try:
            waiting.until(under_way, f"{call} under way")
        except TimeoutError as error:
            raise AssertionError(f"{error}: {self.sim.calls()}\n{daemon.log_text()}\n{job.log_text()}") from error
        helpers = [pid for pid in procfs.descendants(daemon.pid) if "gpu-helper" in procfs.command_line(pid)]
        self.assertEqual(len(helpers), 1)
        daemon.kill()
        if helper_too:
            os.kill(helpers[0], signal.SIGKILL)
        cli.finish(command)
        self.sim.clear()
        again = self.start_daemon()
        self.assertEqual(self.make_cli(host=again.host).run("gpu", "ps").code, DONE)
        self.assert_runs(job)
        again.stop()

    def test_parked_jobs_stay_parked(self):
        job = self.start_vector_job()
        daemon = self.start_daemon()
        self.succeed("gpu", "park", job.pid, cli=self.make_cli(host=daemon.host))
        daemon.kill()
        again = self.start_daemon()
        cli = self.make_cli(host=again.host)
        entry = next(entry for entry in self.succeed("gpu", "ps", cli=cli)["jobs"] if entry["pid"] == job.pid)
        self.assertTrue(entry["parked"])
        self.succeed("gpu", "resume", job.pid, cli=cli)
        self.assert_runs(job)


if __name__ == "__main__":
    unittest.main()
