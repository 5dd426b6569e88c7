"""Supervised jobs, and images of jobs, in corners: one image kept, names that others want or that are no text, files that
nobody has asked to roll back.
"""

import os
import signal
import unittest

from harness import jobs, procfs, waiting
from harness.case import RekindleTest
from harness.cli import FAILED
from test_supervision import NOBODY, SupervisedTest, lines_of

_APPENDS = """import mmap, os, sys, time
with open(sys.argv[1], "w+b") as memory:
    memory.truncate(4096)
    area = mmap.mmap(memory.fileno(), 4096)
out = open(sys.argv[2], "ab", buffering=0)
number = 0
while True:
    out.write(b"%d\\n" % number)
    area[:8] = number.to_bytes(8, "little")
    number += 1
    time.sleep(0.01)
"""


# 8 MiB, each page of which is another one at each image.
_REWRITES = """import os, time
memory = bytearray(os.urandom(8 << 20))
while True:
    for at in range(0, len(memory), 4096):
        memory[at:at + 16] = os.urandom(16)
    time.sleep(0.02)
"""


class KeptImagesTest(SupervisedTest):
    def images(self):
        return [image["reference"] for image in self.succeed("ls", cli=self.remote)["images"]]

    def test_of_one_kept_image_it_is_the_newest(self):
        self.start(100000, options=["--every", "200ms", "--restarts", "3", "--keep", "1"])
        for _ in range(4):
            self.wait_for_image(self.state()["checkpoints"])
        numbers = len(lines_of(self.numbers))
        self.wait_for_image(self.state()["checkpoints"] + 1)
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        # What was there before its last image is there still: files are cut back to the image that it goes on from.
        self.assertGreaterEqual(len(lines_of(self.numbers)), numbers)
        self.assertLessEqual(len(self.images()), 2)
        stopped = self.succeed("stop", "job", "--ckpt", cli=self.remote)
        self.assertIn(stopped["image"], self.images())

    def test_kept_images_make_room_for_new_ones(self):
        """Where the quota holds as many as are to be kept, but not one more."""
        self.succeed("quota", "--owner", "root", "--max", "30M", cli=self.remote)
        self.succeed("run", "--name", "job", "--detach", "--every", "300ms", "--restarts", "3", "--keep", "3", "--",
                     jobs.PYTHON, "-c", _REWRITES, cli=self.remote)  # fmt: skip
        waiting.until(lambda: "the quota of uid 0" in self.daemon.log_text(), "one that does not fit", 60, 0.05)
        for _ in range(3):
            self.wait_for_image(self.state()["checkpoints"])

    def test_who_has_room_for_no_newer_image_is_told_which_one_stays(self):
        self.succeed("run", "--name", "job", "--detach", "--every", "300ms", "--restarts", "3", "--keep", "1", "--",
                     jobs.PYTHON, "-c", _REWRITES, cli=self.remote)  # fmt: skip
        self.wait_for_image()
        (owner,) = self.succeed("quota", cli=self.remote)["owners"]
        self.succeed("quota", "--owner", "root", "--max", str(int(owner["used_bytes"]) + 1), cli=self.remote)

        def told():
            said = self.job()["supervised"].get("last_error", "")
            return "the quota of uid 0" in said and "stays until a newer one is whole" in said and said

        said = waiting.until(told, "that it says so", 60, 0.05)
        self.assertTrue(any(f"image of this job, {image}, stays" in said for image in self.images()), said)
        taken = self.state()["checkpoints"]
        self.succeed("quota", "--owner", "root", "--max", "none", cli=self.remote)
        self.wait_for_image(taken)
        waiting.until(lambda: not self.job()["supervised"].get("last_error"), "that all is well", 60, 0.05)

    def test_prune_leaves_what_it_goes_on_from(self):
        self.start(100000, options=["--restarts", "3"])
        self.succeed("ckpt", "job", "-t", "mine:1", cli=self.remote)
        self.succeed("ckpt", "job", "-t", "mine:2", cli=self.remote)
        rules = ("prune", "--all", "--keep-label", "none=such")
        for dry_run in (["--dry-run"], []):
            pruned = self.succeed(*rules, *dry_run, cli=self.remote)
            reasons = {image["image"]["reference"]: image["reasons"] for image in pruned["images"]}
            self.assertEqual(reasons, {"mine:1": [], "mine:2": ["supervised job 'job' goes on from it"]})
        self.assertEqual(self.images(), ["mine:2"])
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        self.succeed("stop", "job", "--grace", "0s", cli=self.remote)
        self.succeed(*rules, cli=self.remote)
        self.assertEqual(self.images(), [])

    def test_a_second_name_is_no_supervisors(self):
        """Of an image that it removes when there are newer ones."""
        self.start(100000, options=["--every", "200ms", "--restarts", "3", "--keep", "1"])
        self.wait_for_image()
        self.succeed("tag", "job", "kept:1", cli=self.remote)
        kept = self.succeed("inspect", "kept:1", cli=self.remote)["image"]
        self.assertEqual([key for key in kept["labels"] if key.startswith("rekindle.supervised")], [])
        self.wait_for_image(self.state()["checkpoints"] + 1)
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")

        def with_its_content():
            images = self.succeed("ls", cli=self.remote)["images"]
            return [image["reference"] for image in images if image["digest"] == kept["digest"]]

        waiting.until(lambda: with_its_content() == ["kept:1"], "that its first name is gone", 60, 0.05)

    def test_an_image_that_would_end_it_is_refused(self):
        self.start(100000, options=["--every", "1h", "--restarts", "3"])
        pid = self.job()["pid"]
        refused = self.remote.run("ckpt", "job", "-t", "mine:1", "--stop")
        self.assert_refused(refused, FAILED, "supervised", "rekindle stop --ckpt job")
        self.assertTrue(procfs.alive(pid))


