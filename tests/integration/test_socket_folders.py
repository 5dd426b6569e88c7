"""Jobs with Unix sockets in folders that are gone when they come back, as Python's multiprocessing has them: one for
each process, for as long as that lives.
"""

import glob
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
import unittest

from harness import jobs, procfs, waiting
from harness.case import RekindleTest
from harness.cli import FAILED, NOT_PERMITTED
from harness.clones import CloneTest
from harness.containers_case import PLACEHOLDER, ContainersCase

sys.path.insert(0, jobs.WORKLOADS)

ALICE = 65533
CAP_SYS_RESOURCE = 24
_BECOME_ALICE = f"""import ctypes, os, socket, sys

def become_alice():
    os.setgroups([])
    os.setresgid({ALICE}, {ALICE}, {ALICE})
    os.setresuid({ALICE}, {ALICE}, {ALICE})
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE

def serve(server):
    print("ready", flush=True)
    while True:
        connection, _ = server.accept()
        connection.sendall(server.getsockname().encode())
        connection.close()
"""
# A service that root starts, which gives up its rights once it has its socket.
_SERVICE = _BECOME_ALICE + """
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
os.chown(sys.argv[1], 65533, 65533)
become_alice()
serve(server)
"""
# A user's job with a socket that is bound to the same name where another file system is in the folder's place, in a
# mount namespace of his.
_FORGER = _BECOME_ALICE + """
become_alice()
near, far = socket.socketpair()
if os.fork() == 0:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000 | 0x20000) != 0:  # CLONE_NEWUSER | CLONE_NEWNS
        print("no namespaces", flush=True)
        os._exit(1)
    for name, text in (("setgroups", "deny"), ("uid_map", "0 65533 1"), ("gid_map", "0 65533 1")):
        with open("/proc/self/" + name, "w") as file:
            file.write(text)
    assert libc.mount(b"none", os.path.dirname(sys.argv[1]).encode(), b"tmpfs", 0, None) == 0, ctypes.get_errno()
    server = socket.socket(socket.AF_UNIX)
    server.bind(sys.argv[1])
    server.listen()
    socket.send_fds(far, [b"x"], [server.fileno()])
    os._exit(0)
far.close()
fds = socket.recv_fds(near, 1, 1)[1]
os.wait()
near.close()
serve(socket.socket(fileno=fds[0]))
"""

EPOCHS, BATCHES, HELD = 4, 12, 15  # of data_loader.py; HELD: lines of its log until it waits


def lines_of(path):
    try:
        with open(path, encoding="ascii") as file:
            return file.read().split("\n")[:-1]
    except FileNotFoundError:
        return []


def answer_of(path):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(path)
        return connection.recv(200).decode()


class Loader:
    """data_loader.py: captured in the midst of an epoch, whose workers are gone when it comes back."""

    def start_loader(self, name="loader"):
        self.steps = self.path(name + ".steps")
        return self.start_job([jobs.PYTHON, jobs.workload("data_loader.py"), self.steps], name)

    def capture_in_epoch(self, reference):
        job = self.start_loader()
        waiting.until(lambda: len(lines_of(self.steps)) == HELD, "the midst of an epoch", 90, 0.02)
        waiting.until(self.sockets, "the workers' sockets", 30)
        folders = {os.path.dirname(path): os.stat(os.path.dirname(path)) for path in self.sockets()}
        self.checkpoint(job.pid, reference)
        with open(self.steps + ".go", "w", encoding="ascii"):
            pass
        waiting.until(lambda: len(lines_of(self.steps)) >= 2 * BATCHES + 1, "the next epoch", 90, 0.02)
        waiting.until(lambda: not any(map(os.path.exists, folders)), "the workers' folders removed", 30)
        # With its workers: one that is just beginning does not notice that its parent has gone.
        job.kill_tree()
        job.reap()
        for folder in glob.glob("/tmp/pymp-*"):
            shutil.rmtree(folder)
        self.before = len(lines_of(self.steps))
        return folders

    @staticmethod
    def sockets():
        return glob.glob("/tmp/pymp-*/listener-*")

    def check_goes_on(self):
        """From the image to its end, with what a run writes that nobody touched."""
        before = self.before
        rest = EPOCHS * BATCHES - HELD
        after = waiting.until(
            lambda: len(lines_of(self.steps)) >= before + rest and lines_of(self.steps)[before:], "its end", 90, 0.02
        )
        log = self.steps
        undisturbed = self.start_loader("undisturbed")
        with open(self.steps + ".go", "w", encoding="ascii"):
            pass
        undisturbed.reap(90)
        truth = lines_of(self.steps)
        self.assertEqual(len(truth), EPOCHS * BATCHES)
        self.assertEqual(after, truth[HELD:])
        self.assertEqual(lines_of(log)[:before], truth[:before])


