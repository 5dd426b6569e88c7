"""PIDs and names that can't be captured or restored: the right exit code, cause and cure, and nothing
changed.
"""

import ctypes
import os
import signal
import socket
import stat
import struct
import unittest

from harness import freezer, jobs, procfs, waiting
from harness.case import MIB, RekindleTest
from harness.cli import DONE, FAILED, NOT_FOUND, NOT_PERMITTED, UNSUPPORTED, USAGE, Result
from harness.memory_job import MemoryJob

NOBODY = 65534
CAP_SYS_RESOURCE = 24


class BadPidTest(RekindleTest):
    def ckpt(self, pid):
        return self.cli.run("ckpt", pid, "-t", "bad:1")

    def tearDown(self):
        self.assert_store_whole([])

    def test_no_such_process(self):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        jobs.reap(pid)
        self.assert_refused(self.ckpt(pid), NOT_FOUND, str(pid), "no process", "ps")

    def test_thread_is_no_process(self):
        job = self.start_job([jobs.PYTHON, jobs.workload("ticker.py"), self.path("lines")])
        waiting.until(lambda: procfs.threads(job.pid) >= 3, "threads")
        thread = max(int(name) for name in os.listdir(f"/proc/{job.pid}/task"))
        self.assert_refused(self.ckpt(thread), NOT_FOUND, str(thread))

    def test_kernel_thread(self):
        kernel_thread = procfs.children_by_parent().get(2, [])
        if not kernel_thread:
            self.skipTest("no kernel thread is visible from this PID namespace")
        self.assert_refused(
            self.ckpt(kernel_thread[0]), USAGE, str(kernel_thread[0]), "kernel", "give the PID"
        )

    def test_zombie(self):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        waiting.for_exit(pid)
        try:
            self.assert_refused(self.ckpt(pid), FAILED, str(pid), "ended", "zombie")
            self.assertEqual(procfs.state(pid), "Z")
        finally:
            jobs.reap(pid)

    def test_first_of_a_pid_namespace(self):
        """It could not be brought back, so it is not ended."""
        job = self.start_job(["unshare", "--pid", "--fork", "--kill-child", "sleep", "1000"])
        (first,) = waiting.until(lambda: procfs.descendants(job.pid), "the namespace's first process")
        for options in ([], ["--stop"]):
            refused = self.cli.run("ckpt", first, "-t", "bad:1", *options)
            self.assert_refused(refused, FAILED, str(first), "first of a PID namespace", "an init")
        self.assertTrue(procfs.alive(first))

    def test_frozen_by_its_cgroup(self):
        if not freezer.hierarchies():
            self.skipTest("no control groups that can be frozen")
        job, memory = self.start_memory_job(MIB)
        for hierarchy in freezer.hierarchies():
            with freezer.frozen(job.pid, hierarchy):
                self.assert_refused(self.ckpt(job.pid), FAILED, str(job.pid), "frozen", hierarchy[0], "unpause")
            memory.wait_for_tick()

    def test_infiniband(self):
        folder = "/dev/infiniband"
        if os.path.exists(folder):
            self.skipTest(f"{folder} is there: not ours to touch")
        # Only the name counts; what is behind it does nothing.
        os.mkdir(folder)
        self.addCleanup(os.rmdir, folder)
        path = os.path.join(folder, "uverbs0")
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        self.addCleanup(os.unlink, path)
        job = self.start_job(["sh", "-c", "exec sleep 1000 9<>" + path], "uverbs")
        waiting.until(lambda: os.path.exists(f"/proc/{job.pid}/fd/9"), "the device open")
        self.assert_refused(self.ckpt(job.pid), FAILED, str(job.pid), path, "NCCL_IB_DISABLE=1")

    def test_gdrcopy(self):
        path = "/dev/gdrdrv"
        if os.path.exists(path):
            self.skipTest(f"{path} is there: not ours to touch")
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        self.addCleanup(os.unlink, path)
        job = self.start_job(["sh", "-c", "exec sleep 1000 9<>" + path], "gdrcopy")
        waiting.until(lambda: os.path.exists(f"/proc/{job.pid}/fd/9"), "the device open")
        self.assert_refused(self.ckpt(job.pid), FAILED, str(job.pid), path, "NCCL_GDRCOPY_ENABLE=0")

    def test_works_in_the_folder_of_a_process(self):
        job = self.start_job(["sh", "-c", "cd /proc/self && exec sleep 1000"])
        waiting.until(lambda: procfs.command_line(job.pid).startswith("sleep "), "the sleep")
        folder = f"/proc/{job.pid}"
        refused = self.cli.run("ckpt", job.pid, "-t", "bad:1", "--stop")
        self.assert_refused(refused, FAILED, folder, "working directory", "another folder")
        self.assertTrue(procfs.alive(job.pid))

    def test_a_file_that_tells_of_a_thread(self):
        """It is there only later than it would be opened again."""
        looks = (
            "import sys, threading, time\n"
            "thread = threading.Thread(target=time.sleep, args=(1e4,))\n"
            "thread.start()\n"
            "file = open(f'/proc/self/task/{thread.native_id}/stat')\n"
            "open(sys.argv[1], 'w').close()\n"
        )
        job = self.start_job([jobs.PYTHON, "-c", looks, self.path("ready")])
        waiting.until(lambda: os.path.exists(self.path("ready")), "the file open")
        refused = self.cli.run("ckpt", job.pid, "-t", "bad:1", "--stop")
        self.assert_refused(refused, FAILED, f"/proc/{job.pid}/task/", "stat open", "try again")
        self.assertTrue(procfs.alive(job.pid) and not procfs.stands(job.pid))

    def test_connected_to_a_process_that_is_not_of_it(self):
        path = self.path("service")
        with socket.socket(socket.AF_UNIX) as service:
            service.bind(path)
            service.listen()
            connects = "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); time.sleep(1e4)"
            job = self.start_job([jobs.PYTHON, "-c", connects, path])
            connection, _ = service.accept()
            with connection:
                self.assert_refused(self.ckpt(job.pid), FAILED, "not part of it", f"of process {job.pid} (python",
                                    f"leads to process {os.getpid()} (", f"has it as {path}")  # fmt: skip
                self.assertTrue(procfs.alive(job.pid))

    def test_init(self):
        self.assert_refused(self.ckpt(1), USAGE, "process 1", "init", "give the PID")

    def test_rekindle_itself(self):
        # The shell's PID becomes that of rekindle.
        argv = ["sh", "-c", 'exec "$0" "$@" "$$" -t bad:1', *self.cli.argv("--json", "ckpt")]
        import subprocess
        from harness.cli import environment

        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=environment(self.environment),
            timeout=60,
        )
        self.assert_refused(
            Result(argv, done.returncode, done.stdout, done.stderr), USAGE, "itself", "give the PID"
        )

    def test_ancestor(self):
        self.assert_refused(
            self.ckpt(os.getpid()), USAGE, str(os.getpid()), "rekindle itself", "give the PID"
        )

    def test_the_shell_that_asks_a_daemon(self):
        remote = self.make_cli(host=self.start_daemon().host)
        own = 'for word; do shift; [ "$word" = OWN ] && word=$$; set -- "$@" "$word"; done; "$@"; exit $?'
        result = remote.run("ckpt", "OWN", "-t", "bad:1", prefix=("sh", "-c", own, "sh"))
        self.assert_refused(result, USAGE, "the command that asks for it", "another terminal")

    def test_job_under_a_debugger(self):
        """Something else traces it: here a child of ours that attached, as gdb does."""
        job = self.start_job([jobs.program("memory_job"), str(MIB), self.path("status")])
        ready, release = os.pipe(), os.pipe()
        tracer = os.fork()
        if tracer == 0:
            ctypes.CDLL(None).ptrace(0x4206, job.pid, 0, 0)  # PTRACE_SEIZE
            os.write(ready[1], b"x")
            os.read(release[0], 1)
            os._exit(0)
        try:
            os.read(ready[0], 1)
            self.assert_refused(self.ckpt(job.pid), FAILED, str(tracer), "debugger")
        finally:
            os.write(release[1], b"x")
            jobs.reap(tracer)
            for fd in (*ready, *release):
                os.close(fd)
        self.assertTrue(procfs.alive(job.pid))


