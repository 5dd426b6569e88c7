"""A CRIU that is missing, too old, or killed in the middle."""

import os
import signal
import unittest

from harness import jobs, phases, procfs, waiting
from harness.case import MIB, RekindleTest
from harness.cli import FAILED, UNSUPPORTED
from harness.gpu_case import GpuTest
from harness.stock_criu import StandingCriu


class UnusableCriuTest(RekindleTest):
    def assert_setup_is_the_cure(self, criu, *words):
        job, memory = self.start_memory_job(4 * MIB)
        self.checkpoint(job.pid, "kept:1")
        cli = self.make_cli(store=self.store, env={"REKINDLE_CRIU": criu})
        for command in (["ckpt", str(job.pid), "-t", "x:1"], ["restore", "kept:1", "--detach"]):
            with self.subTest(command=command):
                refused = cli.run(*command)
                self.assertEqual(refused.code, UNSUPPORTED, str(refused))
                for word in (criu, "setup.sh", *words):
                    self.assertIn(word, refused.message)
        # What needs no CRIU works.
        self.assertEqual(cli.run("ls").code, 0)
        doctor = cli.run("doctor")
        self.assertEqual(doctor.code, UNSUPPORTED, str(doctor))
        memory.wait_for_tick()
        self.assert_store_whole(["kept:1"])

    def test_missing(self):
        self.assert_setup_is_the_cure("/nonexistent/criu")

    def test_too_old(self):
        """A stand-in for the version check alone: it answers `--version` as 3.17 does."""
        old = self.path("criu")
        with open(old, "w", encoding="ascii") as file:
            file.write("#!/bin/sh\necho 'Version: 3.17'\n[ \"$1\" = --version ]\n")
        os.chmod(old, 0o755)
        self.assert_setup_is_the_cure(old, "3.17", "4.2")


class RefusedConnectionTest(RekindleTest):
    """CRIU, with the job frozen, waits for an answer on a connection that Rekindle can't take."""

    def test_the_job_goes_on(self):
        job, memory = self.start_memory_job(32 * MIB)
        digest = memory.digest()
        for socket in ("page-filter.sock", "dump-gate.sock"):
            with self.subTest(socket=socket):
                env = {"LD_PRELOAD": jobs.program("refused_accepts.so"), "REFUSE_ACCEPTS": socket}
                refused = self.cli.run("ckpt", job.pid, "-t", "x:1", env=env, seconds=30)
                self.assert_refused(refused, FAILED, "too many open files")
                memory.wait_for_tick()
                self.assertEqual(memory.digest(), digest)
        self.assert_store_whole([])
        self.checkpoint(job.pid, "y:1")


class RefusedGpuConnectionTest(GpuTest):
    """The same where CRIU asks for the job's device memory: before its threads stand still, then, and at the end."""

    def refuse(self, after, *options):
        job = self.start_vector_job(f"after{after}")
        env = {
            "LD_PRELOAD": jobs.program("refused_accepts.so"),
            "REFUSE_ACCEPTS": "gpu-keeper.sock",
            "REFUSE_AFTER": str(after),
        }
        result = self.cli.run("ckpt", job.pid, "-t", f"after:{after}", *options, env=env, seconds=120)
        return job, result

    def test_the_job_goes_on_when_the_dump_fails(self):
        for after in (0, 1):
            with self.subTest(after=after):
                job, refused = self.refuse(after)
                self.assert_refused(refused, FAILED, "too many open files")
                self.assertNotIn("NVIDIA driver", refused.message)
                self.assert_runs(job)
                self.succeed("ckpt", job.pid, "-t", f"again:{after}")
                self.assert_runs(job)
                self.kill(job)

    def test_the_job_goes_on_when_the_image_is_good(self):
        job, taken = self.refuse(2)
        self.assertEqual(taken.code, 0, str(taken))
        self.assert_runs(job)
        self.kill(job)
        self.come_back("after:2", job)
        self.assert_runs(job)

    def test_what_is_stopped_comes_back(self):
        job, taken = self.refuse(2, "--stop")
        self.assertEqual(taken.code, 0, str(taken))
        job.job.reap()
        self.come_back("after:2", job)
        self.assert_runs(job)


class HungCriuTest(RekindleTest):
    """CRIU stands still before it has touched the job, as over a file server that is away."""

    def test_an_interrupted_capture_ends(self):
        job, memory = self.start_memory_job(4 * MIB)
        digest = memory.digest()
        hung = StandingCriu(self.path("criu"))
        command = self.cli.start("ckpt", job.pid, "-t", "x:1", env={"REKINDLE_CRIU": hung.path})
        criu = hung.wait_until_it_stands()
        os.kill(command.pid, signal.SIGINT)
        result = self.cli.finish(command, seconds=30)
        self.assert_refused(result, FAILED, "cancelled", "the job runs on")
        self.assertFalse(procfs.alive(criu))
        memory.wait_for_tick()
        self.assertEqual(memory.digest(), digest)
        self.assert_store_whole([])
        self.checkpoint(job.pid, "y:1")


class KilledCriuTest(RekindleTest):
    SIZE = 768 * MIB

    def test_during_the_dump(self):
        job, memory = self.start_memory_job(self.SIZE)
        digest = memory.digest()
        command = self.cli.start("ckpt", job.pid, "-t", "x:1")
        # Not before: for a moment CRIU has its own code where the job's was, and who is let go then is lost.
        phases.wait_for_checkpoint_phase("gate", command.pid, job.pid, lambda: command.poll() is not None)
        for pid in phases.criu_processes(command.pid, "dump"):
            os.kill(pid, signal.SIGKILL)
        result = self.cli.finish(command)
        self.assert_refused(result, FAILED, "criu")
        self.assertIn("kill", result.message.lower())
        # CRIU could not put things right: whatever it had stopped runs again, and is as it was.
        memory.wait_for_tick()
        self.assertEqual(memory.digest(), digest)
        self.assert_store_whole([])
        self.checkpoint(job.pid, "y:1", "--stop")
        job.reap()
        self.restore("y:1")
        memory.wait_for_tick()
        self.assertEqual(memory.digest(), digest)

    def test_during_the_restore(self):
        job, memory = self.start_memory_job(self.SIZE)
        digest = memory.digest()
        self.checkpoint(job.pid, "x:1", "--stop")
        job.reap()
        command = self.cli.start("restore", "x:1", "--detach")
        phases.wait_for_restore_phase("tasks", command.pid, job.pid, lambda: command.poll() is not None)
        for pid in phases.criu_processes(command.pid, "swrk") + phases.criu_processes(command.pid, "restore"):
            if pid != job.pid:
                os.kill(pid, signal.SIGKILL)
        result = self.cli.finish(command)
        self.assertEqual(result.code, FAILED, str(result))
        jobs_left = lambda: procfs.alive(job.pid)  # noqa: E731
        waiting.until(lambda: not jobs_left(), "nothing half-made is left")
        jobs.reap_orphans()
        self.assert_store_whole(["x:1"])
        self.restore("x:1")
        memory.wait_for_tick()
        self.assertEqual(memory.digest(), digest)


if __name__ == "__main__":
    unittest.main()
