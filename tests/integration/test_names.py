"""Which image a name means."""

import unittest

from harness import jobs
from harness.case import RekindleTest
from harness.cli import NOT_FOUND


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


if __name__ == "__main__":
    unittest.main()
