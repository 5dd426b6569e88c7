"""Disks that fill up at every phase of a capture, have no inodes left, or a quota that is used up: the image
alone fails, with an error that tells the cure; jobs run on, what was stored stays, and the room comes back.
"""

import errno
import os
import subprocess
import sys
import unittest

from harness.case import MIB, RekindleTest, shell
from harness.cli import DONE, FAILED
from harness.contents import Content, TakenImage
from harness.small_disk import SmallDisk

KIB = 1 << 10
EARLIER_IMAGES = 4
LOOSE_PACKS = 8  # with one more they are merged into an index
SMALL, LARGE = 2 * MIB, 8 * MIB
COARSE = 1 * MIB
LONG_NOTE = 60 * KIB * "x"
# What a failed capture may leave reserved behind the end of the catalog, and a file system in its own tables.
SLACK = 320 * KIB


class FullDiskTest(RekindleTest):
    PHASES = ("packs", "catalog", "index", "none")  # which part of a capture must find no room
    FINE, NEAR = 16 * KIB, 320 * KIB  # the steps, and how far from the need of an image they begin
    # Labels make a record so large that the catalog may find no room for it where its pack has.
    NOTES = 1
    REMOVED_FIRST = 0  # the oldest, of whose pack others need parts

    def use_disk(self, kind, mkfs_options=(), size=None):
        self.disk = SmallDisk(self, kind, mkfs_options, size)
        self.store = os.path.join(self.disk.path, "store")
        self.cli = self.make_cli(store=self.store)
        self.images = []
        self.steps = 0

    def make_jobs(self):
        self.small_job, self.small = self.start_memory_job(SMALL, "small")
        self.large_job, self.large = self.start_memory_job(LARGE, "large")

    def take(self, job, memory, reference, *options):
        return self.taken(job, memory, self.checkpoint(job.pid, reference, *options))

    @staticmethod
    def taken(job, memory, data):
        image = TakenImage(data["image"]["reference"], Content(job.pid, memory))
        image.digest = data["image"]["digest"]
        return image

    def take_earlier_images(self):
        for _ in range(EARLIER_IMAGES):
            self.take_another("small")
        # The file system must be what fills up here, not the store's own limit.
        self.succeed("quota", "--high-water", "none")

    def assert_exports(self, images):
        for image in images:
            folder = self.path("export")
            data = self.succeed("export", image.reference, "--criu", folder)
            self.assertEqual(data["image"]["digest"], image.digest)
            self.assertIsNone(image.problem_of(folder))

    def assert_whole(self, images=None):
        """Jobs tick, fsck is clean, these images and no others are there; each time others are exported."""
        images = self.images if images is None else images
        for memory in (self.small, self.large):
            memory.wait_for_tick()
        self.assert_store_whole([image.reference for image in images])
        self.steps += 1
        self.assert_exports(images[self.steps % len(images) :: 4])
        self.assertEqual(os.listdir(os.path.join(self.store, "tmp")), [])

    def assert_tells_about_room(self, result, cause="the file system is full"):
        message = self.assert_refused(result, FAILED, self.store, cause, "rekindle rm", "rekindle gc")
        self.assertIn("large:1", message)
        return message

    def indexes(self):
        return [name for name in os.listdir(os.path.join(self.store, "index")) if name.endswith(".idx")]

    def capture_large(self):
        labels = [word for number in range(self.NOTES) for word in ("--label", f"note{number}={LONG_NOTE}")]
        return self.cli.run("ckpt", self.large_job.pid, "-t", "large:1", *labels)

    def remove_large(self):
        self.succeed("rm", "large:1")
        self.succeed("gc")

    def need_of_large(self):
        """Disk space of its image."""
        before = self.disk.free_bytes()
        self.assertEqual(self.capture_large().code, DONE)
        need = before - self.disk.free_bytes()
        self.assertGreater(need, LARGE)
        self.remove_large()
        return need

    def take_until_one_more_merges(self):
        merged = self.indexes()
        while self.indexes() == merged:
            self.take_another("merged")
        for _ in range(LOOSE_PACKS):
            self.take_another("loose")

    def take_another(self, name):
        self.small.touch(24)
        self.images.append(self.take(self.small_job, self.small, f"{name}:{len(self.images)}"))

    def fill_up_in_steps(self):
        """From no room at all to enough for everything."""
        self.make_jobs()
        self.take_earlier_images()
        self.take_smaller_where_large_fails()
        need = self.need_of_large()
        self.take_until_one_more_merges()
        merged_before = self.indexes()

        phases = {}
        room = 0
        while self.indexes() == merged_before:
            self.assertLess(room, need + 4 * MIB, f"no index was merged: {phases}")
            self.disk.leave(room)
            before = self.disk.free_bytes()
            result = self.capture_large()
            if result.code == DONE:
                phase = "index" if self.indexes() == merged_before else "none"
                self.assert_whole(self.images + [self.taken(self.large_job, self.large, result.data)])
                self.remove_large()
            else:
                message = self.assert_tells_about_room(result)
                phase = next((phase for phase in ("packs", "catalog") if f"/{phase}/" in message), message)
                self.succeed("gc")
            phases.setdefault(phase, []).append(room)
            self.assert_whole()
            self.assertLess(before - self.disk.free_bytes(), SLACK + 2 * self.NOTES * len(LONG_NOTE), f"{phase} with {room} bytes")
            room = room + self.FINE if room >= need - self.NEAR else min(room + COARSE, need - self.NEAR)
        print(f"{self.disk.kind}: {phases}", file=sys.stderr)
        self.assertLessEqual(set(self.PHASES), set(phases), phases)
        self.assertLessEqual(set(phases), set(FullDiskTest.PHASES), phases)
        self.assert_exports(self.images)

    def take_smaller_where_large_fails(self):
        for room in (2 * SMALL, LARGE):
            self.disk.leave(room)
            self.assert_tells_about_room(self.capture_large())
            self.images.append(self.take(self.small_job, self.small, f"smaller:{room}", "--no-parent"))
            self.assert_whole()
        self.disk.give_back()

    def remove_when_completely_full(self):
        self.make_jobs()
        self.take_earlier_images()
        large = self.take(self.large_job, self.large, "large:1")
        self.disk.fill()
        self.assert_whole(self.images + [large])
        self.remove_large()
        self.assert_whole()
        # What came back is free for others.
        self.assertGreater(self.disk.free_bytes(), LARGE - SLACK)
        self.images.append(self.take(self.small_job, self.small, "smaller:1", "--no-parent"))
        self.assert_whole()
        while self.images:
            self.disk.fill()
            self.succeed("rm", self.images.pop(self.REMOVED_FIRST).reference)
            self.succeed("gc")
            if self.images:
                self.assert_whole()
        self.assertEqual(self.succeed("stats")["packs"], 0)
        self.assertEqual(self.succeed("fsck", "--read").get("problems", []), [])


