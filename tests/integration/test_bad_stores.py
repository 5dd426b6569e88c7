"""Stores that are none, too new, read-only or full: a clear error, the job runs on, what was there stays."""

import ctypes
import json
import os
import subprocess
import unittest

from harness import waiting
from harness.case import MIB, RekindleTest, shell
from harness.cli import FAILED, NOT_PERMITTED


class NotAStoreTest(RekindleTest):
    def test_folder_with_something_else(self):
        job, memory = self.start_memory_job(4 * MIB)
        os.mkdir(self.store)
        with open(os.path.join(self.store, "thesis.txt"), "w", encoding="ascii") as file:
            file.write("precious")
        for command in (
            ["ckpt", str(job.pid), "-t", "x:1"],
            ["ls"],
            ["gc"],
            ["fsck"],
            ["restore", "x:1", "--detach"],
        ):
            with self.subTest(command=command):
                self.assert_refused(self.cli.run(*command), FAILED, self.store)
        self.assertEqual(os.listdir(self.store), ["thesis.txt"])
        memory.wait_for_tick()

    def test_a_file(self):
        with open(self.store, "w", encoding="ascii") as file:
            file.write("not a folder")
        job, memory = self.start_memory_job(4 * MIB)
        self.assert_refused(self.cli.run("ckpt", job.pid, "-t", "x:1"), FAILED, self.store)
        memory.wait_for_tick()
        with open(self.store, encoding="ascii") as file:
            self.assertEqual(file.read(), "not a folder")

    def test_newer_format(self):
        job, memory = self.start_memory_job(4 * MIB)
        self.checkpoint(job.pid, "kept:1")
        raised = _change_format_version(self.store, 1)
        for command in (["ckpt", str(job.pid), "-t", "x:1"], ["ls"], ["gc"], ["rm", "kept:1"]):
            with self.subTest(command=command):
                self.assert_refused(self.cli.run(*command), FAILED, self.store, "newer", str(raised))
        memory.wait_for_tick()
        # Nothing was touched: with its own version back the store is whole.
        _change_format_version(self.store, -1)
        self.assert_store_whole(["kept:1"])


class ReadOnlyStoreTest(RekindleTest):
    def test_read_only_mount(self):
        job, memory = self.start_memory_job(4 * MIB)
        self.checkpoint(job.pid, "kept:1")
        shell("mount", "--bind", self.store, self.store)
        self.addCleanup(self.unmount)
        shell("mount", "-o", "remount,bind,ro", self.store)

        refused = self.cli.run("ckpt", job.pid, "-t", "x:1")
        self.assertIn(refused.code, (FAILED, NOT_PERMITTED), str(refused))
        self.assertIn(self.store, refused.message)
        self.assertIn("read-only", refused.message.lower())
        memory.wait_for_tick()
        # Reading goes on: it is where images are served from on many hosts.
        self.assert_store_whole(["kept:1"])
        digest = memory.digest()
        job.kill_tree()
        self.restore("kept:1")
        memory.wait_for_tick()
        self.assertEqual(memory.digest(), digest)

    def unmount(self):
        subprocess.run(["umount", "--lazy", self.store], check=False, stderr=subprocess.DEVNULL)


class FullStoreTest(RekindleTest):
    DISK = 48 * MIB

    def test_disk_fills_up(self):
        disk = self.path("disk.ext4")
        with open(disk, "wb") as file:
            file.truncate(self.DISK)
        shell("mkfs.ext4", "-q", "-F", disk)
        os.mkdir(self.store)
        shell("mount", "-o", "loop", disk, self.store)
        self.addCleanup(lambda: shell("umount", self.store))
        os.rmdir(os.path.join(self.store, "lost+found"))

        small, small_memory = self.start_memory_job(8 * MIB, "small")
        self.checkpoint(small.pid, "small:1")
        large, large_memory = self.start_memory_job(96 * MIB, "large")
        refused = self.cli.run("ckpt", large.pid, "-t", "large:1")
        self.assert_refused(refused, FAILED, self.store)
        self.assertTrue(any(word in refused.message for word in ("space", "full", "free")), refused.message)
        large_memory.wait_for_tick()
        small_memory.wait_for_tick()
        self.assert_store_whole(["small:1"])

        # Neither image nor job suffered, and the room is free again: a small one still fits and comes back.
        small_memory.touch(16)
        self.checkpoint(small.pid, "small:2")
        digest = small_memory.digest()
        small.kill_tree()
        self.restore("small:2")
        small_memory.wait_for_tick()
        self.assertEqual(small_memory.digest(), digest)
        # With --stop the job is not given up for an image that could not be kept.
        refused = self.cli.run("ckpt", large.pid, "-t", "large:1", "--stop")
        self.assertEqual(refused.code, FAILED, str(refused))
        large_memory.wait_for_tick()


class DamagedStoreTest(RekindleTest):
    def test_flipped_bit_is_found_before_the_job_runs(self):
        job, memory = self.start_memory_job(8 * MIB)
        self.checkpoint(job.pid, "hurt:1")
        memory.wait_for_tick()
        packs = [
            os.path.join(folder, name)
            for folder, _, names in os.walk(self.store)
            for name in names
            if os.path.getsize(os.path.join(folder, name)) > 8 * MIB and name.endswith(".pack")
        ]
        self.assertEqual(len(packs), 1, packs)
        with open(packs[0], "r+b") as pack:
            pack.seek(4 * MIB)
            byte = pack.read(1)
            pack.seek(4 * MIB)
            pack.write(bytes([byte[0] ^ 1]))
        report = self.cli.run("fsck", "--read")
        self.assertEqual(report.code, FAILED, str(report))
        self.assertIn("hurt:1", report.out + report.err)
        job.kill_tree()
        refused = self.cli.run("restore", "hurt:1", "--detach")
        self.assert_refused(refused, FAILED, "hurt:1")
        waiting.until(lambda: not os.path.exists(f"/proc/{job.pid}"), "no half-made job")


class _Xxh128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def _change_format_version(store, change):
    """As another Rekindle would write it: with a checksum that fits."""
    path = os.path.join(store, "FORMAT")
    with open(path, encoding="ascii") as file:
        identity = json.load(file)
    identity["version"] += change
    hash128 = ctypes.CDLL("libxxhash.so.0").XXH3_128bits
    hash128.argtypes, hash128.restype = [ctypes.c_char_p, ctypes.c_size_t], _Xxh128
    sealed = "{uuid}/{seed}/{version}".format(**identity).encode()
    identity["checksum"] = f"{hash128(sealed, len(sealed)).low:016x}"
    with open(path, "w", encoding="ascii") as file:
        file.write(json.dumps(identity, indent=2) + "\n")
    return identity["version"]


if __name__ == "__main__":
    unittest.main()
