"""Quotas refuse an image and leave its job alone, prune keeps what its rules keep, and inspect says where the
bytes are.
"""

import os
import unittest

from harness import jobs
from harness.case import MIB, RekindleTest, shell
from harness.cli import FAILED, NOT_FOUND, NOT_PERMITTED, USAGE

NOBODY = 65534


class QuotaTest(RekindleTest):
    def owner(self, data, uid):
        return next(owner for owner in data["owners"] if owner["uid"] == uid)

    def test_owner_over_quota_is_refused_and_the_job_runs_on(self):
        job, memory = self.start_memory_job(8 * MIB)
        self.checkpoint(job.pid, "kept:1")
        shown = self.succeed("quota", "--owner", "root", "--max", "9M", "--high-water", "99%")
        limits = self.owner(shown, 0)
        self.assertEqual((limits["name"], limits["max_bytes"], limits["images"]), ("root", 9 * MIB, 1))
        image = self.succeed("inspect", "kept:1")["image"]
        self.assertEqual(limits["used_bytes"], image["stored_bytes"] + image["metadata_bytes"])
        self.assertEqual(shown["store"]["high_water_percent"], 99)
        # First while it is written, then before anything is.
        memory.touch(2048)
        refused = self.cli.run("ckpt", job.pid, "-t", "large:1", "--no-parent", "--stop")
        self.assert_refused(refused, FAILED, "quota", "uid 0", "9.0 MiB", self.store, "rekindle quota")
        memory.wait_for_tick()
        self.succeed("quota", "--owner", "0", "--max", "1M")
        refused = self.cli.run("ckpt", job.pid, "-t", "large:1")
        self.assert_refused(refused, FAILED, "quota", "1.0 MiB", "rekindle rm")
        memory.wait_for_tick()
        self.assert_store_whole(["kept:1"])
        self.assertEqual(self.succeed("gc")["leftovers_removed"], 0)

        nobody = str(2**32 - 1)  # (uid_t)-1
        self.assert_refused(self.cli.run("quota", "--owner", nobody, "--max", "1M"), USAGE, nobody, "no user")
        self.assertNotIn(2**32 - 1, [owner["uid"] for owner in self.succeed("quota")["owners"]])

        # Everything but new images goes on; with the limit gone these do too.
        self.succeed("quota", "--owner", "root", "--max", "none")
        self.checkpoint(job.pid, "large:1")
        self.assertEqual(self.owner(self.succeed("quota"), 0)["max_bytes"], 0)
        digest = memory.digest()
        self.succeed("quota", "--store-max", "1M")
        job.kill_tree()
        self.restore("large:1")
        memory.wait_for_tick()
        self.assertEqual(memory.digest(), digest)
        self.succeed("rm", "kept:1", "large:1")
        self.assertGreater(self.succeed("gc")["bytes_freed"], 8 * MIB)

    def test_store_max_and_stats(self):
        job, memory = self.start_memory_job(8 * MIB)
        self.checkpoint(job.pid, "kept:1")
        stats = self.succeed("stats")
        used = stats["pack_bytes"] + stats["metadata_bytes"]
        self.assertEqual(stats["quota"]["used_bytes"], used)
        self.assertEqual(stats["quota"]["high_water_percent"], 95)
        self.succeed("quota", "--store-max", used + 4 * MIB)
        self.assertEqual(self.succeed("stats")["quota"]["max_bytes"], used + 4 * MIB)
        text = self.cli.run("stats", json_output=False)
        self.assertIn("no new images from 95 % on", text.out)
        memory.touch(2048)
        refused = self.cli.run("ckpt", job.pid, "-t", "more:1")
        self.assert_refused(refused, FAILED, "may take", self.store, "rekindle gc", "--store-max")
        memory.wait_for_tick()
        self.assert_store_whole(["kept:1"])

    def test_high_water_leaves_room_on_the_disk(self):
        disk = self.path("disk.ext4")
        with open(disk, "wb") as file:
            file.truncate(96 * MIB)
        shell("mkfs.ext4", "-q", "-F", disk)
        os.mkdir(self.store)
        shell("mount", "-o", "loop", disk, self.store)
        self.addCleanup(lambda: shell("umount", self.store))
        os.rmdir(os.path.join(self.store, "lost+found"))
        small, small_memory = self.start_memory_job(8 * MIB, "small")
        self.checkpoint(small.pid, "small:1")
        self.succeed("quota", "--high-water", "60%")
        large, large_memory = self.start_memory_job(56 * MIB, "large")
        refused = self.cli.run("ckpt", large.pid, "-t", "large:1")
        self.assert_refused(refused, FAILED, "60 %", self.store, "full", "--high-water")
        large_memory.wait_for_tick()
        self.assert_store_whole(["small:1"])
        self.succeed("quota", "--high-water", "99")
        self.checkpoint(large.pid, "large:1")
        self.succeed("quota", "--high-water", "60")
        refused = self.cli.run("ckpt", small.pid, "-t", "small:2")
        self.assert_refused(refused, FAILED, "small:2", "already", self.store)
        self.succeed("rm", "large:1")
        self.succeed("gc")
        self.checkpoint(small.pid, "small:2")
        small_memory.wait_for_tick()
        self.assert_store_whole(["small:1", "small:2"])

    def test_damaged_limits(self):
        job, _ = self.start_memory_job(4 * MIB)
        self.checkpoint(job.pid, "kept:1")
        self.succeed("quota", "--owner", "root", "--max", "1G")
        limits = os.path.join(self.store, "LIMITS")
        with open(limits, "r+b") as file:
            file.seek(40)
            file.write(b"\0")
        for command in (["ckpt", job.pid, "-t", "x:1"], ["quota"]):
            self.assert_refused(self.cli.run(*command), FAILED, limits, "rekindle quota --owner")
        stats = self.cli.run("stats")
        self.assertEqual(stats.code, 0, str(stats))
        self.assertIn(limits, stats.data["warnings"][0])
        written = self.cli.run("quota", "--owner", "root", "--max", "2G")
        self.assertEqual(written.code, 0, str(written))
        self.assertIn("damaged", written.data["warnings"][0])
        self.checkpoint(job.pid, "x:1")

    def test_users_see_their_own_and_set_nothing(self):
        daemon = self.start_daemon()
        root = self.make_cli(host=daemon.host)
        nobody = self.make_cli(host=daemon.host, uid=NOBODY)
        job, _ = self.start_memory_job(4 * MIB)
        self.checkpoint(job.pid, "memory:1", cli=root)
        self.succeed("quota", "--owner", NOBODY, "--max", "1K", cli=root)
        mine = self.succeed("quota", cli=nobody)
        self.assertEqual([owner["uid"] for owner in mine["owners"]], [NOBODY])
        self.assertEqual((mine["owners"][0]["max_bytes"], mine["owners"][0]["used_bytes"]), (1024, 0))
        self.assertIsNone(mine["store"])
        self.assertEqual([o["uid"] for o in self.succeed("quota", cli=root)["owners"]], [0, NOBODY])
        for option in (["--owner", NOBODY, "--max", "none"], ["--store-max", "1T"], ["--high-water", "none"]):
            self.assert_refused(nobody.run("quota", *option), NOT_PERMITTED, "uid 65534", "root")
        self.assert_refused(nobody.run("inspect", "memory:1"), NOT_PERMITTED, "uid 0")
        # What limits one user is nothing to another.
        self.checkpoint(job.pid, "memory:2", cli=root)
        # Pruning reaches their own images alone, and needs no more rights than rm; gc does.
        refused = nobody.run("prune", "--all", "--keep-within", "1d", "--gc")
        self.assert_refused(refused, NOT_PERMITTED, "garbage")
        refused = nobody.run("prune", "memory", "--keep-last", "1")
        self.assert_refused(refused, NOT_FOUND, "memory")
        pruned = self.succeed("prune", "--all", "--keep-label", "keep=yes", cli=nobody)
        self.assertEqual((pruned["images"], pruned["removed"]), ([], 0))
        self.assertEqual(self.references(root), ["memory:1", "memory:2"])

    def test_bad_usage(self):
        for command in (
            ["quota", "--owner", "root"],
            ["quota", "--max", "1G"],
            ["quota", "--store-max", "0"],
            ["quota", "--store-max", "much"],
            ["quota", "--high-water", "0"],
            ["quota", "--high-water", "101%"],
        ):
            with self.subTest(command=command):
                self.assert_refused(self.cli.run(*command), USAGE)
        refused = self.cli.run("quota", "--owner", "no.such.user", "--max", "1G")
        self.assert_refused(refused, NOT_FOUND, "no.such.user")
        self.assertFalse(os.path.exists(self.store))


