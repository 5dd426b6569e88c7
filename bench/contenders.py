"""The tools that are compared, behind one shape: dump a job and leave it running, bring it back."""

import os
import shutil
import struct
import subprocess

from harness import jobs
from harness.cli import Cli
from protobuf_wire import varint


def criu_in(prefix):
    loader = os.path.join(prefix, "lib64/ld-linux-x86-64.so.2")
    if not os.path.exists(loader):
        return None
    return [
        loader,
        "--library-path",
        os.path.join(prefix, "usr/lib/x86_64-linux-gnu"),
        os.path.join(prefix, "usr/sbin/criu"),
    ]


class StockCriu:
    """One CRIU in one of its modes. Images go to a folder on disk, and stay in the page cache."""

    def __init__(self, name, command, directory, options=(), dump_options=None):
        """`options` for both commands; `dump_options`, where given, for `dump` instead."""
        self.name, self._command = name, command
        self._options = {
            "restore": list(options),
            "dump": list(options if dump_options is None else dump_options),
        }
        self.images = os.path.join(directory, name.replace(" ", "-").replace("/", ""))
        shutil.rmtree(self.images, ignore_errors=True)

    def _run(self, verb, *arguments):
        subprocess.run(
            [
                *self._command,
                verb,
                "-D",
                self.images,
                "-o",
                f"{verb}.log",
                "--manage-cgroups=ignore",
                *arguments,
                *self._options[verb],
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )

    def dump(self, pid, after="--leave-running"):
        """Returns the seconds that CRIU itself says the job was frozen."""
        shutil.rmtree(self.images, ignore_errors=True)
        os.mkdir(self.images)
        self._run("dump", "-t", str(pid), "--network-lock", "skip", *([after] if after else []))
        return frozen_seconds(os.path.join(self.images, "stats-dump"))

    def forget(self):
        """Gives the disk space of the last image back, before it was even written."""
        shutil.rmtree(self.images, ignore_errors=True)

    def can_dump(self, pid):
        """Not every mode works on every machine and file system."""
        try:
            self.dump(pid)
        except subprocess.CalledProcessError:
            return False
        return True

    def restore(self):
        """As a user does it: the command ends when the job runs."""
        self._run("restore", "-d", "--network-lock", "skip")

    def bytes_on_disk(self):
        return disk_bytes(self.images)


class Rekindle:
    """The command on a store of its own, no daemon: everything that a user waits for is in it."""

    name = "rekindle"

    def __init__(self, directory, name="store"):
        self.store = os.path.join(directory, name)
        self.runtime = os.path.join(directory, "run")
        self.cli = Cli(store=self.store, env={"REKINDLE_RUNTIME_DIR": self.runtime})
        self._taken = 0
        self.last = None

    def _run(self, *arguments):
        result = self.cli.run(*arguments)
        if result.code != 0:
            raise RuntimeError(str(result))
        return result.data

    def dump(self, pid, after=None):
        self._taken += 1
        self.last = f"bench:{self._taken}"
        options = ["--stop"] if after == "--stop" else []
        return float(self._run("ckpt", pid, "-t", self.last, *options)["freeze_seconds"])

    def forget(self):
        """The store keeps it: the next image of an unchanged job takes next to no room."""

    def restore(self):
        self._run("restore", self.last, "--detach")

    def bytes_on_disk(self):
        return disk_bytes(self.store)


def disk_bytes(directory):
    total = 0
    for folder, _, files in os.walk(directory):
        for name in files:
            total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total


def frozen_seconds(stats_file):
    """stats-dump: two magics, a length, then a record whose field 1 is the dump's; its field 2 is
    microseconds frozen.
    """
    with open(stats_file, "rb") as file:
        content = file.read()
    length = struct.unpack_from("<I", content, 8)[0]
    entry = _fields(content[12 : 12 + length])
    return _fields(entry[1])[2] / 1e6


def _fields(message):
    fields, at = {}, 0
    while at < len(message):
        key, at = varint(message, at)
        value, at = varint(message, at)
        if key & 7 == 2:
            value, at = message[at : at + value], at + value
        fields[key >> 3] = value
    return fields


def wait_gone(job):
    """After a dump that ends the job, or a kill: its PIDs are free."""
    job.reap()
    jobs.reap_orphans()
