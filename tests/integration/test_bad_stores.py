"""Stores that are none, too new, read-only or full: a clear error, the job runs on, what was there stays."""

import ctypes
import json
import os
import shutil
import subprocess
import unittest

from harness import clones, waiting
from harness.case import MIB, RekindleTest, shell
from harness.cli import DONE, FAILED, NO_STORE, NOT_PERMITTED, UNSUPPORTED


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
        self.assertIn(self.store, self.examine(UNSUPPORTED)["detail"])
        memory.wait_for_tick()

    def examine(self, code):
        """What the doctor says of the store."""
        result = self.cli.run("doctor")
        self.assertEqual(result.code, code, str(result))
        return next(check for check in result.data["checks"] if check["name"] == "store")

    def test_new_file_system(self):
        """A folder made beforehand is a store that is not made yet, and the first image makes it."""
        os.makedirs(os.path.join(self.store, "lost+found"))
        for command in (
            ["ls"],
            ["inspect", "x:1"],
            ["stats"],
            ["gc"],
            ["fsck"],
            ["fsck", "--repair"],
            ["rm", "x:1"],
            ["restore", "x:1", "--detach"],
        ):
            with self.subTest(command=command):
                refused = self.cli.run(*command)
                self.assert_refused(refused, NO_STORE, self.store, "empty", "ckpt", "--store")
        self.assertIn("not made yet", self.examine(DONE)["detail"])
        self.assertEqual(os.listdir(self.store), ["lost+found"])
        job, _ = self.start_memory_job(4 * MIB)
        self.checkpoint(job.pid, "x:1")
        self.assert_store_whole(["x:1"])
        self.assertNotIn("not made yet", self.examine(DONE)["detail"])
        self.assertIn("lost+found", os.listdir(self.store))

    def test_file_system_that_is_not_mounted(self):
        """A store that is made meanwhile would be hidden by it."""
        disk = self.path("disk")
        os.mkdir(disk)
        self.store = os.path.join(disk, "store")
        self.cli = self.make_cli(store=self.store)
        self.use_as_fstab(f"disk {disk} tmpfs defaults 0 0\n")
        job, memory = self.start_memory_job(4 * MIB)
        for command in (["ckpt", str(job.pid), "-t", "x:1"], ["ls"]):
            with self.subTest(command=command):
                refused = self.cli.run(*command)
                self.assert_refused(refused, NO_STORE, self.store, f"mounted at {disk}", "/etc/fstab")
        self.assertIn(f"mounted at {disk}", self.examine(UNSUPPORTED)["detail"])
        with self.assertRaisesRegex(RuntimeError, f"mounted at {disk}"):
            self.start_daemon()
        self.assertEqual(os.listdir(disk), [])
        memory.wait_for_tick()
        subprocess.run(["mount", disk], check=True)
        self.addCleanup(subprocess.run, ["umount", disk], check=True)
        self.checkpoint(job.pid, "x:1")
        self.assert_store_whole(["x:1"])

    def use_as_fstab(self, content):
        with open(self.path("fstab"), "w", encoding="ascii") as file:
            file.write(content)
        subprocess.run(["mount", "--bind", self.path("fstab"), "/etc/fstab"], check=True)
        self.addCleanup(subprocess.run, ["umount", "/etc/fstab"], check=True)

    def test_a_link_that_leads_nowhere(self):
        job, _ = self.start_memory_job(MIB)
        target = self.path("mounted/later")
        os.symlink(target, self.store)
        for arguments in (["ls"], ["gc"], ["ckpt", job.pid, "-t", "job:1"]):
            self.assert_refused(self.cli.run(*arguments), NO_STORE, self.store, f"link to {target}", "mount")
        self.assertFalse(os.path.exists(target))
        os.makedirs(target)
        self.checkpoint(job.pid, "job:1")
        self.assertTrue(os.path.exists(os.path.join(target, "FORMAT")))
        self.assert_store_whole(["job:1"])

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
        self.assertIn("remount", refused.message)
        store = next(check for check in self.cli.run("doctor").data["checks"] if check["name"] == "store")
        self.assertIn("remount", store["cure"])
        self.assert_refused(self.cli.run("rm", "kept:1"), NOT_PERMITTED, "read-only", "remount")
        memory.wait_for_tick()
        # Reading goes on: it is where images are served from on many hosts.
        self.assert_store_whole(["kept:1"])
        self.assertEqual(self.succeed("gc", "--dry-run").get("packs_removed", 0), 0)
        self.assert_refused(self.cli.run("gc"), NOT_PERMITTED, "read-only", "remount")
        digest = memory.digest()
        job.kill_tree()
        self.restore("kept:1")
        memory.wait_for_tick()
        self.assertEqual(memory.digest(), digest)

    def unmount(self):
        subprocess.run(["umount", "--lazy", self.store], check=False, stderr=subprocess.DEVNULL)


