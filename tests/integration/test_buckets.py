"""Images go into object stores, by rclone, and jobs go on from there."""

import os
import shutil
import signal
import socket
import subprocess
import unittest

from harness import jobs, waiting
from harness.case import MIB, RekindleTest
from harness.cli import DONE, FAILED, NOT_FOUND

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
        stalled = self.path("stalled")
        # Once of each kind. Whoever looks at it sees an rclone that moves nothing more.
        self.wrap_rclone(
            'for word in "$@"; do last=$word; done\n'
            'case $last in *.image) kind=image;; *.json) kind=json;; *) kind=folder;; esac\n'
            f"mark={stalled}.$1.$kind\n"
            f'if [ -e {stalled} ] && [ ! -e "$mark" ]; then : > "$mark"; kill -STOP $$; fi'
        )
        cli = self.make_cli(store=self.store)
        job, _ = self.start_memory_job(_SIZE)
        self.checkpoint(job.pid, "job:1")
        job.kill_tree()
        with open(stalled, "w", encoding="ascii"):
            pass
        child = cli.start("copy", "job", "--to", self.bucket, "--follow", json_output=False)
        said = []

        def is_there():
            return any(name.endswith(".json") for name in self.objects())

        while not is_there():
            said.append(child.stderr.readline())
            self.assertTrue(said[-1], said)
            # The listing, the image and what is put beside it: each has stalled once, and was tried again.
            if len([line for line in said if "trying again" in line]) == 3:
                waiting.until(is_there, "the copy", 120, 0.2)
        os.kill(child.pid, signal.SIGINT)
        self.assertEqual(cli.finish(child).code, DONE)
        for line in said:
            self.assertIn("has moved nothing for 10s, and was ended", line)
            self.assertIn("RCLONE_TIMEOUT", line)

        there = self.make_cli(store=self.path("there"))
        # The object's own rclone is the first that reads one.
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