class NamesTest(SupervisedTest):
    def test_its_name_is_its_own_while_it_waits(self):
        self.succeed("run", "--name", "sleep", "--detach", "--every", "1h", "--restarts", "5", "--backoff", "60s", "--",
                     "sh", "-c", "exit 3", cli=self.remote)  # fmt: skip
        self.addCleanup(self.remote.run, "stop", "sleep")

        def waits():
            listed = self.succeed("ps", "--all", cli=self.remote)["jobs"]
            return any(job["name"] == "sleep" and job["supervised"]["phase"] == "waiting" for job in listed)

        waiting.until(waits, "the job waiting to be brought back", 60, 0.02)
        other = self.succeed("run", "--detach", "--", "sleep", "1000", cli=self.remote)
        other = other.get("job", other)
        self.addCleanup(jobs.kill_tree, other["pid"])
        self.assertEqual(other["name"], "sleep-2")

    def test_others_are_not_told_who_supervises_it(self):
        """A command does, not the daemon."""
        command = self.start(100000, options=["--every", "1h"], detach=False, cli=self.cli)
        self.addCleanup(self.cli.finish, command)
        self.addCleanup(command.terminate)
        self.wait_for(lambda job: job["pid"], "the job")
        run = ("run", "--name", "job", "--detach", "--", "true")
        self.assert_refused(self.remote.run(*run), FAILED, str(command.pid))
        message = self.assert_refused(self.make_cli(host=self.daemon.host, uid=NOBODY).run(*run), FAILED, "'job'")
        self.assertNotIn(str(command.pid), message)

    def test_no_log_is_left_of_one_that_never_began(self):
        logs = self.path("logs")
        sleep = ("--every", "1h", "--detach", "--", "sleep", "1000")
        self.succeed("run", "--name", "taken", *sleep, cli=self.remote)
        self.addCleanup(self.remote.run, "stop", "taken")
        before = os.listdir(logs)
        self.assert_refused(self.remote.run("run", "--name", "taken", *sleep), FAILED, "taken")
        none = self.remote.run("run", "--name", "none", *sleep[:-2], "/no/such/program")
        self.assert_refused(none, FAILED, "/no/such/program")
        self.assertEqual(os.listdir(logs), before)

    def test_an_error_that_quotes_a_name_that_is_no_text(self):
        folder = self.path(os.fsdecode(b"d\xe9"))
        os.mkdir(folder)
        lines = os.path.join(folder, "lines")
        run = self.remote.start("run", "--name", "job", "--restarts", "5", "--", "sh", "-c",
                                'exec 9>>"$1"; while :; do sleep 0.02; done', "sh", lines, json_output=False)  # fmt: skip
        waiting.until(lambda: os.path.exists(lines), "the job runs", 30)
        self.succeed("ckpt", "job", "-t", "mine:1", cli=self.remote)
        os.unlink(lines)
        os.mkdir(lines)
        self.kill_job()
        self.wait_for_end("failed")
        self.assertIn("d?/lines", self.state()["last_error"])
        self.assertEqual(self.remote.finish(run).code, 128 + signal.SIGKILL)

    def test_names_that_are_no_text(self):
        path = os.fsencode(self.path("caf")) + b"\xe9.txt"
        script = b"exec 9>>\"$1\"; i=0; while :; do echo $i >&9; i=$((i+1)); sleep 0.02; done"
        job = self.start_job([b"sh", b"-c", script, b"\xc3", path], "bytes")
        waiting.until(lambda: os.path.exists(path) and os.path.getsize(path) > 20, "lines", 30)
        self.succeed("ckpt", job.pid, "-t", "bytes:1", cli=self.remote)
        self.assertEqual([image["reference"] for image in self.succeed("ls", cli=self.remote)["images"]], ["bytes:1"])
        self.assertIn("caf?.txt", str(self.succeed("inspect", "bytes:1", cli=self.remote)["written_files"]))
        size = os.path.getsize(path)
        waiting.until(lambda: os.path.getsize(path) > size, "more lines", 30)
        job.kill_tree()
        restored = self.succeed("restore", "bytes:1", "--detach", "--rollback", "append", cli=self.remote)
        self.addCleanup(jobs.kill_tree, restored["job"]["pid"])
        self.succeed("ps", cli=self.remote)
        size = os.path.getsize(path)
        waiting.until(lambda: os.path.getsize(path) > size, "lines of the restored job", 30)
        with open(path, "rb") as file:
            lines = file.read().split()
        self.assertEqual(lines, [b"%d" % number for number in range(len(lines))])


