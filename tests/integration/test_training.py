"""Supervised training in torch that is killed, whose daemon is killed, whose store fails it: in the end weights, loss
curve and every file are those of a run that nobody touched.
"""

import os
import random
import unittest

from harness import jobs, phases, procfs, waiting
from harness.case import MIB
from harness.small_disk import SmallDisk
from harness.training import DISTRIBUTED, GPT, RESNET, TrainingTest, crc32c, random_steps

STEPS = 300


class KilledTest(TrainingTest):
    def test_job_killed_at_random_moments(self):
        self.begin(GPT, STEPS)
        for step in random_steps(1, STEPS, 4):
            self.wait_for_step(step)
            self.kill_and_see_it_go_on(self.kill_job)
        state = self.assert_ends_as_undisturbed()
        self.assertEqual(state["restarts"], 4)
        self.assertEqual(len([death for death in state["deaths"] if "signal 9" in death]), 4, state["deaths"])
        self.assert_images_whole()

    def test_daemon_killed(self):
        """Twice: between two images, and while one is taken. The job does not notice."""
        self.begin(GPT, STEPS)
        pid = self.job()["pid"]
        self.daemon.kill()
        self.start_daemon_again()
        self.wait_for_images(1)
        waiting.until(lambda: phases.frozen(pid) or not procfs.alive(pid), "an image being taken", 60, 0.0005)
        self.daemon.kill()
        self.start_daemon_again()
        self.wait_for_images(1)
        self.assertEqual(self.job()["pid"], pid)
        state = self.assert_ends_as_undisturbed()
        self.assertEqual(state["restarts"], 0)
        self.assert_images_whole()

    def test_both_killed(self):
        self.begin(GPT, STEPS)

        def kill_both():
            pid = self.job()["pid"]
            self.daemon.kill()
            self.kill_job(pid)
            waiting.for_exit(pid)
            jobs.reap_orphans()
            self.start_daemon_again()

        for step in random_steps(2, STEPS, 2):
            self.wait_for_step(step)
            self.kill_and_see_it_go_on(kill_both)
        state = self.assert_ends_as_undisturbed()
        self.assertEqual(state["restarts"], 2)
        self.assert_images_whole()


class StoreFaultTest(TrainingTest):
    DISK = 512 * MIB

    def test_disk_fills_up_during_an_image(self):
        disk = SmallDisk(self, "ext4", size=self.DISK)
        self.store = os.path.join(disk.path, "store")
        self.begin(GPT, STEPS)
        disk.leave(256 << 10)
        error = self.wait_for(lambda state: state["last_error"], "an image that could not be taken")["last_error"]
        self.assertIn("full", error)
        self.assertIn(self.store, error)
        self.kill_and_see_it_go_on(self.kill_job)
        disk.give_back()
        self.wait_for_images(1)
        self.assert_ends_as_undisturbed()
        self.assert_images_whole()

    def test_newest_image_damaged(self):
        # None is removed before that: gc would move pages of older images into the newest pack.
        self.begin(GPT, STEPS, keep=20)
        # One image may have nothing new, or be about to be taken: an older one that has the open files is to be left.
        self.wait_for_images(3)
        self.damage_newest_pack()
        self.kill_and_see_it_go_on(self.kill_job, images_back=1)
        # What is taken from then on does not lean on what was damaged.
        self.wait_for_images(1)
        self.kill_and_see_it_go_on(self.kill_job)
        state = self.assert_ends_as_undisturbed()
        self.assertEqual(state["restarts"], 2)

    def damage_newest_pack(self):
        """One bit in every 64 KiB."""
        folder = os.path.join(self.store, "packs")
        packs = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".pack")]
        newest = max(packs, key=lambda path: os.stat(path).st_mtime_ns)
        with open(newest, "r+b") as pack:
            for at in range(0, os.path.getsize(newest), 64 << 10):
                pack.seek(at)
                byte = pack.read(1)[0]
                pack.seek(at)
                pack.write(bytes([byte ^ 4]))


class ProcessesTest(TrainingTest):
    """A job of several processes, of which one is killed. The others may go on for a while, and so do the images: of
    those from before there are still two when several that hold the death have been taken.
    """

    KEEP = 20

    def kill_one_of(self, seed):
        """Not the root: that has to notice it and to fail."""
        others = set(self.training.processes()) - {self.job()["pid"]}
        self.kill_job(random.Random(seed).choice(sorted(others)))

    def test_data_loader_worker(self):
        self.begin(RESNET, 400, keep=self.KEEP)
        self.kill_and_see_it_go_on(lambda: self.kill_one_of(1))
        self.assertEqual(len(self.training.processes()), 3)
        self.wait_for_step(250)
        self.kill_and_see_it_go_on(self.kill_job)
        state = self.assert_ends_as_undisturbed()
        # More when an image was taken after the worker's death and before anybody noticed it.
        self.assertGreaterEqual(state["restarts"], 2)
        self.assert_images_whole()

    def test_worker_of_a_distributed_run(self):
        # Some are taken while its processes look for each other, in waits with a time-out.
        self.begin(DISTRIBUTED, 100, every="2s", keep=self.KEEP)
        self.wait_for_step(30)
        self.kill_and_see_it_go_on(lambda: self.kill_one_of(2))
        state = self.assert_ends_as_undisturbed()
        self.assertGreaterEqual(state["restarts"], 1)
        self.assert_images_whole()


class EventFileTest(unittest.TestCase):
    def test_sums(self):
        self.assertEqual(crc32c(b"123456789"), 0xE3069283)
        self.assertEqual(crc32c(bytes(32)), 0x8A9136AA)


if __name__ == "__main__":
    unittest.main()
