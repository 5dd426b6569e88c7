"""What drivers do beside what NVIDIA's documents say, as their users have seen it: in containers, with forked children, with
jobs of `cuda-checkpoint --launch-job`, and where MPS runs."""

import os
import socket
import stat
import sys
import unittest

from harness import procfs, waiting
from harness.cli import DONE, FAILED
from harness.gpu_case import GpuTest
from harness.gpu_sim import FIRST, GIB, MIB, SECOND


class ZeroBytesTest(GpuTest):
    """With the open kernel module the management library names processes by their PIDs in the container, and says of each
    that it has nothing."""

    def start_sim(self, **options):
        return super().start_sim(bytes_zero=1, **options)

    def test_a_parked_job_needs_the_room_that_it_had(self):
        job = self.start_vector_job(bytes=64 * MIB)
        self.assertGreaterEqual(self.succeed("gpu", "park", job.pid)["bytes"], 64 * MIB)
        # Of a resume without room the driver would lose it for ever.
        self.sim.control("reserve", FIRST, 4 * GIB - 32 * MIB)
        result = self.cli.run("gpu", "resume", job.pid, env={"REKINDLE_GPU_ROOM_TIMEOUT": "0"})
        self.assert_refused(result, FAILED, "free")
        self.sim.control("reserve", FIRST, 0)
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)

    def test_an_image_needs_the_room_that_its_job_had(self):
        job = self.start_vector_job(bytes=64 * MIB)
        self.assertGreaterEqual(self.checkpoint(job.pid, "vector:1", "--stop")["gpu_bytes"], 64 * MIB)
        job.job.reap()
        self.sim.control("reserve", FIRST, 4 * GIB - 32 * MIB)
        self.assert_refused(self.cli.run("restore", "vector:1", "--detach"), FAILED, "free")
        self.sim.control("reserve", FIRST, 0)
        self.come_back("vector:1", job)
        self.assert_runs(job)

    def test_leases_park_others(self):
        for options in ({"bytes_zero": 1}, {"pids_from_outside": 1}):
            with self.subTest(options):
                self.sim.stop()
                self.sim = super().start_sim(gpus=((FIRST, "NVIDIA H200", 160 * MIB),), **options)
                first = self.start_vector_job("first", bytes=100 * MIB)
                self.succeed("gpu", "park", first.pid)
                daemon = self.start_daemon()
                self.cli = self.make_cli(host=daemon.host)
                second = self.start_vector_job("second", bytes=100 * MIB)
                self.succeed("gpu", "lease", second.pid)
                self.succeed("gpu", "release", second.pid)
                # Of the second one nothing was ever told.
                for job, other in ((first, second), (second, first), (first, second)):
                    self.succeed("gpu", "lease", job.pid, "--timeout", "20")
                    self.succeed("gpu", "release", job.pid)
                    job.wait_for_steps()
                    self.assertTrue(self.gpu_job(other.pid)["parked"])
                self.kill(first)
                self.kill(second)
                daemon.stop()


class ZeroBytesOfTwoTest(GpuTest):
    """With two GPUs, on each of which there is room for one job."""

    def start_sim(self, **options):
        gpus = tuple((uuid, "NVIDIA H200", 160 * MIB) for uuid in (FIRST, SECOND))
        return super().start_sim(gpus=gpus, bytes_zero=1, **options)

    def start_on_second(self, name):
        job = self.start_vector_job(name, bytes=100 * MIB)
        self.succeed("gpu", "park", job.pid)
        self.succeed("gpu", "resume", job.pid, "--gpu-map", f"{FIRST}={SECOND}")
        return job

    def follow_daemon(self):
        self.cli = self.make_cli(host=self.start_daemon().host)

    def test_one_that_came_back_elsewhere_counts_there(self):
        self.follow_daemon()
        other = self.start_on_second("other")
        self.succeed("gpu", "park", other.pid)
        moved = self.start_on_second("moved")
        self.succeed("gpu", "lease", moved.pid)
        self.succeed("gpu", "release", moved.pid)
        self.succeed("gpu", "lease", other.pid, "--timeout", "20")
        self.assertTrue(self.gpu_job(moved.pid)["parked"])
        other.wait_for_steps()

    def test_one_on_another_gpu_is_not_parked_in_vain(self):
        wanted = self.start_on_second("wanted")
        self.succeed("gpu", "park", wanted.pid)
        training = self.start_on_second("training")
        idle = self.start_vector_job("idle", bytes=100 * MIB)
        self.follow_daemon()
        self.succeed("gpu", "lease", idle.pid)
        self.succeed("gpu", "release", idle.pid)
        self.assert_refused(self.cli.run("gpu", "lease", wanted.pid, "--timeout", "1"), FAILED, str(wanted.pid))
        self.assertFalse(self.gpu_job(idle.pid)["parked"])
        training.wait_for_steps()