class ReadOnlyCloneTest(clones.CloneTest):
    embedded = True

    def test_a_copy_of_an_image_there(self):
        job, memory = self.start_memory_job(4 * MIB)
        self.take_image(job, "kept:1")
        shell("mount", "--bind", self.store, self.store)
        self.addCleanup(subprocess.run, ["umount", "--lazy", self.store], check=False)
        shell("mount", "-o", "remount,bind,ro", self.store)
        self.clone("kept:1")
        memory.wait_for_tick()


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
        packs = packs_of(self.store)
        self.assertEqual(len(packs), 1, packs)
        flip_bit(packs[0], 4 * MIB)
        report = self.cli.run("fsck", "--read")
        self.assertEqual(report.code, FAILED, str(report))
        self.assertIn("hurt:1", report.out + report.err)
        job.kill_tree()
        refused = self.cli.run("restore", "hurt:1", "--detach")
        self.assert_refused(refused, FAILED, "hurt:1")
        waiting.until(lambda: not os.path.exists(f"/proc/{job.pid}"), "no half-made job")


class MissingCatalogTest(RekindleTest):
    def test_it_vanishes_while_a_daemon_has_the_store(self):
        job, memory = self.start_memory_job(4 * MIB)
        daemon = self.start_daemon()
        cli = self.make_cli(host=daemon.host)
        digest = memory.digest()
        self.checkpoint(job.pid, "job:1", cli=cli)
        catalog = os.path.join(self.store, "catalog")
        shutil.rmtree(catalog)
        for arguments in (["ls"], ["ckpt", job.pid, "-t", "job:2"], ["rm", "job:1"], ["gc"], ["fsck"], ["stats"]):
            self.assert_refused(cli.run(*arguments), FAILED, catalog, "is missing", "fsck --repair")
        self.assertFalse(os.path.exists(catalog))
        memory.wait_for_tick()
        repaired = cli.run("fsck", "--repair")
        self.assertIn(catalog, str(repaired.data["problems"]))
        self.assertEqual(self.references(cli), ["job:1"])
        memory.touch(10)
        self.checkpoint(job.pid, "job:2", cli=cli)
        self.succeed("gc", cli=cli)
        report = self.succeed("fsck", "--read", cli=cli)
        self.assertEqual(report.get("problems", []), [])
        self.assertTrue(daemon.running())
        job.kill_tree()
        self.restore("job:1", cli=cli)
        self.assertEqual(memory.digest(), digest)


class DamagedParentTest(RekindleTest):
    """A job's image is damaged: the next one is whole, and the job comes back from it."""

    def setUp(self):
        super().setUp()
        self.job, self.memory = self.start_memory_job(8 * MIB)
        self.checkpoint(self.job.pid, "hurt:1")
        self.pack = packs_of(self.store)[0]

    def assert_next_image_is_whole(self, lost="hurt:1"):
        self.memory.touch(16)
        self.memory.wait_for_tick()
        taken = self.checkpoint(self.job.pid, "next:1")
        report = self.cli.run("fsck", "--read")
        self.assertEqual(report.code, FAILED, str(report))
        self.assertEqual(report.data.get("lost_images"), [lost], str(report))
        self.succeed("export", "next:1", "--criu", self.path("exported"))
        digest = self.memory.digest()
        self.job.kill_tree()
        self.restore("next:1")
        self.memory.wait_for_tick()
        self.assertEqual(self.memory.digest(), digest)
        return taken

    def test_pack_that_cannot_be_used(self):
        with open(self.pack, "r+b") as pack:
            pack.seek(-100, os.SEEK_END)
            pack.write(b"\0" * 8)
        taken = self.assert_next_image_is_whole()
        self.assertIn("hurt:1", str(taken["warnings"]))

    def test_missing_pack(self):
        os.unlink(self.pack)
        taken = self.assert_next_image_is_whole()
        self.assertIn("hurt:1", str(taken["warnings"]))

    def test_an_older_image_is_the_parent_then(self):
        before = self.succeed("inspect", "hurt:1")["image"]["digest"]
        self.memory.touch(16)
        self.checkpoint(self.job.pid, "later:1")
        (pack,) = set(packs_of(self.store)) - {self.pack}
        os.unlink(pack)
        taken = self.assert_next_image_is_whole(lost="later:1")
        self.assertEqual(taken["image"]["parent_digest"], before)

    def test_flipped_bit_that_fsck_has_found(self):
        flip_bit(self.pack, 4 * MIB)
        self.assertEqual(self.cli.run("fsck", "--read").code, FAILED)
        self.assert_next_image_is_whole()


class ManyPacksTest(RekindleTest):
    """A store of more packs than a process may have descriptors open by itself."""

    FEW = ("prlimit", "--nofile=32:4096")
    PACKS = 20

    def test_fsck_and_the_limit_of_jobs(self):
        job, _ = self.start_memory_job(MIB)
        for number in range(self.PACKS):
            self.checkpoint(job.pid, f"many:{number}")
        report = self.cli.run("fsck", "--read", prefix=self.FEW)
        self.assertEqual(report.code, DONE, str(report))
        log = self.path("limit.log")
        self.cli.run("run", "--", "sh", "-c", f"ulimit -Sn > {log}", prefix=self.FEW)
        with open(log, encoding="ascii") as file:
            self.assertEqual(file.read().strip(), "32")


def packs_of(store):
    folder = os.path.join(store, "packs")
    return [os.path.join(folder, name) for name in os.listdir(folder)]


def flip_bit(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


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
