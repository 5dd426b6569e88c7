"""The file that a job's output goes to: another job's as well, on a full disk, moved or removed."""

import os
import unittest

from harness import jobs, waiting
from harness.case import RekindleTest, shell
from harness.cli import DONE, FAILED
from test_supervision import SupervisedTest, lines_of

_TICKS = "import time\nwhile True:\n    print('tick', flush=True)\n    time.sleep(0.02)\n"
# Until there is no room.
_FILLS = "while True:\n    print('x' * 4095, flush=True)\n"


class SharedLogTest(SupervisedTest):
    def setUp(self):
        super().setUp()
        self.log = self.path("shared.log")

    def run_beside(self, *options, log=None, cli=None):
        command = ("run", "--detach", "--log", log or self.log, *options, "--", jobs.PYTHON, "-c", _TICKS)
        result = (cli or self.remote).run(*command)
        if result.code == DONE:
            self.addCleanup(jobs.kill_tree, result.data["job"]["pid"])
        return result

    def test_a_supervised_job_has_it_alone(self):
        self.start(100000, options=["--every", "1h", "--restarts", "3", "--log", self.log])
        link = self.path("link")
        os.link(self.log, link)
        for log in (self.log, link):
            for options in (("--name", "other", "--every", "1h"), ("--name", "other")):
                self.assert_refused(self.run_beside(*options, log=log), FAILED, log, "job 'job'", "--log")
        # Also of one that waits to be brought back, whoever asks.
        self.daemon.kill()
        jobs.kill_tree(self.job_pid_of_record())
        self.assert_refused(self.run_beside("--name", "other", cli=self.cli), FAILED, self.log, "job 'job'")
        self.assertEqual(self.run_beside("--name", "other", log=self.path("another"), cli=self.cli).code, DONE)

    def test_one_of_those_that_start_at_once_has_it(self):
        names = [f"job{number}" for number in range(4)]
        command = ("run", "--detach", "--log", self.log, "--every", "1h", "--name")
        calls = [self.remote.start(*command, name, "--", jobs.PYTHON, "-c", _TICKS) for name in names]
        results = [self.remote.finish(call) for call in calls]
        running = [name for name, result in zip(names, results) if result.code == DONE]
        for name in running:
            self.succeed("stop", name, "--grace", "1s", cli=self.remote)
        self.assertEqual(len(running), 1, [str(result) for result in results])

    def job_pid_of_record(self):
        return next(job["pid"] for job in self.succeed("ps", "--all")["jobs"] if job["name"] == "job")

    def test_others_are_warned(self):
        self.assertNotIn(self.log, " ".join(self.run_beside("--name", "one").data["warnings"]))
        warned = self.run_beside("--name", "two")
        self.assertEqual(warned.code, DONE, str(warned))
        self.assertIn("job 'one'", " ".join(warned.data["warnings"]))
        refused = self.run_beside("--name", "other", "--every", "1h")
        self.assert_refused(refused, FAILED, self.log, "--log")

    def test_what_others_wrote_is_said_to_be_cut_off(self):
        self.start(100000, options=["--every", "300ms", "--restarts", "3", "--log", self.log])
        other = self.start_job([jobs.PYTHON, "-c", _TICKS], "shared")
        self.wait_for_image(self.state()["checkpoints"])
        before = os.path.getsize(self.log)
        waiting.until(lambda: os.path.getsize(self.log) > before + 200, "more output")
        self.kill_job()
        warned = self.wait_for(
            lambda job: [text for text in job["supervised"]["warnings"] if self.log in text], "a warning"
        )
        self.assertIn(f"process {other.pid} (python3)", warned[0])
        self.assertIn(".rekindle-tail-", warned[0])


class FullLogTest(SupervisedTest):
    def setUp(self):
        super().setUp()
        folder = self.path("disk")
        os.mkdir(folder)
        shell("mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder)
        self.addCleanup(shell, "umount", "--lazy", folder)
        self.log, self.ballast = os.path.join(folder, "log"), os.path.join(folder, "ballast")

    def test_there_is_no_room_from_the_start(self):
        with open(self.ballast, "wb", buffering=0) as file, self.assertRaises(OSError):
            while file.write(bytes(4096)):
                pass
        for options in ((), ("--every", "1h", "--name", "job")):
            refused = self.remote.run("run", "--log", self.log, *options, "--", "true")
            self.assert_refused(refused, FAILED, self.log, "is full", "--log")
            self.assertFalse(os.path.exists(self.log))

    def test_it_fills_up(self):
        result = self.cli.run("run", "--log", self.log, "--", jobs.PYTHON, "-c", _FILLS, json_output=False)
        self.assertNotEqual(result.code, DONE, str(result))
        self.assertRegex(result.err, f"{self.log} is full.*--log")

    def test_a_supervised_job_that_ends_of_it(self):
        command = ("run", "--name", "job", "--log", self.log, "--every", "1h", "--restarts", "0", "--")
        result = self.remote.run(*command, jobs.PYTHON, "-c", _FILLS, json_output=False)
        self.assertNotEqual(result.code, DONE, str(result))
        state = self.state()
        self.assertRegex(state["report"], f"exit status.*{self.log} is full")
        self.assertTrue([text for text in state["warnings"] if "is full" in text], state)


class MovedLogTest(RekindleTest):
    def setUp(self):
        super().setUp()
        self.log = self.path("log")
        self.succeed("run", "--detach", "--name", "ticks", "--log", self.log, "--", jobs.PYTHON, "-c", _TICKS)
        waiting.until(lambda: lines_of(self.log), "output")

    def restored(self):
        self.succeed("ckpt", "ticks", "-t", "ticks:1", "--stop")
        jobs.reap_orphans()
        result = self.cli.run("restore", "ticks:1", "--detach")
        self.assertEqual(result.code, DONE, str(result))
        self.addCleanup(jobs.kill_tree, result.data["job"]["pid"])
        return result

    def test_moved(self):
        moved = self.log + ".1"
        os.rename(self.log, moved)
        with open(self.log, "w", encoding="ascii"):  # as whoever rotates logs leaves one
            pass
        self.assertEqual(self.restored().data["job"]["log"], moved)
        self.assertIn("tick", self.cli.run("logs", "ticks", json_output=False).out)

    def test_removed(self):
        os.unlink(self.log)
        result = self.restored()
        self.assertEqual(result.data["job"].get("log", ""), "")
        self.assertIn("no name any more", " ".join(result.data["warnings"]))
        self.assert_refused(self.cli.run("logs", "ticks", json_output=False), FAILED, self.log, "was removed", "--log")


if __name__ == "__main__":
    unittest.main()
