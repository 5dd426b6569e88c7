"""Jobs with GPU state on the simulated driver: images of them, park, resume and swap, and all that goes wrong."""

import concurrent.futures
import os
import signal
import unittest

from harness import freezer, jobs, procfs, waiting
from harness.cli import DONE, FAILED, NOT_FOUND, UNSUPPORTED, USAGE
from harness.gpu_case import GpuTest
from harness.gpu_sim import FIRST, GIB, MIB, OTHER_MODEL, SECOND, TWO_ALIKE, start_tree_job
from harness.terminal import shown_by


class GpuCheckpointTest(GpuTest):
    def test_the_job_runs_on_and_comes_back(self):
        job = self.start_vector_job(bytes=64 * MIB)
        taken = self.checkpoint(job.pid, "vector:1")
        self.assertGreaterEqual(taken["gpu_bytes"], 64 * MIB)
        self.assert_runs(job)
        at_image = job.step()
        self.kill(job)
        self.come_back("vector:1", job)
        self.assert_runs(job)
        self.assertGreaterEqual(self.used_bytes(), 64 * MIB)
        self.assertGreater(job.step(), 0)
        self.assertLess(job.step() - at_image, 10**6)
        described = self.succeed("inspect", "vector:1")["gpu"]
        self.assertEqual([gpu["uuid"] for gpu in described["devices"]], [FIRST])
        self.assertGreaterEqual(described["device_bytes"], 64 * MIB)

    def test_progress_names_the_gpu(self):
        job = self.start_vector_job(bytes=64 * MIB)
        for call in ("checkpoint", "restore"):
            self.sim.inject(call, "--delay-ms", 300)
        code, text = shown_by(self.cli.argv("ckpt", job.pid, "-t", "vector:1", "--stop"), self.environment)
        self.assertEqual(code, 0, text)
        moved = [line for line in text.split("\r") if FIRST in line]
        self.assertTrue(moved, text)
        self.assertRegex(moved[0], r"gpu .* of \d+\.\d MiB")
        job.job.reap()
        code, text = shown_by(self.cli.argv("restore", "vector:1", "--detach"), self.environment)
        self.assertEqual(code, 0, text)
        self.assertRegex(text, rf"gpu .* of \d+\.\d MiB.*{FIRST}")
        jobs.kill_tree(job.pid)

    def test_stop(self):
        job = self.start_vector_job()
        self.checkpoint(job.pid, "vector:1", "--stop")
        job.job.reap()
        self.assertEqual(self.used_bytes(), 0)
        self.come_back("vector:1", job)
        self.assert_runs(job)

    def test_several_images_of_one_job(self):
        job = self.start_vector_job(bytes=32 * MIB)
        for number in range(3):
            self.checkpoint(job.pid, f"vector:{number}")
            self.assert_runs(job)
        self.kill(job)
        for number in range(3):
            self.come_back(f"vector:{number}", job)
            jobs.kill_tree(job.pid)
        self.assert_store_whole([f"vector:{number}" for number in range(3)])

    def test_streams_contexts_and_two_gpus(self):
        job = self.start_vector_job(gpus=2, streams=3, contexts=2)
        self.checkpoint(job.pid, "vector:1")
        self.assert_runs(job)
        self.kill(job)
        self.come_back("vector:1", job)
        self.assert_runs(job)
        self.assertGreaterEqual(self.used_bytes(SECOND), 16 * MIB)

    def test_a_tree_of_processes(self):
        job = start_tree_job(self, self.sim, children=3)
        taken = self.checkpoint(job.pid, "tree:1")
        self.assertEqual(taken["processes"], 4)
        job.wait_for_steps()
        self.kill(job)
        self.come_back("tree:1", job)

    def test_library_without_use(self):
        """Loaded, or initialised, but nothing on any GPU."""
        for option in ("load_only", "init_only"):
            with self.subTest(option=option):
                job = self.start_vector_job(option, **{option: True})
                self.checkpoint(job.pid, f"{option}:1")
                job.wait_for_steps()
                self.kill(job)
                self.come_back(f"{option}:1", job)
                jobs.kill_tree(job.pid)

    def test_other_jobs_do_not_meet_the_driver(self):
        job, memory = self.start_memory_job(8 * MIB)
        self.checkpoint(job.pid, "memory:1")
        memory.wait_for_tick()
        self.assertEqual(self.sim.calls(), [])

    def test_an_image_without_the_step_would_be_worthless(self):
        """What these tests rest on: the simulated driver's memory does not come along by itself."""
        job = self.start_vector_job()
        empty = self.path("empty")
        os.mkdir(empty)
        # A process that has not loaded the library is not asked about.
        hidden = self.make_cli(store=self.store, env={"LD_LIBRARY_PATH": empty})
        result = hidden.run("ckpt", job.pid, "-t", "vector:1")
        self.assertNotEqual(result.code, DONE, str(result))
        self.assert_runs(job)