class DataLoaderTest(Loader, RekindleTest):
    def test_goes_on_after_the_epoch(self):
        folders = self.capture_in_epoch("loader:1")
        self.restore("loader:1")
        self.check_goes_on()
        waiting.until(lambda: not glob.glob("/tmp/pymp-*"), "what was made again removed by the job", 30)
        self.assertGreaterEqual(len(folders), 2)

    def test_images_that_do_not_know_of_it(self):
        """As those of earlier versions: told what is missing, and what to do."""
        folders = self.capture_in_epoch("loader:1")
        plain = self.path("plain")
        self.succeed("export", "loader:1", "--criu", plain)
        self.succeed("import", "--criu", plain, "-t", "loader:plain")
        message = self.assert_refused(self.cli.run("restore", "loader:plain", "--detach"), FAILED, "folder", "listener-")
        self.assertTrue(any(folder in message for folder in folders), message)
        for folder in folders:
            os.mkdir(folder, 0o700)
        self.restore("loader:plain")
        self.check_goes_on()


class CloneDataLoaderTest(Loader, CloneTest):
    def test_goes_on_after_the_epoch(self):
        self.capture_in_epoch("loader:1")
        started = self.clone("loader:1")
        self.assertIn("socket folders", [phase["name"] for phase in started["phases"]])
        self.check_goes_on()
        self.wait_for_end(started["job"]["pid"])
        waiting.until(lambda: not glob.glob("/tmp/pymp-*"), "what was made again removed by the copy", 30)

    def test_several(self):
        folder = self.path("server.d")
        job = self.start_job([jobs.PYTHON, jobs.workload("socket_binder.py"), folder], "server")
        waiting.until(lambda: "ready" in lines_of(job.log), "the server", 30, 0.01)
        image = self.take_image(job, "server:1")
        shutil.rmtree(folder)
        copies = [self.clone(image) for _ in range(2)]
        self.assertEqual(answer_of(folder + "/server"), folder + "/server")
        self.assertEqual(os.listdir(folder), ["server"])
        for copy in copies:
            self.assertTrue(procfs.alive(copy["job"]["pid"]))
            os.kill(copy["job"]["pid"], signal.SIGKILL)
            self.wait_for_end(copy["job"]["pid"])


class BinderTest(RekindleTest):
    def setUp(self):
        super().setUp()
        self.folder = self.path("server.d")

    def start_server(self, *words):
        # The log goes on where a server before it has ended.
        log = self.path("server.log")
        before = lines_of(log).count("ready") if os.path.exists(log) else 0
        job = self.start_job([jobs.PYTHON, jobs.workload("socket_binder.py"), self.folder, *words], "server")
        waiting.until(lambda: lines_of(job.log).count("ready") > before, "the server", 30, 0.01)
        return job

    def capture(self, *words):
        """Its image; the job has ended, and its folder is gone."""
        job = self.start_server(*words)
        self.checkpoint(job.pid, "server:1", "--stop")
        job.reap()
        shutil.rmtree(self.folder, ignore_errors=True)
        return job

    def test_made_as_it_was(self):
        job = self.start_server()
        os.chown(self.folder, 12, 34)
        os.chmod(self.folder, 0o2710)
        self.checkpoint(job.pid, "server:1", "--stop")
        job.reap()
        shutil.rmtree(self.folder)
        self.restore("server:1")
        made = os.stat(self.folder)
        self.assertEqual((stat.S_IMODE(made.st_mode), made.st_uid, made.st_gid), (0o2710, 12, 34))
        self.assertEqual(answer_of(self.folder + "/server"), self.folder + "/server")

    def test_of_a_relative_name(self):
        self.capture("relative")
        self.restore("server:1")
        self.assertEqual(answer_of(self.folder + "/server"), "server")

    def test_without_a_name(self):
        """Nobody could connect to it, and nobody can."""
        for words in (("unnamed", "folderless"), ("unnamed", "folderless", "relative"), ("renamed",)):
            with self.subTest(words):
                self.capture(*words)
                pid = self.restore("server:1", "--name", "-".join(words))
                self.assertFalse(os.path.exists(self.folder))
                jobs.kill_tree(pid)
                shutil.rmtree(self.folder + ".renamed", ignore_errors=True)
                self.succeed("rm", "server:1")

    def test_gone_again_when_the_restore_fails(self):
        self.capture("dotted")
        shutil.rmtree(self.folder + ".dotted")
        # Only CRIU finds out that this one is missing.
        refused = self.cli.run("restore", "server:1", "--detach")
        self.assert_refused(refused, FAILED, "folder", ".dotted/s", "make it again")
        self.assertFalse(os.path.exists(self.folder))
        os.mkdir(self.folder + ".dotted")
        self.restore("server:1")
        self.assertEqual(answer_of(self.folder + "/server"), self.folder + "/server")

    def test_something_else_has_its_name(self):
        self.capture()
        os.symlink(self.path("elsewhere"), self.folder)
        self.assert_refused(self.cli.run("restore", "server:1", "--detach"), FAILED, self.folder, "remove that")
        self.assertFalse(os.path.exists(self.path("elsewhere")))

    def test_supervised(self):
        daemon = self.start_daemon()
        client = self.make_cli(host=daemon.host)
        log = self.path("server.log")
        self.succeed(
            "run", "--detach", "--name", "server", "--log", log, "--every", "1h", "--restarts", 3, "--backoff", "10ms",
            "--", jobs.PYTHON, jobs.workload("socket_binder.py"), self.folder, "gone", cli=client)  # fmt: skip
        self.addCleanup(lambda: client.run("stop", "server"))
        waiting.until(lambda: "ready" in lines_of(log), "the server", 30, 0.01)

        def job():
            (found,) = [job for job in self.succeed("ps", "--all", cli=client)["jobs"] if job["name"] == "server"]
            return found

        pid = job()["pid"]
        self.succeed("ckpt", "server", "-t", "server:asked", cli=client)
        with open(self.folder + ".go", "w", encoding="ascii"):
            pass
        waiting.until(lambda: not os.path.exists(self.folder), "its folder removed", 30)
        os.unlink(self.folder + ".go")
        os.kill(pid, signal.SIGKILL)
        waiting.until(lambda: job()["supervised"]["restarts"] == 1, "its restart", 60)
        self.assertEqual(answer_of(self.folder + "/server"), self.folder + "/server")