class UninterruptibleTest(RekindleTest):
    """A thread of the job is in state D: CRIU could not stop it, and would wait while the rest stands still."""

    def setUp(self):
        super().setUp()
        self.pipe = self.path("pipe")
        os.mkfifo(self.pipe)
        script = self.path("vfork.py")
        with open(script, "w", encoding="ascii") as file:
            file.write(jobs.WAITS_IN_VFORK)
        status = self.path("status")
        line = f"{jobs.program('memory_job')} {8 * MIB} {status} & exec {jobs.PYTHON} {script} {self.pipe}"
        self.job = self.start_job(["sh", "-c", line])
        self.memory = MemoryJob(status)
        self.addCleanup(self.memory.close)
        waiting.until(lambda: procfs.state(self.job.pid) == "D", "it waits for its child")
        self.addCleanup(self.let_go)

    def let_go(self):
        if os.path.exists(self.pipe):
            with open(self.pipe, "wb"):
                os.unlink(self.pipe)

    def test_is_refused_while_the_job_runs(self):
        self.memory.wait_for_tick()
        self.memory.reset_gap()
        refused = self.cli.run("ckpt", self.job.pid, "-t", "bad:1")
        self.assert_refused(refused, FAILED, str(self.job.pid), "state D", "vfork", "the job runs on")
        self.memory.wait_for_tick()
        self.assertLess(self.memory.largest_gap_seconds(), 1)
        self.assert_store_whole([])

    def test_is_waited_for(self):
        self.memory.wait_for_tick()
        command = self.cli.start("ckpt", self.job.pid, "-t", "good:1")
        waiting.until(lambda: os.path.isdir(self.runtime) and any(
            name.startswith("capture-") for name in os.listdir(self.runtime)), "it has begun")  # fmt: skip
        self.let_go()
        result = self.cli.finish(command)
        self.assertEqual(result.code, DONE, str(result))
        self.assert_store_whole(["good:1"])

    def test_keeps_no_other_job_waiting(self):
        daemon = self.start_daemon()
        cli = self.make_cli(host=daemon.host)
        other = self.start_job(["sleep", "1000"], "other")
        self.memory.wait_for_tick()
        command = cli.start("ckpt", self.job.pid, "-t", "good:1")
        waiting.until(lambda: any(name.startswith("capture-") for name in os.listdir(self.runtime)), "it has begun")
        self.checkpoint(other.pid, "other:1", cli=cli)
        self.assertIsNone(command.poll(), "the job in state D was to be waited for still")
        self.let_go()
        result = cli.finish(command)
        self.assertEqual(result.code, DONE, str(result))
        self.assert_store_whole(["good:1", "other:1"], cli)