class GpuMapTest(GpuTest):
    def test_onto_another_gpu(self):
        job = self.start_vector_job()
        self.checkpoint(job.pid, "vector:1", "--stop")
        job.job.reap()
        self.come_back("vector:1", job, "--gpu-map", f"{FIRST}={SECOND}")
        self.assertEqual(self.used_bytes(FIRST), 0)
        self.assertGreaterEqual(self.used_bytes(SECOND), 16 * MIB)
        self.assert_runs(job)

    def test_a_driver_that_wants_each_gpu_named_that_the_job_sees(self):
        self.sim.control("set", "pairs-name-visible-gpus", 1)
        job = self.start_vector_job()
        self.checkpoint(job.pid, "vector:1", "--stop")
        job.job.reap()
        self.come_back("vector:1", job, "--gpu-map", f"{FIRST}={SECOND}")
        self.assertEqual(self.used_bytes(FIRST), 0)
        self.assert_runs(job)
        self.succeed("gpu", "park", job.pid)
        self.succeed("gpu", "resume", job.pid, "--gpu-map", f"{SECOND}={FIRST}")
        self.assertEqual(self.used_bytes(SECOND), 0)
        self.assert_runs(job)

    def test_automatically_where_the_old_one_is_not_there(self):
        job = self.start_vector_job()
        self.checkpoint(job.pid, "vector:1", "--stop")
        job.job.reap()
        self.sim.stop()
        self.sim = self.start_sim(gpus=TWO_ALIKE[1:])
        self.come_back("vector:1", job)
        self.assert_runs(job)
        self.assertGreaterEqual(self.used_bytes(SECOND), 16 * MIB)

    def test_refusals(self):
        job = self.start_vector_job(bytes=256 * MIB)
        self.checkpoint(job.pid, "vector:1", "--stop")
        job.job.reap()
        self.sim.stop()
        cases = (
            ("another model", ((OTHER_MODEL, "NVIDIA A100", 4 * GIB),), (), FAILED, "same model"),
            ("too small", ((FIRST, "NVIDIA H200", 128 * MIB),), (), FAILED, "free"),
            ("no such GPU", TWO_ALIKE, ("--gpu-map", f"{FIRST}={OTHER_MODEL}"), FAILED, OTHER_MODEL),
            ("not its GPU", TWO_ALIKE, ("--gpu-map", f"{SECOND}={FIRST}"), USAGE, "was not on"),
            ("no UUID", TWO_ALIKE, ("--gpu-map", "0=1"), USAGE, "UUID"),
        )
        for what, gpus, options, code, word in cases:
            with self.subTest(what):
                sim = self.start_sim(gpus=gpus)
                self.assert_refused(self.cli.run("restore", "vector:1", "--detach", *options), code, word)
                self.assertFalse(procfs.alive(job.pid))
                sim.stop()
        sim = self.start_sim()
        sim.control("reserve", FIRST, 4 * GIB - 128 * MIB)
        self.assert_refused(self.cli.run("restore", "vector:1", "--detach"), FAILED, "free", "--gpu-map")
        sim.stop()
        sim = self.start_sim(driver_version=12090, driver_text="575.57.08")
        self.assert_refused(self.cli.run("restore", "vector:1", "--detach"), FAILED, "575.57.08", "driver")
        sim.stop()
        self.sim = self.start_sim()
        self.come_back("vector:1", job)

    def test_a_map_needs_gpu_state(self):
        job, _ = self.start_memory_job(8 * MIB)
        self.checkpoint(job.pid, "memory:1", "--stop")
        job.reap()
        result = self.cli.run("restore", "memory:1", "--detach", "--gpu-map", f"{FIRST}={SECOND}")
        self.assert_refused(result, USAGE, "no GPU state")