class LaunchJobTest(GpuTest):
    """Of the processes of one `cuda-checkpoint --launch-job` the driver moves one at a time."""

    def setUp(self):
        super().setUp()
        job_file = self.path("job-file")
        with open(job_file, "w", encoding="ascii"):
            pass
        self.sim.environment["CUDA_CHECKPOINT_JOB_FILE"] = job_file
        self.tree = self.start_tree_job(3)
        # Long enough for the others to come while one is moved.
        for call in ("lock", "checkpoint", "restore", "unlock"):
            self.sim.inject(call, "--delay-ms", 200)

    def test_park_and_resume(self):
        self.succeed("gpu", "park", self.tree.pid)
        self.succeed("gpu", "resume", self.tree.pid)
        self.assert_all_run()

    def test_an_image(self):
        self.checkpoint(self.tree.pid, "tree:1")
        self.assert_all_run()
        self.checkpoint(self.tree.pid, "tree:2", "--stop")
        self.tree.job.reap()
        self.come_back("tree:2", self.tree)
        self.assert_all_run()

    def test_they_come_back_in_the_order_in_which_they_left(self):
        self.succeed("gpu", "park", self.tree.pid)
        self.succeed("gpu", "resume", self.tree.pid)
        order = {call: [c["pid"] for c in self.sim.calls() if c["call"] == call] for call in ("lock", "checkpoint", "restore")}
        self.assertEqual(len(order["lock"]), 3)
        self.assertEqual(order["checkpoint"], order["lock"])
        self.assertEqual(order["restore"], order["lock"])

    def test_one_that_can_not_be_moved_has_the_others_run_on(self):
        child = procfs.descendants(self.tree.pid)[1]
        self.sim.clear()
        self.sim.inject("checkpoint", "--fail", 2, pid=child)
        result = self.cli.run("gpu", "park", self.tree.pid)
        self.assert_refused(result, FAILED, str(child))
        self.sim.clear()
        self.assert_all_run()

    def test_after_one_that_hangs_no_other_is_asked_to_come(self):
        self.sim.clear()
        self.succeed("gpu", "park", self.tree.pid)
        before = len(self.sim.calls())
        self.sim.inject("restore", "--hang", "--until-cleared", nth=1)
        result = self.cli.run("gpu", "resume", self.tree.pid, env={"REKINDLE_GPU_MOVE_TIMEOUT": "2"})
        self.assert_refused(result, FAILED, "no answer")
        self.assertEqual([call["call"] for call in self.sim.calls()[before:]].count("restore"), 1)
        self.sim.clear()
        self.succeed("gpu", "resume", self.tree.pid)
        self.assert_all_run()

    def test_its_killed_mover(self):
        """What its helper brings back is brought back one by one, too."""
        self.sim.clear()
        self.sim.inject("checkpoint", "--delay-ms", 1500, "--when", "after")
        self.sim.inject("restore", "--delay-ms", 200)
        park = self.cli.start("gpu", "park", self.tree.pid)
        waiting.until(lambda: self.used_bytes_told() == 0, "all of it is out")
        park.kill()
        park.communicate()
        self.tree.wait_for_steps()
        self.assertEqual([c for c in self.sim.calls() if c["call"] == "restore" and c["result"] not in (None, 0)], [])

    def assert_all_run(self):
        self.tree.wait_for_steps()
        states = {pid: job["state"] for job in self.succeed("gpu", "ps")["jobs"] for pid in job["pids"]}
        self.assertEqual([states.get(child) for child in procfs.descendants(self.tree.pid)], ["running"] * 3)

    def used_bytes_told(self):
        return sum(gpu["used"] for gpu in self.sim.stats()["gpus"])


