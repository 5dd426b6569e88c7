"""A GPU job's threads while its device memory is away: they stand still, or are watched, and live on."""

import os
import shutil
import signal
import unittest

from harness import procfs, waiting
from harness.cli import DONE, FAILED, binary
from harness.gpu_case import GpuTest
from harness.gpu_sim import MIB

FUTEX = 202  # the system call's number


class WatchTest(GpuTest):
    def start_synchronizing_job(self):
        return self.start_vector_job(first_call="stream", step_ms=300)

    def park_until_it_stands(self, job):
        """In a call that the driver would crash."""
        self.succeed("gpu", "park", job.pid)
        waiting.until(lambda: procfs.state(job.pid) == "t", "the job stands at its synchronize")

    def test_a_job_that_synchronizes_while_it_is_parked(self):
        job = self.start_synchronizing_job()
        self.park_until_it_stands(job)
        self.assertTrue(self.gpu_job(job.pid)["parked"])
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)
        self.assertEqual(procfs.traced_by(job.pid), 0)

    def test_an_image_of_a_job_that_waits_for_its_memory(self):
        job = self.start_synchronizing_job()
        self.park_until_it_stands(job)
        refused = self.cli.run("ckpt", job.pid, "-t", "vector:1")
        self.assert_refused(refused, FAILED, "device memory", f"gpu resume {job.pid}")
        self.assertTrue(self.gpu_job(job.pid)["parked"])
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)
        self.checkpoint(job.pid, "vector:1")
        self.assert_runs(job)

    def test_an_image_of_processes_of_which_one_waits(self):
        job = self.start_tree_job(2, first_call="stream", step_ms=300)
        children = procfs.descendants(job.pid)

        def one_stands():
            return any(procfs.state(pid) == "t" for pid in children)

        def parked_with_one_that_stands():
            """Whom the driver has made wait in a call of its own needs no memory yet."""
            self.succeed("gpu", "park", job.pid)
            waiting.until(
                lambda: all(procfs.state(pid) == "t" or procfs.in_system_call(pid, FUTEX) for pid in children),
                "each waits",
            )
            if one_stands():
                return True
            self.succeed("gpu", "resume", job.pid)
            return False

        waiting.until(parked_with_one_that_stands, "one stands at its synchronize", 60)
        refused = self.cli.run("ckpt", job.pid, "-t", "tree:1")
        self.assert_refused(refused, FAILED, "device memory", "gpu resume")
        # They are watched as before.
        waiting.until(one_stands, "one stands at its synchronize")
        self.succeed("gpu", "resume", job.pid)
        job.wait_for_steps()
        self.assertEqual({procfs.traced_by(pid) for pid in children}, {0})

    def test_a_watched_job_that_ends(self):
        job = self.start_vector_job()
        self.succeed("gpu", "park", job.pid)
        watch = procfs.traced_by(job.pid)
        self.assertEqual(procfs.command_line(watch), binary("rekindle-gpu-keeper"))
        os.kill(job.pid, signal.SIGTERM)
        job.job.reap()
        waiting.until(lambda: not procfs.alive(watch), "the watch ends with its job")
        self.assertIsNone(self.gpu_job(job.pid))

    def test_a_watch_that_is_killed(self):
        job = self.start_vector_job()
        self.succeed("gpu", "park", job.pid)
        os.kill(procfs.traced_by(job.pid), signal.SIGKILL)
        waiting.until(lambda: procfs.traced_by(job.pid) == 0, "nobody traces the job")
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)

    def test_a_parked_job_that_is_stopped_and_goes_on(self):
        job = self.start_vector_job()
        self.succeed("gpu", "park", job.pid)
        os.kill(job.pid, signal.SIGSTOP)
        # Its watch has to let each thread stop.
        waiting.until(lambda: procfs.stands(job.pid), "all of it stands")
        self.assert_refused(self.cli.run("gpu", "resume", job.pid), FAILED, "stopped")
        os.kill(job.pid, signal.SIGCONT)
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)

    def test_device_memory_in_host_memory_is_of_huge_pages(self):
        job = self.start_vector_job(bytes=64 * MIB)
        self.succeed("gpu", "park", job.pid)
        self.assertGreaterEqual(procfs.huge_page_advised_bytes(job.pid), 63 * MIB)
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)

    def test_once_most_of_it_is_mapped_the_driver_is_left_alone(self):
        """Whoever moves it knows how much there is: the last of eight mappings is as the driver asks for it."""
        job = self.start_vector_job(bytes=64 * MIB, streams=8)
        self.succeed("gpu", "park", job.pid)
        advised = procfs.huge_page_advised_bytes(job.pid)
        self.assertGreaterEqual(advised, 46 * MIB)
        self.assertLess(advised, 62 * MIB)
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)


# Touches what was device memory once a file says so; before that another one has it take that memory out as the
# driver does: something inaccessible is in its place, or nothing.
DEVICE_JOB = """
import ctypes, mmap, os, sys, time
folder, leaves_hole = sys.argv[1], sys.argv[2] == "hole"
cuda, libc = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
context, device, memory = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_ulong()
for result in (cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0),
               cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), cuda.cuCtxSetCurrent(context),
               cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(8 << 20))):
    assert result == 0, result
SIZE = 1 << 16
os.makedirs(folder + "/dev", exist_ok=True)
def map_device():
    file = os.open(folder + "/dev/nvidiactl", os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(file, SIZE)
    place = libc.mmap(None, SIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
    os.close(file)
    return place
place = map_device()
def tell(name):
    open(folder + "/" + name, "w").close()
def await_word(name):
    while not os.path.exists(folder + "/" + name):
        time.sleep(0.005)
tell("ready")
await_word("out")
libc.mmap(place, SIZE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10, -1, 0)
if leaves_hole:
    libc.munmap(place, SIZE)
tell("is-out")
await_word("touch")
ctypes.c_char.from_address(place).value
tell("touched")
while True:
    time.sleep(1)
"""