class GpuParkTest(GpuTest):
    def test_park_and_resume(self):
        job = self.start_vector_job(bytes=64 * MIB)
        moved = self.succeed("gpu", "park", job.pid)
        self.assertGreaterEqual(moved["bytes"], 64 * MIB)
        self.assertEqual(self.used_bytes(), 0)
        entry = self.gpu_job(job.pid)
        self.assertTrue(entry["parked"])
        self.assertEqual(entry["state"], "checkpointed")
        stood = job.step()
        self.assertTrue(self.succeed("gpu", "park", job.pid)["nothing_to_do"])
        self.assertEqual(job.step(), stood)
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)
        self.assertTrue(self.succeed("gpu", "resume", job.pid)["nothing_to_do"])
        left = os.listdir(os.path.join(self.runtime, "gpu"))
        self.assertEqual([name for name in left if name.startswith("process-")], [])
        self.assertLessEqual(len(left), 1, "commands clean up after those before them")

    def test_resume_onto_another_gpu(self):
        job = self.start_vector_job()
        self.succeed("gpu", "park", job.pid)
        self.succeed("gpu", "resume", job.pid, "--gpu-map", f"{FIRST}={SECOND}")
        self.assert_runs(job)
        self.assertEqual(self.used_bytes(FIRST), 0)

    def test_swap(self):
        first = self.start_vector_job("first", bytes=64 * MIB)
        self.succeed("gpu", "park", first.pid)
        second = self.start_vector_job("second", bytes=64 * MIB)
        self.succeed("gpu", "swap", second.pid, first.pid)
        self.assert_runs(first)
        self.assertTrue(self.gpu_job(second.pid)["parked"])
        self.succeed("gpu", "swap", first.pid, second.pid)
        self.assert_runs(second)
        self.assertTrue(self.gpu_job(first.pid)["parked"])

    def test_swap_moves_both_at_once_where_both_fit(self):
        first = self.start_vector_job("first", bytes=64 * MIB)
        self.succeed("gpu", "park", first.pid)
        second = self.start_vector_job("second", bytes=64 * MIB)
        for job, call in ((first, "restore"), (second, "checkpoint")):
            self.sim.inject(call, "--delay-ms", 1500, pid=job.pid)
        result = self.succeed("gpu", "swap", second.pid, first.pid)
        self.sim.clear()
        taken = sum(phase["seconds"] for phase in result["phases"])
        self.assertLess(result["seconds"], taken - 0.5, result)
        self.assert_runs(first)
        self.assertTrue(self.gpu_job(second.pid)["parked"])
        # Without room for both, one after the other.
        self.sim.control("reserve", FIRST, 4 * GIB - 96 * MIB)
        for job, call in ((second, "restore"), (first, "checkpoint")):
            self.sim.inject(call, "--delay-ms", 300, pid=job.pid)
        result = self.succeed("gpu", "swap", first.pid, second.pid)
        taken = sum(phase["seconds"] for phase in result["phases"])
        self.assertGreaterEqual(result["seconds"], taken - 0.01, result)
        self.assert_runs(second)

    def test_a_swap_that_fails_leaves_both_as_they_were(self):
        first = self.start_vector_job("first", bytes=64 * MIB)
        self.succeed("gpu", "park", first.pid)
        second = self.start_vector_job("second", bytes=64 * MIB)
        for job, call in ((first, "restore"), (second, "checkpoint")):
            self.sim.inject(call, "--fail", 999, pid=job.pid)
            self.assert_refused(self.cli.run("gpu", "swap", second.pid, first.pid), FAILED, "as it was")
            self.sim.clear()
            self.assert_runs(second)
            self.assertTrue(self.gpu_job(first.pid)["parked"])
        self.succeed("gpu", "resume", first.pid)
        self.assert_runs(first)

    def test_a_parked_job_can_be_captured(self):
        job = self.start_vector_job()
        self.succeed("gpu", "park", job.pid)
        self.checkpoint(job.pid, "vector:1")
        self.assertTrue(self.gpu_job(job.pid)["parked"])
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)
        self.kill(job)
        self.come_back("vector:1", job)
        self.assert_runs(job)

    def test_no_room_to_resume(self):
        job = self.start_vector_job(bytes=256 * MIB)
        self.succeed("gpu", "park", job.pid)
        self.sim.control("reserve", FIRST, 4 * GIB - 128 * MIB)
        daemon_like = self.cli.run("gpu", "resume", job.pid, env={"REKINDLE_GPU_ROOM_TIMEOUT": "0"})
        self.assert_refused(daemon_like, FAILED, "free")
        self.assertTrue(self.gpu_job(job.pid)["parked"])
        self.sim.control("reserve", FIRST, 0)
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)

    def test_two_at_once_where_one_has_room(self):
        """Both see the same room; the driver would lose the one that comes second."""
        jobs = []
        for name in ("a", "b"):
            jobs.append(self.start_vector_job(name, bytes=256 * MIB))
            self.succeed("gpu", "park", jobs[-1].pid)
        self.sim.control("reserve", FIRST, 4 * GIB - 448 * MIB)
        self.sim.inject("restore", "--delay-ms", 500)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            environment = {"REKINDLE_GPU_ROOM_TIMEOUT": "1"}
            results = list(pool.map(lambda job: self.cli.run("gpu", "resume", job.pid, env=environment), jobs))
        self.assertEqual(sorted(result.code for result in results), [DONE, FAILED], results)
        for job, result in zip(jobs, results):
            if result.code == DONE:
                self.assert_runs(job)
                self.kill(job)
        for job, result in zip(jobs, results):
            if result.code == FAILED:
                self.assert_refused(result, FAILED, "free")
                self.succeed("gpu", "resume", job.pid)
                self.assert_runs(job)

    def test_what_uses_no_gpu(self):
        job, _ = self.start_memory_job(8 * MIB)
        self.assert_refused(self.cli.run("gpu", "park", job.pid), FAILED, "no CUDA")
        self.assert_refused(self.cli.run("gpu", "resume", job.pid), FAILED, "no CUDA")