class PeersTest(GpuTest):
    """Of processes that work together over NCCL driver 575 answers for none while another one is locked, also when that one was
    to be locked with it."""

    def setUp(self):
        super().setUp()
        peers = self.path("peers")
        with open(peers, "w", encoding="ascii"):
            pass
        self.sim.environment["REKINDLE_GPU_SIM_PEERS"] = peers
        self.tree = self.start_tree_job(3)

    def test_all_run_on(self):
        """They can't be locked together. All are let go before any is asked, which would wait for that; those that are locked
        late as well."""
        for command in (("gpu", "park", self.tree.pid, "--lock-timeout", "1"),
                        ("ckpt", self.tree.pid, "-t", "tree:1", "--gpu-lock-timeout", "1")):
            with self.subTest(command):
                before = len(self.sim.calls())
                result = self.cli.run(*command)
                self.assert_refused(result, FAILED, "lock of process", "did not answer in time")
                calls = [call["call"] for call in self.sim.calls()[before:]]
                locks = [i for i, call in enumerate(calls) if call == "lock"]
                self.assertEqual(len(locks), 3)
                self.assertEqual(calls[locks[-1] + 1], "unlock", calls)
                self.tree.wait_for_steps()
                jobs = self.succeed("gpu", "ps")["jobs"]
                states = {pid: job["state"] for job in jobs for pid in job["pids"]}
                self.assertEqual([states.get(child) for child in procfs.descendants(self.tree.pid)], ["running"] * 3)
                self.assertFalse(any(job["parked"] for job in jobs))


class ForkedChildTest(GpuTest):
    """A child that was forked after the driver's start, as those that load data for a training. Asked of it, the driver may
    answer for its parent."""

    def test_with_its_parent(self):
        for answers in (0, 1):
            with self.subTest(answers=answers):
                self.sim.control("set", "forks-answer", answers)
                job = self.start_vector_job(f"job{answers}", fork=True)
                (child,) = procfs.descendants(job.pid)
                entry = self.gpu_job(job.pid)
                self.assertEqual(entry["pids"], [job.pid])
                self.assertIsNone(self.gpu_job(child))
                self.succeed("gpu", "park", job.pid)
                self.assertIsNone(self.gpu_job(child))
                self.succeed("gpu", "resume", job.pid)
                self.assert_runs(job)
                self.kill(job)


    def test_with_its_devices(self):
        """Which CRIU can't carry: the refusal names the cure, before anything has moved."""
        device = "/dev/nvidia-test"
        os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        self.addCleanup(os.unlink, device)
        job = self.start_vector_job(fork=True, fork_opens=device)
        (child,) = procfs.descendants(job.pid)
        waiting.until(lambda: device in procfs.descriptor_targets(child).values(), "the device open")
        result = self.cli.run("ckpt", job.pid, "-t", "vector:1")
        self.assert_refused(result, FAILED, f"process {child} was forked by process {job.pid}", "--launch-job", "spawn")
        self.assertNotIn("lock", [call["call"] for call in self.sim.calls()])
        self.assert_runs(job)


class LoadedOnlyTest(GpuTest):
    def test_one_with_a_single_thread_is_not_asked(self):
        """Where the driver is used it has a thread: what the many others have mapped is none of `gpu ps`'s business."""
        library = "import ctypes, signal; ctypes.CDLL('libcuda.so.1'); signal.pause()"
        job = self.start_job([sys.executable, "-c", library], env=self.sim.environment)
        waiting.until(lambda: procfs.maps_file(job.pid, "libcuda.so"), "the library is loaded")
        cuda = self.start_vector_job()
        self.assertIsNone(self.gpu_job(job.pid))
        self.assertEqual(self.gpu_job(cuda.pid)["state"], "running")
        self.assertNotIn(job.pid, [call["pid"] for call in self.sim.calls()])


class MpsTest(GpuTest):
    def test_the_helper_is_no_client(self):
        """It stays, and with it the server of its user, for whose end the programs of all other users would wait."""
        folder = self.path("mps")
        os.mkdir(folder)
        with socket.socket(socket.AF_UNIX) as control:
            control.bind(os.path.join(folder, "control"))
            control.listen()
            control.settimeout(0)
            job = self.start_vector_job()
            for environment in ({"CUDA_MPS_PIPE_DIRECTORY": folder}, {"CUDA_CHECKPOINT_JOB_FILE": self.path("none")}):
                self.assertEqual(self.cli.run("gpu", "ps", env=environment).code, DONE)
            self.assertEqual(self.cli.run("gpu", "park", job.pid, env={"CUDA_MPS_PIPE_DIRECTORY": folder}).code, DONE)
            with self.assertRaises(BlockingIOError):
                control.accept()


if __name__ == "__main__":
    unittest.main()
