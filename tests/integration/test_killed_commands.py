"""kill -9 of a command at random moments: `gc`, `fsck --repair`, `copy` to and from a store and an object store.
The store stays whole, and the same command, given again, finishes what the first one has begun.

REKINDLE_KILLS_SEED repeats a run (as far as the machine's own timing lets it), REKINDLE_KILLS_ROUNDS changes
its length.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
import unittest

from harness.case import MIB, RekindleTest
from harness.cli import DONE
from harness.contents import fingerprint

_SIZE = 16 * MIB
_ROUNDS = int(os.environ.get("REKINDLE_KILLS_ROUNDS", "8"))


class KilledCommandsTest(RekindleTest):
    def setUp(self):
        super().setUp()
        self.seed = int(os.environ.get("REKINDLE_KILLS_SEED", "0")) or random.randrange(1, 1 << 32)
        self.random = random.Random(self.seed)
        self.cut_off = 0
        self.environment["REKINDLE_COPY_PART"] = "2"
        self.cli = self.make_cli(store=self.store)
        self.there = self.make_cli(store=self.path("there"))
        # What a command takes that nobody kills: the longest so far since one was through before it was killed.
        self.longest = 0.2
        self.exports = {}
        print(f"REKINDLE_KILLS_SEED={self.seed}", file=sys.stderr, flush=True)

    def run_and_kill(self, *arguments, cli=None):
        """Sometimes it is through before."""
        cli = cli or self.cli
        begun, child = time.monotonic(), cli.start(*arguments)
        try:
            child.wait(self.random.uniform(0, self.longest))
            self.longest = time.monotonic() - begun  # the next one is killed sooner
        except subprocess.TimeoutExpired:
            os.kill(child.pid, signal.SIGKILL)
        result = cli.finish(child)
        self.cut_off += result.code == -signal.SIGKILL
        self.assertIn(result.code, (DONE, -signal.SIGKILL), self.told(result))

    def finish(self, *arguments, cli=None):
        begun = time.monotonic()
        result = (cli or self.cli).run(*arguments)
        self.assertEqual(result.code, DONE, self.told(result))
        self.longest = max(self.longest, time.monotonic() - begun)
        return result.data

    def told(self, what):
        return f"seed {self.seed}: {what}"

    def check_whole(self, cli=None):
        report = (cli or self.cli).run("fsck", "--read")
        self.assertEqual(report.code, DONE, self.told(report))
        self.assertEqual(report.data.get("problems", []), [], self.told(report))

    def exported(self, reference, cli=None):
        folder = self.path("export")
        self.succeed("export", reference, "--criu", folder, cli=cli)
        try:
            return fingerprint(folder)
        finally:
            shutil.rmtree(folder)

    def take(self, job, memory, number, *options):
        memory.touch(self.random.choice((20, 500, 3000)))
        self.checkpoint(job.pid, f"job:{number}", *options)
        self.exports[f"job:{number}"] = self.exported(f"job:{number}")

    def check_images(self, references, cli=None):
        self.assertEqual(self.references(cli), sorted(references), self.told("images"))
        for reference in references:
            self.assertEqual(self.exported(reference, cli), self.exports[reference], self.told(reference))

    def test_collections(self):
        job, memory = self.start_memory_job(_SIZE)
        self.take(job, memory, 0)
        kept = ["job:0"]
        for number in range(1, _ROUNDS + 1):
            self.take(job, memory, 2 * number, "--no-parent")
            self.take(job, memory, 2 * number + 1)
            kept += [f"job:{2 * number}", f"job:{2 * number + 1}"]
            for reference in self.random.sample(kept, min(len(kept) - 1, 2)):
                self.succeed("rm", reference)
                kept.remove(reference)
            for _ in range(3):
                self.run_and_kill("gc")
                self.check_whole()
            self.finish("gc")
            again = self.finish("gc")
            self.assertEqual((again.get("bytes_freed", 0), again.get("leftovers_removed", 0)), (0, 0), self.told(again))
            self.check_whole()
            self.check_images(kept)
        self.assertGreater(self.cut_off, 0, self.told("nothing was tested"))

    def damage(self, store):
        """A bit of one image, tables and indexes, a copy of the catalog, FORMAT."""
        packs = sorted(os.listdir(os.path.join(store, "packs")), key=lambda n: os.stat(f"{store}/packs/{n}").st_size)
        victims = [(f"packs/{packs[-1]}", 2 * MIB)]
        victims += [(f"index/{name}", 60) for name in os.listdir(os.path.join(store, "index"))[::2]]
        victims += [(f"catalog/{name}", 100) for name in os.listdir(os.path.join(store, "catalog")) if name[-1] == "a"]
        victims += [("FORMAT", 40)]
        for name, at in victims:
            with open(os.path.join(store, name), "r+b") as file:
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 16]))

    def test_repairs(self):
        for number, size in enumerate((_SIZE, _SIZE // 2)):
            job, memory = self.start_memory_job(size, f"memory{number}")
            self.take(job, memory, 2 * number)
            self.take(job, memory, 2 * number + 1)
            job.kill_tree()
        damaged = self.path("damaged")
        shutil.copytree(self.store, damaged)
        self.damage(damaged)
        repair = ("fsck", "--repair", "--read")
        shutil.copytree(damaged, self.path("once"))
        once = self.make_cli(store=self.path("once"))
        begun = time.monotonic()
        self.assertTrue(once.run(*repair).data["lost_images"])
        self.longest = time.monotonic() - begun
        left = self.references(once)
        self.assertTrue(left)
        for _ in range(_ROUNDS):
            folder = self.path("often")
            shutil.copytree(damaged, folder)
            often = self.make_cli(store=folder)
            for _ in range(3):
                child = often.start(*repair)
                try:
                    child.wait(self.random.uniform(0, self.longest))
                except subprocess.TimeoutExpired:
                    os.kill(child.pid, signal.SIGKILL)
                self.cut_off += often.finish(child).code == -signal.SIGKILL
            often.run(*repair)
            self.check_whole(often)
            self.check_images(left, often)
            self.checkpointed_again(often)
            shutil.rmtree(folder)
        self.assertGreater(self.cut_off, 0, self.told("nothing was tested"))

    def checkpointed_again(self, cli):
        """The store takes images as before."""
        job, _ = self.start_memory_job(MIB, f"again{self.cut_off}")
        self.checkpoint(job.pid, "again:1", cli=cli)
        job.kill_tree()
        self.check_whole(cli)

    def test_copies_to_a_store(self):
        job, memory = self.start_memory_job(_SIZE)
        copied = []
        for number in range(_ROUNDS):
            self.take(job, memory, number)
            copy = ("copy", f"job:{number}", "--to", self.path("there"))
            for _ in range(3):
                self.run_and_kill(*copy)
                if os.path.exists(self.path("there/FORMAT")):
                    self.check_whole(self.there)
            self.finish(*copy)
            copied.append(f"job:{number}")
            self.check_whole(self.there)
            self.assertEqual(self.references(self.there), sorted(copied), self.told("images there"))
            self.assertEqual(self.exported(copied[-1], self.there), self.exports[copied[-1]], self.told(copied[-1]))
        self.succeed("gc", cli=self.there)
        self.check_images(copied, self.there)
        self.assertGreater(self.cut_off, 0, self.told("nothing was tested"))

    def test_copies_to_and_from_an_object_store(self):
        os.mkdir(self.path("bucket"))
        self.environment["RCLONE_CONFIG"] = self.path("rclone.conf")
        self.cli = self.make_cli(store=self.store)
        self.there = self.make_cli(store=self.path("there"))
        bucket = "rclone:" + self.path("bucket")
        job, memory = self.start_memory_job(_SIZE)
        for number in range(_ROUNDS):
            self.take(job, memory, number)
            for _ in range(2):
                self.run_and_kill("copy", f"job:{number}", "--to", bucket)
            self.finish("copy", f"job:{number}", "--to", bucket)
            report = self.succeed("fsck", "--read", "--from", bucket)
            self.assertEqual(report.get("problems", []), [], self.told(report))
            for _ in range(2):
                self.run_and_kill("copy", "job", "--from", bucket, cli=self.there)
                if os.path.exists(self.path("there/FORMAT")):
                    self.check_whole(self.there)
            self.finish("copy", "job", "--from", bucket, cli=self.there)
            self.check_whole(self.there)
            self.assertEqual(self.references(self.there), sorted(f"job:{n}" for n in range(number + 1)))
        self.check_images([f"job:{n}" for n in range(_ROUNDS)], self.there)
        self.assertGreater(self.cut_off, 0, self.told("nothing was tested"))


if __name__ == "__main__":
    unittest.main()
