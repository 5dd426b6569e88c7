"""One GPU of two has fallen off the bus, or tells nothing of itself: jobs on the other one know nothing of it, and those
on it are told which GPU it is and what helps."""

import time
import unittest

from harness import waiting
from harness.cli import DONE, FAILED
from harness.gpu_case import GpuTest
from harness.gpu_sim import FIRST, GIB, MIB, SECOND

LOST = "GPU is lost (15)"
RESET = "nvidia-smi --gpu-reset"


class LostTest(GpuTest):
    """SECOND is lost; the daemon has known it before."""

    def setUp(self):
        super().setUp()
        # Each may have helpers from before and from after.
        self.daemon = self.start_daemon()
        self.alone = self.cli
        self.cli = self.make_cli(host=self.daemon.host)
        self.succeed("gpu", "ps")

    def lose(self, uuid=SECOND):
        self.sim.control("set", "lost-gpu", uuid)

    def start_on_second(self, name="second", **options):
        return self.start_vector_job(name, first_gpu=1, **options)

    def device(self, uuid, cli=None):
        devices = self.succeed("gpu", "ps", cli=cli)["devices"]
        return next((device for device in devices if device["uuid"] == uuid), None)

    def both(self):
        return (("daemon", self.cli), ("alone", self.alone))

    def test_jobs_on_the_other_gpu_are_moved_as_ever(self):
        job = self.start_vector_job()
        self.lose()
        for name, cli in self.both():
            with self.subTest(name):
                self.succeed("gpu", "park", job.pid, cli=cli)
                self.assertEqual(self.used_bytes(), 0)
                self.succeed("gpu", "resume", job.pid, cli=cli)
                self.assert_runs(job)
                self.succeed("ckpt", job.pid, "-t", "vector:" + name, cli=cli)
                self.assert_runs(job)
        self.checkpoint(job.pid, "vector:last", "--stop")
        job.job.reap()
        self.come_back("vector:last", job)
        self.assert_runs(job)
        # For want of room it is refused as ever.
        self.succeed("gpu", "park", job.pid)
        self.sim.control("reserve", FIRST, 4 * GIB - 8 * MIB)
        result = self.alone.run("gpu", "resume", job.pid, env={"REKINDLE_GPU_ROOM_TIMEOUT": "0"})
        self.assert_refused(result, FAILED, FIRST, "free")
        self.assertNotIn("lost", result.err)

    def test_leases_on_the_other_gpu(self):
        self.sim.control("reserve", FIRST, 4 * GIB - 128 * MIB)
        one = self.start_vector_job("one", bytes=64 * MIB)
        self.succeed("gpu", "park", one.pid)
        two = self.start_vector_job("two", bytes=64 * MIB)
        on_lost = self.start_on_second()
        for server in (two, on_lost):
            self.succeed("gpu", "lease", server.pid)
            self.succeed("gpu", "release", server.pid)
        self.lose()
        for server, parked in ((one, two), (two, one)):
            self.succeed("gpu", "lease", server.pid)
            self.assertTrue(self.gpu_job(parked.pid)["parked"])
            self.succeed("gpu", "release", server.pid)

    def test_a_parked_job_of_the_lost_gpu(self):
        job = self.start_on_second()
        self.succeed("gpu", "park", job.pid)
        self.lose()
        for name, cli in self.both():
            with self.subTest(name):
                self.assert_refused(cli.run("gpu", "resume", job.pid), FAILED, SECOND, LOST, RESET, "--gpu-map")
        self.assert_refused(
            self.cli.run("gpu", "lease", job.pid, "--timeout", "5"), FAILED, SECOND, LOST, RESET, f"--gpu-map {SECOND}=OTHER"
        )
        self.assertNotIn("restore", [call["call"] for call in self.sim.calls()])
        self.assertTrue(self.gpu_job(job.pid)["parked"])
        # An image of it needs no GPU, and what was on the lost one goes onto the other.
        self.checkpoint(job.pid, "vector:1", "--stop")
        job.job.reap()
        self.assertEqual(self.restore("vector:1"), job.pid)
        self.succeed("gpu", "resume", job.pid, "--gpu-map", f"{SECOND}={FIRST}")
        self.assertGreaterEqual(self.used_bytes(FIRST), 16 * MIB)
        self.assert_runs(job)

    def test_resume_elsewhere(self):
        for name, cli in self.both():
            with self.subTest(name):
                job = self.start_on_second(name)
                self.succeed("gpu", "park", job.pid, cli=cli)
                self.lose()
                self.succeed("gpu", "resume", job.pid, "--gpu-map", f"{SECOND}={FIRST}", cli=cli)
                self.assert_runs(job)
                self.lose("none")

    def test_a_running_job_of_the_lost_gpu(self):
        job = self.start_on_second()
        self.lose()
        for arguments in (("gpu", "park", job.pid), ("ckpt", job.pid, "-t", "vector:1")):
            for name, cli in self.both():
                with self.subTest(f"{arguments[0]} {name}"):
                    hint = SECOND if name == "daemon" else "GPU number 1"
                    self.assert_refused(cli.run(*arguments), FAILED, hint, LOST, RESET)
        self.assertIsNotNone(self.gpu_job(job.pid), "it is listed, though of which GPU is not told")
        self.lose("none")
        self.assert_runs(job)
        self.succeed("gpu", "park", job.pid)

    def test_an_image_of_it_goes_onto_the_other(self):
        job = self.start_on_second()
        self.checkpoint(job.pid, "vector:1", "--stop")
        job.job.reap()
        self.lose()
        for cli in (self.cli, self.alone):
            result = cli.run("restore", "vector:1", "--detach", "--gpu-map", f"{SECOND}={SECOND}")
            self.assert_refused(result, FAILED, SECOND, LOST, RESET)
        self.come_back("vector:1", job)
        self.assertGreaterEqual(self.used_bytes(FIRST), 16 * MIB)
        self.assert_runs(job)

    def test_lost_while_an_image_is_taken(self):
        job = self.start_on_second()
        # It is out, and its GPU goes.
        self.sim.inject("checkpoint", "--delay-ms", 4000, "--when", "after", pid=job.pid, nth=1)
        command = self.cli.start("ckpt", job.pid, "-t", "vector:1")
        self.wait_for_call("checkpoint")
        waiting.until(lambda: self.used_bytes(SECOND) == 0, "its memory is out")
        self.lose()
        result = self.cli.finish(command)
        self.assertEqual(result.code, DONE, str(result))
        told = str(result.data["warnings"]) + result.err
        self.assertIn(SECOND, told)
        self.assertIn(LOST, told)
        entry = self.gpu_job(job.pid)
        self.assertTrue(entry["parked"])
        self.assertIn(LOST, entry["why"])
        self.succeed("gpu", "resume", job.pid, "--gpu-map", f"{SECOND}={FIRST}")
        self.assert_runs(job)

    def wait_for_call(self, call):
        def under_way():
            return any(entry["call"] == call and entry["result"] is None for entry in self.sim.calls())

        waiting.until(under_way, f"{call} under way")

    def test_one_whose_questions_hang(self):
        job, on_silent = self.start_vector_job(), self.start_on_second()
        self.succeed("gpu", "park", on_silent.pid)
        self.sim.control("set", "silent-gpu", SECOND)
        self.assertIn("no answer within 10s", self.device(SECOND)["trouble"])
        # Once that is known it costs no more time.
        begin = time.monotonic()
        self.succeed("gpu", "park", job.pid)
        self.succeed("gpu", "resume", job.pid)
        self.assert_refused(self.cli.run("gpu", "resume", on_silent.pid), FAILED, SECOND, "no answer", RESET)
        self.assertLess(time.monotonic() - begin, 25, "three questions take 30 s")
        self.assert_runs(job)
        self.sim.control("set", "silent-gpu", "none")
        waiting.until(lambda: not self.device(SECOND)["lost"], "it answers again")
        self.succeed("gpu", "resume", on_silent.pid)
        self.assert_runs(on_silent)

    def test_what_is_told(self):
        self.lose()
        known = self.device(SECOND)
        self.assertTrue(known["lost"] and known["uses_unknown"])
        self.assertIsNone(known["free_bytes"])
        self.assertIsNone(known["total_bytes"])
        self.assertEqual(known["trouble"], LOST)
        self.assertFalse(self.device(FIRST)["lost"])
        self.assertEqual(self.device(FIRST)["free_bytes"], 4 * GIB)
        text = self.cli.run("gpu", "ps", json_output=False).out
        self.assertRegex(text, f"{SECOND} +NVIDIA H200 +unknown +unknown")
        self.assertIn(LOST, text)
        # Who begins later is not even told its name.
        self.assertIsNone(self.device(SECOND, cli=self.alone))
        listed = self.succeed("gpu", "ps", cli=self.alone)
        self.assertEqual(listed["unreachable"], [f"GPU number 1: {LOST}"])
        self.assertIn("GPU number 1", self.alone.run("gpu", "ps", json_output=False).out)
        for name, cli in self.both():
            with self.subTest(name):
                checks = {check["name"]: check for check in cli.run("doctor").data["checks"]}
                self.assertEqual(checks["gpus"]["result"], "warning")
                self.assertIn(LOST, checks["gpus"]["detail"])
                self.assertIn(RESET, checks["gpus"]["cure"])


class UntoldTest(GpuTest):
    """The management library does not tell a GPU's memory, nor its processes; it works all the same."""

    def test_a_job_there(self):
        self.sim.control("set", "untold-gpu", FIRST)
        job = self.start_vector_job()
        self.start_vector_job("other", first_gpu=1)
        for cli in (self.cli, self.make_cli(host=self.start_daemon().host)):
            self.succeed("gpu", "park", job.pid, cli=cli)
            self.assertTrue(self.gpu_job(job.pid)["parked"])
            self.succeed("gpu", "resume", job.pid, cli=cli)
            self.assert_runs(job)
            self.succeed("ckpt", job.pid, "-t", "vector:1", "--replace", cli=cli)
            self.assert_runs(job)
        self.succeed("gpu", "park", job.pid, cli=cli)
        self.succeed("gpu", "lease", job.pid, cli=cli)
        self.succeed("gpu", "release", job.pid, cli=cli)
        self.assert_runs(job)
        text = self.cli.run("gpu", "ps", json_output=False).out
        self.assertRegex(text, f"{FIRST} +NVIDIA H200 +unknown +unknown")
        self.assertIn("Not Supported (3)", text)


if __name__ == "__main__":
    unittest.main()
