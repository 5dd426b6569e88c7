"""Looking after a place that images are copied to: `prune --from`, `rm --from` and `fsck --from`."""

import os
import shutil
import unittest

from harness import jobs
from harness.case import MIB, RekindleTest
from harness.cli import DONE, FAILED, NOT_FOUND, USAGE

_OLD = 40 * 3600


class PlacePruningBase(RekindleTest):
    def setUp(self):
        super().setUp()
        self.folder = self.path("bucket")
        os.mkdir(self.folder)
        self.bucket = "rclone:" + self.folder
        self.environment["RCLONE_CONFIG"] = self.path("rclone.conf")
        self.environment["TZ"] = jobs.noon_zone()
        # Where nothing of Rekindle's is.
        self.node = self.make_cli(store=self.path("none"))
        self.there = self.make_cli(store=self.path("there"))

    def copied(self, count, *options):
        """So many images of a job, each built upon the one before unless `options` say otherwise."""
        job, memory = self.start_memory_job(4 * MIB)
        for i in range(1, count + 1):
            memory.touch(20)
            self.checkpoint(job.pid, f"job:{i}", *(["--label", "keep=yes"] if i == 2 else []))
            self.succeed("copy", f"job:{i}", "--to", self.bucket, *options)
        job.kill_tree()

    def objects(self, name="job"):
        folder = os.path.join(self.folder, name)
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []

    def tags(self):
        """Of complete images."""
        objects = self.objects()
        return sorted(n.rsplit("-", 1)[1][:-5] for n in objects if n.endswith(".json") and n[:-5] + ".image" in objects)

    def prune(self, *arguments, **options):
        return self.succeed("prune", *arguments, "--from", self.bucket, cli=self.node, **options)

    def age(self, *tags):
        """Their objects were written long ago."""
        for name in self.objects():
            if name.rsplit("-", 1)[1].split(".")[0] in tags:
                path = os.path.join(self.folder, "job", name)
                then = os.stat(path).st_mtime - _OLD
                os.utime(path, (then, then))

    def copied_whole(self, number):
        job, _ = self.start_memory_job(4 * MIB, "whole")
        self.checkpoint(job.pid, f"job:{number}")
        self.succeed("copy", f"job:{number}", "--to", self.bucket, "--whole")
        job.kill_tree()


