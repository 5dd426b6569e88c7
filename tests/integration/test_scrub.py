"""The daemon finds by itself what the disk has damaged, while the job still runs: its next image is whole."""

import os
import signal
import time
import unittest

from harness import waiting
from harness.case import MIB, RekindleTest
from harness.cli import FAILED
from test_bad_stores import flip_bit, packs_of
from test_supervision import SupervisedTest, lines_of

# A pass a second.
AT_ONCE = ("--scrub-days", "0.00001")


class Damaged:
    """What both kinds of jobs have in common; the daemon is `self.daemon`, its client `self.remote`."""

    def scrub(self):
        return self.succeed("stats", cli=self.remote).get("scrub", {})

    def wait_for_a_pass(self):
        """One that begins from now on."""
        now = time.time_ns()
        waiting.until(lambda: self.scrub().get("last_began_unix_ns", 0) > now, "a whole pass", 60, 0.05)

    def lines_of_damage(self):
        return [line for line in self.daemon.log_text().splitlines() if "the store is damaged" in line]

    def damage(self, pack, image):
        """A bit of it flips, and the daemon finds it."""
        self.wait_for_a_pass()
        self.assertFalse(self.scrub().get("damaged_places"), self.scrub())
        size = os.path.getsize(pack)
        for offset in (size // 3, size // 2):  # one may be of no page
            flip_bit(pack, offset)
        self.wait_for_a_pass()
        found = self.scrub()
        self.assertEqual(found["damaged_images"], [image])
        pack_id = os.path.basename(pack).split(".")[0]
        self.assertEqual({place["pack"] for place in found["damage"]}, {pack_id})
        line = self.lines_of_damage()[0]
        offset = f"offset {found['damage'][0]['offset']}"
        for word in (pack_id, image, offset, "digest", "rekindle ckpt", "rekindle fsck"):
            self.assertIn(word, line)
        for check in self.succeed("doctor", cli=self.remote)["checks"]:
            if check["name"] == "store_scrub":
                self.assertEqual(check["result"], "warning", check)
        shown = self.remote.run("stats", json_output=False).out
        self.assertIn(f"can't be restored whole: {image}", shown)

    def assert_lost(self, *images):
        report = self.remote.run("fsck", "--read")
        self.assertEqual(report.code, FAILED, str(report))
        self.assertEqual(report.data.get("lost_images"), list(images), str(report))


class ScrubTest(Damaged, RekindleTest):
    def setUp(self):
        super().setUp()
        self.daemon = self.start_daemon("--standby", "0", *AT_ONCE)
        self.remote = self.make_cli(host=self.daemon.host)

    def test_the_next_image_is_whole(self):
        job, memory = self.start_memory_job(8 * MIB)
        self.checkpoint(job.pid, "hurt:1", cli=self.remote)
        (pack,) = packs_of(self.store)
        self.damage(pack, "hurt:1")
        memory.touch(16)
        taken = self.checkpoint(job.pid, "next:1", cli=self.remote)["image"]
        self.assertGreater(taken["parent_bytes"], 4 * MIB, "what is whole is not stored again")
        listed = self.succeed("ls", cli=self.remote)["images"]
        self.assertEqual([image["reference"] for image in listed if image.get("damaged")], ["hurt:1"])
        self.assert_lost("hurt:1")
        digest = memory.digest()
        job.kill_tree()
        self.assertEqual(self.remote.run("restore", "hurt:1", "--detach").code, FAILED)
        self.restore("next:1", cli=self.remote)
        memory.wait_for_tick()
        self.assertEqual(memory.digest(), digest)

        logged = len(self.lines_of_damage())
        self.daemon.stop()
        self.daemon = self.start_daemon("--standby", "0", *AT_ONCE)
        waiting.until(lambda: len(self.lines_of_damage()) > logged, "the damage told after a restart")
        self.remote.run("fsck", "--read", "--repair")
        self.assertFalse(self.scrub().get("damaged_places"), self.scrub())
        self.assert_store_whole(["next:1"], cli=self.remote)


class SupervisedScrubTest(Damaged, SupervisedTest):
    def restart_daemon(self):
        self.daemon = self.start_daemon("--standby", "0", *AT_ONCE)
        self.remote = self.make_cli(host=self.daemon.host)

    def take_image(self):
        """Of all supervised jobs, as when the machine is about to go."""
        before = self.state().get("checkpoints", 0)
        os.kill(self.daemon.pid, signal.SIGUSR1)
        self.wait_for_image(before)
        return self.succeed("ls", cli=self.remote)["images"][0]["reference"]

    def test_the_job_goes_on_from_an_image_that_is_not_built_upon_damage(self):
        self.start(100000, options=["--every", "1h", "--restarts", "3"])
        waiting.until(lambda: len(lines_of(self.numbers)) > 3, "the job counts")
        first = self.take_image()
        (pack,) = packs_of(self.store)
        self.damage(pack, first)
        counted = len(lines_of(self.numbers))
        second = self.take_image()
        self.assertNotEqual(second, first)
        self.assert_lost(first)
        self.kill_job()
        self.wait_for(lambda job: job["supervised"].get("restarts") == 1, "a restart")
        self.assertIn(f"goes on from {second}", self.daemon.log_text())
        waiting.until(lambda: len(lines_of(self.numbers)) > counted + 3, "the job counts again")


if __name__ == "__main__":
    unittest.main()
