"""Which image a name means, and second names."""

import unittest

from harness import jobs
from harness.case import RekindleTest
from harness.cli import FAILED, NOT_FOUND, NOT_PERMITTED, USAGE

NOBODY = 65534


class BareNameTest(RekindleTest):
    def setUp(self):
        super().setUp()
        self.job = self.start_job(["sleep", "1000"], "sleeper")
        for tag in ("1", "2"):
            self.checkpoint(self.job.pid, f"job/a:{tag}")

    def bring_back(self):
        answer = self.succeed("restore", "job/a", "--detach")
        self.kill_job_at_end(answer["job"]["pid"])
        return answer

    def end_first(self):
        jobs.kill_tree(self.job.pid)
        self.job.reap()

    def test_the_newest_where_none_is_the_latest(self):
        self.assertEqual(self.succeed("inspect", "job/a")["image"]["reference"], "job/a:2")
        self.end_first()
        self.assertEqual(self.bring_back()["job"]["image"], "job/a:2")

    def test_only_what_is_named_is_removed(self):
        self.assert_refused(self.cli.run("rm", "job/a"), NOT_FOUND, "job/a:latest", "job/a:2")
        self.assert_refused(self.cli.run("inspect", "job"), NOT_FOUND, "job:latest")
        self.assertEqual(self.references(), ["job/a:1", "job/a:2"])

    def test_an_older_latest_is_told(self):
        self.checkpoint(self.job.pid, "job/a:latest")
        self.end_first()
        answer = self.bring_back()
        self.assertEqual([warning for warning in answer.get("warnings", ()) if "newest" in warning], [])
        self.checkpoint(answer["job"]["pid"], "job/a:3", "--stop")
        jobs.reap_orphans()
        answer = self.bring_back()
        warned = [warning for warning in answer.get("warnings", ()) if "newest" in warning]
        self.assertEqual(len(warned), 1, answer.get("warnings", ()))
        self.assertIn("job/a:3", warned[0])


class SecondNameTest(RekindleTest):
    def tag(self, *arguments, cli=None):
        return self.succeed("tag", *arguments, cli=cli or self.cli)["image"]

    def test_either_can_go(self):
        job, memory = self.start_memory_job(16 << 20)
        memory.touch(4000)
        first = self.checkpoint(job.pid, "job:1", "--label", "run=7", "--label", "kept=no", "--stop")["image"]
        jobs.reap_orphans()
        before = self.succeed("stats")
        tagged = self.tag("job:1", "best:1", "--label", "kept=yes")
        self.assertEqual((tagged["reference"], tagged["digest"]), ("best:1", first["digest"]))
        self.assertEqual((tagged["labels"]["run"], tagged["labels"]["kept"]), ("7", "yes"))
        self.assertEqual((tagged["new_bytes"], tagged["stored_bytes"]), (0, 0))
        grown = int(self.succeed("stats")["pack_bytes"]) - int(before["pack_bytes"])
        self.assertLess(grown, 1 << 20)
        told = self.cli.run("inspect", "best:1", json_output=False)
        self.assertIn("the same image under another name", told.out)
        self.assertEqual(self.succeed("inspect", "job:1")["image"]["labels"]["kept"], "no")
        self.succeed("rm", "job:1")
        self.succeed("gc")
        self.assert_store_whole(["best:1"])
        answer = self.succeed("restore", "best:1", "--detach")
        self.kill_job_at_end(answer["job"]["pid"])
        memory.wait_for_tick()

    def test_what_is_refused(self):
        job = self.start_job(["sleep", "1000"], "sleeper")
        for name in ("job:1", "taken:1"):
            self.checkpoint(job.pid, name)
        taken = self.succeed("inspect", "taken:1")["image"]
        self.assert_refused(self.cli.run("tag", "job:1", "taken:1"), FAILED, "taken:1", "--replace")
        self.assertEqual(self.succeed("inspect", "taken:1")["image"], taken)
        self.assert_refused(self.cli.run("tag", "none:1", "new:1"), NOT_FOUND, "none:1")
        self.assert_refused(self.cli.run("tag", "job:1", "New:1"), USAGE, "New")
        self.assert_refused(self.cli.run("tag", "job:1", "job:1", "--replace"), USAGE, "job:1")
        for label in ("rekindle.group", "rekindle.supervised-asked", "rekindle.job-mark", "rekindle.origin",
                      "rekindle.connection-lock"):  # fmt: skip
            self.assert_refused(self.cli.run("tag", "job:1", "new:1", "--label", label + "=x"), USAGE, label)
        self.assertEqual(self.references(), ["job:1", "taken:1"])
        self.tag("job", "taken:1", "--replace")
        self.assert_store_whole(["job:1", "taken:1"])

    def test_of_another_user(self):
        daemon = self.start_daemon()
        root, nobody = self.make_cli(host=daemon.host), self.make_cli(host=daemon.host, uid=NOBODY)
        job = self.start_job(["sleep", "1000"], "sleeper")
        self.checkpoint(job.pid, "roots:1", cli=root)
        self.assert_refused(nobody.run("tag", "roots:1", "mine:1"), NOT_PERMITTED, "roots:1", "uid 0")
        self.assertEqual(self.tag("roots:1", "second:1", cli=root)["owner_uid"], 0)
        self.assertEqual(self.references(nobody), [])


if __name__ == "__main__":
    unittest.main()