class RootsFolderTest(RekindleTest):
    """Where the job's user may make nothing."""

    def setUp(self):
        if not procfs.has_capability(CAP_SYS_RESOURCE):
            self.skipTest("jobs of other users can't be captured here")
        super().setUp()
        self.folder = tempfile.mkdtemp(dir="/run")
        self.addCleanup(shutil.rmtree, self.folder)
        os.chmod(self.folder, 0o755)
        self.name = self.folder + "/server"

    def capture(self, program):
        job = self.start_job([jobs.PYTHON, "-c", program, self.name], "server")
        waiting.until(lambda: lines_of(job.log), "the server", 30, 0.01)
        if lines_of(job.log) != ["ready"]:
            self.skipTest("users have no namespaces here")
        self.checkpoint(job.pid, "server:1", "--stop")
        job.reap()

    def test_of_a_service_that_root_starts(self):
        self.capture(_SERVICE)
        self.restore("server:1")  # what the one before has left is there
        self.assertEqual(answer_of(self.name), self.name)
        self.assertEqual(os.stat(self.name).st_uid, ALICE)

    def test_a_name_from_another_file_system(self):
        """What the user would get there is root's to give."""
        self.capture(_FORGER)
        refused = self.cli.run("restore", "server:1", "--detach")
        self.assert_refused(refused, NOT_PERMITTED, self.name, "user may not bind", "--ignore-mismatch")
        self.assertEqual(os.listdir(self.folder), [])
        # Nor may he remove what is there.
        with socket.socket(socket.AF_UNIX) as service:
            service.bind(self.name)
            service.listen()
            self.assertNotEqual(self.cli.run("restore", "server:1", "--detach").code, 0)
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(self.name)


class ContainerTest(ContainersCase):
    def test_in_another_container(self):
        folder = "/run/server.d"
        one = self.start("one", [*PLACEHOLDER, jobs.PYTHON, "-B", "/programs/socket_binder.py", folder])
        waiting.until(lambda: os.path.exists(os.path.join(one.root, folder[1:], "server")), "the server", 30)
        made = os.stat(os.path.join(one.root, folder[1:]))
        self.checkpoint(one.find("socket_binder.py"), "box:1", "--stop")
        one.end()
        two = self.start("two", PLACEHOLDER)
        pid = self.restore("box:1", "--into", two.first())
        place = os.path.join(two.root, folder[1:])
        self.assertEqual(stat.S_IMODE(os.stat(place).st_mode), stat.S_IMODE(made.st_mode))
        self.assertEqual(answer_of(f"/proc/{pid}/root{folder}/server"), folder + "/server")
        self.assertFalse(os.path.exists(folder), "not on the machine")


if __name__ == "__main__":
    unittest.main()
