"""A restore that can't work is refused before anything is started."""

import os
import shutil
import subprocess
import unittest

from harness import clones, jobs, locks, procfs, waiting
from harness.case import MIB, RekindleTest, shell
from harness.cli import DONE, FAILED, NOT_PERMITTED


class RestoreRefusalTest(RekindleTest):
    def assert_nothing_started(self, pid):
        self.assertFalse(procfs.alive(pid))
        self.assert_store_whole(["x:1"])

    def test_pid_in_use_by_the_job_itself(self):
        job, memory = self.start_memory_job(8 * MIB)
        self.checkpoint(job.pid, "x:1")
        refused = self.cli.run("restore", "x:1", "--detach")
        self.assert_refused(refused, FAILED, str(job.pid), "in use")
        memory.wait_for_tick()
        self.assert_store_whole(["x:1"])

    def test_a_command_of_several_lines_is_told_on_one(self):
        job = self.start_job([jobs.PYTHON, "-c", "import time\n" + "print('(')\n" * 9 + "time.sleep(1000)"], "lines")
        self.checkpoint(job.pid, "x:1")
        message = self.assert_refused(self.cli.run("restore", "x:1", "--detach"), FAILED, "import time print('(')", "…)")
        self.assertNotIn("\n", message)

    def test_pid_in_use_by_a_stranger(self):
        job, memory = self.start_memory_job(8 * MIB)
        self.checkpoint(job.pid, "x:1", "--stop")
        job.reap()
        stranger = _fork_with_pid(job.pid)
        try:
            refused = self.cli.run("restore", "x:1", "--detach")
            self.assert_refused(refused, FAILED, str(job.pid), "in use")
            self.assertTrue(procfs.alive(stranger))
        finally:
            os.kill(stranger, 9)
            jobs.reap(stranger)
        self.assertEqual(self.restore("x:1"), job.pid)
        memory.wait_for_tick()

    def test_no_log_is_left_of_it(self):
        job = subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
        self.addCleanup(job.stdout.close)
        self.kill_job_at_end(job.pid)
        self.checkpoint(job.pid, "x:1")
        for _ in range(3):
            self.assert_refused(self.cli.run("restore", "x:1", "--detach"), FAILED, "in use")
        self.assertEqual(os.listdir(self.path("logs")), [])
        job.kill()
        job.wait()
        self.assertEqual(self.restore("x:1"), job.pid)
        self.assertEqual(len(os.listdir(self.path("logs"))), 1)

    def test_several_at_once(self):
        """One brings the job back, and the others do it no harm."""
        job, memory = self.start_memory_job(64 * MIB)
        digest = memory.digest()
        self.checkpoint(job.pid, "x:1", "--stop")
        job.reap()
        daemon = self.start_daemon()
        for cli in (self.make_cli(host=daemon.host), self.cli):
            commands = [cli.start("restore", "x:1", "--detach", "--rollback", "append") for _ in range(4)]
            results = [cli.finish(command) for command in commands]
            self.kill_job_at_end(job.pid)
            self.assertEqual([result.code for result in results].count(DONE), 1, [str(r) for r in results])
            for result in results:
                if result.code != DONE:
                    self.assert_refused(result, FAILED, "PIDs")
            memory.wait_for_tick()
            self.assertEqual(memory.digest(), digest)
            jobs.kill_tree(job.pid)

    def test_pid_in_use_by_a_zombie(self):
        job, _ = self.start_memory_job(8 * MIB)
        self.checkpoint(job.pid, "x:1")
        os.kill(job.pid, 9)
        waiting.for_exit(job.pid)
        refused = self.cli.run("restore", "x:1", "--detach")
        self.assert_refused(refused, FAILED, str(job.pid), "in use", "zombie")
        job.reap()
        self.restore("x:1")

    def test_pid_of_one_child_in_use(self):
        log = self.path("rounds")
        job = self.start_job([jobs.PYTHON, jobs.workload("multiprocess.py"), log])
        waiting.until(lambda: os.path.exists(log) and os.path.getsize(log) > 0, "a round", 60)
        child = procfs.descendants(job.pid)[0]
        self.checkpoint(job.pid, "x:1", "--stop")
        job.reap()
        stranger = _fork_with_pid(child)
        try:
            refused = self.cli.run("restore", "x:1", "--detach")
            self.assert_refused(refused, FAILED, str(child), "in use")
        finally:
            os.kill(stranger, 9)
            jobs.reap(stranger)
        self.assert_nothing_started(job.pid)

    def test_pidfile_that_can_not_be_written(self):
        log = self.path("rounds")
        job = self.start_job([jobs.PYTHON, jobs.workload("multiprocess.py"), log])
        waiting.until(lambda: os.path.exists(log) and os.path.getsize(log) > 0, "a round", 60)
        tree = [job.pid] + procfs.descendants(job.pid)
        self.checkpoint(job.pid, "x:1", "--stop")
        job.reap()
        written = os.path.getsize(log)
        absent = self.path("absent/pid")
        refused = self.cli.run("restore", "x:1", "--detach", "--pidfile", absent)
        self.assert_refused(refused, FAILED, absent)
        self.assertEqual(os.path.getsize(log), written, "it was not started")
        # It can be opened, so all of the job runs when the disk turns out to be full.
        refused = self.cli.run("restore", "x:1", "--detach", "--pidfile", "/dev/full")
        self.assert_refused(refused, FAILED, "/dev/full", "No space left", "ended again")
        for pid in tree:
            self.assertFalse(procfs.alive(pid))
        self.assert_nothing_started(job.pid)
        self.restore("x:1")

    def test_working_directory_gone(self):
        home = self.path("home")
        os.mkdir(home)
        job = self.start_job([jobs.PYTHON, jobs.workload("ticker.py"), self.path("lines")], cwd=home)
        waiting.until(lambda: os.path.exists(self.path("lines")), "it runs")
        self.checkpoint(job.pid, "x:1", "--stop")
        job.reap()
        os.rmdir(home)
        refused = self.cli.run("restore", "x:1", "--detach")
        self.assert_refused(refused, FAILED, home)
        self.assert_nothing_started(job.pid)
        os.mkdir(home)
        self.restore("x:1")

    def test_library_gone_or_changed(self):
        """The program itself, as a mapped file that the image needs."""
        program = self.path("program")
        shutil.copy(jobs.program("memory_job"), program)
        job = self.start_job([program, str(4 * MIB), self.path("status")])
        waiting.until(
            lambda: os.path.exists(self.path("status")) and os.path.getsize(self.path("status")) > 0,
            "it runs",
        )
        self.checkpoint(job.pid, "x:1", "--stop")
        job.reap()
        os.rename(program, program + ".away")
        self.assert_refused(self.cli.run("restore", "x:1", "--detach"), FAILED, program)
        self.assert_nothing_started(job.pid)
        with open(program, "wb") as file:
            file.write(b"something else of another size")
        os.chmod(program, 0o755)
        self.assert_refused(self.cli.run("restore", "x:1", "--detach"), FAILED, program)
        self.assert_nothing_started(job.pid)
        os.rename(program + ".away", program)
        self.restore("x:1")

    def test_working_directory_gone_before_the_checkpoint(self):
        home = self.path("home")
        os.mkdir(home)
        job = self.start_job([jobs.PYTHON, jobs.workload("ticker.py"), self.path("lines")], cwd=home)
        waiting.until(lambda: os.path.exists(self.path("lines")), "it runs")
        os.rmdir(home)
        result = self.cli.run("ckpt", job.pid, "-t", "x:1")
        self.assert_refused(result, FAILED, home, "working directory")
        self.assertTrue(procfs.alive(job.pid))
        self.assertEqual(self.references(), [])

    def test_port_in_use(self):
        import socket

        port = jobs.free_port()
        job = self.start_job(
            ["/usr/bin/node", jobs.workload("node_server.js"), str(port)], env={"UV_USE_IO_URING": "0"}
        )
        jobs.wait_for_http(port)
        self.checkpoint(job.pid, "x:1", "--stop")
        job.reap()
        with socket.socket() as squatter:
            squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            squatter.bind(("127.0.0.1", port))
            squatter.listen()
            refused = self.cli.run("restore", "x:1", "--detach")
            self.assertEqual(refused.code, FAILED, str(refused))
            self.assertIn("use", refused.message)
        self.assert_nothing_started(job.pid)
        self.assertEqual(self.cli.run("restore", "x:1", "--detach").code, DONE)
        self.kill_job_at_end(job.pid)
        jobs.wait_for_http(port)


