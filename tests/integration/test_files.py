"""What becomes of files that a job wrote after its image was taken."""

import hashlib
import json
import os
import shutil
import unittest

from harness import jobs, procfs, waiting
from harness.case import RekindleTest
from harness.cli import DONE, FAILED, USAGE

MORE = 20  # steps that the job makes at least, before something is done with it


def numbers(path):
    """The lines of a file, all of them complete."""
    with open(path, encoding="ascii") as file:
        text = file.read()
    lines = text.split("\n")
    assert lines.pop() == "", text[-100:]
    return [int(line) for line in lines]


class FilesTest(RekindleTest):
    def setUp(self):
        super().setUp()
        self.folder = self.path("work")
        os.mkdir(self.folder)

    def file(self, name):
        return os.path.join(self.folder, name)

    def start(self):
        job = self.start_job([jobs.PYTHON, jobs.workload("file_writer.py"), self.folder], "writer")
        self.log = job.log
        self.wait_for_steps(MORE)
        return job

    def last(self):
        try:
            return numbers(self.file("lines"))[-1]
        except (FileNotFoundError, IndexError):
            return 0

    def wait_for_steps(self, step):
        waiting.until(lambda: self.last() >= step, f"step {step}", 60)

    def hold(self, place):
        """The job stands still, with its next checkpoint half written ("writing") or none open ("written")."""
        os.mknod(self.file("hold-" + place))
        waiting.until(lambda: os.path.exists(self.file("held")), f"it stands still: {place}")

    def go_on(self, place):
        os.unlink(self.file("hold-" + place))
        waiting.until(lambda: not os.path.exists(self.file("held")), f"it goes on: {place}")

    def image_then_death(self, *options, place="written", last_place="written"):
        """Takes an image, lets the job go on, and kills it, both at these places. What is restored goes on at once."""
        job = self.start()
        self.hold(place)
        self.checkpoint(job.pid, "x:1", *options)
        self.go_on(place)
        self.wait_for_steps(self.last() + MORE)
        self.hold(last_place)
        os.kill(job.pid, 9)
        job.reap()
        for name in ("held", "hold-" + last_place):
            os.unlink(self.file(name))
        return job

    def restore_and_kill(self, *options):
        """Returns what was done with each file, by name, after the job has made more steps."""
        result = self.cli.run("restore", "x:1", "--detach", *options)
        self.assertEqual(result.code, DONE, str(result))
        pid = result.data["job"]["pid"]
        self.kill_job_at_end(pid)
        self.wait_for_steps(self.last() + MORE)
        jobs.kill_tree(pid)
        first = json.loads(result.out.splitlines()[0])
        return {os.path.basename(file["path"]): file for file in first.get("files", [])}

    def assert_once(self, path):
        found = numbers(path)
        self.assertEqual(found, list(range(1, len(found) + 1)), path)
        self.assertGreaterEqual(len(found), 2 * MORE, path)

    def problems(self):
        with open(self.file("problems"), encoding="ascii") as file:
            return file.read().splitlines()

    def contents(self):
        found = {}
        for name in sorted(os.listdir(self.folder)):
            with open(self.file(name), "rb") as file:
                found[name] = (hashlib.sha256(file.read()).hexdigest(), os.lstat(self.file(name)).st_mtime_ns)
        with open(self.log, "rb") as file:
            found["log"] = hashlib.sha256(file.read()).hexdigest()
        return found


