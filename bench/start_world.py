"""Where start_figures.py runs: mounts of its own, a daemon with a store, and finding all that it started."""

import ctypes
import json
import mmap
import os
import shutil
import signal
import socket
import subprocess
import tempfile

from harness import cli, jobs, procfs, waiting

MIB = 1 << 20
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 1 << 14, 1 << 18
_PR_SET_CHILD_SUBREAPER = 36
_OWN_PROGRAMS = ("rekindled", "rekindle-pager", "rekindle-sandbox", "rekindle")
_libc = ctypes.CDLL(None, use_errno=True)


def check(result, what):
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def libc_call(name, *arguments):
    check(getattr(_libc, name)(*arguments), name)


def mount(source, target, kind, flags, options=None):
    libc_call("mount", source.encode(), target.encode(), kind.encode(), flags, options)


class World:
    """Its mounts go with this process. /run is a tmpfs in it, so CRIU's kernel probe is kept."""

    def __init__(self, work):
        libc_call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc_call("unshare", _CLONE_NEWNS)
        mount("none", "/", "none", _MS_REC | _MS_PRIVATE)
        mount("bench", "/run", "tmpfs", 0, b"mode=755")
        self.directory = tempfile.mkdtemp(prefix="rekindle-bench.", dir=work)
        self.runtime = f"/run/rekindle-bench-{os.getpid()}"
        self.store = self.path("store")
        self.environment = {"REKINDLE_RUNTIME_DIR": self.runtime, "REKINDLE_LOG_DIR": self.path("logs")}
        self.daemon = None
        self.cli = None

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def start_daemon(self):
        self.daemon = cli.Daemon(self.directory, self.store, self.environment)
        self.cli = cli.Cli(host=self.daemon.host, env=self.environment)

    def end_rekindle(self):
        """Clones first: the daemon and the pager see them end."""
        for pid in self.inits():
            end(pid)
        if self.daemon is not None:
            self.daemon.stop()
            self.daemon = None
        for name in _OWN_PROGRAMS:
            for pid in self.processes(name):
                end(pid)
        jobs.reap_orphans()

    def remove(self):
        try:
            self.end_rekindle()
            for pid in procfs.descendants(os.getpid()):
                end(pid)
            jobs.reap_orphans()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, *arguments, seconds=180):
        """A command that must work; its last line's JSON."""
        result = self.cli.run(*arguments, seconds=seconds)
        if result.code != 0:
            raise RuntimeError(str(result) + self.records())
        return result.data

    def records(self):
        texts = []
        for path in (os.path.join(self.runtime, "pager.log"), self.path("rekindled.log")):
            if os.path.exists(path):
                with open(path, encoding="utf-8", errors="replace") as file:
                    texts.append(f"\n{path}:\n{file.read()[-2000:]}")
        return "".join(texts)

    # Rekindle's own processes.

    def processes(self, name):
        """Those of this run: they have its runtime folder in their environment."""
        found, mark = [], f"REKINDLE_RUNTIME_DIR={self.runtime}".encode()
        for pid in procfs.all_pids():
            try:
                if os.path.basename(os.readlink(f"/proc/{pid}/exe")).split(" ")[0] != name:
                    continue
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if mark in file.read().split(b"\0") and procfs.alive(pid):
                        found.append(pid)
            except OSError:
                continue
        return found

    def inits(self):
        return [pid for pid in self.processes("rekindle-sandbox") if _comm(pid) == "rekindle-init"]

    def pagers(self):
        """Without their guards, which are the same program."""
        return [pid for pid in self.processes("rekindle-pager") if _comm(pid) == "rekindle-pager"]

    def pager_stats(self):
        """What each pager says, and nothing of one that has just ended."""
        answers = []
        for name in sorted(os.listdir(self.runtime)):
            if not (name.startswith("pager-") and name.endswith(".sock")):
                continue
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
                channel.settimeout(30)
                try:
                    channel.connect(os.path.join(self.runtime, name))
                    channel.send(b'{"do":"stats"}')
                    answers.append(json.loads(channel.recv(MIB)))
                except ConnectionError:
                    continue
        return answers

    def missing_pages(self, instance):
        for answer in self.pager_stats():
            for clone in answer["clones"]:
                if clone["clone"] == instance:
                    return clone["missing"]
        return 0

    def has_templates(self):
        """(whether this build has `rekindle template`, why not)"""
        done = subprocess.run(
            [cli.binary("rekindle"), "template", "--help"], stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode == 0 and "rekindle template" in done.stdout.split("\n\n")[0]:
            return True, ""
        return False, "this build has no `rekindle template`"


def _comm(pid):
    try:
        with open(f"/proc/{pid}/comm", encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def end(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    waiting.until(lambda: not procfs.alive(pid), f"the end of process {pid}", 60)


def meminfo(*names):
    """In bytes."""
    with open("/proc/meminfo", encoding="ascii") as file:
        values = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in file}
    return [values[name] for name in names]


def memory_of(pid):
    """Of smaps_rollup, in bytes."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        next(file)
        return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in file}


def read_bytes_of(pids, what="read_bytes"):
    """What these processes had read from disks; with "rchar", what they have asked for by read()."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/io", encoding="ascii") as file:
            total += next(int(line.split()[1]) for line in file if line.startswith(what + ":"))
    return total


def disk_read_bytes():
    """Of all disks of the machine: others' reads are in it, too."""
    total = 0
    for name in os.listdir("/sys/block"):
        if not name.startswith(("loop", "ram", "dm-", "md", "zram")):
            with open(f"/sys/block/{name}/stat", encoding="ascii") as file:
                total += int(file.read().split()[2]) * 512
    return total


def drop_caches():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
        file.write("3\n")


def touch_free_memory(size):
    """A virtual machine's host takes free memory back: the first touch then costs several times as much."""
    size = min(size, meminfo("MemFree")[0] - 512 * MIB)  # more would take the page cache away
    if size > 0:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        mmap.mmap(-1, size, flags=flags).close()


def hook_library(given, binaries, root):
    """As given, or beside the programs, or the newest of the build folders."""
    if given:
        return os.path.abspath(given)
    places = (os.path.join(binaries, name) for name in ("librekindle_hook.so", "../hook/librekindle_hook.so"))
    found = [place for place in places if os.path.isfile(place)]
    if not found:
        for folder, _, names in os.walk(os.path.join(root, "build")):
            if "librekindle_hook.so" in names:
                found.append(os.path.join(folder, "librekindle_hook.so"))
        found.sort(key=os.path.getmtime, reverse=True)
    if not found:
        raise RuntimeError("librekindle_hook.so is not built: name it with --hook")
    return os.path.realpath(found[0])