class PlaceRemovalTest(PlacePruningBase):
    def rm(self, *images):
        return self.node.run("rm", *images, "--from", self.bucket)

    def test_what_another_builds_upon_stays(self):
        self.copied(3)
        self.copied_whole(4)
        before = self.objects()
        refused = self.rm("job:4", "job:1")
        self.assert_refused(refused, FAILED, "job:1 stays", "job:3, job:2 build upon it", "Nothing was removed")
        self.assertEqual(self.objects(), before)
        self.assertEqual(self.rm("job:3", "job:2").data["removed"], ["job:3", "job:2"])
        self.assertEqual(self.tags(), ["1", "4"])
        self.assertEqual(len(self.objects()), 4)
        self.succeed("copy", "job:1", "--from", self.bucket, cli=self.there)
        self.succeed("fsck", "--read", cli=self.there)
        told = self.node.run("rm", "job:1", "--from", self.bucket, json_output=False)
        self.assertEqual((told.code, told.out), (DONE, f"removed job:1 from {self.bucket}\n"))
        self.assertEqual(self.tags(), ["4"])
        self.assertFalse(os.path.exists(self.path("none")))

    def test_all_copies_of_a_tag_go_and_one_on_its_way_keeps_its_base(self):
        self.copied(2)
        job, _ = self.start_memory_job(4 * MIB, "other")
        self.checkpoint(job.pid, "job:2", "--replace")
        job.kill_tree()
        self.succeed("copy", "job:2", "--to", self.bucket, "--whole")
        self.assertEqual(self.tags(), ["1", "2", "2"])
        on_its_way = [name for name in self.objects() if name.endswith("-2.json") and "-whole-" not in name][0]
        marker = os.path.join(self.folder, "job", on_its_way)
        os.rename(marker, self.path("marker"))
        self.assert_refused(self.rm("job:1"), FAILED, "job:1 stays", "job:2 builds upon it", "once it has arrived")
        os.rename(self.path("marker"), marker)
        self.assertEqual(self.rm("job:2").data["removed"], ["job:2"])
        self.assertEqual(self.tags(), ["1"])

    def test_parts_go_with_their_image(self):
        self.environment["REKINDLE_COPY_PART"] = "1"
        cli = self.make_cli(store=self.store)
        job, memory = self.start_memory_job(4 * MIB)
        for tag in ("job:1", "job:2"):
            self.checkpoint(job.pid, tag)
            self.succeed("copy", tag, "--to", self.bucket, cli=cli)
            memory.touch(20)
        job.kill_tree()
        self.assertGreaterEqual(len([tag for tag in self.tags() if len(tag) == 32]), 2, self.objects())
        self.assert_refused(self.rm("job:1"), FAILED, "job:2 builds upon it")
        self.rm("job:1", "job:2")
        self.assertEqual(self.objects(), [])

    def test_what_is_not_there_and_what_names_none(self):
        self.copied(1)
        self.assert_refused(self.rm("job:1", "job:9"), NOT_FOUND, "job:9", "ls --from", "Nothing was removed")
        self.assert_refused(self.rm("other:1"), NOT_FOUND, "other", self.bucket)
        for name in ("job", "job:1@sha256:0123456789ab", "sha256:0123456789ab"):
            self.assert_refused(self.rm(name), USAGE, "NAME:TAG", "ls --from")
        self.assertEqual(self.tags(), ["1"])

    def test_in_the_folder_of_a_store(self):
        job, _ = self.start_memory_job(4 * MIB)
        self.checkpoint(job.pid, "job:1")
        job.kill_tree()
        self.succeed("copy", "job:1", "--to", self.path("there"))
        told = self.node.run("rm", "job:1", "--from", self.path("there"), json_output=False)
        self.assertEqual(told.code, DONE, str(told))
        self.assertIn(f"'rekindle --store {self.path('there')} gc'", told.out)
        self.assertEqual(self.references(self.there), [])
        self.assertEqual(self.references(), ["job:1"])