class RollbackTest(FilesTest):
    def test_append(self):
        self.image_then_death()
        written = numbers(self.file("lines"))
        done = self.restore_and_kill("--rollback", "append")
        for path in (self.file("lines"), self.file("metrics"), self.log):
            self.assert_once(path)
        for name in ("lines", "metrics", os.path.basename(self.log)):
            self.assertEqual(done[name]["action"], "truncated", done)
            self.assertEqual(done[name]["why"], "")
        # What was cut off is kept beside it, and is what the job had written since.
        tail = numbers(done["lines"]["tail_copy"])
        self.assertGreaterEqual(len(tail), MORE)
        self.assertEqual(tail, written[-len(tail) :])
        self.assertEqual(done["lines"]["discarded_bytes"], os.path.getsize(done["lines"]["tail_copy"]))
        self.assertIn(".rekindle-tail-", done[os.path.basename(self.log)]["tail_copy"])
        # Files that are rewritten in place are as new as they were, which is said, and which the job notices.
        self.assertEqual(done["state"]["action"], "truncated")
        self.assertEqual(done["table"]["action"], "left")
        for name in ("state", "table"):
            self.assertIn("rewritten in place", done[name]["why"])
        self.assertTrue(self.problems())
        self.assertNotIn("checkpoint", done)
        self.assertNotIn("checkpoint.tmp", done)
        self.assertEqual(done["problems"]["action"], "unchanged")

    def test_all(self):
        self.image_then_death("--file-contents")
        inodes = {name: os.stat(self.file(name)).st_ino for name in ("state", "table")}
        done = self.restore_and_kill("--rollback", "all")
        for path in (self.file("lines"), self.file("metrics"), self.log):
            self.assert_once(path)
        self.assertEqual(self.problems(), [])
        for name, inode in inodes.items():
            self.assertEqual(done[name]["action"], "put_back", done)
            self.assertEqual(os.stat(self.file(name)).st_ino, inode)
        # Again and again from the same image.
        done = self.restore_and_kill("--rollback", "all")
        self.assertEqual(done["state"]["action"], "put_back")
        self.assertEqual(self.problems(), [])
        self.assert_once(self.file("lines"))

    def test_none_is_the_default(self):
        self.image_then_death()
        for options in ((), ("--rollback", "none")):
            self.assertEqual(self.restore_and_kill(*options), {})
        found = numbers(self.file("lines"))
        self.assertLess(len(set(found)), len(found), "lines that were written twice")

    def test_dry_run_changes_nothing(self):
        job = self.image_then_death("--file-contents")
        before = self.contents()
        for mode, action in (("append", "left"), ("all", "put_back")):
            done = {
                os.path.basename(file["path"]): file
                for file in self.succeed("restore", "x:1", "--rollback", mode, "--dry-run")["files"]
            }
            self.assertEqual(done["table"]["action"], action)
            self.assertEqual(done["lines"]["action"], "truncated")
        text = self.cli.run("restore", "x:1", "--dry-run", json_output=False)
        self.assertEqual(text.code, DONE, str(text))
        for word in ("ROLL-BACK", self.file("lines"), "cut off", "rewritten in place"):
            self.assertIn(word, text.out)
        self.assertEqual(self.contents(), before)
        self.assertFalse(procfs.alive(job.pid))
        self.assert_refused(self.cli.run("restore", "x:1", "--dry-run", "--clone"), USAGE, "--clone", "--dry-run")

    def test_dry_run_of_a_job_without_files(self):
        with open("/dev/null", "wb") as null:
            job = self.start_job(["/usr/bin/sleep", "1000"], output=null.fileno())
        self.checkpoint(job.pid, "none:1", "--stop")
        job.reap()
        self.assertEqual(self.succeed("restore", "none:1", "--dry-run"), {"files": []})
        text = self.cli.run("restore", "none:1", "--dry-run", json_output=False)
        self.assertEqual((text.code, text.out), (DONE, "the image knows of no files that the job writes\n"))

    def test_a_job_that_runs_is_left_alone(self):
        job = self.start()
        self.checkpoint(job.pid, "x:1")
        self.wait_for_steps(self.last() + MORE)
        refused = self.cli.run("restore", "x:1", "--detach", "--rollback", "append")
        self.assert_refused(refused, FAILED, str(job.pid), "in use")
        jobs.kill_tree(job.pid)
        self.assert_once(self.file("lines"))
        self.assertEqual([name for name in os.listdir(self.folder) if "tail" in name], [])

    def test_gone_and_short_files(self):
        self.image_then_death("--file-contents")
        for mode in ("append", "all"):
            os.unlink(self.file("table"))
            os.truncate(self.file("state"), 1000)
            done = self.restore_and_kill("--rollback", mode)
            self.assertEqual(done["table"]["action"], "made_again")
            self.assertEqual(done["state"]["action"], "put_back")
            self.assertEqual(os.stat(self.file("table")).st_mode & 0o777, 0o640)
            self.assertEqual(self.problems(), [])

    def test_a_log_that_is_made_again_is_that_of_the_job(self):
        """The one that the restore has opened before is not."""
        self.image_then_death()
        os.unlink(self.log)
        done = self.restore_and_kill("--rollback", "append", "--log", self.log)
        self.assertEqual(done[os.path.basename(self.log)]["action"], "made_again")
        self.assert_once(self.log)

    def test_gone_and_short_files_without_their_content(self):
        ignored = [word for name in ("table", "state") for word in ("--ignore-path", self.file(name))]
        self.image_then_death(*ignored)
        os.unlink(self.file("table"))
        os.truncate(self.file("state"), 1000)
        before = self.contents()
        for mode in ("append", "all"):
            refused = self.cli.run("restore", "x:1", "--detach", "--rollback", mode)
            words = [self.file("table"), "is gone", self.file("state"), "shorter", "does not have its content"]
            self.assert_refused(refused, FAILED, *words)
            self.assertEqual(self.contents(), before)

    def test_ignored_paths(self):
        self.image_then_death("--file-contents", "--ignore-path", self.file("state"))
        done = self.restore_and_kill("--rollback", "all", "--ignore-path", self.file("lines"))
        self.assertEqual(done["lines"]["action"], "ignored")
        self.assertIn("--file-contents", done["state"]["why"])
        self.assertEqual(done["table"]["action"], "put_back")
        found = numbers(self.file("lines"))
        self.assertLess(len(set(found)), len(found))

    def test_inspect_and_objects(self):
        job = self.start()
        self.hold("written")
        self.checkpoint(job.pid, "x:0", "--ignore-path", self.directory)
        self.checkpoint(job.pid, "x:1", "--file-contents")
        files = {os.path.basename(file["path"]): file for file in self.succeed("inspect", "x:0")["written_files"]}
        self.assertEqual(
            {name: file["in_place"] for name, file in files.items()},
            {"lines": False, "metrics": False, "problems": False, "state": True, "table": True, "writer.log": False},
        )
        # An empty one needs no content to be made again.
        self.assertEqual([name for name, file in files.items() if file["has_content"]], ["problems"])
        data = self.succeed("inspect", "x:1", "--objects")
        with_content = [os.path.basename(file["path"]) for file in data["written_files"] if file["has_content"]]
        # Small ones unasked.
        self.assertEqual(with_content, ["lines", "metrics", "problems", "state", "table", "writer.log"])
        objects = [object["name"] for object in data["objects"] if object["name"].startswith("files/")]
        self.assertEqual(len(objects), 5)
        text = self.cli.run("inspect", "x:1", json_output=False).out
        self.assertIn("FILE THAT IT WROTE", text)
        # An image with contents is exported and compared like others.
        self.assertEqual(self.cli.run("diff", "x:0", "x:1").code, DONE)
        self.succeed("export", "x:1", "--criu", self.path("exported"))
        self.assert_store_whole(["x:0", "x:1"])

    def test_bad_usage(self):
        for options in (
            ("restore", "x:1", "--rollback", "some"),
            ("restore", "x:1", "--rollback", "all", "--clone"),
        ):
            self.assertEqual(self.cli.run(*options).code, 2, options)