class PruneTest(RekindleTest):
    def test_keeps_what_the_rules_keep(self):
        job, memory = self.start_memory_job(4 * MIB)
        for number in range(1, 6):
            memory.touch(8)
            options = ["--label", "keep=yes"] if number == 2 else []
            self.checkpoint(job.pid, f"a:{number}", *options)
        self.checkpoint(job.pid, "b:1")
        rules = ("--keep-last", "2", "--keep-label", "keep=yes")
        for arguments in (
            ["prune", "a"],
            ["prune", "--keep-last", "1"],
            ["prune", "a", "--all", "--keep-last", "1"],
            ["prune", "a:1", "--keep-last", "1"],
            ["prune", "a", "--keep-within", "soon"],
            ["prune", "a", "--keep-last", "0"],
            ["prune", "a", "--keep-last", str(2**64)],
            ["prune", "a", "--keep-label", "keep"],
        ):
            with self.subTest(arguments=arguments):
                self.assert_refused(self.cli.run(*arguments), USAGE)
        self.assert_refused(self.cli.run("prune", "absent", *rules), NOT_FOUND, "absent")
        told = self.succeed("prune", "a", *rules, "--dry-run")
        self.assertEqual(len(self.references()), 6)
        done = self.succeed("prune", "a", *rules)
        self.assertEqual([image["keep"] for image in done["images"]], [True, True, False, True, False])
        self.assertEqual(
            [(image["image"]["reference"], image["keep"]) for image in told["images"]],
            [(image["image"]["reference"], image["keep"]) for image in done["images"]],
        )
        self.assertEqual(done["images"][0]["reasons"], ["last 2: number 1"])
        self.assertEqual(done["images"][3]["reasons"], ["label keep=yes"])
        self.assertEqual((done["removed"], told["removed"]), (2, 0))
        self.assert_store_whole(["a:2", "a:4", "a:5", "b:1"])

        everything = self.succeed("prune", "--all", "--keep-within", "1h")
        self.assertEqual(everything["removed"], 0)
        freed = self.succeed("prune", "--all", "--keep-last", "1", "--gc")
        self.assertEqual(freed["removed"], 2)
        self.assertGreater(freed["garbage"]["bytes_freed"], 0)
        self.assert_store_whole(["a:5", "b:1"])
        text = self.cli.run("prune", "--all", "--keep-last", "1", json_output=False)
        self.assertIn("last 1: number 1", text.out)


    def test_the_last_of_each_day(self):
        self.environment["TZ"] = jobs.noon_zone()
        now = self.make_cli(store=self.store)
        earlier = self.make_cli(store=self.store, env={"LD_PRELOAD": jobs.program("earlier_clock.so")})
        job, memory = self.start_memory_job(4 * MIB)
        for number, cli in enumerate((earlier, earlier, now, now), 1):
            memory.touch(8)
            self.checkpoint(job.pid, f"a:{number}", cli=cli)
        done = self.succeed("prune", "a", "--keep-daily", "7", "--keep-yearly", "1", cli=now)
        self.assertEqual([image["keep"] for image in done["images"]], [True, False, True, False])
        self.assertRegex(done["images"][0]["reasons"][0], r"^daily 7: \d{4}-\d\d-\d\d$")
        self.assertRegex(done["images"][0]["reasons"][1], r"^yearly 1: \d{4}$")
        self.assertEqual(self.succeed("prune", "a", "--keep-daily", "1", "--gc", cli=now)["removed"], 1)
        self.assert_store_whole(["a:4"])