class SilentServerTest(RekindleTest):
    """A FUSE file system whose server answers nothing: that its reader can't be stopped shows in the freeze."""

    def mount(self):
        if not os.path.exists("/dev/fuse"):
            self.skipTest("this machine has no FUSE")
        folder = self.path("silent")
        os.mkdir(folder)
        server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={server},rootmode=40000,user_id=0,group_id=0"
        if libc.mount(b"silent", folder.encode(), b"fuse", 0, options.encode()) != 0:
            os.close(server)
            raise OSError(ctypes.get_errno(), "mounting a FUSE file system")
        self.addCleanup(libc.umount2, folder.encode(), 2)  # MNT_DETACH
        unique = struct.unpack_from("QQ", os.read(server, 1 << 16))[1]
        hello = struct.pack("IIIIHHIIHHII24x", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, 0, 0)
        os.write(server, struct.pack("IiQ", 16 + len(hello), 0, unique) + hello)
        return server, os.path.join(folder, "file")

    def test_the_freeze_is_bounded_and_the_thread_is_named(self):
        server, path = self.mount()
        status = self.path("status")
        job = self.start_job(["sh", "-c", f"{jobs.program('memory_job')} {MIB} {status} & exec cat {path}"])
        self.addCleanup(os.close, server)  # first of all: what waits for the server can't be killed either
        memory = MemoryJob(status)
        self.addCleanup(memory.close)
        os.read(server, 1 << 16)  # it has asked
        memory.wait_for_tick()
        memory.reset_gap()
        refused = self.cli.run("ckpt", job.pid, "-t", "bad:1")
        self.assert_refused(refused, FAILED, "in time", f"thread {job.pid} (cat)", "openat()")
        memory.wait_for_tick()
        self.assertLess(memory.largest_gap_seconds(), 7)  # CRIU's own bound is 10