@unittest.skipIf(os.stat("/proc/self/ns/pid").st_ino == 0xEFFFFFFC, "not in a PID namespace of its own")
class GpuContainerTest(GpuTest):
    """In a container the management library names processes by their PIDs outside, which are nobody's here."""

    def start_sim(self, **options):
        return super().start_sim(pids_from_outside=1, **options)

    def test_park_and_resume(self):
        job = self.start_vector_job(bytes=64 * MIB)
        self.assert_runs(job)
        moved = self.succeed("gpu", "park", job.pid)
        self.assertFalse(moved.get("nothing_to_do"), moved)
        self.assertGreaterEqual(moved["bytes"], 64 * MIB)
        self.assertEqual(self.used_bytes(), 0)
        self.assertTrue(self.gpu_job(job.pid)["parked"])
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)

    def test_an_image_knows_what_the_job_had(self):
        job = self.start_vector_job(bytes=64 * MIB)
        taken = self.checkpoint(job.pid, "vector:1", "--stop")
        self.assertGreaterEqual(taken["gpu_bytes"], 64 * MIB)
        job.job.reap()
        described = self.succeed("inspect", "vector:1")["gpu"]
        self.assertEqual([gpu["uuid"] for gpu in described["devices"]], [FIRST])
        self.assertGreaterEqual(described["device_bytes"], 64 * MIB)
        self.sim.control("reserve", FIRST, 4 * GIB - 32 * MIB)
        self.assert_refused(self.cli.run("restore", "vector:1", "--detach"), FAILED, "free")
        self.sim.control("reserve", FIRST, 0)
        self.come_back("vector:1", job)
        self.assert_runs(job)


class GpuDriverTest(GpuTest):
    def test_doctor(self):
        def gpus():
            return next(check for check in self.cli.run("doctor").data["checks"] if check["name"] == "gpus")

        self.assertEqual(gpus()["result"], "ok")
        self.assertIn("580.", gpus()["detail"])
        self.sim.control("set", "mig", 1)
        self.assertEqual(gpus()["result"], "warning")
        self.sim.stop()
        self.sim = self.start_sim(driver_version=12020)
        self.environment["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
        self.cli = self.make_cli(store=self.store)
        self.assertIn("570", gpus()["cure"])

    def test_no_driver(self):
        env = {"LD_LIBRARY_PATH": self.directory}
        self.assert_refused(self.cli.run("gpu", "ps", env=env), UNSUPPORTED, "driver")

    def test_too_old(self):
        self.sim.stop()
        self.sim = self.start_sim(driver_version=12020, driver_text="535.100")
        job = self.start_vector_job()
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}  # no cuda-checkpoint
        result = self.cli.run("ckpt", job.pid, "-t", "vector:1", env=env)
        self.assert_refused(result, UNSUPPORTED, "570")
        job.wait_for_steps()

    def test_a_driver_that_does_not_tell_what_a_job_has(self):
        self.sim.stop()
        self.sim = self.start_sim(bytes_untold=1)
        job = self.start_vector_job(bytes=64 * MIB)
        self.assertGreaterEqual(self.succeed("gpu", "park", job.pid)["bytes"], 64 * MIB)
        self.succeed("gpu", "resume", job.pid)
        self.assertGreaterEqual(self.checkpoint(job.pid, "vector:1")["gpu_bytes"], 64 * MIB)
        self.assert_runs(job)

    def test_a_driver_that_has_newer_forms_of_the_functions(self):
        self.sim.stop()
        self.sim = self.start_sim(driver_version=13040, driver_text="615.10")
        job = self.start_vector_job()
        self.succeed("gpu", "park", job.pid)
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)

    def test_the_utility_where_the_driver_has_no_functions(self):
        self.sim.stop()
        self.sim = self.start_sim(driver_version=12050, driver_text="555.42.02")
        job = self.start_vector_job()
        self.assertEqual(self.succeed("gpu", "ps")["means"], "cuda-checkpoint")
        self.checkpoint(job.pid, "vector:1")
        job.wait_for_steps()
        self.kill(job)
        self.come_back("vector:1", job)
        self.succeed("gpu", "park", job.pid)
        self.succeed("gpu", "resume", job.pid)
        job.wait_for_steps()

    def test_memory_that_the_driver_can_not_save(self):
        for option in ("managed", "ipc"):
            with self.subTest(option=option):
                job = self.start_vector_job(option, **{option: True})
                result = self.cli.run("ckpt", job.pid, "-t", f"{option}:1")
                self.assert_refused(result, UNSUPPORTED, "managed", "IPC")
                self.assert_runs(job)
                self.kill(job)