class HookTest(RekindleTest):
    """The runtime hook is installed anew while there are images of jobs that have it loaded."""

    PROGRAM = (
        "import rekindle, sys, time\n"
        "rekindle.unsafe_to_fork()\n"
        "while True:\n"
        "    print('line', flush=True)\n"
        "    time.sleep(0.01)"
    )

    def install(self, more):
        """As `cmake --install` does; returns where the link leads."""
        built, installed = self.path("librekindle_hook.so"), self.path("lib/librekindle_hook.so")
        shutil.copyfile(clones.hook_library(), built)
        with open(built, "ab") as file:
            file.write(more)
        script = os.path.join(clones.SOURCE, "hook", "install_by_content.cmake")
        shell("cmake", f"-DFILE={built}", f"-DFOLDER={self.path('lib')}", "-P", script)
        with open(built, "rb") as one, open(installed, "rb") as other:
            self.assertEqual(one.read(), other.read())
        return os.path.realpath(installed)

    def test_another_version_is_installed(self):
        first = self.install(b"")
        self.assertEqual(self.install(b""), first)
        env = {"PYTHONPATH": clones.HOOK_PYTHON, "REKINDLE_HOOK_LIBRARY": self.path("lib/librekindle_hook.so")}
        job = self.start_job([jobs.PYTHON, "-c", self.PROGRAM], env=env)
        waiting.until(lambda: os.path.exists(job.log) and os.path.getsize(job.log) > 10, "it runs")
        with open(f"/proc/{job.pid}/maps", encoding="utf-8") as maps:
            self.assertIn(first, maps.read())
        self.checkpoint(job.pid, "x:1", "--stop")
        job.reap()
        second = self.install(b"another version")
        self.assertNotEqual(first, second)
        size = os.path.getsize(job.log)
        self.assertEqual(self.restore("x:1"), job.pid)
        waiting.until(lambda: os.path.getsize(job.log) > size + 10, "it goes on")
        jobs.kill_tree(job.pid)
        os.rename(second, first)
        refused = self.cli.run("restore", "x:1", "--detach", "--rollback", "append")
        self.assert_refused(refused, FAILED, "runtime hook", first, "version with which the job was started")