class NotRootsTest(RekindleTest):
    """Files that the service may not open although it is root, as on NFS with root_squash: no image is taken that could
    not be restored, least of all one for which the job ends.
    """

    # So the rights that files give are asked of root, too.
    daemon_prefix = (
        *("setpriv", "--bounding-set=-dac_override,-dac_read_search"),
        "--inh-caps=-dac_override,-dac_read_search",
    )

    def setUp(self):
        super().setUp()
        self.home = self.path("home")
        os.mkdir(self.home, 0o755)
        self.lines = os.path.join(self.home, "lines")
        with open(self.lines, "w", encoding="ascii"):
            os.chmod(self.lines, 0o666)
        for path in (self.home, self.lines):
            os.chown(path, NOBODY, NOBODY)
        write = "import os, sys, time\nfile = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)\n"
        write += "while True:\n    os.write(file, b'line\\n')\n    time.sleep(0.01)"
        # As the service can give back no rights that it has not.
        self.job = self.start_job([*self.daemon_prefix, jobs.PYTHON, "-c", write, self.lines])
        self.wait_for_lines()
        self.cli = self.make_cli(host=self.start_daemon().host)

    def wait_for_lines(self):
        size = os.path.getsize(self.lines)
        waiting.until(lambda: os.path.getsize(self.lines) > size + 4, "it writes")

    def assert_taken(self, *options):
        self.checkpoint(self.job.pid, "x:1", *options)

    def test_written(self):
        os.chmod(self.lines, 0o644)
        refused = self.cli.run("ckpt", self.job.pid, "-t", "x:1", "--stop")
        self.assert_refused(refused, FAILED, self.lines, "for writing", "root", "no_root_squash")
        self.wait_for_lines()
        self.assert_store_whole([])
        os.chmod(self.lines, 0o666)
        self.assert_taken("--stop")
        self.job.reap()
        self.assertEqual(self.restore("x:1"), self.job.pid)
        self.wait_for_lines()

    def test_a_folder_on_the_way(self):
        os.chmod(self.home, 0o700)
        self.assert_refused(self.cli.run("ckpt", self.job.pid, "-t", "x:1", "--stop"), FAILED, self.lines, "root")
        self.wait_for_lines()
        os.chmod(self.home, 0o711)
        self.assert_taken()

    def test_closed_after_the_image(self):
        self.assert_taken("--stop")
        self.job.reap()
        os.chmod(self.lines, 0o644)
        refused = self.cli.run("restore", "x:1", "--detach")
        self.assert_refused(refused, FAILED, self.lines, "root", "no_root_squash", "The image is whole")
        os.chmod(self.lines, 0o666)
        self.restore("x:1")
        self.wait_for_lines()


