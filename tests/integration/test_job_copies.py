"""The images of supervised jobs go elsewhere as they come, and whoever looks at a job sees it."""

import json
import os
import signal
import socket
import unittest
import urllib.request

from harness import jobs, procfs, waiting
from harness.case import MIB, RekindleTest
from harness.cli import DONE, FAILED, USAGE

_NOBODY = 65534


class CopiesTest(RekindleTest):
    def setUp(self):
        super().setUp()
        self.environment["RCLONE_CONFIG"] = self.path("rclone.conf")
        self.environment["TMPDIR"] = self.directory
        self.there = self.path("there")
        self.elsewhere = self.make_cli(store=self.there)
        self.begin()

    def begin(self, *options):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.metrics_at = f"127.0.0.1:{free.getsockname()[1]}"
        self.daemon = self.start_daemon("--metrics", self.metrics_at, *options)
        self.remote = self.make_cli(host=self.daemon.host)

    def run_job(self, *options, place=None, name="job", cli=None):
        cli = cli or self.remote
        self.succeed(
            "run", "--detach", "--name", name, "--log", self.path(name + ".log"), "--keep", "2", *options,
            "--copy-to", place or self.there, "--", jobs.program("memory_job"), str(2 * MIB), self.path("status-" + name),
            cli=cli,
        )  # fmt: skip
        pid = self.job(name)["pid"]
        self.kill_job_at_end(pid)
        self.addCleanup(self.kill_daemon)  # first: it would bring the job back
        return pid

    def kill_daemon(self):
        """The last one that was begun."""
        self.daemon.kill()

    def job(self, name="job"):
        return next(job for job in self.succeed("ps", "--all", cli=self.remote)["jobs"] if job["name"] == name)

    def copy(self, name="job"):
        """What is known of the copies of its images."""
        copies = self.job(name)["copies"]
        self.assertLessEqual(len(copies), 1, copies)
        return copies[0] if copies else {"image": "", "trouble": "", "last_error": "", "ended": False}

    def images_there(self, place=None):
        result = self.elsewhere.run("ls", "--from", place or self.there)
        return [image["reference"] for image in result.data["images"]] if result.code == DONE else []

    def remove_image(self, image):
        """Of the store here, while no daemon runs; it may have gone."""
        self.cli.run("rm", image)

    def metric(self, name):
        with urllib.request.urlopen(f"http://{self.metrics_at}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"rekindle_{name}{{")]

    def followers(self):
        return [pid for pid in procfs.descendants(self.daemon.pid) if " --follow" in procfs.command_line(pid)]

    def wait_for_copies(self, *before, place=None):
        """Until there is one that was not there before."""
        return waiting.until(lambda: set(self.images_there(place)) - set(before), "a copy", 120, 0.2)

    def test_they_go_to_a_folder_also_after_the_daemon_was_killed(self):
        pid = self.run_job("--every", "1s")
        self.wait_for_copies()
        waiting.until(lambda: self.copy()["image"], "it is known", 60, 0.2)
        text = self.remote.run("ps", json_output=False).out
        self.assertRegex(text, r"RESTARTS +COPIED ")
        self.assertNotIn("!", text)
        self.assertGreater(self.metric("copy_last_timestamp_seconds")[0], 1e9)
        self.assertEqual(self.metric("copy_troubled"), [0])
        waiting.until(lambda: self.job()["supervised"]["checkpoints"] >= 6, "images come and go", 60, 0.2)
        # With the newest that is sound, and the next that will be.
        most = 2 + 2
        waiting.until(lambda: 2 <= len(self.images_there()) <= most, "as many copies are kept", 60, 0.2)

        (follower,) = self.followers()
        # Also those are removed there whose images went while nobody copied.
        self.daemon.kill()
        waiting.until(lambda: not procfs.alive(follower), "the command ends with the daemon")
        before = self.images_there()
        for image in before:
            self.remove_image(image)
        self.begin()
        self.wait_for_copies(*before)
        waiting.until(
            lambda: 2 <= len(self.images_there()) <= most and not set(before) & set(self.images_there()),
            "those of before make room", 60, 0.2,
        )  # fmt: skip

        last = self.succeed("stop", "job", "--checkpoint", cli=self.remote)["image"]
        waiting.until(lambda: last in self.images_there(), "the last one too", 60, 0.2)
        waiting.until(lambda: not self.followers(), "then nobody copies any more", 60, 0.2)
        waiting.until(lambda: self.copy()["ended"], "which is known", 60, 0.2)
        self.daemon.stop()
        jobs.kill_tree(pid)
        taken = self.succeed("copy", last, "--from", self.there, cli=self.make_cli(store=self.path("new")))
        self.assertEqual(taken["image"]["reference"], last)
        self.assertEqual(self.restore(last, cli=self.make_cli(store=self.path("new"))), pid)

    def test_the_last_image_of_a_daemon_that_ends_is_there(self):
        self.run_job("--every", "1h")
        self.wait_for_copies()
        before = self.images_there()
        self.daemon.stop()
        (last,) = set(self.images_there()) - set(before)
        self.assertEqual(self.succeed("ls")["images"][0]["reference"], last)

    def test_trouble_is_told_and_ends(self):
        bucket = self.path("bucket")
        os.mkdir(bucket)
        self.run_job("--every", "1s", place="rclone:" + bucket)
        waiting.until(lambda: self.copy()["image"], "a copy", 120, 0.2)
        os.rename(bucket, bucket + "-away")
        waiting.until(lambda: self.copy()["trouble"], "it is told", 60, 0.2)
        copy = self.copy()
        self.assertIn("is not there", copy["last_error"])
        self.assertTrue(copy["image"], "the last one that is safe stays known")
        self.assertGreater(int(copy["behind_since_unix_ns"]), 0)
        text = self.remote.run("ps", json_output=False).out
        self.assertIn(" !", text)
        self.assertIn(f"images of job are not copied to rclone:{bucket}", text)
        self.assertIn(f"images of job are not copied to rclone:{bucket}", self.remote.run("top", "--once", json_output=False).out)
        self.assertEqual(self.metric("copy_troubled"), [1])
        (check,) = [check for check in self.succeed("doctor", cli=self.remote)["checks"] if check["name"] == "copies"]
        self.assertEqual(check["result"], "warning", check)
        # The job has not been held up by it.
        taken = self.job()["supervised"]["checkpoints"]
        waiting.until(lambda: self.job()["supervised"]["checkpoints"] > taken + 1, "images are taken", 60, 0.2)
        self.assertEqual(self.job()["supervised"]["last_error"], "")
        os.rename(bucket + "-away", bucket)
        waiting.until(lambda: not self.copy()["trouble"], "it has ended", 120, 0.2)

    def test_a_place_that_cant_be_written_to_is_refused_at_once(self):
        gone = self.path("gone")
        full = self.path("full")
        os.mkdir(full)
        with open(os.path.join(full, "file"), "w", encoding="ascii"):
            pass
        for place, *words in (
            ("rclone:" + gone, gone, "is not there", "mkdir"),
            ("rclone:nowhere:x", "nowhere", "--copy-to"),
            (full, full, "no job was started"),
            ("127.0.0.1:9", "127.0.0.1:9"),
        ):
            refused = self.remote.run("run", "--detach", "--every", "1s", "--copy-to", place, "--", "sleep", "1000")
            self.assert_refused(refused, FAILED, *words)
        secret = self.remote.run(
            "run", "--detach", "--every", "1s", "--copy-to", "rclone::s3,secret_access_key=x:b", "--", "sleep", "1000"
        )
        self.assert_refused(secret, USAGE, "rclone config")
        alone = self.remote.run("run", "--detach", "--copy-to", self.there, "--", "true")
        self.assert_refused(alone, USAGE, "--copy-to", "--every")
        self.assertEqual(self.succeed("ps", "--all", cli=self.remote)["jobs"], [])
        self.assertEqual([name for name in os.listdir(self.path("logs")) if name != "functions"], [])
        without = self.cli.run("run", "--every", "1s", "--copy-to", "rclone:" + gone, "--", "true")
        self.assert_refused(without, FAILED, gone, "is not there", "mkdir")

    def test_it_is_done_with_the_rights_of_the_user(self):
        of_root = self.path("of-root")
        os.mkdir(of_root, 0o755)
        user = self.make_cli(host=self.daemon.host, uid=_NOBODY)
        words = ("run", "--detach", "--restarts", "1", "--copy-to")
        refused = user.run(*words, "rclone:" + of_root, "--", "sleep", "1000")
        self.assert_refused(refused, FAILED, "permission denied", f"uid {_NOBODY}")
        self.assertEqual(os.listdir(of_root), [])
        self.assertEqual(self.succeed("ps", "--all", cli=self.remote)["jobs"], [])
        # His own remotes are known.
        own = self.path("own")
        os.mkdir(own, 0o700)
        os.chown(own, _NOBODY, _NOBODY)
        config = {"RCLONE_CONFIG_MINE_TYPE": "alias", "RCLONE_CONFIG_MINE_REMOTE": own}
        user = self.make_cli(host=self.daemon.host, uid=_NOBODY, env=config)
        log = os.path.join(own, "log")
        self.succeed(*words, "rclone:mine:images", "--name", "job", "--log", log, "--", "sleep", "1000", cli=user)
        self.kill_job_at_end(self.job()["pid"])
        self.addCleanup(self.daemon.kill)
        self.assertEqual(os.stat(os.path.join(own, "images", "job")).st_uid, _NOBODY, "where it was tried")
        (pid,) = waiting.until(self.followers, "somebody copies", 60, 0.2)
        self.assertEqual(os.stat(f"/proc/{pid}").st_uid, _NOBODY)
        copies = waiting.until(lambda: self.succeed("ps", cli=user)["jobs"][0]["copies"], "he sees it", 60, 0.2)
        self.assertEqual((copies[0]["owner_uid"], copies[0]["last_error"]), (_NOBODY, ""))
        other = self.make_cli(host=self.daemon.host, uid=_NOBODY - 1)
        (check,) = [check for check in self.succeed("doctor", cli=other)["checks"] if check["name"] == "copies"]
        self.assertIn("no images are copied", check["detail"], "it is not for others")

    def test_inspect_says_where_copies_are(self):
        self.run_job("--every", "1h")
        (image,) = self.wait_for_copies()

        def places(of):
            return self.succeed("inspect", of, cli=self.remote)["copied_to"]

        waiting.until(lambda: places(image) == [self.there], "it is known", 60, 0.2)
        text = self.remote.run("inspect", image, json_output=False).out
        self.assertRegex(text, f"copied to +{self.there}\n")
        self.succeed("ckpt", "job", "-t", "other:1", cli=self.remote)
        self.assertEqual(places("other:1"), [])

    def test_who_follows_the_job_is_told(self):
        bucket = self.path("bucket")
        os.mkdir(bucket)
        self.run_job("--every", "1s", place="rclone:" + bucket)
        follower = self.remote.start("attach", "job")
        self.addCleanup(follower.kill)
        troubles = (told["trouble"] for told in map(json.loads, follower.stdout) if "trouble" in told)
        waiting.until(lambda: self.copy()["image"], "a copy", 120, 0.2)
        os.rename(bucket, bucket + "-away")
        self.assertIn(f"images of job are not copied to rclone:{bucket}", next(troubles))
        self.assertIn(f"images of job are not copied to rclone:{bucket}", self.told_at_once())
        os.rename(bucket + "-away", bucket)
        self.assertEqual(next(troubles), "")
        self.assertEqual(self.copy()["trouble"], "")
        self.succeed("stop", "job", cli=self.remote)
        self.assertEqual(list(troubles), [], "each change once")
        told = self.remote.finish(follower).err
        self.assertEqual(told.count("are not copied to"), 1, told)
        self.assertEqual(told.count(f"images of the job are copied to rclone:{bucket} again"), 1, told)

    def told_at_once(self):
        """Of the copies, to somebody who begins to follow the job."""
        child = self.remote.start("attach", "job")
        self.addCleanup(child.kill)
        trouble = next(told["trouble"] for told in map(json.loads, child.stdout) if "trouble" in told)
        os.kill(child.pid, signal.SIGHUP)
        self.remote.finish(child)
        return trouble

    def test_a_command_that_is_killed_is_started_again(self):
        self.run_job("--every", "1s")
        self.wait_for_copies()
        (follower,) = self.followers()
        os.kill(follower, signal.SIGKILL)
        waiting.until(lambda: set(self.followers()) - {follower}, "another one", 60, 0.1)
        self.wait_for_copies(*self.images_there())
        waiting.until(lambda: not self.copy()["trouble"], "all is well again", 60, 0.2)

    def test_a_job_that_goes_on_from_an_image(self):
        pid = self.run_job("--every", "1s", name="job", place=self.there)
        self.wait_for_copies()
        last = self.succeed("stop", "job", "--checkpoint", cli=self.remote)["image"]
        waiting.until(lambda: not procfs.alive(pid), "it has ended")
        self.succeed("run", "--detach", "--from", last, "--every", "1s", "--copy-to", "rclone:" + self.directory, cli=self.remote)
        self.kill_job_at_end(self.job()["pid"])
        self.addCleanup(self.kill_daemon)  # before that: it would bring the job back
        waiting.until(lambda: [c for c in self.job()["copies"] if c["place"].startswith("rclone:") and c["image"]], "a copy", 120, 0.2)


class WithoutDaemonTest(RekindleTest):
    """The command that supervises a job copies its images itself."""

    def start(self, place, *options):
        child = self.cli.start(
            "run", "--name", "job", "--log", self.path("log"), "--every", "1s", "--keep", "2", "--copy-to", place,
            *options, "--", jobs.program("memory_job"), str(2 * MIB), self.path("status"),
        )  # fmt: skip
        self.addCleanup(child.kill)
        started = json.loads(child.stdout.readline())
        self.kill_job_at_end(started["job"]["pid"])
        return child, started["job"]["pid"]

    def images_in(self, store):
        result = self.make_cli(store=store).run("ls")
        return [image["reference"] for image in result.data["images"]] if result.code == DONE else []

    def followers(self, child):
        return [pid for pid in procfs.descendants(child.pid) if " --follow" in procfs.command_line(pid)]

    def test_they_are_copied_up_to_the_last_one(self):
        there = self.path("there")
        child, _ = self.start(there)
        waiting.until(lambda: self.images_in(there), "a copy", 120, 0.2)
        self.assertTrue(self.succeed("ps")["jobs"][0]["copies"], "others see it")

        def taken():
            return self.succeed("ps")["jobs"][0]["supervised"]["checkpoints"]

        waiting.until(lambda: taken() > 4, "images come and go", 60, 0.2)
        os.kill(child.pid, signal.SIGTERM)
        result = self.cli.finish(child)
        self.assertEqual(result.code, 128 + signal.SIGTERM, result)
        self.assertIn(self.images_in(self.store)[0], self.images_in(there), "the command has waited for it")
        # An older one may have been about to go. Whoever copies next knows that it is superfluous.
        follower = self.cli.start("copy", "job", "--to", there, "--follow", "--keep", "2", json_output=False)
        waiting.until(lambda: len(self.images_in(there)) <= 2, "no more are kept", 60, 0.2)
        follower.send_signal(signal.SIGTERM)
        self.cli.finish(follower)

    def test_nobody_waits_for_a_place_that_is_gone(self):
        bucket = self.path("bucket")
        os.mkdir(bucket)
        child, pid = self.start("rclone:" + bucket)
        waiting.until(lambda: any(files for _, _, files in os.walk(bucket)), "a copy", 120, 0.2)
        os.rename(bucket, bucket + "-away")
        troubles = (told["trouble"] for told in map(json.loads, child.stdout) if "trouble" in told)
        self.assertIn("are not copied to", next(troubles))
        os.kill(child.pid, signal.SIGINT)
        result = self.cli.finish(child)
        self.assertFalse(procfs.alive(pid))
        self.assertIn("job ('rekindle copy job --to", result.err)

    def test_a_daemon_goes_on_when_the_command_is_killed(self):
        there = self.path("there")
        child, _ = self.start(there)
        waiting.until(lambda: self.images_in(there), "a copy", 120, 0.2)
        (follower,) = self.followers(child)
        before = self.images_in(there)
        child.kill()
        self.cli.finish(child)
        waiting.until(lambda: not procfs.alive(follower), "the follower ends with it")
        daemon = self.start_daemon()
        self.addCleanup(daemon.kill)
        waiting.until(lambda: set(self.images_in(there)) - set(before), "newer ones", 120, 0.2)


class TraceTest(RekindleTest):
    def test_of_whoever_follows(self):
        daemon = self.start_daemon()
        cli = self.make_cli(host=daemon.host)
        job = self.start_job([jobs.program("memory_job"), str(MIB), self.path("status")])
        self.checkpoint(job.pid, "train:1", cli=cli)
        there = self.path("there")
        child = cli.start("copy", "train", "--to", there, "--follow", json_output=False)

        def copies():
            text = self.succeed("doctor", cli=cli)["checks"]
            return next(check["detail"] for check in text if check["name"] == "copies")

        waiting.until(lambda: "1 name" in copies(), "it is known", 60, 0.2)
        os.kill(child.pid, signal.SIGINT)
        self.assertEqual(cli.finish(child).code, DONE)
        self.assertIn("no images are copied", copies())
        # Without a daemon the same is told to the store.
        child = self.cli.start("copy", "train", "--to", there, "--follow", json_output=False)
        waiting.until(lambda: "1 name" in copies(), "it is known again", 60, 0.2)
        os.kill(child.pid, signal.SIGINT)
        self.assertEqual(self.cli.finish(child).code, DONE)
        self.assertIn("no images are copied", copies())

    def test_a_place_is_tried(self):
        there = self.path("there")
        self.succeed("copy", "train", "--to", there, "--check")
        bucket = self.path("bucket")
        self.assert_refused(self.cli.run("copy", "train", "--to", "rclone:" + bucket, "--check"), FAILED, bucket, "not there")
        os.mkdir(bucket)
        self.succeed("copy", "train", "--to", "rclone:" + bucket, "--check")
        self.assertEqual([files for _, _, files in os.walk(bucket) if files], [])


if __name__ == "__main__":
    unittest.main()