class LocksTest(RekindleTest):
    """Locks that the job had and somebody else has now: CRIU would wait for them without end."""

    SECONDS = 20  # for a refusal; far more than it takes

    def restore_refused(self, *words, options=()):
        refused = self.cli.run("restore", "x:1", "--detach", *options, seconds=self.SECONDS)
        return self.assert_refused(refused, FAILED, "file locks", "restore again", *words)

    def stopped_holder(self, *held):
        job = locks.start_holder(self, "holder", *held)
        self.checkpoint(job.pid, "x:1", "--stop")
        job.reap()
        return job

    def check(self, held, others, *words):
        """While a stranger holds `others` the job that held `held` is not restored; later it is."""
        job = self.stopped_holder(held)
        stranger = locks.start_holder(self, "stranger", others)
        self.restore_refused(held.split(":")[0], f"PID {stranger.pid} (", "python3", *words)
        self.assertFalse(procfs.alive(job.pid))
        self.assert_store_whole(["x:1"])
        stranger.kill_tree()
        self.assertEqual(self.restore("x:1"), job.pid)

    def test_flock(self):
        path = self.path("locked")
        self.check(f"{path}:flock:exclusive", f"{path}:flock:shared", "exclusive flock")
        self.assertFalse(locks.flock_is_free(path))

    def test_posix_lock(self):
        path = self.path("locked")
        self.check(f"{path}:posix:exclusive:10:10", f"{path}:ofd:shared:19:1", "exclusive POSIX lock of bytes 10 to 19")
        self.assertFalse(locks.range_is_free(path, 10, 10))
        self.assertTrue(locks.range_is_free(path, 20, 0))

    def test_ofd_lock(self):
        path = self.path("locked")
        self.check(f"{path}:ofd:shared:10:0", f"{path}:posix:exclusive", "shared OFD lock from byte 10 on")
        self.assertFalse(locks.range_is_free(path, 10, 0))
        self.assertTrue(locks.range_is_free(path, 0, 10))

    def test_locks_that_go_together(self):
        flocked, ranges = self.path("flocked"), self.path("ranges")
        job = self.stopped_holder(f"{flocked}:flock:shared", f"{ranges}:posix:exclusive:10:10")
        locks.start_holder(self, "stranger", f"{flocked}:flock:shared", f"{ranges}:posix:exclusive:20:10")
        self.assertEqual(self.restore("x:1"), job.pid)
        self.assertFalse(locks.range_is_free(ranges, 10, 10))

    def test_files_are_not_rolled_back_before(self):
        path = self.path("locked")
        self.stopped_holder(f"{path}:flock:exclusive")
        with open(path, "w", encoding="ascii") as file:
            file.write("after the image")
        stranger = locks.start_holder(self, "stranger", f"{path}:flock:exclusive")
        self.restore_refused(path, options=("--rollback", "append"))
        self.assertEqual(os.path.getsize(path), len("after the image"))
        stranger.kill_tree()
        self.restore("x:1", "--rollback", "append")
        self.assertEqual(os.path.getsize(path), 0)