class PlacePruningTest(PlacePruningBase):
    def test_what_an_image_builds_upon_stays(self):
        self.copied(3)
        self.copied_whole(4)
        told = self.prune("job", "--keep-last", "1", "--dry-run")
        self.assertEqual(len(self.objects()), 8)
        self.assertEqual([image["keep"] for image in told["images"]], [True, False, False, False])
        kept = self.prune("job", "--keep-last", "2")
        self.assertEqual(kept["removed"], 0)
        self.assertEqual(
            [(image["image"]["reference"], image["reasons"]) for image in kept["images"]],
            [
                ("job:4", ["last 2: number 1"]),
                ("job:3", ["last 2: number 2"]),
                ("job:2", ["3 builds upon it"]),
                ("job:1", ["3 builds upon it"]),
            ],
        )
        before = sum(os.stat(os.path.join(self.folder, "job", n)).st_size for n in self.objects() if "-4." not in n)
        done = self.prune("--all", "--keep-last", "1")
        self.assertEqual(done["removed"], 3)
        self.assertEqual(self.tags(), ["4"])
        self.assertLess(before - done["garbage"]["bytes_freed"], 3 * 4096, "all but what was put beside them")
        self.succeed("copy", "job", "--from", self.bucket, cli=self.there)
        self.succeed("fsck", "--read", cli=self.there)
        self.assertFalse(os.path.exists(self.path("none")))

    def test_rules(self):
        self.copied(4, "--whole")
        self.assertEqual(self.prune("job", "--keep-within", "1h")["removed"], 0)
        self.assertEqual(self.prune("job", "--keep-daily", "3", "--keep-label", "keep=yes")["removed"], 2)
        self.assertEqual(self.tags(), ["2", "4"])
        self.assertEqual(self.prune("job", "--keep-label", "keep=yes", "--keep-label", "a=b")["removed"], 1)
        self.assertEqual(self.tags(), ["2"])
        # What is put beside it can't be read: nobody knows its labels.
        marker = next(name for name in self.objects() if name.endswith(".json"))
        with open(os.path.join(self.folder, "job", marker), "w", encoding="ascii") as file:
            file.write("?")
        self.assertEqual(self.prune("job", "--keep-label", "a=b")["images"][0]["reasons"], ["its labels can't be read"])

    def test_what_is_broken_or_on_its_way(self):
        self.copied(3)
        objects = self.objects()
        os.remove(os.path.join(self.folder, "job", next(n for n in objects if "-whole-" in n and n.endswith(".json"))))
        # It is not complete any more, and the others build upon it: it may come yet.
        young = self.prune("job", "--keep-last", "1")
        self.assertEqual((young["removed"], [image["keep"] for image in young["images"]]), (0, [True, True]))
        self.age("1", "2")
        self.copied_whole(4)
        done = self.prune("job", "--keep-last", "1")
        self.assertEqual((done["removed"], done["garbage"]["leftovers_removed"]), (1, 1))
        self.assertEqual(self.tags(), ["3", "4"])
        text = self.node.run("prune", "job", "--keep-last", "1", "--from", self.bucket, json_output=False)
        self.assertRegex(text.out, "job:3 .* kept +it was put there a short time ago")

    def test_an_image_that_comes_meanwhile(self):
        """It builds upon what is just being removed, and is told of."""
        self.copied(1)
        job, memory = self.start_memory_job(4 * MIB, "next")
        self.checkpoint(job.pid, "job:2")
        memory.touch(5)
        self.checkpoint(job.pid, "job:3")
        job.kill_tree()
        self.succeed("copy", "job:2", "--to", self.bucket, "--whole")
        folder = self.path("wrapped")
        os.mkdir(folder)
        mark = self.path("mark")
        copy = f"PATH={os.environ['PATH']} " + " ".join(self.cli.argv("copy", "job:3", "--to", self.bucket))
        with open(os.path.join(folder, "rclone"), "w", encoding="utf-8") as file:
            file.write(
                f'#!/bin/sh\nif [ "$1" = delete ] && [ ! -e {mark} ]; then : > {mark}; {copy} >&2 </dev/null; fi\n'
                f'exec {shutil.which("rclone")} "$@"\n'
            )
        os.chmod(os.path.join(folder, "rclone"), 0o755)
        cli = self.make_cli(store=self.path("none"), env={"PATH": folder + ":" + os.environ["PATH"]})
        result = cli.run("prune", "job", "--keep-label", "a=b", "--from", self.bucket)
        self.assertEqual(result.code, DONE, str(result))
        self.assertIn("job:3 came to", result.err)
        self.assertIn("copy it there again", result.err)
        self.assertGreater(self.succeed("copy", "job:3", "--to", self.bucket)["bytes"], 4 * MIB)
        self.succeed("copy", "job", "--from", self.bucket, cli=self.there)

    def test_refusals(self):
        self.copied(1)
        for arguments, words in (
            (["job", "--keep-last", "1", "--gc"], "--gc"),
            (["job", "--keep-last", "1", "--groups"], "--groups"),
            (["job"], "nothing says what to keep"),
            (["job:1", "--keep-last", "1"], "without tags"),
            (["--keep-last", "1"], "--all"),
        ):
            with self.subTest(arguments=arguments):
                self.assert_refused(self.node.run("prune", *arguments, "--from", self.bucket), USAGE, words)
        refused = self.node.run("prune", "absent", "--keep-last", "1", "--from", self.bucket)
        self.assert_refused(refused, NOT_FOUND, "absent", self.bucket)
        refused = self.node.run("prune", "--all", "--keep-last", "1", "--from", "rclone:" + self.path("gone"))
        self.assert_refused(refused, FAILED, "not there")
        self.assertEqual(self.tags(), ["1"])

    def test_the_folder_of_a_store(self):
        self.copied(1)
        for tag in ("job:1", "job:2"):
            if tag == "job:2":
                self.succeed("tag", "job:1", tag)
            self.succeed("copy", tag, "--to", self.path("there"))
        done = self.succeed(
            "prune", "job", "--keep-last", "1", "--gc", "--from", self.path("there"), cli=self.node
        )
        self.assertEqual(done["removed"], 1)
        self.assertEqual([image["reference"] for image in self.succeed("ls", cli=self.there)["images"]], ["job:2"])


