"""What the tests of clones share: parked jobs and their images, the pager, sandboxes, and what is left of them."""

import json
import os
import signal
import socket

from harness import jobs, procfs, waiting
from harness.case import RekindleTest
from harness.cli import BINARIES

SOURCE = os.path.abspath(os.path.join(jobs.WORKLOADS, "..", "..", ".."))
HOOK_PYTHON = os.path.join(SOURCE, "hook", "python")
HOOK_NODE = os.path.join(SOURCE, "hook", "node")
_PARKED_AT = 1001  # where a parked process has its channel


def is_parked(pid):
    """Does the hook hold it?"""
    try:
        return os.readlink(f"/proc/{pid}/fd/{_PARKED_AT}").startswith("socket:")
    except OSError:
        return False


def hook_library():
    return _built("librekindle_hook.so", "REKINDLE_HOOK_LIBRARY")


def hook_addon():
    """For Node.js. It is left out of builds without Node.js's headers."""
    return _built("rekindle_hook.node", "REKINDLE_HOOK_ADDON")


def _built(name, variable):
    """Beside the programs, or where CMake makes it."""
    for path in (
        os.environ.get(variable, ""),
        os.path.join(BINARIES, name),
        os.path.join(BINARIES, "..", "hook", name),
    ):
        if os.path.isfile(path):
            return os.path.abspath(path)
    raise RuntimeError(f"{name} is not built: set {variable}")


def _processes_of(name, runtime):
    """Rekindle's own processes of this test: they have its runtime folder in their environment."""
    found = []
    for pid in procfs.all_pids():
        try:
            if os.path.basename(os.readlink(f"/proc/{pid}/exe")).split(" ")[0] != name:
                continue
            with open(f"/proc/{pid}/environ", "rb") as file:
                if f"REKINDLE_RUNTIME_DIR={runtime}".encode() in file.read().split(b"\0"):
                    found.append(pid)
        except OSError:
            continue
    return found


class CloneTest(RekindleTest):
    """With a daemon of its own unless `embedded`; clones are ended with the test."""

    embedded = False
    # What stands by would count among what a test leaves behind; test_standby.py has a daemon that keeps some.
    daemon_arguments = ("--standby", "0")

    def setUp(self):
        super().setUp()
        # Before RekindleTest looks for what is left: the pager stays for a while after its last job.
        self.addCleanup(self.end_everything)
        self.daemon = None
        if not self.embedded:
            self.restart_daemon()

    def restart_daemon(self, **extra):
        self.daemon = self.start_daemon(*self.daemon_arguments)
        self.cli = self.make_cli(host=self.daemon.host, env=extra)

    def pagers(self):
        """Without their guards, which are the same program."""
        return [
            pid
            for pid in _processes_of("rekindle-pager", self.runtime)
            if procfs.alive(pid) and self._comm(pid) == "rekindle-pager"
        ]

    def pager(self):
        return waiting.until(self.pagers, "the pager")[0]

    def inits(self):
        """The first processes of sandboxes that have one."""
        return [
            pid
            for pid in _processes_of("rekindle-sandbox", self.runtime)
            if procfs.alive(pid) and self._comm(pid) == "rekindle-init"
        ]

    def init_of(self, pid):
        """Of the sandbox in which `pid` runs."""
        space = os.readlink(f"/proc/{pid}/ns/pid")
        return next(init for init in self.inits() if os.readlink(f"/proc/{init}/ns/pid") == space)

    @staticmethod
    def _comm(pid):
        try:
            with open(f"/proc/{pid}/comm", encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    def sandboxes(self):
        """The folders of sandboxes that a clone was started in: those kept ready have no log yet."""
        folder = os.path.join(self.runtime, "s")
        names = os.listdir(folder) if os.path.isdir(folder) else []
        return sorted(n for n in names if os.path.exists(os.path.join(folder, n, "restore.log")))

    def pager_stats(self):
        path = waiting.until(self._pager_sockets, "the pager's socket")[0]
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.settimeout(30)
            channel.connect(path)
            channel.send(b'{"do":"stats"}')
            return json.loads(channel.recv(1 << 20))

    def _pager_sockets(self):
        return [
            os.path.join(self.runtime, name)
            for name in (os.listdir(self.runtime) if os.path.isdir(self.runtime) else ())
            if name.startswith("pager-") and name.endswith(".sock")
        ]

    def missing_pages(self, instance):
        for clone in self.pager_stats()["clones"]:
            if clone["clone"] == instance:
                return clone["missing"]
        return 0

    def end_everything(self):
        for init in self.inits():
            _kill(init)
            waiting.for_exit(init)
        if self.daemon is not None:
            self.daemon.stop()
        for name in ("rekindle-pager", "rekindle-sandbox"):
            for pid in _processes_of(name, self.runtime):
                _kill(pid)
                waiting.for_exit(pid)

    def records(self):
        """What there is in writing, for messages of failed checks."""
        texts = []
        for path in (os.path.join(self.runtime, "pager.log"), self.daemon.log if self.daemon else ""):
            if os.path.exists(path):
                with open(path, encoding="utf-8", errors="replace") as file:
                    texts.append(f"{path}:\n{file.read()[-4000:]}")
        return "\n".join(texts)

    # Jobs and their images.

    def start_held(self, argv, name="held", env=None, **options):
        """A job with the hook, parked."""
        held = {"REKINDLE_HOLD": "1", "REKINDLE_HOOK_LIBRARY": hook_library(), "PYTHONPATH": HOOK_PYTHON}
        job = self.start_job(argv, name, env={**held, **(env or {})}, **options)
        waiting.until(lambda: self._is_parked(job.pid), f"{name} parked", 60)
        return job

    def _is_parked(self, pid):
        if not procfs.alive(pid):
            raise AssertionError(f"the job ended instead of parking; see {os.listdir(self.directory)}")
        return is_parked(pid)

    def take_image(self, job, reference):
        """The job ends with it."""
        self.checkpoint(job.pid, reference, "--stop")
        job.reap()
        return reference

    # Clones.

    def clone(self, reference, *options, cli=None):
        """One clone, detached: its answer's JSON."""
        return self.succeed("restore", reference, "--clone", "--detach", *options, cli=cli)

    def clones(self, reference, count, *options):
        """So many, detached: their answers."""
        result = self.cli.run("restore", reference, "--clone", "--detach", "--count", count, *options)
        self.assertEqual(result.code, 0, str(result))
        return [json.loads(line) for line in result.out.splitlines()]

    def wait_for_end(self, pid, seconds=waiting.DEFAULT_SECONDS):
        """As `rekindle ps --all` has it, or just that it is gone."""
        waiting.until(lambda: not procfs.alive(pid), f"the clone's process {pid} ended", seconds)

    def wait_for_no_sandbox(self, seconds=waiting.DEFAULT_SECONDS):
        waiting.until(lambda: not self.sandboxes(), "the sandboxes' folders removed", seconds)


def _kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