class InspectBytesTest(RekindleTest):
    def test_where_the_bytes_are(self):
        job, memory = self.start_memory_job(16 * MIB)
        self.checkpoint(job.pid, "job:1")
        alone = self.succeed("inspect", "job:1")
        self.assertGreater(alone["bytes"]["unique_stored_bytes"], 16 * MIB)
        self.assertEqual(alone["bytes"]["shared_bytes"], 0)
        self.assertEqual(alone["bytes"]["logical_bytes"], alone["image"]["logical_bytes"])
        memory.touch(64)
        self.checkpoint(job.pid, "job:2")
        both = self.succeed("inspect", "job:2")["bytes"]
        self.assertEqual([share["reference"] for share in both["shares"]], ["job:1"])
        self.assertEqual(both["shares"][0]["stored_bytes"], both["shared_stored_bytes"])
        parts = both["zero_bytes"] + both["unique_bytes"] + both["shared_bytes"]
        self.assertEqual(both["logical_bytes"], parts)
        self.assertGreater(both["shared_bytes"], 14 * MIB)
        self.assertLess(both["unique_stored_bytes"], 2 * MIB)
        self.assertGreaterEqual(both["unique_bytes"], 64 * 4096)
        text = self.cli.run("inspect", "job:2", json_output=False).out
        self.assertIn("in this image alone", text)
        self.assertIn("  job:1", text)
        for number in range(3, 9):
            self.checkpoint(job.pid, f"job:{number}")
        many = self.succeed("inspect", "job:2")["bytes"]
        self.assertEqual((len(many["shares"]), many["more_shares"]), (5, 2))
        # What it says would come back does.
        self.succeed("rm", *[f"job:{number}" for number in range(2, 9)])
        self.succeed("gc")
        last = self.succeed("inspect", "job:1")["bytes"]["unique_stored_bytes"]
        self.succeed("rm", "job:1")
        self.assertGreaterEqual(self.succeed("gc")["bytes_freed"], last)


if __name__ == "__main__":
    unittest.main()
