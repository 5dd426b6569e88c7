"""A small file system in a file, mounted for one test, and ballast that leaves a chosen room on it."""

import ctypes
import errno
import os
import shutil
import subprocess
import unittest

from harness.case import MIB, shell

LEAST_BYTES = {"ext4": 48 * MIB, "xfs": 300 * MIB, "btrfs": 256 * MIB}  # with room for what a test stores
_MKFS_OPTIONS = {"ext4": ["-q", "-F", "-m", "0"], "xfs": ["-q", "-f"], "btrfs": ["-q", "-f"]}
_libc = ctypes.CDLL(None, use_errno=True)


class SmallDisk:
    """Mounted at `path` until the test ends; the ballast lies beside whatever the test makes there."""

    def __init__(self, test, kind, mkfs_options=(), size=None):
        if not shutil.which("mkfs." + kind):
            raise unittest.SkipTest(f"there is no mkfs.{kind}: run scripts/setup.sh --test")
        if not os.path.exists("/dev/loop-control"):
            raise unittest.SkipTest("this machine has no loop devices")
        if not _kernel_has(kind):
            raise unittest.SkipTest(f"this kernel has no {kind}")
        self.kind = kind
        self.path = test.path(kind)
        self._file = test.path(kind + ".disk")
        with open(self._file, "wb") as file:
            file.truncate(size or LEAST_BYTES[kind])
        shell("mkfs." + kind, *_MKFS_OPTIONS[kind], *mkfs_options, self._file)
        os.mkdir(self.path)
        shell("mount", "-o", "loop", self._file, self.path)
        test.addCleanup(self._unmount)
        self._ballast = os.open(test.path(kind + "/ballast"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _unmount(self):
        os.close(self._ballast)
        # A child of the test that is about to end may still have a file open here.
        for option in ([], ["--lazy"]):
            done = subprocess.run(["umount", *option, self.path], check=False, capture_output=True)
            if done.returncode == 0:
                break
        left = shell("losetup", "--noheadings", "--associated", self._file).strip()
        if left:
            raise AssertionError(f"a loop device is left: {left}")

    def settle(self):
        """What was removed is free from now on: some file systems free it when they commit."""
        if _libc.syncfs(self._ballast) != 0:
            raise OSError(ctypes.get_errno(), f"syncfs {self.path}")

    def free_bytes(self):
        self.settle()
        fs = os.fstatvfs(self._ballast)
        return fs.f_bavail * fs.f_frsize

    def leave(self, room):
        """Changes the ballast until `room` bytes are free, as far as the file system counts in such steps."""
        for _ in range(8):
            change = self.free_bytes() - room
            size = os.fstat(self._ballast).st_size
            if change < 0:
                os.ftruncate(self._ballast, max(0, size + change))
            # A file system may refuse a large piece, for what it needs besides, and give it in smaller ones.
            while change >= 4096 and not self._grow(os.fstat(self._ballast).st_size, change):
                change //= 2

    def fill(self):
        """Not one block more can be had, with pieces of any size."""
        piece = 1 * MIB
        while piece >= 512:
            if not self._grow(os.fstat(self._ballast).st_size, piece):
                piece //= 2
        # Preallocating and writing are refused at different moments.
        try:
            while True:
                os.pwrite(self._ballast, b"\1" * 512, os.fstat(self._ballast).st_size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        self.settle()

    def give_back(self):
        os.ftruncate(self._ballast, 0)
        self.settle()

    def _grow(self, size, by):
        try:
            os.posix_fallocate(self._ballast, size, by)
            return True
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return False


def _kernel_has(kind):
    if shutil.which("modprobe"):
        subprocess.run(["modprobe", "--quiet", kind], check=False, capture_output=True)
    with open("/proc/filesystems", encoding="ascii") as file:
        return kind in file.read().split()