class BadNameTest(RekindleTest):
    def test_malformed_taken_and_absent(self):
        job, memory = self.start_memory_job(4 * MIB)
        for name in ("UPPER:1", "a b:1", "x:", ":1", "x:y:z", "../etc:1", "x:.tag", "a" * 300 + ":1", ""):
            with self.subTest(name=name):
                self.assert_refused(self.cli.run("ckpt", job.pid, "-t", name), USAGE, name[:20])
        self.checkpoint(job.pid, "taken:1")
        first = self.succeed("inspect", "taken:1")["image"]["digest"]
        self.assert_refused(self.cli.run("ckpt", job.pid, "-t", "taken:1"), FAILED, "taken:1", "--replace")
        self.assertEqual(self.succeed("inspect", "taken:1")["image"]["digest"], first)
        memory.touch(10)
        self.checkpoint(job.pid, "taken:1", "--replace")
        self.assertNotEqual(self.succeed("inspect", "taken:1")["image"]["digest"], first)

        for command in (
            ["restore", "takem:1", "--detach"],
            ["inspect", "takem:1"],
            ["rm", "takem:1"],
            ["export", "takem:1", "--criu", self.path("out")],
            ["diff", "takem:1", "taken:1"],
        ):
            with self.subTest(command=command):
                # The nearest name there is helps more than a bare "not found".
                self.assert_refused(self.cli.run(*command), NOT_FOUND, "takem:1", "taken:1")
        self.assertFalse(os.path.exists(self.path("out")))
        self.assert_refused(self.cli.run("ckpt", "no-such-job", "-t", "x:1"), NOT_FOUND, "no-such-job")
        self.assert_refused(
            self.cli.run("ckpt", job.pid, "-t", "x:1", "--parent", "absent:1"), NOT_FOUND, "absent:1"
        )
        memory.wait_for_tick()
        self.assert_store_whole(["taken:1"])

    def test_usage(self):
        for arguments in (
            [],
            ["frobnicate"],
            ["ckpt"],
            ["ckpt", "1", "2", "3"],
            ["restore"],
            ["ls", "--no-such-option"],
            ["run"],
            ["import", "-t", "x:1"],
        ):
            with self.subTest(arguments=arguments):
                result = self.cli.run(*arguments, json_output=False)
                self.assertEqual(result.code, USAGE, str(result))
                self.assertIn("--help", result.err + result.out)

    def test_words_of_other_programs(self):
        for word, ours in (("checkpoint", "ckpt"), ("dump", "ckpt"), ("list", "ls"), ("resto", "restore")):
            with self.subTest(word=word):
                self.assert_refused(self.cli.run(word, "1"), USAGE, f"no command '{word}'", f"'rekindle {ours}'")
        self.assert_refused(self.cli.run("frobnicate"), USAGE, "no command 'frobnicate'")
        self.assert_refused(self.cli.run("--frobnicate"), USAGE, "no option '--frobnicate'")
        self.assert_refused(self.cli.run("group", "ckpt", "x:1", "--all"), USAGE, "'rekindle group ckpt --help'")
        self.assertIn("--tag", self.succeed_in_words("help", "ckpt"))
        # Also where nothing can be done.
        nowhere = self.make_cli(host="unix:///nonexistent.sock").run("--version", json_output=False)
        self.assertEqual((nowhere.code, nowhere.out.split()[0]), (DONE, "rekindle"), str(nowhere))

    def test_empty_values(self):
        """As from a variable that is not set: nothing is done in other places than were meant."""
        nowhere = self.make_cli(host="unix:///nonexistent.sock")
        self.assert_refused(nowhere.run("--store", "", "ls"), USAGE, "--store", "empty")
        for arguments in (("--host", "", "ls"), ("ckpt", "1", "-t", ""),
                          ("restore", "x:1", "--rollback", "append", "--ignore-path", ""),
                          ("copy", "x:1", "--to", ""), ("run", "--log", "", "--", "true"), ("stop", "")):  # fmt: skip
            with self.subTest(arguments=arguments):
                self.assert_refused(self.cli.run(*arguments), USAGE, "empty")
        self.assert_refused(self.make_cli(host="unix://x.sock").run("ps"), USAGE, "unix:///PATH")

    def test_places_that_are_not_there(self):
        """Not to be told by their exit status from an image that is not there."""
        job, _ = self.start_memory_job(4 * MIB)
        self.checkpoint(job.pid, "x:1", "--stop")
        for option in ("--log", "--pidfile"):
            refused = self.cli.run("restore", "x:1", "--detach", option, self.path("none/file"))
            self.assert_refused(refused, FAILED, self.path("none/file"), "folder")
        file = self.path("file")
        with open(file, "w", encoding="ascii"):
            pass
        self.assert_refused(self.make_cli(store=file).run("ls"), FAILED, file, "not a folder", "--store")
        twice = self.succeed("rm", "x:1", "x:1")
        self.assertEqual(twice["removed"], ["x:1"])

    def succeed_in_words(self, *arguments):
        result = self.cli.run(*arguments, json_output=False)
        self.assertEqual(result.code, DONE, str(result))
        return result.out

    def test_name_of_a_running_job_is_taken(self):
        options = ("--detach", "--name", "it-twice", "--log", self.path("twice.log"))
        self.succeed("run", *options, "--", jobs.workload("counter.sh"), self.path("count"))
        pid = [job["pid"] for job in self.succeed("ps")["jobs"] if job["name"] == "it-twice"][0]
        self.kill_job_at_end(pid)
        self.assert_refused(self.cli.run("run", *options, "--", "sleep", "1000"), FAILED, "it-twice")
        self.assertTrue(procfs.alive(pid))
        self.assert_refused(
            self.cli.run("run", "--detach", "--", "/no/such/program"), FAILED, "/no/such/program"
        )