class InTheMakingTest(FilesTest):
    """An image of the moment in which a file is written that gets its name when it is complete."""

    def test_it_got_its_name_later(self):
        self.image_then_death(place="writing")
        self.assertFalse(os.path.exists(self.file("checkpoint.tmp")))
        refused = self.cli.run("restore", "x:1", "--detach")
        self.assert_refused(refused, FAILED, self.file("checkpoint.tmp"), "is gone", "--rollback append")
        done = self.restore_and_kill("--rollback", "append")
        self.assertEqual(done["checkpoint.tmp"]["action"], "made_again", done)
        self.assert_goes_on()
        # Again and again from the same image.
        done = self.restore_and_kill("--rollback", "append")
        self.assertIn(done["checkpoint.tmp"]["action"], ("made_again", "put_back"), done)
        self.assert_goes_on()

    def test_the_next_one_was_in_the_making_when_it_died(self):
        self.image_then_death(place="writing", last_place="writing")
        with open(self.file("checkpoint.tmp"), encoding="ascii") as file:
            half = file.read()
        self.assertEqual(half, f"{self.last()}\n")
        done = self.restore_and_kill("--rollback", "append")
        # The next one may have got the same inode, which only some file systems tell.
        self.assertIn(done["checkpoint.tmp"]["action"], ("made_again", "put_back"), done)
        with open(done["checkpoint.tmp"]["tail_copy"], encoding="ascii") as file:
            self.assertEqual(file.read(), half)
        self.assert_goes_on()

    def assert_goes_on(self):
        self.assert_once(self.file("lines"))
        with open(self.file("checkpoint"), encoding="ascii") as file:
            first, second = file.read().splitlines()
        self.assertEqual(first, second)
        self.assertIn(int(first), numbers(self.file("lines")))
        self.assertEqual([line for line in self.problems() if line.startswith("checkpoint")], [])


