"""What is at a place that images are copied to, as `ls --from` tells it."""

import os
import shutil
import socket
import unittest

from harness.case import MIB, RekindleTest
from harness.cli import DONE, FAILED, NO_STORE, USAGE


class ListingTest(RekindleTest):
    def setUp(self):
        super().setUp()
        self.folder = self.path("bucket")
        os.mkdir(self.folder)
        self.bucket = "rclone:" + self.folder
        self.environment["RCLONE_CONFIG"] = self.path("rclone.conf")
        # Where nothing of Rekindle's is yet.
        self.node = self.make_cli(store=self.path("none"))

    def listed(self, *arguments, cli=None):
        return [image["reference"] for image in self.succeed("ls", *arguments, cli=cli or self.node)["images"]]

    def copied(self, place):
        job, memory = self.start_memory_job(2 * MIB)
        for tag in ("job:1", "job:2", "other:1"):
            memory.touch(10)
            self.checkpoint(job.pid, tag)
            self.succeed("copy", tag, "--to", place)
        job.kill_tree()

    def logging_rclone(self):
        """A PATH with an rclone that notes each time that it is run."""
        folder = self.path("wrapped")
        os.mkdir(folder)
        with open(os.path.join(folder, "rclone"), "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\necho "$*" >> {self.path("runs")}\nexec {shutil.which("rclone")} "$@"\n')
        os.chmod(os.path.join(folder, "rclone"), 0o755)
        return {"PATH": folder + ":" + os.environ["PATH"]}

    def test_an_object_store(self):
        self.copied(self.bucket)
        cli = self.make_cli(store=self.path("none"), env=self.logging_rclone())
        images = self.succeed("ls", "--from", self.bucket, cli=cli)["images"]
        with open(self.path("runs"), encoding="utf-8") as runs:
            self.assertEqual(len(runs.readlines()), 1)
        self.assertEqual([image["reference"] for image in images], ["other:1", "job:2", "job:1"])
        here = {image["reference"]: image for image in self.succeed("ls")["images"]}
        for image in images:
            own = here[image["reference"]]
            self.assertLess(abs(int(image["created_unix_ns"]) - int(own["created_unix_ns"])), 10**6)
            self.assertTrue(own["digest"].startswith(image["labels"]["rekindle.origin"]))
            self.assertGreater(image["stored_bytes"], 0)
        text = self.node.run("ls", "--from", self.bucket, json_output=False)
        self.assertRegex(text.out, r"(?m)^IMAGE +TAKEN +SIZE THERE\nother:1 +\d+ s ago")
        self.assertFalse(os.path.exists(self.path("none")))

        self.assertEqual(self.listed("--from", self.bucket, "job:1", "oth"), ["other:1", "job:1"])
        missed = self.node.run("ls", "--from", self.bucket, "oth", "jbo")
        self.assertEqual((missed.code, [image["reference"] for image in missed.data["images"]]), (DONE, ["other:1"]))
        self.assertIn(f"no image matches 'jbo' in {self.bucket}", missed.err)

    def test_what_lacks_its_base_is_named(self):
        self.copied(self.bucket)
        for name in os.listdir(os.path.join(self.folder, "job")):
            if "-whole-" in name:
                os.remove(os.path.join(self.folder, "job", name))
        result = self.node.run("ls", "--from", self.bucket, "job")
        self.assertEqual([(image["reference"], image["damaged"]) for image in result.data["images"]], [("job:2", True)])
        self.assertIn("job:2 can't be had", result.err)

    def test_hostile_names_are_printable(self):
        self.copied(self.bucket)
        folder = os.path.join(self.folder, "job")
        os.rename(folder, os.path.join(self.folder, "\x1b[31mjob"))
        result = self.node.run("ls", "--from", self.bucket, json_output=False)
        self.assertEqual(result.code, DONE, str(result))
        self.assertIn("[31mjob:1", result.out)
        self.assertNotIn("\x1b", result.out + result.err)

    def test_a_folder_and_a_daemon(self):
        there = self.path("there")
        self.copied(there)
        self.assertEqual(self.listed("--from", there), ["other:1", "job:2", "job:1"])
        self.assertEqual(self.listed("--from", there, "job"), ["job:2", "job:1"])
        with self.subTest("of a daemon"):
            daemon = self.start_daemon()
            self.assertEqual(self.listed("--from", daemon.host), ["other:1", "job:2", "job:1"])

    def test_an_empty_place_is_no_failure(self):
        result = self.node.run("ls", "--from", self.bucket, json_output=False)
        self.assertEqual((result.code, result.err, len(result.out.splitlines())), (DONE, "", 1), str(result))

    def test_places_that_are_not_there(self):
        gone = self.path("gone")
        self.assert_refused(self.node.run("ls", "--from", "rclone:" + gone), FAILED, gone, "not there")
        for words in (("ls", "--from", gone), ("copy", "x:1", "--from", gone), ("rm", "x:1", "--from", gone)):
            refused = self.node.run(*words)
            self.assert_refused(refused, NO_STORE, gone, "check the path", "file system is mounted")
            self.assertNotIn("--store", str(refused.data))
        self.assert_refused(self.node.run("ls", "--from", "word"), USAGE, "./word")
        with open(self.environment["RCLONE_CONFIG"], "w", encoding="ascii") as config:
            config.write("[far]\ntype = webdav\nurl = http://127.0.0.1:9\nvendor = other\n")
        self.environment.update(RCLONE_LOW_LEVEL_RETRIES="1", RCLONE_RETRIES="1")
        far = self.make_cli(store=self.path("none"))
        self.assert_refused(far.run("ls", "--from", "rclone:far:x"), FAILED, "refused")
        self.assert_refused(far.run("ls", "--from", "rclone:nowhere:x"), FAILED, "nowhere")
        self.assert_refused(far.run("ls", "--from", "127.0.0.1:9"), USAGE, "--tls")

    def test_a_silent_object_store_is_given_up(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            with open(self.environment["RCLONE_CONFIG"], "w", encoding="ascii") as config:
                config.write(f"[far]\ntype = webdav\nurl = http://127.0.0.1:{silent.getsockname()[1]}\nvendor = other\n")
            cli = self.make_cli(store=self.path("none"), env={"RCLONE_TIMEOUT": "2s", "RCLONE_RETRIES": "9"})
            self.assert_refused(cli.run("ls", "--from", "rclone:far:x"), FAILED, "rclone lsf")

    def test_a_place_in_place_of_a_name(self):
        for place in (self.bucket, "rclone:s3:bucket/images", "s3://bucket/images", self.folder):
            self.assert_refused(self.cli.run("ls", place), USAGE, f"ls --from {place}")

    def test_what_matches_nothing_here(self):
        job, _ = self.start_memory_job(MIB)
        self.checkpoint(job.pid, "job:1")
        for word, more in (("jbo", ""), ("node2:7443", "ls --from node2:7443")):
            result = self.cli.run("ls", word)
            self.assertEqual((result.code, result.data["images"]), (DONE, []), str(result))
            self.assertIn(f"no image matches '{word}'", result.err)
            self.assertIn(more, result.err)
        self.assertEqual(self.cli.run("ls", "job").err, "")
        self.assertEqual(self.listed("job", cli=self.cli), ["job:1"])


if __name__ == "__main__":
    unittest.main()
