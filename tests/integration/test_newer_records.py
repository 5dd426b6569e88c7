"""A daemon finds records that it can't use: a newer version's, after a roll-back, or unreadable ones."""

import json
import os
import shutil
import unittest

from harness import jobs, procfs, waiting
from harness.cli import DONE
from harness.clones import CloneTest
from harness.functions import SECONDS, FunctionsTest
from test_supervision import SupervisedTest


class SupervisedRecordTest(SupervisedTest):
    def setUp(self):
        super().setUp()
        self.start(1000000, options=["--every", "300ms", "--restarts", "5"])
        self.wait_for_image()
        self.pid = self.job()["pid"]
        self.daemon.kill()
        self.record = os.path.join(self.store, "supervised", "job.json")
        with open(self.record, encoding="utf-8") as file:
            self.good = file.read()
        # Before the job is ended.
        self.addCleanup(self.put, self.good)

    def put(self, text):
        if os.path.isdir(self.record):
            shutil.rmtree(self.record)
        with open(self.record + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(self.record + ".new", self.record)

    def wait_for_words(self, words):
        waiting.until(lambda: words in self.daemon.log_text(), f"'{words}' in the log", 30, 0.02)

    def assert_refused(self, *command, words):
        result = self.remote.run(*command)
        self.assertNotEqual(result.code, 0, str(result))
        for word in words:
            self.assertIn(word, str(result))

    def assert_name_is_taken(self, *words):
        self.assert_refused("run", "--name", "job", "--detach", "--every", "1h", "--", "sleep", "1", words=words)

    def assert_prune_keeps_its_images(self):
        images = self.references(cli=self.remote)
        self.assertTrue(images)
        pruned = self.succeed("prune", "--all", "--keep-label", "none=such", cli=self.remote)
        self.assertEqual(self.references(cli=self.remote), images)
        for image in pruned["images"]:
            self.assertIn(f"its record {self.record} can't be read", "".join(image["reasons"]))

    def test_of_a_newer_version(self):
        record = json.loads(self.good)
        record["policy"].setdefault("rollback", {})["mode"] = "OF_LATER"
        for words, newer in (("OF_LATER", record),
                             ("it has format 2, this version knows 1", {**json.loads(self.good), "format": 2})):  # fmt: skip
            self.put(json.dumps(newer))
            self.restart_daemon()
            self.wait_for_words(words)
            self.assert_refused("stop", "job", words=["can't be stopped", "use a newer Rekindle"])
            self.assert_refused("attach", "job", words=["use a newer Rekindle"])
            self.assert_refused("wait", "job", words=["use a newer Rekindle"])
            self.assertTrue(procfs.alive(self.pid))
            self.assert_prune_keeps_its_images()
            with open(self.record, encoding="utf-8") as file:
                self.assertEqual(json.load(file), newer)
            self.assertEqual(self.daemon.log_text().count(words), 1, self.daemon.log_text())
            if newer["format"] == 2:
                break
            self.daemon.kill()
        # Nor is its name free when it dies: it waits for the newer version to bring it back.
        jobs.kill_tree(self.pid)
        self.assert_name_is_taken("use a newer Rekindle")
        self.put(self.good)
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")

    def test_that_cant_be_read_now(self):
        os.unlink(self.record)
        os.mkdir(self.record)
        self.restart_daemon()
        self.wait_for_words("supervised job 'job' is taken over later")
        self.assert_refused("stop", "job", words=["stopping job 'job'"])
        self.assertTrue(procfs.alive(self.pid))
        self.assert_prune_keeps_its_images()
        jobs.kill_tree(self.pid)
        self.assert_name_is_taken("reading whether a supervised job has the name 'job'")
        self.put(self.good)
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        self.assertEqual(self.daemon.log_text().count("is taken over later"), 1, self.daemon.log_text())

    def test_that_is_damaged(self):
        self.put("{")
        self.restart_daemon()
        self.wait_for_words("holds no usable record")
        self.assert_prune_keeps_its_images()
        # As one that nobody supervises.
        self.succeed("stop", "job", cli=self.remote)
        self.assertFalse(procfs.alive(self.pid))
        self.assert_refused("stop", "job", words=["holds no usable record"])
        self.assert_name_is_taken("holds no usable record", "remove that file")

    def pid_of(self, name):
        listed = self.succeed("ps", cli=self.remote)["jobs"]
        return next(job["pid"] for job in listed if job["name"] == name)

    def test_of_one_that_was_started_from_another_jobs_image(self):
        """It has no image of its own: what it began with has the labels of the job that it was taken of."""
        self.restart_daemon()
        self.succeed("ckpt", "job", "-t", "mine:1", cli=self.remote)
        self.succeed("stop", "job", "--grace", "0s", cli=self.remote)
        jobs.reap_orphans()  # of the daemon before
        self.addCleanup(self.remote.run, "stop", "other", "--grace", "0s")
        self.succeed("run", "--from", "mine:1", "--name", "other", "--restarts", "5", "--detach", cli=self.remote)
        record = os.path.join(self.store, "supervised", "other.json")
        with open(record, encoding="utf-8") as file:
            good = file.read()
        pid = self.pid_of("other")
        self.daemon.kill()
        with open(record, "w", encoding="utf-8"):
            pass
        self.restart_daemon()
        self.wait_for_words("holds no usable record")
        pruned = self.succeed("prune", "--all", "--keep-label", "none=such", cli=self.remote)
        kept = {image["image"]["reference"]: image["reasons"] for image in pruned["images"] if image["keep"]}
        why = f"supervised job 'other' may go on from it: its record {record} can't be read"
        self.assertEqual(kept, {"mine:1": [why]})
        # Mended, it goes on from there.
        self.daemon.kill()
        with open(record, "w", encoding="utf-8") as file:
            file.write(good)
        jobs.kill_tree(pid)
        self.restart_daemon()

        def restarts():
            listed = self.succeed("ps", "--all", cli=self.remote)["jobs"]
            return [job for job in listed if job["name"] == "other" and job["supervised"]["restarts"] == 1]

        waiting.until(restarts, "a restart", 60, 0.02)
        self.succeed("stop", "other", "--grace", "0s", cli=self.remote)
        # The next one of this name has begun with its command.
        self.succeed("run", "--name", "other", "--restarts", "5", "--detach", "--", "sleep", "1000", cli=self.remote)
        self.kill_job_at_end(self.pid_of("other"))
        self.daemon.kill()
        with open(record, "w", encoding="utf-8"):
            pass
        self.restart_daemon()
        self.succeed("prune", "--all", "--keep-label", "none=such", cli=self.remote)
        self.assertEqual(self.references(cli=self.remote), [])


class FunctionRecordTest(FunctionsTest):
    def setUp(self):
        super().setUp()
        self.deploy("fn")
        self.invoke("fn")
        self.daemon.kill()
        self.record = os.path.join(self.store, "functions", "fn", "function.json")

    def assert_refused(self, words):
        code = self.code("fn")
        for command in (["invoke", "fn"], ["rm", "fn"],
                        ["deploy", "fn", "--replace", "--runtime", "python", "--handler", "app.handler", "--code", code]):  # fmt: skip
            result = self.cli.run("fn", *command)
            self.assertNotEqual(result.code, 0, str(result))
            self.assertIn(words, str(result))

    def test_that_cant_be_read_now(self):
        with open(self.record, encoding="utf-8") as file:
            good = file.read()
        os.unlink(self.record)
        os.mkdir(self.record)
        self.restart_daemon()
        self.assertEqual(self.function("fn")["state"], "unreadable")
        self.assert_refused("can't be read now")
        os.rmdir(self.record)
        with open(self.record + ".new", "w", encoding="utf-8") as file:
            file.write(good)
        os.replace(self.record + ".new", self.record)
        waiting.until(lambda: self.function("fn")["state"] == "ready", "it is read again", SECONDS)
        self.invoke("fn")

    def test_of_a_newer_version(self):
        with open(self.record, "r+", encoding="utf-8") as file:
            newer = json.load(file)
            newer["spec"]["of_later"] = True
            file.seek(0)
            json.dump(newer, file)
            file.truncate()
        self.restart_daemon()
        self.assertEqual(self.function("fn")["state"], "newer")
        self.assert_refused("use a newer Rekindle")
        with open(self.record, encoding="utf-8") as file:
            self.assertEqual(json.load(file), newer)


class GroupRecordTest(CloneTest):
    def test_of_a_newer_version(self):
        record = os.path.join(self.store, "groups", "0123456789abcdef" * 2 + ".json")
        os.makedirs(os.path.dirname(record), mode=0o700)
        newer = '{"of_later": true}'
        with open(record, "w", encoding="utf-8") as file:
            file.write(newer)
        listed = self.cli.run("group", "ls")
        self.assertEqual(listed.code, DONE, str(listed))
        self.assertIn("use a newer Rekindle", str(listed))
        waiting.until(lambda: "its members in doubt" in self.daemon.log_text(), "it is told", SECONDS)
        for told in (str(listed), self.daemon.log_text()):
            self.assertNotIn("remove it", told)
        with open(record, encoding="utf-8") as file:
            self.assertEqual(file.read(), newer)


if __name__ == "__main__":
    unittest.main()