class GpuFaultTest(GpuTest):
    """After each of these the job runs on unlocked, or is gone with nothing left of it."""

    def test_room_that_the_driver_misses_after_all(self):
        """The first failure tells why, though the driver answers each further try with another error."""
        job = self.start_vector_job(bytes=64 * MIB)
        self.succeed("gpu", "park", job.pid)
        self.sim.control("set", "context-bytes", 5 * GIB)
        result = self.cli.run("gpu", "resume", job.pid)
        self.assert_refused(result, FAILED, "OUT_OF_MEMORY", "only a new start of the job helps")
        self.assertNotIn("tries again", str(result))
        self.assertTrue(self.gpu_job(job.pid)["parked"])

    def test_work_that_does_not_end(self):
        job = self.start_vector_job(spin_ms=3000)
        result = self.cli.run("ckpt", job.pid, "-t", "vector:1", "--gpu-lock-timeout", "0.2")
        self.assert_refused(result, FAILED, "--gpu-lock-timeout")
        self.assert_runs(job)
        self.checkpoint(job.pid, "vector:1", "--gpu-lock-timeout", "60")
        self.assert_runs(job)

    def test_each_call_fails(self):
        job = self.start_vector_job()
        for number, (call, code) in enumerate(
            (("lock", 999), ("lock", 401), ("checkpoint", 2), ("checkpoint", 999), ("state", 999))
        ):
            with self.subTest(call=call, code=code):
                self.sim.inject(call, "--fail", code, nth=1)
                result = self.cli.run("ckpt", job.pid, "-t", f"vector:{number}")
                self.assertNotEqual(result.code, DONE, str(result))
                self.sim.clear()
                self.assert_runs(job)
        for call in ("restore", "unlock"):
            with self.subTest(call=call):
                # Once: it is tried again.
                self.sim.inject(call, "--fail", 999, nth=1)
                self.checkpoint(job.pid, f"{call}:1")
                self.sim.clear()
                self.assert_runs(job)
        self.assert_store_whole(["restore:1", "unlock:1"])

    def test_memory_that_does_not_go_back(self):
        """The job is parked with its data safe, says so, and the image is kept."""
        job = self.start_vector_job()
        self.sim.inject("restore", "--fail", 2)
        taken = self.checkpoint(job.pid, "vector:1")
        self.assertTrue(any("gpu resume" in warning for warning in taken["warnings"]), taken)
        self.assertTrue(self.gpu_job(job.pid)["parked"])
        self.sim.clear()
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)
        self.kill(job)
        self.come_back("vector:1", job)

    def test_success_that_is_none(self):
        job = self.start_vector_job(bytes=3 * GIB, sparse=True)
        self.sim.inject("checkpoint", "--no-effect")
        result = self.cli.run("ckpt", job.pid, "-t", "vector:1")
        self.assertNotEqual(result.code, DONE, str(result))
        self.sim.clear()
        self.assert_runs(job)
        self.sim.inject("checkpoint", "--wrong-success")
        result = self.cli.run("ckpt", job.pid, "-t", "vector:1")
        self.assert_refused(result, FAILED, "worthless")
        self.assert_store_whole([])

    def test_a_restore_that_lost_its_state(self):
        job = self.start_vector_job()
        self.checkpoint(job.pid, "vector:1", "--stop")
        job.job.reap()
        for fault in (("restore", "--fail", 2), ("restore", "--no-effect"), ("unlock", "--no-effect")):
            with self.subTest(fault=fault):
                self.sim.inject(*fault)
                result = self.cli.run("restore", "vector:1", "--detach")
                self.assert_refused(result, result.code or FAILED, "its GPU state; nothing is left running")
                waiting.until(lambda: not procfs.alive(job.pid), "the tree gone")
                self.sim.clear()
        self.come_back("vector:1", job)

    def test_the_target_dies(self):
        for call in ("lock", "checkpoint", "restore", "unlock"):
            with self.subTest(call=call):
                job = self.start_vector_job(call)
                self.sim.inject(call, "--kill-target", pid=job.pid)
                self.cli.run("ckpt", job.pid, "-t", f"{call}:1")
                self.sim.clear()
                self.assertFalse(procfs.alive(job.pid))
                self.assertIsNone(self.gpu_job(job.pid))
                self.assertEqual(self.used_bytes(), 0)

    def test_the_driver_hangs(self):
        """A helper that hangs is killed, and the job set free by another."""
        job = self.start_vector_job()
        self.sim.inject("checkpoint", "--hang", nth=1)
        result = self.cli.run("ckpt", job.pid, "-t", "vector:1", env={"REKINDLE_GPU_MOVE_TIMEOUT": "2"})
        self.assert_refused(result, FAILED, "did not answer")
        self.sim.clear()
        self.assert_runs(job)

    def test_answers_for_a_helper_that_was_killed(self):
        """The next one gets them as its own: of a checkpoint that was carried out, a state that is none."""
        job = self.start_vector_job()
        for call in ("checkpoint", "restore"):
            with self.subTest(call=call):
                self.sim.inject(call, "--hang", "--answers-late", nth=1)
                self.cli.run("ckpt", job.pid, "-t", f"{call}:1", env={"REKINDLE_GPU_MOVE_TIMEOUT": "2"})
                self.sim.clear()
                self.assert_runs(job)

    def test_a_stopped_job(self):
        job = self.start_vector_job()
        os.kill(job.pid, signal.SIGSTOP)
        waiting.until(lambda: procfs.state(job.pid) == "T", "the job stopped")
        self.assert_refused(self.cli.run("ckpt", job.pid, "-t", "vector:1"), FAILED, "CONT")
        os.kill(job.pid, signal.SIGCONT)
        self.checkpoint(job.pid, "vector:1")
        self.assert_runs(job)

    def test_a_job_that_its_cgroup_has_frozen(self):
        if not freezer.hierarchies():
            self.skipTest("no control groups that can be frozen")
        job = self.start_vector_job()
        with freezer.frozen(job.pid, freezer.hierarchies()[0]):
            self.assert_refused(self.cli.run("ckpt", job.pid, "-t", "vector:1"), FAILED, "frozen", "unpause")
            self.assert_refused(self.cli.run("gpu", "park", job.pid), FAILED, "frozen", "unpause")
        self.assert_runs(job)

    def test_more_than_fits_into_host_memory(self):
        self.sim.stop()
        self.sim = self.start_sim(gpus=((FIRST, "NVIDIA H200", 10**15),), context_bytes=10**14)
        job = self.start_vector_job()
        result = self.cli.run("gpu", "park", job.pid)
        self.assert_refused(result, FAILED, "host memory", "nothing was moved")
        self.assertNotIn("lock", [call["call"] for call in self.sim.calls()])
        self.assert_runs(job)


