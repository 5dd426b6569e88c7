"""The base of every integration test: a store of its own, and proof that nothing stays behind."""

import ctypes
import os
import shutil
import subprocess
import tempfile
import unittest

from harness import jobs, procfs, waiting
from harness.cli import DONE, Cli, Daemon
from harness.memory_job import MemoryJob

MIB = 1 << 20
_PR_SET_CHILD_SUBREAPER = 36
# Where Rekindle, CRIU and the jobs could leave something. Other programs use these places too, so only
# names that they or this test would choose count.
_WATCHED_FOLDERS = ("/run/rekindle", "/dev/shm", "/tmp", "/var/tmp")
_OURS = ("rekindle", "rk-", "rk.", "criu", "crtools")
_TEST_FOLDERS = "rekindle-it."  # each test removes its own; others may run at the same time


class RekindleTest(unittest.TestCase):
    """Tests run as root. Everything a test makes lies under `self.directory`."""

    maxDiff = None
    daemon_prefix = ()  # a command that the daemon is run by
    place = "/var/tmp"  # where its folder is made

    @classmethod
    def setUpClass(cls):
        # Restored jobs come to us when the command that brought them back ends, so they can be found and
        # collected.
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")

    def setUp(self):
        self._before = _machine_state()
        self.addCleanup(self._check_nothing_left)
        self.directory = tempfile.mkdtemp(prefix=_TEST_FOLDERS, dir=self.place)
        self.addCleanup(shutil.rmtree, self.directory)
        os.chmod(self.directory, 0o755)
        self.store = self.path("store")
        # A runtime folder of its own keeps the test apart from other Rekindles on the machine.
        self.runtime = self.path("run")
        self.environment = {"REKINDLE_RUNTIME_DIR": self.runtime, "REKINDLE_LOG_DIR": self.path("logs")}
        self.cli = self.make_cli(store=self.store)

    def make_cli(self, store=None, host=None, env=None, uid=0):
        return Cli(store=store, host=host, env={**self.environment, **(env or {})}, uid=uid)

    def path(self, name):
        return os.path.join(self.directory, name)

    def _check_nothing_left(self):
        def leftovers():
            jobs.reap_orphans()
            left = [
                f"process {pid}: {procfs.command_line(pid) or procfs.state(pid)}"
                for pid in procfs.descendants(os.getpid())
            ]
            mounts, files = _machine_state()
            left += [f"mount {mount}" for mount in mounts - self._before[0]]
            left += [f"file {file}" for file in files - self._before[1]]
            return left

        try:
            waiting.until(lambda: not leftovers(), "nothing left", poll_seconds=0.05)
        except TimeoutError:
            left = leftovers()
            for pid in procfs.descendants(os.getpid()):
                left.append(f"{pid} is at: {procfs.whereabouts(pid)}")
            for pid in procfs.descendants(os.getpid()):
                jobs.kill_tree(pid)
            self.fail("left behind:\n  " + "\n  ".join(left))

    # Jobs.

    def start_job(self, argv, name="job", **options):
        job = jobs.Started(argv, self.path(name + ".log"), **options)
        self.addCleanup(job.kill_tree)
        return job

    def start_memory_job(self, size, name="memory", prefix=()):
        """Returns the job and its MemoryJob. `prefix`: what runs it, a namespace's."""
        status = self.path(name + ".status")
        job = self.start_job([*prefix, jobs.program("memory_job"), str(size), status], name)
        memory = MemoryJob(status)
        self.addCleanup(memory.close)
        return job, memory

    def kill_job_at_end(self, pid):
        self.addCleanup(jobs.kill_tree, pid)

    def start_daemon(self, *arguments):
        daemon = Daemon(self.directory, self.store, self.environment, arguments, self.daemon_prefix)
        self.addCleanup(daemon.stop)
        return daemon

    # The command.

    def succeed(self, *arguments, cli=None, **options):
        """Runs a command that must work; returns its JSON."""
        result = (cli or self.cli).run(*arguments, **options)
        self.assertEqual(result.code, DONE, str(result))
        return result.data

    def checkpoint(self, pid, reference, *options, cli=None):
        return self.succeed("ckpt", pid, "-t", reference, *options, cli=cli)

    def restore(self, reference, *options, cli=None):
        """Restores detached; returns the PID, and makes sure that the job ends with the test."""
        pidfile = self.path("restored.pid")
        data = self.succeed("restore", reference, "--detach", "--pidfile", pidfile, *options, cli=cli)
        with open(pidfile, encoding="ascii") as file:
            pid = int(file.read())
        self.kill_job_at_end(pid)
        self.assertTrue(procfs.alive(pid), f"{reference} was restored as {pid}, which does not run: {data}")
        return pid

    def assert_refused(self, result, code, *words):
        """It failed with this code, in words that name cause and cure (each word, in any case, in the
        message).
        """
        self.assertEqual(result.code, code, str(result))
        message = result.message
        for word in words:
            self.assertIn(word.lower(), message.lower(), str(result))
        return message

    def references(self, cli=None):
        return sorted(image["reference"] for image in self.succeed("ls", cli=cli).get("images", []))

    def assert_store_whole(self, references, cli=None):
        """The store holds exactly these images, and every byte of it verifies. One never made holds none."""
        if not references and not os.path.exists(self.store):
            return
        self.assertEqual(self.references(cli), sorted(references))
        report = self.succeed("fsck", "--read", cli=cli)
        self.assertEqual(report.get("problems", []), [], report)

    def store_bytes(self):
        """Disk space of the store, metadata included."""
        total = 0
        for folder, _, files in os.walk(self.store):
            for name in files:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
        return total


def _machine_state():
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        mounts = {line.split()[4] for line in file}
    files = set()
    for folder in _WATCHED_FOLDERS:
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.startswith(_TEST_FOLDERS):
                continue
            if folder == "/run/rekindle" or name.lower().startswith(_OURS):
                files.add(os.path.join(folder, name))
    return mounts, files


def shell(*argv):
    """A helper program (mount, mkfs, …) that must work."""
    return subprocess.run(
        argv,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ).stdout