def _fork_with_pid(pid):
    """A child of ours with exactly this PID, as another program might get by chance (clone3 with set_tid)."""
    import ctypes
    import struct

    wanted = ctypes.c_int(pid)
    # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
    # set_tid_size
    arguments = ctypes.create_string_buffer(
        struct.pack("@10Q", 0, 0, 0, 0, 17, 0, 0, 0, ctypes.addressof(wanted), 1)
    )
    libc = ctypes.CDLL(None, use_errno=True)
    made = libc.syscall(435, arguments, ctypes.c_size_t(80))
    if made == 0:
        os.execv("/bin/sleep", ["sleep", "1000"])
    if made != pid:
        raise OSError(ctypes.get_errno(), f"clone3 with PID {pid}")
    return made


class LinkTest(RekindleTest):
    """Root's job works on a file in a folder of another user, who puts a link to a file of root's in its place."""

    _STRANGER = 65534

    def setUp(self):
        super().setUp()
        for folder in ("theirs", "roots"):
            os.mkdir(self.path(folder), 0o755)
        os.chmod(self.directory, 0o755)
        os.chown(self.path("theirs"), self._STRANGER, self._STRANGER)
        self.file = self.path("theirs/m.txt")
        self.victim = self.path("roots/victim")
        with open(self.victim, "w", encoding="ascii") as file:
            file.write("precious\n")
        program = "import sys, time\nout = open(sys.argv[1], 'r+b', buffering=0)\n"
        program += "while True:\n    out.write(b'x')\n    time.sleep(0.01)\n"
        with open(self.file, "wb"):
            pass
        self.job = self.start_job([jobs.PYTHON, "-c", program, self.file])
        waiting.until(lambda: os.path.getsize(self.file) > 0, "the job writes")
        self.checkpoint(self.job.pid, "x:1", "--stop")
        self.job.reap()

    def _link(self, target, name, owner):
        os.rename(self.path(name), self.path(name + ".aside"))
        os.symlink(target, self.path(name))
        os.chown(self.path(name), owner, owner, follow_symlinks=False)

    def _assert_untouched(self, refused):
        self.assert_refused(refused, NOT_PERMITTED, self.file, "symbolic link", self.victim, "--ignore-mismatch")
        self.assertFalse(procfs.alive(self.job.pid))
        with open(self.victim, encoding="ascii") as file:
            self.assertEqual(file.read(), "precious\n")

    def test_in_place_of_the_file(self):
        self._link(self.victim, "theirs/m.txt", self._STRANGER)
        for options in ((), ("--rollback", "append")):
            self._assert_untouched(self.cli.run("restore", "x:1", "--detach", *options))
        os.replace(self.path("theirs/m.txt.aside"), self.file)
        self.restore("x:1")

    def test_in_place_of_its_folder(self):
        """As who may write to the folder that it lies in can put it."""
        os.chown(self.directory, self._STRANGER, self._STRANGER)
        os.rename(self.victim, self.path("roots/m.txt"))
        self.victim = self.path("roots/m.txt")
        self._link(self.path("roots"), "theirs", self._STRANGER)
        self._assert_untouched(self.cli.run("restore", "x:1", "--detach"))
        os.chown(self.directory, 0, 0)

    def test_what_root_has_moved_is_found(self):
        os.rename(self.file, self.path("roots/m.txt"))
        os.rename(self.path("theirs"), self.path("before"))
        os.symlink("roots", self.path("theirs"))
        os.chown(self.directory, 0, 0)
        self.restore("x:1")
        size = os.path.getsize(self.path("roots/m.txt"))
        waiting.until(lambda: os.path.getsize(self.path("roots/m.txt")) > size, "the job writes on")

    def test_root_may_know_better(self):
        os.rename(self.file, self.path("roots/m.txt"))
        os.symlink(self.path("roots/m.txt"), self.file)
        os.chown(self.file, self._STRANGER, self._STRANGER, follow_symlinks=False)
        self.assert_refused(self.cli.run("restore", "x:1", "--detach"), NOT_PERMITTED, self.file)
        self.restore("x:1", "--ignore-mismatch")
        size = os.path.getsize(self.path("roots/m.txt"))
        waiting.until(lambda: os.path.getsize(self.path("roots/m.txt")) > size, "the job writes on")


if __name__ == "__main__":
    unittest.main()