class GpuLeaseTest(GpuTest):
    """Model servers that do not all fit share a GPU through the daemon."""

    SIZE = 64 * MIB
    ROOM = ((FIRST, "NVIDIA H200", 2 * 80 * MIB),)  # two of them, with their contexts

    def setUp(self):
        super().setUp()
        self.sim.stop()
        self.sim = self.start_sim(gpus=self.ROOM)
        self.daemon = self.start_daemon()
        self.cli = self.make_cli(host=self.daemon.host)

    def start_parked(self, names):
        servers = []
        for name in names:
            server = self.start_vector_job(name, bytes=self.SIZE)
            self.succeed("gpu", "park", server.pid)
            servers.append(server)
        return servers

    def parked(self):
        return {job["pid"] for job in self.succeed("gpu", "ps")["jobs"] if job["parked"]}

    def test_the_least_recently_used_makes_room(self):
        first, second, third = self.start_parked(("first", "second", "third"))
        for server in (first, second):
            self.succeed("gpu", "lease", server.pid)
            self.succeed("gpu", "release", server.pid)
        self.assertEqual(self.parked(), {third.pid})
        self.succeed("gpu", "lease", third.pid)
        self.assertEqual(self.parked(), {first.pid})
        self.assertEqual(self.gpu_job(third.pid)["leases"], 1)
        third.wait_for_steps()
        second.wait_for_steps()
        self.succeed("gpu", "lease", first.pid)
        self.assertEqual(self.parked(), {second.pid}, "the leased one stayed")
        first.wait_for_steps()

    def test_all_leased(self):
        first, second, third = self.start_parked(("first", "second", "third"))
        self.succeed("gpu", "lease", first.pid)
        self.succeed("gpu", "lease", second.pid)
        result = self.cli.run("gpu", "lease", third.pid, "--timeout", "0.5")
        self.assert_refused(result, FAILED, str(first.pid), str(second.pid))
        waiting_for_it = self.cli.start("gpu", "lease", third.pid, "--timeout", "60")
        self.succeed("gpu", "release", first.pid)
        self.assertEqual(self.cli.finish(waiting_for_it).code, DONE)
        self.assertEqual(self.parked(), {first.pid})
        third.wait_for_steps()
        self.assert_refused(self.cli.run("gpu", "park", third.pid), FAILED, "leased")
        self.assert_refused(self.cli.run("gpu", "release", first.pid), FAILED, "isn't leased")

    def test_pinned(self):
        first, second, third = self.start_parked(("first", "second", "third"))
        for server in (first, second):
            self.succeed("gpu", "lease", server.pid, "--pin")
            self.succeed("gpu", "release", server.pid)
        result = self.cli.run("gpu", "lease", third.pid, "--timeout", "2")
        self.assert_refused(result, FAILED, "pinned")
        first.wait_for_steps()

    def test_a_lease_that_is_held_ends_with_its_holder(self):
        first, second, third = self.start_parked(("first", "second", "third"))
        holder = self.cli.start("gpu", "lease", first.pid, "--hold")
        self.assertIn("seconds", holder.stdout.readline())
        self.succeed("gpu", "lease", second.pid)
        self.assertEqual(self.gpu_job(first.pid)["leases"], 1)
        holder.kill()
        self.cli.finish(holder)
        self.succeed("gpu", "lease", third.pid, "--timeout", "30")
        self.assertEqual(self.parked(), {first.pid})
        holder = self.cli.start("gpu", "lease", third.pid, "--hold")
        holder.stdout.readline()
        holder.send_signal(signal.SIGINT)
        self.assertEqual(self.cli.finish(holder).code, DONE)
        waiting.until(lambda: self.gpu_job(third.pid)["leases"] == 1, "the second lease ended")
        holder = self.cli.start("gpu", "lease", third.pid, "--hold")
        holder.stdout.readline()
        self.kill(third)
        self.assert_refused(self.cli.finish(holder), NOT_FOUND, "ended")

    def test_one_that_dies_makes_room(self):
        first, second, third = self.start_parked(("first", "second", "third"))
        self.succeed("gpu", "lease", first.pid)
        self.succeed("gpu", "lease", second.pid)
        self.kill(first)
        self.succeed("gpu", "lease", third.pid, "--timeout", "30")
        third.wait_for_steps()

    def test_host_memory_budget(self):
        self.daemon.stop()
        self.daemon = self.start_daemon("--gpu-host-memory", str(100 * MIB))
        first, second = (self.start_vector_job(name, bytes=self.SIZE) for name in ("first", "second"))
        self.succeed("gpu", "park", first.pid)
        self.assert_refused(self.cli.run("gpu", "park", second.pid), FAILED, "host")
        second.wait_for_steps()

    def test_the_drivers_contexts_count_in_the_budget(self):
        self.daemon.stop()
        self.environment["REKINDLE_GPU_CONTEXT_MEMORY"] = "64M"
        self.daemon = self.start_daemon("--gpu-host-memory", str(100 * MIB))
        server = self.start_vector_job("server", bytes=self.SIZE)
        self.assert_refused(self.cli.run("gpu", "park", server.pid), FAILED, "host memory")
        server.wait_for_steps()

    def test_a_restarted_daemon_knows_who_is_parked(self):
        first, second, third = self.start_parked(("first", "second", "third"))
        self.succeed("gpu", "lease", first.pid)
        self.daemon.kill()
        self.daemon = self.start_daemon()
        self.assertEqual(self.parked(), {second.pid, third.pid})
        self.succeed("gpu", "lease", second.pid)
        second.wait_for_steps()
        first.wait_for_steps()

    def start_daemon_again(self):
        self.daemon.kill()
        self.daemon = self.start_daemon()

    def test_leases_and_pins_outlive_the_daemon(self):
        first, second, third = self.start_parked(("first", "second", "third"))
        self.succeed("gpu", "lease", second.pid, "--pin")
        self.succeed("gpu", "release", second.pid)
        self.succeed("gpu", "lease", first.pid)
        holder = self.cli.start("gpu", "lease", first.pid, "--hold")
        holder.stdout.readline()
        self.assertEqual(self.gpu_job(first.pid)["leases"], 2)
        self.start_daemon_again()
        self.assertEqual(self.cli.finish(holder).code, FAILED)
        leased, pinned = self.gpu_job(first.pid), self.gpu_job(second.pid)
        self.assertEqual((leased["leases"], leased["pinned"]), (1, False), "the one that was held has ended")
        self.assertEqual((pinned["leases"], pinned["pinned"]), (0, True))
        self.assert_refused(self.cli.run("gpu", "park", first.pid), FAILED, "leased")
        self.assert_refused(self.cli.run("gpu", "park", second.pid), FAILED, "pinned")
        result = self.cli.run("gpu", "lease", third.pid, "--timeout", "0.5")
        self.assert_refused(result, FAILED, str(first.pid), str(second.pid), "pinned")
        waiting_for_it = self.cli.start("gpu", "lease", third.pid, "--timeout", "60")
        self.assertEqual(self.succeed("gpu", "release", first.pid)["leases"], 0)
        self.assertEqual(self.cli.finish(waiting_for_it).code, DONE)
        self.assertEqual(self.parked(), {first.pid})
        third.wait_for_steps()
        second.wait_for_steps()
        # What has ended stays so.
        self.start_daemon_again()
        self.assertEqual(self.gpu_job(first.pid)["leases"], 0)
        self.assertEqual(self.gpu_job(third.pid)["leases"], 1)

    def test_unpin(self):
        first, second, third = self.start_parked(("first", "second", "third"))
        self.succeed("gpu", "lease", first.pid, "--pin")
        self.succeed("gpu", "lease", second.pid)
        self.assertEqual(self.succeed("gpu", "release", first.pid)["leases"], 0)
        self.assertTrue(self.gpu_job(first.pid)["pinned"])
        self.assert_refused(self.cli.run("gpu", "lease", third.pid, "--timeout", "0.5"), FAILED, "pinned")
        self.succeed("gpu", "release", first.pid, "--unpin")
        self.succeed("gpu", "lease", third.pid, "--timeout", "30")
        self.assertEqual(self.parked(), {first.pid})
        self.start_daemon_again()
        self.assertFalse(self.gpu_job(first.pid)["pinned"])

    def test_a_leased_job_that_is_parked_when_the_daemon_starts(self):
        (job,) = self.start_parked(("first",))
        self.succeed("gpu", "lease", job.pid)
        self.daemon.kill()
        self.succeed("gpu", "park", job.pid, cli=self.make_cli(store=self.store))
        self.daemon = self.start_daemon()
        self.assertIn(f"gpu resume {job.pid}", self.daemon.log_text())
        entry = self.gpu_job(job.pid)
        self.assertEqual((entry["leases"], entry["parked"]), (1, True))
        self.succeed("gpu", "lease", job.pid)
        job.wait_for_steps()
        self.assertEqual(self.succeed("gpu", "release", job.pid)["leases"], 1)
        self.assertEqual(self.succeed("gpu", "release", job.pid)["leases"], 0)

    def test_leases_of_a_job_that_has_ended(self):
        first, second, third = self.start_parked(("first", "second", "third"))
        self.succeed("gpu", "lease", first.pid, "--pin")
        self.succeed("gpu", "lease", second.pid)
        self.daemon.kill()
        self.kill(first)
        self.daemon = self.start_daemon()
        self.succeed("gpu", "lease", third.pid, "--timeout", "30")
        self.assertEqual(self.parked(), set())
        self.assertEqual(self.gpu_job(second.pid)["leases"], 1)

    def test_what_can_not_be_remembered_is_no_lease(self):
        (job,) = self.start_parked(("first",))
        record = os.path.join(self.runtime, "gpu", "leases.json")
        os.unlink(record)
        os.mkdir(record)
        for options in ((), ("--pin",), ("--pin", "--hold")):
            with self.subTest(options=options):
                self.assert_refused(self.cli.run("gpu", "lease", job.pid, *options), FAILED, record, "restart")
                entry = self.gpu_job(job.pid)
                self.assertEqual((entry["leases"], entry["pinned"]), (0, False))
        os.rmdir(record)
        self.succeed("gpu", "lease", job.pid)
        os.unlink(record)
        os.mkdir(record)
        self.assertEqual(self.succeed("gpu", "release", job.pid)["leases"], 0)
        self.assertIn(record, self.daemon.log_text())
        self.succeed("gpu", "park", job.pid)
        os.rmdir(record)

    def test_a_damaged_record_of_leases(self):
        (job,) = self.start_parked(("first",))
        self.succeed("gpu", "lease", job.pid)
        self.daemon.kill()
        record = os.path.join(self.runtime, "gpu", "leases.json")
        with open(record, "r+", encoding="ascii") as file:
            file.truncate(os.path.getsize(record) // 2)
        self.daemon = self.start_daemon()
        self.assertIn(record, self.daemon.log_text())
        self.assertEqual(self.gpu_job(job.pid)["leases"], 0)
        self.succeed("gpu", "lease", job.pid)
        self.start_daemon_again()
        self.assertEqual(self.gpu_job(job.pid)["leases"], 1)

    def test_many_routers(self):
        """Leases from several sides at once: each gets its turn, everything computed stays right."""
        servers = self.start_parked(("first", "second", "third", "fourth"))

        def route(number):
            for turn in range(10):
                server = servers[(number + turn) % len(servers)]
                self.succeed("gpu", "lease", server.pid, "--timeout", "120")
                server.wait_for_steps(1)
                self.succeed("gpu", "release", server.pid)

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(route, range(4)))
        for server in servers:
            self.succeed("gpu", "lease", server.pid)
            server.wait_for_steps()
            self.succeed("gpu", "release", server.pid)

    def test_without_a_daemon(self):
        job = self.start_vector_job()
        alone = self.make_cli(store=self.store)
        self.assert_refused(alone.run("gpu", "lease", job.pid), FAILED, "rekindled")


if __name__ == "__main__":
    unittest.main()