class RollbackByDaemonTest(FilesTest):
    def setUp(self):
        super().setUp()
        self.daemon = self.start_daemon()
        self.cli = self.make_cli(host=self.daemon.host)

    def test_run_and_its_log(self):
        """The output of a job that `rekindle run` started goes on where it was, on the terminal too."""
        started = self.succeed(
            "run", "--detach", "--name", "writer", "--", jobs.PYTHON, jobs.workload("file_writer.py"), self.folder
        )
        pid, self.log = started["job"]["pid"], started["job"]["log"]
        self.kill_job_at_end(pid)
        self.wait_for_steps(MORE)
        self.hold("written")
        self.checkpoint("writer", "x:1")
        self.go_on("written")
        self.wait_for_steps(self.last() + MORE)
        jobs.kill_tree(pid)
        written = numbers(self.log)
        child = self.cli.start("restore", "x:1", "--rollback", "append", json_output=False)
        logs = os.path.dirname(self.log)
        waiting.until(lambda: any(".rekindle-tail-" in name for name in os.listdir(logs)), "a tail", 60)
        self.wait_for_steps(self.last() + MORE)
        jobs.kill_tree(pid)
        result = self.cli.finish(child)
        self.assertEqual(result.code, 128 + 9, str(result))
        self.assert_once(self.log)
        self.assert_once(self.file("lines"))
        shown = [int(line) for line in result.out.splitlines()]
        self.assertEqual(shown, numbers(self.log)[shown[0] - 1 :])
        self.assertLess(shown[0], written[-1])
        self.assertIn("was cut off", result.err)

    def test_after_the_daemon_was_killed(self):
        self.image_then_death("--file-contents")
        self.daemon.kill()
        self.daemon = self.start_daemon()
        self.restore_and_kill("--rollback", "all")
        for path in (self.file("lines"), self.log):
            self.assert_once(path)
        self.assertEqual(self.problems(), [])


class ReadFilesTest(RekindleTest):
    """Files that the job only reads: others may append to them while there is only its image."""

    def follow(self):
        self.read = self.path("read")
        self.append(range(1, 101))
        job = self.start_job(["/usr/bin/tail", "-n", "+1", "-f", self.read], "tail")
        self.wait_until_all_is_read(job)
        self.checkpoint(job.pid, "x:1", "--stop")
        job.reap()
        return job

    def append(self, lines):
        with open(self.read, "a", encoding="ascii") as file:
            file.write("".join(f"{line}\n" for line in lines))

    def wait_until_all_is_read(self, job):
        def all_is_read():
            return os.path.exists(job.log) and os.path.getsize(job.log) == os.path.getsize(self.read)

        waiting.until(all_is_read, "it has read all", 60)

    def test_of_another_process(self):
        """They are there as long as that is, also one that tells of a thread."""
        other = self.start_job([jobs.PYTHON, jobs.workload("ticker.py"), self.path("lines")], "other")
        waiting.until(lambda: procfs.threads(other.pid) >= 2, "threads")
        thread = max(int(name) for name in os.listdir(f"/proc/{other.pid}/task"))
        job = self.start_job(["sh", "-c", f"cd /proc/{other.pid}/task && exec sleep 1000 9<{thread}/stat"], "looks")
        waiting.until(lambda: procfs.command_line(job.pid).startswith("sleep "), "the sleep")
        self.checkpoint(job.pid, "looks:1", "--stop")
        job.reap()
        pid = self.restore("looks:1")
        self.assertEqual(os.readlink(f"/proc/{pid}/cwd"), f"/proc/{other.pid}/task")
        self.assertEqual(procfs.descriptor_targets(pid)[9], f"/proc/{other.pid}/task/{thread}/stat")

    def test_one_that_has_grown(self):
        job = self.follow()
        for last in (200, 300):
            self.append(range(last - 99, last))
            result = self.cli.run("restore", "x:1", "--detach", "--rollback", "append")
            self.assertEqual(result.code, DONE, str(result))
            self.kill_job_at_end(result.data["job"]["pid"])
            self.assertIn(f"{self.read}, which others append to, has grown", str(result))
            self.append([last])  # without one more tail is told of nothing
            self.wait_until_all_is_read(job)
            self.assertEqual(numbers(job.log), list(range(1, last + 1)))
            jobs.kill_tree(result.data["job"]["pid"])

    def test_one_that_was_edited(self):
        self.follow()
        with open(self.read, "r+", encoding="ascii") as file:
            text = file.read()
            file.seek(0)
            file.write("0\n" + text)
        refused = self.cli.run("restore", "x:1", "--detach")
        self.assert_refused(refused, FAILED, f"{self.read}, which it only reads, was edited (294 bytes, it had 292)")
        self.assert_store_whole(["x:1"])

    def test_one_that_was_edited_and_is_as_long(self):
        self.follow()
        with open(self.read, "r+", encoding="ascii") as file:
            file.write("7")
        result = self.cli.run("restore", "x:1", "--detach", "--rollback", "append")
        self.assertEqual(result.code, DONE, str(result))
        self.assertIn(f"{self.read}, which the job only reads, was edited since the image was taken", str(result))
        self.kill_job_at_end(result.data["job"]["pid"])

    def test_a_copy_of_it_is_as_good(self):
        self.follow()
        shutil.copy(self.read, self.read + ".copy")  # at another time
        os.rename(self.read + ".copy", self.read)
        result = self.cli.run("restore", "x:1", "--detach", "--rollback", "append")
        self.assertEqual(result.code, DONE, str(result))
        self.kill_job_at_end(result.data["job"]["pid"])
        self.assertEqual(result.data["warnings"], [])


if __name__ == "__main__":
    unittest.main()
