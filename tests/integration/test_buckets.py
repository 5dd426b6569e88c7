"""Images go into object stores, by rclone, and jobs go on from there."""

import http.server
import os
import select
import shutil
import signal
import socket
import subprocess
import threading
import unittest

from harness import jobs, waiting
from harness.case import MIB, RekindleTest
from harness.cli import DONE, FAILED, NOT_FOUND, USAGE

_SIZE = 16 * MIB


class BucketTest(RekindleTest):
    """The bucket is behind a WebDAV server of rclone's: another process, over TCP."""

    def setUp(self):
        super().setUp()
        self.folder = self.path("bucket")
        os.mkdir(self.folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.environment["RCLONE_CONFIG"] = self.path("rclone.conf")
        with open(self.environment["RCLONE_CONFIG"], "w", encoding="ascii") as config:
            config.write(f"[far]\ntype = webdav\nurl = http://127.0.0.1:{self.port}\nvendor = other\n")
        self.environment["TMPDIR"] = self.directory
        self.serve()
        self.bucket = "rclone:far:images"
        self.cli = self.make_cli(store=self.store)
        self.there = self.make_cli(store=self.path("there"))

    def serve(self):
        with open(self.path("rclone.log"), "ab") as log:
            self.server = subprocess.Popen(
                ["rclone", "serve", "webdav", self.folder, "--addr", f"127.0.0.1:{self.port}"],
                env={**os.environ, "RCLONE_CONFIG": self.path("rclone.conf")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.addCleanup(self.end_server)

        def answers():
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", self.port)) == 0

        waiting.until(answers, "rclone serves", 60)

    def end_server(self):
        self.server.kill()
        self.server.wait()

    def objects(self, name="job"):
        folder = os.path.join(self.folder, "images", name)
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []

    def images(self, cli):
        return [image["reference"] for image in self.succeed("ls", cli=cli).get("images", [])]

    def three_images(self):
        """Of a job that runs on; and what its memory is like in each."""
        job, memory = self.start_memory_job(_SIZE)
        digests = []
        for tag in ("job:1", "job:2", "job:3"):
            memory.touch(50)
            digests.append(memory.digest())
            self.checkpoint(job.pid, tag)
        job.kill_tree()
        return job, memory, digests

    def test_a_job_goes_on_where_only_the_bucket_was_left(self):
        job, memory, digests = self.three_images()
        sent = [self.succeed("copy", f"job:{i}", "--to", self.bucket) for i in (1, 2, 3)]
        self.assertGreater(sent[0]["bytes"], _SIZE)
        self.assertLess(sent[1]["bytes"], _SIZE / 10)
        self.assertLess(sent[2]["bytes"], _SIZE / 10)
        self.assertEqual(len(self.objects()), 6)
        self.assertEqual(self.succeed("copy", "job:2", "--to", self.bucket)["bytes"], 0)

        taken = self.succeed("copy", "job", "--from", self.bucket, cli=self.there)
        self.assertEqual(taken["bytes"], sum(image["bytes"] for image in sent))
        self.assertEqual(taken["image"]["reference"], "job:3")
        self.assertEqual(self.images(self.there), ["job:3"])
        self.succeed("fsck", "--read", cli=self.there)
        pid = self.restore("job:3", cli=self.there)
        self.assertEqual(pid, job.pid)
        self.assertEqual(memory.digest(), digests[2])
        jobs.kill_tree(pid)

        self.assertEqual(self.succeed("copy", "job:3", "--from", self.bucket, cli=self.there)["bytes"], 0)
        # An earlier one, under another name, of which what it builds upon is needed again.
        self.succeed("copy", "job:2", "--from", self.bucket, "-t", "old:1", cli=self.there)
        self.assertEqual(sorted(self.images(self.there)), ["job:3", "old:1"])
        pid = self.restore("old:1", cli=self.there)
        self.assertEqual(memory.digest(), digests[1])
        jobs.kill_tree(pid)

    def test_only_what_is_missing_is_fetched(self):
        self.three_images()
        sent = [self.succeed("copy", f"job:{i}", "--to", self.bucket)["bytes"] for i in (1, 2, 3)]
        self.succeed("copy", "job:1", "--from", self.bucket, cli=self.there)
        taken = self.succeed("copy", "job:3", "--from", self.bucket, cli=self.there)
        self.assertEqual(taken["bytes"], sent[1] + sent[2])
        self.assertEqual(sorted(self.images(self.there)), ["job:1", "job:3"])

    def test_following_a_supervised_job(self):
        status = self.path("status")
        daemon = self.start_daemon()
        cli = self.make_cli(host=daemon.host)
        self.succeed(
            "run", "--detach", "--name", "job", "--log", self.path("job.log"), "--every", "1s", "--keep", "8", "--",
            jobs.program("memory_job"), str(8 * MIB), status, cli=cli,
        )  # fmt: skip
        pid = next(job["pid"] for job in self.succeed("ps", cli=cli)["jobs"] if job["name"] == "job")
        self.kill_job_at_end(pid)
        self.addCleanup(daemon.kill)  # first: it would bring the job back
        child = cli.start("copy", "job", "--to", self.bucket, "--follow", "--keep", "2", json_output=False)
        waiting.until(lambda: len(self.objects()) >= 6, "three copies", 120, 0.2)
        # The other side is away for a while: the job runs on, and what is missing follows.
        self.end_server()
        waiting.until(lambda: "trying again" in child.stderr.readline(), "it says so", 120, 0.1)
        self.serve()
        had = set(self.objects())
        waiting.until(lambda: set(self.objects()) - had, "a copy more", 120, 0.2)
        os.kill(child.pid, signal.SIGINT)
        result = cli.finish(child)
        self.assertEqual(result.code, DONE, str(result))
        daemon.kill()
        jobs.kill_tree(pid)
        taken = self.succeed("copy", "job", "--from", self.bucket, cli=self.there)
        self.succeed("fsck", "--read", cli=self.there)
        self.assertEqual(self.restore(taken["image"]["reference"], cli=self.there), pid)

    def test_keep_removes_old_chains(self):
        job, memory = self.start_memory_job(_SIZE)
        self.checkpoint(job.pid, "job:1")
        child = self.cli.start("copy", "job", "--to", self.bucket, "--follow", "--keep", "1", json_output=False)
        waiting.until(lambda: len(self.objects()) == 2, "the first copy", 60, 0.2)
        first = self.objects()
        memory.touch(10)
        self.checkpoint(job.pid, "job:2")
        waiting.until(lambda: len(self.objects()) == 4, "what the second one builds upon stays", 60, 0.2)
        # Another store's image of the same name.
        other = self.make_cli(store=self.path("other"))
        self.checkpoint(job.pid, "job:other", cli=other)
        self.succeed("copy", "job:other", "--to", self.bucket, cli=other)
        others = [name for name in self.objects() if "-other." in name]
        self.assertEqual(len(others), 2)
        # All of it is new: from here on a whole image is the shorter way.
        for _ in range(2):
            memory.touch(_SIZE // MIB * 256)
            tag = f"job:new{len(self.images(self.cli))}"
            self.checkpoint(job.pid, tag)
            waiting.until(lambda tag=tag: any(f"-{tag[4:]}.json" in name for name in self.objects()), tag, 60, 0.2)
        memory.touch(10)
        self.checkpoint(job.pid, "job:last")
        waiting.until(lambda: any("-last.json" in name for name in self.objects()), "the last one", 60, 0.2)
        waiting.until(lambda: not set(first) & set(self.objects()), "the first ones are gone", 60, 0.2)
        os.kill(child.pid, signal.SIGINT)
        self.assertEqual(self.cli.finish(child).code, DONE)
        self.assertLessEqual(set(others), set(self.objects()))
        taken = self.succeed("copy", "job:last", "--from", self.bucket, cli=self.there)
        self.assertEqual(taken["image"]["reference"], "job:last")

    def test_what_was_interrupted_is_no_image(self):
        self.three_images()
        child = self.cli.start("copy", "job:1", "--to", self.bucket)
        os.kill(child.pid, signal.SIGKILL)
        self.cli.finish(child)
        self.assertFalse([name for name in self.objects() if name.endswith(".json")])
        refused = self.there.run("copy", "job:1", "--from", self.bucket)
        self.assert_refused(refused, NOT_FOUND, "job:1", self.bucket)
        self.succeed("copy", "job:1", "--to", self.bucket)
        self.assert_refused(self.there.run("copy", "job:2", "--from", self.bucket), NOT_FOUND, "the tags 1")
        self.succeed("copy", "job:1", "--from", self.bucket, cli=self.there)

    def test_an_interrupted_copy_goes_on_from_what_has_arrived(self):
        job, memory = self.start_memory_job(4 * _SIZE)
        self.checkpoint(job.pid, "job:1")
        memory.touch(50)
        digest = memory.digest()
        self.checkpoint(job.pid, "job:2")
        job.kill_tree()
        self.environment["REKINDLE_COPY_PART"] = "8"
        # So that there is time to interrupt it.
        slow = self.make_cli(store=self.store, env={"RCLONE_BWLIMIT": "16M"})

        def parts():
            return [name for name in self.objects() if name.endswith(".json")]

        child = slow.start("copy", "job:1", "--to", self.bucket, json_output=False)
        waiting.until(lambda: len(parts()) > 1, "a part or two", 60, 0.05)
        os.kill(child.pid, signal.SIGINT)
        result = slow.finish(child)
        self.assertEqual(result.code, FAILED, str(result))
        self.assertIn("stays for the next attempt", result.err)
        before = parts()
        child = slow.start("copy", "job:1", "--to", self.bucket)
        waiting.until(lambda: len(parts()) > len(before), "a part more", 60, 0.05)
        os.kill(child.pid, signal.SIGKILL)
        slow.finish(child)
        # It is no image yet.
        self.assertEqual(self.succeed("ls", "--from", self.bucket).get("images", []), [])
        self.assert_refused(self.there.run("copy", "job", "--from", self.bucket), NOT_FOUND, self.bucket)
        cli = self.make_cli(store=self.store)
        sent = self.succeed("copy", "job:1", "--to", self.bucket, cli=cli)
        self.assertLess(sent["bytes"], 4 * _SIZE - 15 * MIB)
        self.assertLess(self.succeed("copy", "job:2", "--to", self.bucket, cli=cli)["bytes"], MIB)
        listed = self.succeed("ls", "--from", self.bucket)["images"]
        self.assertEqual([image["reference"] for image in listed], ["job:2", "job:1"])
        self.assertGreater(int(listed[1]["stored_bytes"]), 4 * _SIZE)
        self.succeed("fsck", "--read", "--from", self.bucket)

        self.succeed("copy", "job", "--from", self.bucket, cli=self.there)
        self.assertEqual(self.images(self.there), ["job:2"])
        self.succeed("fsck", "--read", cli=self.there)
        self.restore("job:2", cli=self.there)
        self.assertEqual(memory.digest(), digest)
        # Parts go with what is built of them.
        self.succeed("prune", "job", "--keep-last", "1", "--from", self.bucket, cli=cli)
        self.succeed("copy", "job", "--from", self.bucket, "-t", "again:1", cli=self.there)
        self.succeed("copy", "job:2", "--to", self.bucket, "--whole", cli=cli)

    def wrap_rclone(self, script):
        """The CLIs made from here on find `script` before the rclone that it runs."""
        folder = self.path("wrapped")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "rclone"), "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\n{script}\nexec {shutil.which("rclone")} "$@"\n')
        os.chmod(os.path.join(folder, "rclone"), 0o755)
        self.environment["PATH"] = folder + ":" + os.environ["PATH"]

    def test_a_stalled_rclone_is_ended(self):
        self.environment["RCLONE_TIMEOUT"] = "5s"
        stalls = self.path("stalls-")
        # Whoever looks at it sees an rclone that moves nothing more.
        self.wrap_rclone(
            'for word in "$@"; do last=$word; done\n'
            'case $last in *.image) kind=image;; *.json) kind=json;; *) kind=folder;; esac\n'
            f'if [ -e {stalls}$kind ]; then rm {stalls}$kind; kill -STOP $$; fi'
        )
        cli = self.make_cli(store=self.store)

        def stall_once(kind):
            with open(stalls + kind, "x", encoding="ascii"):
                pass

        def assert_ended(said):
            self.assertIn("has moved nothing for 10s, and was ended", said)
            self.assertIn("RCLONE_TIMEOUT", said)

        self.three_images()
        # A listing of whoever follows a job, who tries again.
        stall_once("folder")
        child = cli.start("copy", "job", "--to", self.bucket, "--follow", json_output=False)
        said = child.stderr.readline()
        assert_ended(said)
        self.assertIn("trying again", said)
        waiting.until(lambda: any(name.endswith("-3.json") for name in self.objects()), "the copy", 120, 0.2)
        os.kill(child.pid, signal.SIGINT)
        result = cli.finish(child)
        self.assertEqual((result.code, result.err), (DONE, ""), str(result))
        # The image, and what is put beside it.
        for tag, kind in (("job:1", "image"), ("job:2", "json")):
            stall_once(kind)
            refused = cli.run("copy", tag, "--to", self.bucket)
            self.assert_refused(refused, FAILED)
            assert_ended(refused.message)
            self.assertFalse([name for name in self.objects() if f"-{tag[4:]}.json" in name])
            self.succeed("copy", tag, "--to", self.bucket, cli=cli)
            self.assertTrue([name for name in self.objects() if f"-{tag[4:]}.json" in name])

        there = self.make_cli(store=self.path("there"))
        stall_once("image")
        refused = there.run("copy", "job:1", "--from", self.bucket)
        self.assert_refused(refused, FAILED, "has moved nothing", "taking in job:1")
        self.assertEqual(self.images(there), [])
        self.succeed("copy", "job:1", "--from", self.bucket, cli=there)
        self.assertEqual(self.images(there), ["job:1"])

    def test_what_it_builds_upon_is_removed_by_another(self):
        """Between the look at what is there and the end of the copy."""
        self.three_images()
        self.succeed("copy", "job:1", "--to", self.bucket)
        # By rclone: the server remembers what was in a folder.
        remove = f'{shutil.which("rclone")} delete far:images/job --include "*-1.*" < /dev/null >&2'
        self.wrap_rclone(f'if [ "$1" = rcat ]; then {remove} || exit 1; fi')
        cli = self.make_cli(store=self.store)
        self.assertGreater(self.succeed("copy", "job:2", "--to", self.bucket, cli=cli)["bytes"], _SIZE)
        # What was sent first, and turned out to build upon nothing, is gone.
        self.assertEqual([name.rsplit("-", 2)[1] for name in self.objects()], ["whole", "whole"])
        self.succeed("copy", "job:2", "--from", self.bucket, cli=self.there)
        self.succeed("fsck", "--read", cli=self.there)

    def test_two_jobs_of_one_name(self):
        other = self.make_cli(store=self.path("other"))
        job, _ = self.start_memory_job(_SIZE, "a")
        second, _ = self.start_memory_job(_SIZE, "b")
        self.checkpoint(job.pid, "job:a1")
        child = self.cli.start("copy", "job", "--to", self.bucket, "--follow", "--keep", "2", json_output=False)
        waiting.until(lambda: len(self.objects()) == 2, "the first copy", 60, 0.2)
        self.checkpoint(second.pid, "job:b1", cli=other)
        self.succeed("copy", "job:b1", "--to", self.bucket, cli=other)
        # So far one came after the other: the newest is meant.
        taken = self.succeed("copy", "job", "--from", self.bucket, cli=self.there)
        self.assertEqual(taken["image"]["reference"], "job:b1")

        self.checkpoint(job.pid, "job:a2")
        waiting.until(lambda: any("-a2.json" in name for name in self.objects()), "the second copy", 60, 0.2)
        os.kill(child.pid, signal.SIGINT)
        result = self.cli.finish(child)
        self.assertEqual(result.code, DONE, str(result))
        self.assertEqual(result.err.count("another store copies images of job"), 1, str(result))
        refused = self.there.run("copy", "job", "--from", self.bucket)
        self.assert_refused(refused, FAILED, "ran at the same time", "job:a2", "job:b1", "--image-name", "tag")
        self.assertEqual(self.images(self.there), ["job:b1"])
        self.succeed("copy", "job:a2", "--from", self.bucket, cli=self.there)

        # What one has taken in of the other is not its own to remove.
        self.succeed("copy", "job:a1", "--from", self.bucket, cli=other)
        self.checkpoint(second.pid, "job:b2", cli=other)
        child = other.start("copy", "job", "--to", self.bucket, "--follow", "--keep", "1", "--whole", json_output=False)
        waiting.until(lambda: not any("-b1." in name for name in self.objects()), "its old copy goes", 60, 0.2)
        os.kill(child.pid, signal.SIGINT)
        self.assertEqual(other.finish(child).code, DONE)
        left = sorted(name.rsplit("-", 1)[1] for name in self.objects())
        self.assertEqual(left, [f"{tag}.{kind}" for tag in ("a1", "a2", "b2") for kind in ("image", "json")])

    def test_damage_on_the_way(self):
        self.three_images()
        self.succeed("copy", "job:1", "--to", self.bucket)
        image = next(name for name in self.objects() if name.endswith(".image"))
        path = os.path.join(self.folder, "images", "job", image)
        with open(path, "r+b") as file:
            file.seek(_SIZE // 2)
            file.write(b"?")
        self.assert_refused(self.there.run("copy", "job:1", "--from", self.bucket), FAILED, "SHA-256", self.bucket)
        with open(path, "r+b") as file:
            file.truncate(_SIZE // 2)
        # Whoever notices first: rclone, or who takes it in.
        self.assert_refused(self.there.run("copy", "job:1", "--from", self.bucket), FAILED, "taking in job:1")
        self.assertEqual(self.images(self.there), [])

    def test_no_server_no_remote_no_rclone(self):
        self.three_images()
        self.assert_refused(self.cli.run("copy", "job:1", "--to", "rclone:nowhere:x"), FAILED, "nowhere")
        self.end_server()
        self.environment["RCLONE_LOW_LEVEL_RETRIES"] = "1"
        self.environment["RCLONE_RETRIES"] = "1"
        cli = self.make_cli(store=self.store)
        for words in (["--to", self.bucket], ["--from", self.bucket]):
            self.assert_refused(cli.run("copy", "job:1", *words), FAILED, "rclone", "refused")
        self.environment["PATH"] = self.directory
        without = self.make_cli(store=self.store)
        self.assert_refused(without.run("copy", "job:1", "--to", self.bucket), FAILED, "apt-get install rclone")


class WrappedTest(RekindleTest):
    """The bucket is a folder of this machine, and each rclone that Rekindle runs can be held up."""

    def setUp(self):
        super().setUp()
        self.folder = self.path("bucket")
        os.mkdir(self.folder)
        self.bucket = "rclone:" + self.folder
        self.environment["RCLONE_CONFIG"] = self.path("rclone.conf")
        self.environment["TMPDIR"] = self.directory
        self.go, self.came = self.path("go"), self.path("came")
        self.there = self.make_cli(store=self.path("there"))

    def objects(self, name="job"):
        folder = os.path.join(self.folder, name)
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []

    def images(self, cli):
        return sorted(image["reference"] for image in (cli.run("ls").data or {}).get("images", []))

    def rclone(self, script, program="rclone"):
        """A PATH with `script` before rclone: "$last" is what it is to work on."""
        folder = self.path("wrapped")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, program), "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nfor last in "$@"; do :; done\n{script}\nexec {shutil.which(program)} "$@"\n')
        os.chmod(os.path.join(folder, program), 0o755)
        return {"PATH": folder + ":" + os.environ["PATH"]}

    def held_up(self, verb, pattern):
        """The same for an rclone that waits until `self.go` is there."""
        return self.rclone(
            f'case $1/$last in {verb}/{pattern}) : > {self.came}; while [ ! -e {self.go} ]; do sleep 0.1; done;; esac'
        )

    def chain(self, count, cli=None):
        """Of a job that runs on, so many images, in the bucket. Returns the job and its memory."""
        job, memory = self.start_memory_job(_SIZE)
        for i in range(1, count + 1):
            memory.touch(50)
            self.checkpoint(job.pid, f"job:{i}", cli=cli)
            self.succeed("copy", f"job:{i}", "--to", self.bucket, cli=cli)
        return job, memory

    def begin_pull(self, *options, **environment):
        """Of the newest of three images, held up when it has come so far."""
        self.came = self.path("came")
        pull = self.make_cli(store=self.path("there"), env={**self.held_up("cat", "*-3.image"), **environment})
        child = pull.start("copy", "job", "--from", self.bucket, *options)
        waiting.until(lambda: os.path.exists(self.came), "two of three images", 120, 0.1)
        os.unlink(self.came)
        return pull, child

    def interrupted_pull(self, *options, **environment):
        pull, child = self.begin_pull(*options, **environment)
        os.kill(child.pid, signal.SIGINT)
        return pull.finish(child)


class FollowedPartsTest(WrappedTest):
    def test_an_image_that_is_overtaken_is_no_trouble(self):
        """It was removed, as by --keep, after it was found to be the newest: the next one is copied at once."""
        job, _ = self.start_memory_job(_SIZE)
        self.checkpoint(job.pid, "job:1")
        self.came = self.path("came")
        follower = self.make_cli(store=self.store, env=self.held_up("ls*", "*job"))
        child = follower.start("copy", "job", "--to", self.bucket, "--follow", json_output=False)
        waiting.until(lambda: os.path.exists(self.came), "it looks at what is there", 120, 0.1)
        self.checkpoint(job.pid, "job:2")
        self.succeed("rm", "job:1")
        with open(self.go, "w", encoding="ascii"):
            pass
        waiting.until(lambda: any(name.endswith("-2.json") for name in self.objects()), "the second image", 120, 0.2)
        os.kill(child.pid, signal.SIGINT)
        result = follower.finish(child)
        self.assertEqual((result.code, result.err), (DONE, ""), str(result))

    def test_what_has_begun_to_arrive_is_finished_before_the_next_image(self):
        job, memory = self.start_memory_job(_SIZE)
        self.checkpoint(job.pid, "job:1")
        fails = self.path("fails")
        with open(fails, "w", encoding="ascii"):
            pass
        # The image itself, not the parts that it builds upon.
        wrapped = self.rclone(f'case $1/$last in rcat/*-1.*image) [ ! -e {fails} ] || exit 1;; esac')
        follower = self.make_cli(store=self.store, env={**wrapped, "REKINDLE_COPY_PART": "4"})
        child = follower.start("copy", "job", "--to", self.bucket, "--follow", json_output=False)
        said = child.stderr.readline()
        self.assertIn("stays for the next attempt", said)
        self.assertIn("trying again", said)
        parts = self.objects()
        self.assertGreaterEqual(len(parts), 4)
        memory.touch(20)
        self.checkpoint(job.pid, "job:2")
        os.unlink(fails)
        waiting.until(lambda: any(name.endswith("-2.json") for name in self.objects()), "the second image", 120, 0.2)
        os.kill(child.pid, signal.SIGINT)
        self.assertEqual(follower.finish(child).code, DONE)
        self.assertLessEqual(set(parts), set(self.objects()))
        listed = self.succeed("ls", "--from", self.bucket)["images"]
        self.assertEqual([image["reference"] for image in listed], ["job:2", "job:1"])
        self.assertLess(int(listed[0]["stored_bytes"]), MIB)
        self.succeed("fsck", "--read", "--from", self.bucket)


class LinksTest(WrappedTest):
    """What another image builds upon is here for a while, and is nobody's newest image."""

    def test_whoever_follows_does_not_copy_them(self):
        self.chain(3)
        before = self.objects()
        pull, child = self.begin_pull()
        self.assertEqual(len(self.images(self.there)), 2)
        follower = self.there.start("copy", "job", "--to", self.bucket, "--follow", json_output=False)
        waiting.until(
            lambda: self.objects() != before or select.select([follower.stderr], [], [], 0)[0], "it has looked", 60, 0.1
        )
        with open(self.go, "w", encoding="ascii"):
            pass
        self.assertEqual(pull.finish(child).code, DONE)
        os.kill(follower.pid, signal.SIGINT)
        result = self.there.finish(follower)
        self.assertEqual(result.code, DONE, str(result))
        self.assertEqual(self.objects(), before)
        self.assertIn("there is no image of job yet", result.err)
        self.assertEqual(self.images(self.there), ["job:3"])

    def test_a_name_that_is_taken_is_refused_before_anything_comes(self):
        job, _ = self.chain(3)
        self.checkpoint(job.pid, "job:3", cli=self.there)
        cli = self.make_cli(store=self.path("there"), env=self.rclone(f'[ "$1" != cat ] || : > {self.came}'))
        self.assert_refused(cli.run("copy", "job:3", "--from", self.bucket), FAILED, "job:3", "--replace")
        self.assertFalse(os.path.exists(self.came))
        self.assertEqual(self.images(self.there), ["job:3"])
        self.succeed("copy", "job:3", "--from", self.bucket, "-t", "other", cli=self.there)
        self.assertEqual(self.images(self.there), ["job:3", "other:latest"])
        self.assert_refused(cli.run("copy", "job:2", "--from", self.bucket, "-t", "other"), FAILED, "other:latest")

    def test_what_is_refused_leaves_none(self):
        self.chain(3)
        image = next(name for name in self.objects() if name.endswith("-3.image"))
        with open(os.path.join(self.folder, "job", image), "r+b") as file:
            file.write(b"?")
        self.assertEqual(self.there.run("copy", "job", "--from", self.bucket).code, USAGE)
        self.assertEqual(self.images(self.there), [])

    def test_what_is_interrupted_goes_on(self):
        job, _ = self.chain(3)
        refused = self.interrupted_pull()
        self.assert_refused(refused, FAILED, "interrupted", "next attempt", "copy-link/", "gc")
        links = self.images(self.there)
        self.assertEqual([link[:10] for link in links], ["copy-link/"] * 2)
        # They are in nobody's way.
        self.checkpoint(job.pid, "job:9", cli=self.there)
        pruned = self.succeed("prune", "--all", "--keep-last", "1", cli=self.there)
        self.assertEqual([image["image"]["reference"] for image in pruned["images"]], ["job:9"])
        self.succeed("gc", cli=self.there)
        self.assertEqual(self.images(self.there), [*links, "job:9"])
        last = next(name for name in self.objects() if name.endswith("-3.image"))
        taken = self.succeed("copy", "job", "--from", self.bucket, cli=self.there)
        self.assertEqual(taken["bytes"], os.path.getsize(os.path.join(self.folder, "job", last)))
        self.assertEqual(self.images(self.there), ["job:3", "job:9"])

    def test_what_nobody_takes_up_goes_with_gc(self):
        self.chain(3)
        self.interrupted_pull(LD_PRELOAD=jobs.program("earlier_clock.so"))
        self.assertEqual(len(self.images(self.there)), 2)
        self.succeed("gc", "--dry-run", cli=self.there)
        self.assertEqual(len(self.images(self.there)), 2)
        self.succeed("gc", cli=self.there)
        self.assertEqual(self.images(self.there), [])

    def test_those_of_an_older_version(self):
        """It gave them names of the job's, and copied them."""
        job, _ = self.chain(3)
        origin = next(name for name in self.objects() if name.endswith("-2.image")).split("-")[1]
        self.checkpoint(job.pid, "job:9", cli=self.there)
        self.succeed("copy", "job:2", "--from", self.bucket, "-t", f"job:link-{origin}", cli=self.there)
        pruned = self.succeed("prune", "job", "--keep-last", "1", cli=self.there)
        self.assertEqual([image["image"]["reference"] for image in pruned["images"]], ["job:9"])
        follower = self.there.start("copy", "job", "--to", self.bucket, "--follow", json_output=False)
        waiting.until(lambda: any("-9.json" in name for name in self.objects()), "the copy of job:9", 60, 0.1)
        os.kill(follower.pid, signal.SIGINT)
        self.assertEqual(self.there.finish(follower).code, DONE)
        self.succeed("copy", "job:3", "--from", self.bucket, cli=self.there)
        self.assertEqual(self.images(self.there), ["job:3", "job:9"])
        # In the bucket, as the newest.
        self.succeed("copy", "job:2", "--from", self.bucket, "-t", f"job:link-{origin}", cli=self.there)
        self.succeed("copy", f"job:link-{origin}", "--to", self.bucket, "--whole", cli=self.there)
        third = self.make_cli(store=self.path("third"))
        self.succeed("copy", "job", "--from", self.bucket, cli=third)
        self.assertEqual(self.images(third), ["job:9"])


class BucketOrderTest(WrappedTest):
    """Which copy is the newest, and which are removed, whatever clocks say."""

    def test_the_clock_went_back(self):
        job, memory = self.start_memory_job(_SIZE)
        self.checkpoint(job.pid, "job:1")
        child = self.cli.start(
            "copy", "job", "--to", self.bucket, "--follow", "--keep", "1", "--whole", json_output=False
        )
        waiting.until(lambda: len(self.objects()) == 2, "the first copy", 60, 0.1)
        memory.touch(10)
        after = self.make_cli(store=self.store, env={"LD_PRELOAD": jobs.program("earlier_clock.so")})
        self.checkpoint(job.pid, "job:2", cli=after)
        waiting.until(lambda: not any("-1." in name for name in self.objects()), "the first copy goes", 30, 0.1)
        os.kill(child.pid, signal.SIGINT)
        self.assertEqual(self.cli.finish(child).code, DONE)
        self.assertEqual([name.rsplit("-", 1)[1] for name in self.objects()], ["2.image", "2.json"])

    def test_the_last_one_taken_is_the_newest(self):
        job, memory = self.start_memory_job(_SIZE)
        self.checkpoint(job.pid, "job:1")
        memory.touch(10)
        after = self.make_cli(store=self.store, env={"LD_PRELOAD": jobs.program("earlier_clock.so")})
        self.checkpoint(job.pid, "job:2", cli=after)
        for order in (("job:1", "job:2"), ("job:2", "job:1")):
            for image in order:
                self.succeed("copy", image, "--to", self.bucket)
            there = self.make_cli(store=self.path("there-" + order[0][-1]))
            taken = self.succeed("copy", "job", "--from", self.bucket, cli=there)
            self.assertEqual(taken["image"]["reference"], "job:2")
            shutil.rmtree(os.path.join(self.folder, "job"))

    def test_it_went_on_on_a_node_with_a_slow_clock(self):
        job, memory = self.start_memory_job(_SIZE)
        for i in (1, 2):
            self.checkpoint(job.pid, f"job:{i}")
        self.succeed("copy", "job:1", "--to", self.bucket)
        slow = self.make_cli(store=self.path("there"), env={"LD_PRELOAD": jobs.program("earlier_clock.so")})
        self.succeed("copy", "job", "--from", self.bucket, cli=slow)
        memory.touch(10)
        self.checkpoint(job.pid, "job:3", cli=slow)
        self.succeed("copy", "job:3", "--to", self.bucket, cli=slow)
        third = self.make_cli(store=self.path("third"))
        self.assertEqual(self.succeed("copy", "job", "--from", self.bucket, cli=third)["image"]["reference"], "job:3")

    def test_what_was_taken_before_and_is_copied_late_is_not_the_newest(self):
        """The first node comes back with an image that it had not copied, while the job runs elsewhere."""
        job, memory = self.start_memory_job(_SIZE)
        for i in (1, 2):
            self.checkpoint(job.pid, f"job:{i}")
        self.succeed("copy", "job:1", "--to", self.bucket)
        self.succeed("copy", "job", "--from", self.bucket, cli=self.there)
        memory.touch(10)
        self.checkpoint(job.pid, "job:3", cli=self.there)
        self.succeed("copy", "job:3", "--to", self.bucket, cli=self.there)
        self.succeed("copy", "job:2", "--to", self.bucket)
        third = self.make_cli(store=self.path("third"))
        self.assertEqual(self.succeed("copy", "job", "--from", self.bucket, cli=third)["image"]["reference"], "job:3")

    def test_what_is_on_its_way_stays(self):
        job, _ = self.start_memory_job(_SIZE)
        self.checkpoint(job.pid, "job:1")
        slow = self.make_cli(store=self.store, env={"RCLONE_BWLIMIT": "2M"})
        upload = slow.start("copy", "job:1", "--to", self.bucket)
        waiting.until(self.objects, "it has begun", 60, 0.1)
        self.checkpoint(job.pid, "job:2")
        child = self.cli.start("copy", "job", "--to", self.bucket, "--follow", "--keep", "3", json_output=False)
        waiting.until(lambda: any("-2.json" in name for name in self.objects()), "the other copy", 60, 0.1)
        result = slow.finish(upload)
        self.assertEqual(result.code, DONE, str(result))
        os.kill(child.pid, signal.SIGINT)
        self.assertEqual(self.cli.finish(child).code, DONE)
        self.assertEqual(len(self.objects()), 4)


class BucketCareTest(WrappedTest):
    def test_copies_are_their_users_alone(self):
        job, _ = self.start_memory_job(_SIZE)
        self.checkpoint(job.pid, "job:1")
        self.succeed("copy", "job:1", "--to", self.bucket)
        folder = os.path.join(self.folder, "job")
        self.assertEqual(os.stat(folder).st_mode & 0o777, 0o700)
        for name in self.objects():
            self.assertEqual(os.stat(os.path.join(folder, name)).st_mode & 0o777, 0o600, name)

    def test_a_folder_that_is_not_there_is_not_made(self):
        job, _ = self.start_memory_job(_SIZE)
        self.checkpoint(job.pid, "job:1")
        missing = self.path("mounted/images")
        for words in (["--to", "rclone:" + missing], ["--from", "rclone:" + missing]):
            self.assert_refused(self.cli.run("copy", "job:1", *words), FAILED, missing, "is not there", "mount")
        self.assertFalse(os.path.exists(self.path("mounted")))
        os.makedirs(missing)
        self.succeed("copy", "job:1", "--to", "rclone:" + missing)
        self.assert_refused(self.there.run("copy", "other", "--from", "rclone:" + missing), NOT_FOUND, "other")

    def test_what_fails_leaves_nothing(self):
        job, _ = self.start_memory_job(_SIZE)
        self.checkpoint(job.pid, "job:1")
        full = self.make_cli(
            store=self.store, env=self.rclone('case $1/$last in rcat/*.json) echo no room >&2; exit 1;; esac')
        )
        self.assert_refused(full.run("copy", "job:1", "--to", self.bucket), FAILED, "no room")
        self.assertEqual(self.objects(), [])
        # Nor what is interrupted.
        slow = self.make_cli(store=self.store, env={"RCLONE_BWLIMIT": "1M"})
        upload = slow.start("copy", "job:1", "--to", self.bucket)
        waiting.until(self.objects, "it has begun", 60, 0.1)
        os.kill(upload.pid, signal.SIGINT)
        self.assertEqual(slow.finish(upload).code, FAILED)
        self.assertEqual(self.objects(), [])

    def test_what_counts_as_there_is_on_the_disk(self):
        """Of a folder of this machine: a machine that dies takes with it what is not."""
        job, _ = self.start_memory_job(_SIZE)
        self.checkpoint(job.pid, "job:1")
        seen = self.path("seen")
        look = self.rclone(
            f'case $last in */) what=folder;; *) what=${{last##*.}};; esac; '
            f'echo "$what $(ls {self.folder}/job | grep -c json)" >> {seen}', "sync")  # fmt: skip
        self.succeed("copy", "job:1", "--to", self.bucket, cli=self.make_cli(store=self.store, env=look))
        with open(seen, encoding="ascii") as lines:
            self.assertEqual(lines.read().splitlines(), ["image 0", "folder 0", "json 1", "folder 1"])
        # What can't be brought there is no copy.
        self.checkpoint(job.pid, "job:2")
        there = self.objects()
        broken = self.rclone("echo 'sync: error syncing: Input/output error' >&2; exit 1", "sync")
        copied = self.make_cli(store=self.store, env=broken).run("copy", "job:2", "--to", self.bucket)
        self.assert_refused(copied, FAILED, "Input/output error")
        self.assertEqual(self.objects(), there)

    def test_what_s3_says(self):
        answers = _S3()
        self.addCleanup(answers.close)
        with open(self.environment["RCLONE_CONFIG"], "w", encoding="ascii") as config:
            config.write(
                f"[s3]\ntype = s3\nprovider = Other\nendpoint = http://127.0.0.1:{answers.port}\n"
                "access_key_id = KEY\nsecret_access_key = SECRET\n"
            )
        job, _ = self.start_memory_job(MIB)
        self.checkpoint(job.pid, "job:1")
        alone = self.rclone("unset AWS_CA_BUNDLE; export RCLONE_LOW_LEVEL_RETRIES=1 RCLONE_RETRIES=1")
        cli = self.make_cli(store=self.store, env=alone)
        for status, code, text in (
            (403, "RequestTimeTooSkewed", "The difference between the request time and the current time"),
            (403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."),
            (404, "NoSuchBucket", "The specified bucket does not exist"),
        ):
            answers.say(status, code, text)
            self.assert_refused(cli.run("copy", "job:1", "--to", "rclone:s3:b/x"), FAILED, code, text)
            pull = cli.run("copy", "job:1", "--from", "rclone:s3:b/x")
            if code == "NoSuchBucket":
                self.assert_refused(pull, NOT_FOUND, "directory not found", "rclone lsf s3:b/x/job", "bucket")
            else:
                self.assert_refused(pull, FAILED, code, text)


class _S3:
    """Answers each request with the same error."""

    def __init__(self):
        outer = self
        self._answer = (500, b"")

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self):
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, body = outer._answer
                self.send_response(status)
                self.send_header("Content-Type", "application/xml")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def say(self, status, code, text):
        body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{text}</Message></Error>'
        self._answer = (status, body.encode())

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class BothWaysTest(RekindleTest):
    def test_from_another_store(self):
        there = self.make_cli(store=self.path("there"))
        job, memory = self.start_memory_job(_SIZE)
        self.checkpoint(job.pid, "job:1", cli=there)
        memory.touch(10)
        digest = memory.digest()
        self.checkpoint(job.pid, "job:2", "--stop", cli=there)
        job.reap()
        first = self.succeed("copy", "job:1", "--from", self.path("there"))
        second = self.succeed("copy", "job:2", "--from", self.path("there"))
        self.assertGreater(first["bytes"], _SIZE)
        self.assertLess(second["bytes"], _SIZE / 10)
        again = self.cli.run("copy", "job:2", "--from", self.path("there"), json_output=False)
        self.assertIn("is here already", again.out)
        self.assert_refused(self.cli.run("copy", "job:3", "--from", self.path("there")), NOT_FOUND, "job:3")
        self.restore("job:2")
        self.assertEqual(memory.digest(), digest)


if __name__ == "__main__":
    unittest.main()