# Has a file open that has lost its name, and one that it rewrites in place.
_TOLD = """
import os, sys, time
lost, other, named, numbers = sys.argv[1:]
kept = open(lost, "a")
os.link(lost, other)
os.unlink(lost)
rewritten = open(named, "r+")
number = 0
while True:
    rewritten.seek(0)
    rewritten.write(f"{number:08}")
    rewritten.flush()
    with open(numbers, "a") as file:
        file.write(f"{number}\\n")
    number += 1
    time.sleep(0.02)
"""


class ToldTest(SupervisedTest):
    """What keeps an image from being whole, or files from being put back, is told though nobody has asked for either."""

    def test_who_follows_and_who_looks(self):
        script = self.path("told.py")
        with open(script, "w", encoding="ascii") as file:
            file.write(_TOLD)
        os.mkdir(self.path("elsewhere"))
        named = self.path("named")
        with open(named, "w", encoding="ascii") as file:
            file.write("of the job's")
        self.succeed(
            "run", "--detach", "--name", "job", "--every", "1h", "--", jobs.PYTHON, script,
            self.path("lost"), self.path("elsewhere/lost"), named, self.numbers, cli=self.remote,
        )  # fmt: skip
        told = "has lost that name"
        self.wait_for(lambda job: told in "".join(job["supervised"]["warnings"]), "the image's warning")
        self.assertIn(told, self.remote.run("top", "--once", json_output=False).out)
        follower = self.remote.start("attach", "job")
        for end in (follower.stdout.close, follower.stderr.close, follower.wait, follower.kill):
            self.addCleanup(end)
        self.assertIn("started", follower.stdout.readline())
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        waiting.until(lambda: f"{named} is left as it is" in self.daemon.log_text(), "the file is named")
        while "is left as it is" not in (line := follower.stderr.readline()):
            self.assertNotEqual(line, "", "the command tells of the file")
        self.wait_for_image(1)
        self.assertEqual(self.daemon.log_text().count(told), 1, "each is logged once")


class FilesTest(RekindleTest):
    def test_nothing_is_rolled_back_unasked(self):
        """Also when the image has memory in /dev/shm, which is put back."""
        memory = f"/dev/shm/rekindle-test-{os.getpid()}"
        self.addCleanup(lambda: os.path.exists(memory) and os.unlink(memory))
        written = self.path("written")
        script = self.path("appends.py")
        with open(script, "w", encoding="ascii") as file:
            file.write(_APPENDS)
        job = self.start_job([jobs.PYTHON, script, memory, written], "appends")
        waiting.until(lambda: len(lines_of(written)) > 5, "lines", 30)
        self.checkpoint(job.pid, "appends:1")
        at_image = len(lines_of(written))
        waiting.until(lambda: len(lines_of(written)) > at_image + 20, "more lines", 30)
        job.kill_tree()
        before = os.path.getsize(written)
        pid = self.restore("appends:1")
        self.addCleanup(jobs.kill_tree, pid)
        self.assertGreaterEqual(os.path.getsize(written), before)


if __name__ == "__main__":
    unittest.main()