class OtherUserTest(RekindleTest):
    """A client that is not root, through the daemon: it gets its own and nothing of anybody else's."""

    def setUp(self):
        super().setUp()
        self.daemon = self.start_daemon()
        self.root = self.make_cli(host=self.daemon.host)
        self.nobody = self.make_cli(host=self.daemon.host, uid=NOBODY)

    def test_process_of_another_user(self):
        job, memory = self.start_memory_job(4 * MIB)
        refused = self.nobody.run("ckpt", job.pid, "-t", "stolen:1")
        self.assert_refused(refused, NOT_PERMITTED, str(job.pid), "uid 0", "uid 65534", "root")
        memory.wait_for_tick()
        self.assert_store_whole([], cli=self.root)

    def test_images_of_another_user(self):
        job, memory = self.start_memory_job(4 * MIB)
        self.checkpoint(job.pid, "private:1", cli=self.root)
        for command in (
            ["restore", "private:1", "--detach"],
            ["inspect", "private:1"],
            ["rm", "private:1"],
            ["export", "private:1", "--criu", self.path("out")],
            ["ckpt", str(job.pid), "-t", "private:1", "--replace"],
        ):
            with self.subTest(command=command):
                result = self.nobody.run(*command)
                self.assertIn(result.code, (NOT_PERMITTED, NOT_FOUND), str(result))
        export = self.nobody.run("export", "private:1", "--criu", self.path("out"))
        self.assert_refused(export, NOT_PERMITTED, "export --file", "root")
        self.assert_refused(self.nobody.run("group", "ls"), NOT_PERMITTED, "may not use group checkpoints")
        self.assertEqual(self.references(cli=self.nobody), [])
        self.assertEqual(self.references(cli=self.root), ["private:1"])
        os.kill(job.pid, 0)
        memory.wait_for_tick()
        self.assert_store_whole(["private:1"], cli=self.root)

    def test_names_of_another_users_images_are_not_told(self):
        job, _ = self.start_memory_job(4 * MIB)
        self.checkpoint(job.pid, "private:1", cli=self.root)
        digest = self.succeed("inspect", "private:1", cli=self.root)["image"]["digest"]
        for image in ("privat:1", "privat@" + digest):
            with self.subTest(image=image):
                refused = self.nobody.run("inspect", image)
                self.assertEqual(refused.code, NOT_FOUND, str(refused))
                self.assertNotIn("private", refused.message)
        told = self.root.run("inspect", "privat:1")
        self.assertEqual(told.code, NOT_FOUND, str(told))
        self.assertIn("private:1", told.message)

    def test_own_process(self):
        """Through the daemon a user may capture what is theirs, where the machine lets CRIU do it."""
        os.chmod(self.directory, 0o777)
        job = self.start_job([jobs.PYTHON, jobs.workload("ticker.py"), self.path("nobody.lines")], uid=NOBODY)
        waiting.until(lambda: os.path.exists(self.path("nobody.lines")), "it runs")
        result = self.nobody.run("ckpt", job.pid, "-t", "mine:1")
        if procfs.has_capability(CAP_SYS_RESOURCE):
            self.assertEqual(result.code, DONE, str(result))
            self.assertEqual(self.references(cli=self.nobody), ["mine:1"])
        else:
            self.assert_refused(result, UNSUPPORTED, "CAP_SYS_RESOURCE", "65534")
        self.assertTrue(procfs.alive(job.pid))

    def test_jobs_of_another_user(self):
        self.succeed(
            "run",
            "--detach",
            "--name",
            "it-roots",
            "--log",
            self.path("r.log"),
            "--",
            "sleep",
            "1000",
            cli=self.root,
        )
        pid = [job["pid"] for job in self.succeed("ps", cli=self.root)["jobs"] if job["name"] == "it-roots"][
            0
        ]
        self.kill_job_at_end(pid)
        self.assertEqual(self.succeed("ps", cli=self.nobody).get("jobs", []), [])
        refused = self.nobody.run("ckpt", "it-roots", "-t", "stolen:1")
        self.assertIn(refused.code, (NOT_PERMITTED, NOT_FOUND), str(refused))
        self.assertTrue(procfs.alive(pid))
        os.kill(pid, signal.SIGKILL)

    def test_nobody_without_a_daemon(self):
        """No daemon answers and the caller is not root: said so, with what to do."""
        alone = self.make_cli(host="unix://" + self.path("absent.sock"), uid=NOBODY)
        result = alone.run("ls")
        self.assertIn(result.code, (FAILED, NOT_PERMITTED), str(result))
        self.assertIn("absent.sock", result.message)
        self.assertIn("rekindled", result.message)


if __name__ == "__main__":
    unittest.main()