class InodesTest(FullDiskTest):
    def test_no_inodes_left(self):
        """The file system has room for many images, and for no file."""
        self.use_disk("ext4", ["-N", "128"])
        self.make_jobs()
        self.take_earlier_images()
        taken = self.take_all_inodes()
        need = 0
        while True:
            result = self.capture_large()
            if result.code == DONE:
                break
            self.assertIn("nr_inodes", self.assert_tells_about_room(result, "no inode"))
            self.assert_whole()
            os.unlink(taken.pop())
            need += 1
        self.assertGreater(need, 0)
        large = self.taken(self.large_job, self.large, result.data)
        self.assert_whole(self.images + [large])
        taken += self.take_all_inodes(len(taken))
        self.remove_large()
        while len(self.images) > 1:
            self.succeed("rm", self.images.pop().reference)
            self.succeed("gc")
            self.assert_whole()
        for path in taken:
            os.unlink(path)
        self.images.append(self.take(self.large_job, self.large, "large:2"))
        self.assert_whole()

    def take_all_inodes(self, first=0):
        taken = []
        try:
            while True:
                path = os.path.join(self.disk.path, f"inode.{first + len(taken)}")
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
                taken.append(path)
        except OSError as error:
            self.assertEqual(error.errno, errno.ENOSPC)
        return taken