class PlaceCheckTest(PlacePruningBase):
    def check(self, *arguments, code=DONE):
        result = self.node.run("fsck", *arguments, "--from", self.bucket)
        self.assertEqual(result.code, code, str(result))
        return result.data

    def path_of(self, tag):
        return os.path.join(self.folder, "job", next(n for n in self.objects() if n.endswith(f"-{tag}.image")))

    def test_whole(self):
        self.copied(3)
        self.assertEqual(self.check()["images_checked"], 3)
        read = self.check("--read", "job")
        self.assertEqual(read["bytes_read"], sum(os.path.getsize(self.path_of(tag)) for tag in "123"))
        self.assertEqual(read["problems"], [])
        self.assert_refused(
            self.node.run("fsck", "absent", "--read", "--from", self.bucket), NOT_FOUND, "absent", self.bucket
        )
        self.assert_refused(self.node.run("fsck", "--repair", "--from", self.bucket), USAGE, "--read")
        self.assert_refused(self.cli.run("fsck", "job"), USAGE, "job")

    def test_damage_is_found_and_removed(self):
        self.copied(3)
        self.copied_whole(4)
        with open(self.path_of(2), "r+b") as file:
            file.seek(os.path.getsize(self.path_of(2)) // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        self.assertEqual(self.check()["problems"], [], "nothing was read")
        found = self.check("--read", code=FAILED)
        self.assertEqual(found["lost_images"], ["job:2", "job:3"])
        self.assertIn("is damaged", found["problems"][0])
        self.assertIn("builds upon job:2", found["problems"][1])
        self.assertEqual(self.tags(), ["1", "2", "3", "4"])
        text = self.node.run("fsck", "--read", "--from", self.bucket, json_output=False)
        self.assertIn("--repair", text.out)

        self.check("--read", "--repair", code=FAILED)
        self.assertEqual(self.tags(), ["1", "3", "4"])
        self.assertEqual(self.check("--read", code=FAILED)["lost_images"], ["job:3"])
        # Copied once more they are whole.
        for tag in ("job:2", "job:3"):
            self.succeed("copy", tag, "--to", self.bucket)
        self.assertEqual(self.check("--read")["lost_images"], [])
        self.succeed("copy", "job:3", "--from", self.bucket, cli=self.there)

    def test_a_cut_object_and_one_under_another_name(self):
        self.copied(1)
        self.copied_whole(4)
        with open(self.path_of(4), "r+b") as file:
            file.truncate(os.path.getsize(self.path_of(4)) // 2)
        shutil.copy(self.path_of(4), self.path("half"))
        self.assertEqual(self.check("--read", code=FAILED)["lost_images"], ["job:4"])
        shutil.copy(self.path_of(1), self.path_of(4))
        found = self.check("--read", code=FAILED)
        self.assertEqual(found["lost_images"], ["job:4"])
        self.assertIn("holds another image", found["problems"][0])

    def test_what_a_newer_version_has_sent_stays(self):
        self.copied(1)
        with open(self.path_of(1), "r+b") as file:
            head = file.read(64)
            file.seek(head.index(b"\x08\x01", len(b"rekindle-image1\n")) + 1)  # the header's first field: its version
            file.write(b"\x02")
        objects = self.objects()
        found = self.check("--read", "--repair", code=FAILED)
        self.assertIn("of version 2", found["problems"][0])
        self.assertNotIn("damaged", found["problems"][0])
        self.assertEqual(self.objects(), objects)

    def test_the_folder_of_a_store(self):
        self.copied(1)
        self.succeed("copy", "job:1", "--to", self.path("there"))
        done = self.succeed("fsck", "--read", "--from", self.path("there"), cli=self.node)
        self.assertEqual((done["images_checked"], done["problems"]), (1, []))


if __name__ == "__main__":
    unittest.main()