class DeviceMemoryTest(GpuTest):
    """A parked job that touches what was device memory stands, whoever has watched it first."""

    def start_device_job(self, way):
        folder = self.path(way)
        os.mkdir(folder)
        argv = ["/usr/bin/python3", "-c", DEVICE_JOB, folder, way]
        job = self.start_job(argv, way, env=self.sim.environment)
        waiting.until(lambda: self.told(way, "ready"), "the job has device memory")
        return job

    def tell(self, way, word):
        with open(os.path.join(self.path(way), word), "wb"):
            pass

    def told(self, way, word):
        return os.path.exists(os.path.join(self.path(way), word))

    def test_after_an_image(self):
        for way in ("reserved", "hole"):
            with self.subTest(way=way):
                job = self.start_device_job(way)
                self.succeed("gpu", "park", job.pid)
                self.tell(way, "out")
                waiting.until(lambda way=way: self.told(way, "is-out"), "its device memory is out")
                self.checkpoint(job.pid, f"{way}:1")
                self.tell(way, "touch")
                waiting.until(lambda job=job: (procfs.state(job.pid) or "X") in "tZX", "it stands, or has ended")
                self.assertEqual(procfs.state(job.pid), "t")
                self.assertFalse(self.told(way, "touched"))
                job.kill_tree()


class StandStillTest(GpuTest):
    def test_images_of_a_job_that_synchronizes_all_the_time(self):
        """It would die of a synchronize that meets its memory away: its threads stand still."""
        job = self.start_vector_job(first_call="stream", step_ms=50)
        for call in ("checkpoint", "restore"):
            self.sim.inject(call, "--delay-ms", 300)
        self.checkpoint(job.pid, "vector:1")
        self.assert_runs(job)
        self.checkpoint(job.pid, "vector:2", "--stop")
        job.job.reap()
        self.come_back("vector:2", job)
        self.assert_runs(job)

    def test_work_on_the_gpu_that_takes_long_to_end(self):
        """Longer than CRIU gives threads to stop."""
        job = self.start_tree_job(2)
        self.sim.inject("lock", "--delay-ms", 6000)
        self.checkpoint(job.pid, "tree:1", "--gpu-lock-timeout", "30")
        job.wait_for_steps()

    def test_a_capture_that_is_cancelled_while_its_memory_moves(self):
        job = self.start_vector_job(first_call="stream", step_ms=50)
        for options in ((), ("--stop",)):
            with self.subTest(options=options):
                self.sim.inject("checkpoint", "--delay-ms", 1000, nth=1)
                self.sim.inject("restore", "--delay-ms", 300)
                command = self.cli.start("ckpt", job.pid, "-t", "vector:1", *options)
                waiting.until(lambda: self.moves("checkpoint"), "its memory moves")
                command.send_signal(signal.SIGINT)
                self.assertNotEqual(self.cli.finish(command).code, DONE)
                self.sim.clear()
                self.assert_runs(job)
        self.assertEqual(self.references(), [])

    def test_nobody_holds_them_where_that_is_switched_off(self):
        hold = self.path("hold")
        job = self.start_vector_job(hold=hold)
        with open(hold, "wb"):
            pass

        def is_held():
            with open(job.state_file, encoding="ascii") as file:
                return "held" in file.read()

        waiting.until(is_held, "it makes no CUDA calls")
        for value, held in (("1", True), ("0", False)):
            self.environment["REKINDLE_GPU_HOLD_THREADS"] = value
            self.cli = self.make_cli(store=self.store)
            capture = ("ckpt", job.pid, "-t", f"vector:{value}", "--stop")
            for call, words in (("checkpoint", capture), ("restore", ("restore", f"vector:{value}", "--detach"))):
                with self.subTest(held=held, call=call):
                    self.sim.inject(call, "--delay-ms", 1000, nth=1)
                    command = self.cli.start(*words)
                    waiting.until(lambda call=call: self.moves(call), "its memory moves")
                    self.assertEqual(procfs.traced_by(job.pid) != 0, held)
                    self.assertEqual(self.cli.finish(command).code, DONE)
                    self.sim.clear()
                    if call == "checkpoint":
                        job.job.reap()
        os.unlink(hold)
        self.assert_runs(job)
        self.succeed("gpu", "park", job.pid)
        self.assertNotEqual(procfs.traced_by(job.pid), 0)
        self.succeed("gpu", "resume", job.pid)
        self.assertEqual(procfs.traced_by(job.pid), 0)
        self.assert_runs(job)

    def moves(self, call):
        return any(entry["call"] == call and entry["result"] is None for entry in self.sim.calls())

    def test_a_job_that_was_to_stop_and_has_no_image(self):
        """CRIU has left it stopped, and its memory goes back when the image could not be written."""
        job = self.start_vector_job(first_call="stream", step_ms=50)
        self.checkpoint(job.pid, "vector:1")
        packs = os.path.join(self.store, "packs")
        shutil.rmtree(packs)
        with open(packs, "wb"):
            pass  # where a folder should be
        self.sim.inject("restore", "--delay-ms", 300)
        failed = self.cli.run("ckpt", job.pid, "-t", "vector:2", "--stop")
        self.assert_refused(failed, FAILED, "packs")
        self.assert_runs(job)
        self.assertEqual(procfs.traced_by(job.pid), 0)


if __name__ == "__main__":
    unittest.main()