class DiskQuotaTest(FullDiskTest):
    """Quotas of btrfs hold for root too; root is above those of ext4 and xfs, but for projects of xfs."""

    def test_quota_of_the_file_system(self):
        self.use_disk("btrfs")
        if subprocess.run(["btrfs", "quota", "enable", self.disk.path], check=False).returncode != 0:
            self.skipTest("this kernel has no quotas for btrfs")
        volume = os.path.join(self.disk.path, "volume")
        shell("btrfs", "subvolume", "create", volume)
        self.group = "0/" + shell("btrfs", "inspect-internal", "rootid", volume).strip()
        self.store = os.path.join(volume, "store")
        self.cli = self.make_cli(store=self.store)
        self.make_jobs()
        self.take_earlier_images()
        used = self.quota_used()
        for room in (0, 1 * MIB, 4 * MIB, LARGE):
            with self.subTest(room=room):
                self.limit_quota(used + room)
                self.assert_tells_about_room(self.capture_large(), "quota is used up")
                self.succeed("gc")
                self.assert_whole()
        self.take_another("smaller")
        self.assert_whole()
        # To the last byte btrfs lets nobody write, not even to what is allocated. Such a removal fails or not.
        self.limit_quota(self.quota_used())
        last = self.images.pop()
        result = self.cli.run("rm", last.reference)
        if result.code != DONE:
            self.assert_refused(result, FAILED, self.store, "quota is used up")
        self.limit_quota(self.quota_used() + 1 * MIB)
        if last.reference in self.references():
            self.images.append(last)
        self.assert_whole()
        while len(self.images) > 1:
            self.succeed("rm", self.images.pop().reference)
            self.succeed("gc")
            self.assert_whole()
        self.assert_tells_about_room(self.capture_large(), "quota is used up")
        self.limit_quota("none")
        self.images.append(self.take(self.large_job, self.large, "large:1"))
        self.assert_whole()

    def limit_quota(self, limit):
        shell("btrfs", "qgroup", "limit", str(limit), self.group, self.disk.path)

    def quota_used(self):
        self.disk.settle()
        table = shell("btrfs", "qgroup", "show", "--raw", self.disk.path)
        return int(next(line.split()[1] for line in table.splitlines() if line.startswith(self.group + " ")))


class Ext4Test(FullDiskTest):
    def test_full_at_every_phase(self):
        self.use_disk("ext4")
        self.fill_up_in_steps()

    def test_removal_when_completely_full(self):
        self.use_disk("ext4")
        self.remove_when_completely_full()

    def test_a_large_image_of_which_little_is_new_leaves_room_for_others(self):
        """An ext4 that is asked for more than is free keeps what it found, until the file is cut."""
        large, room = 80 * MIB, 40 * MIB
        self.use_disk("ext4", size=160 * MIB)
        job, memory = self.start_memory_job(large, "large")
        images = [self.take(job, memory, "large:1")]
        self.disk.leave(room)
        for number in range(2, 5):
            memory.touch(24)
            # The store's own limit, a high water, must not take for used what the image itself has asked for.
            images.append(self.take(job, memory, f"large:{number}"))
            tables = [name for name in os.listdir(os.path.join(self.store, "index")) if name.endswith(".pages")]
            self.assertEqual(len(tables), number)
        self.assertGreater(self.disk.free_bytes(), room - 8 * MIB)
        self.assert_store_whole([image.reference for image in images])
        self.assert_exports(images[-1:])


class XfsTest(FullDiskTest):
    # To lengthen a file's reserve xfs wants all of it free once more, which is then enough for the index.
    PHASES = ("packs", "catalog", "none")

    def test_full_at_every_phase(self):
        self.use_disk("xfs")
        self.fill_up_in_steps()

    def test_removal_when_completely_full(self):
        self.use_disk("xfs")
        self.remove_when_completely_full()


class BtrfsTest(FullDiskTest):
    # What is free is not known as exactly as with the others.
    PHASES = ("packs", "catalog", "none")
    FINE, NEAR = 96 * KIB, 1536 * KIB
    NOTES = 8
    REMOVED_FIRST = -1  # to give back a part of a block of a pack takes another block

    def test_full_at_every_phase(self):
        self.use_disk("btrfs")
        self.fill_up_in_steps()

    def test_removal_when_completely_full(self):
        self.use_disk("btrfs")
        self.remove_when_completely_full()


if __name__ == "__main__":
    unittest.main()
