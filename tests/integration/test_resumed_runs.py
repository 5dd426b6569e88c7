"""One command for a job's first start and all later ones (`run --resume`), which ends it with a last image when
whoever runs it says so (`--stop-on`): what schedulers other than Slurm, units and scripts need.
"""

import fcntl
import json
import os
import re
import select
import signal
import unittest

from harness import jobs, procfs, waiting
from harness.case import RekindleTest
from harness.cli import DONE, FAILED, NO_STORE, USAGE
from test_supervision import SupervisedTest, lines_of

EVERY = ("--every", "300ms", "--restarts", "3")


class ResumedTest(SupervisedTest):
    """The base."""

    def start_again(self, *options, count=100000):
        """The same command each time, in the foreground."""
        command = self.start(count, f"until={self.may_end}", options=[*EVERY, "--resume", *options], detach=False)
        waiting.until(lambda: select.select([command.stdout], [], [], 0)[0], "some output", 60)
        return command

    def wait_for_numbers(self, more=10):
        at = len(lines_of(self.numbers))
        waiting.until(lambda: len(lines_of(self.numbers)) > at + more, "more numbers")

    def assert_each_number_once(self):
        numbers = lines_of(self.numbers)
        self.assertEqual(numbers, [str(number) for number in range(len(numbers))])


class ResumeTest(ResumedTest):
    def test_the_same_command_begins_and_goes_on(self):
        log = ("--log", self.path("log"))
        command = self.start_again(*log)
        self.wait_for_image()
        self.wait_for_numbers()
        pid = self.job()["pid"]
        command.send_signal(signal.SIGKILL)
        self.remote.finish(command)
        self.succeed("stop", "job", "--grace", "0s", cli=self.remote)
        written = len(lines_of(self.numbers))
        command = self.start_again(*log)
        self.assertEqual(self.job()["pid"], pid)
        waiting.until(lambda: len(lines_of(self.numbers)) > written + 10, "it has come further")
        self.succeed("stop", "job", cli=self.remote)
        result = self.remote.finish(command)
        self.assertIn("the job goes on from job:", result.err)
        self.assertNotIn("with the command that it has", result.err)
        self.assert_each_number_once()
        shown = lines_of(self.path("log"))
        self.assertEqual(shown, [str(number) for number in range(len(shown))])

    def test_another_command_changes_nothing_which_is_told(self):
        first = self.start_again()
        self.wait_for_image()
        second = self.start_again(count=100001)
        self.succeed("stop", "job", cli=self.remote)
        for command in (first, second):
            result = self.remote.finish(command)
        self.assertIn(f"goes on with the command that it has, {jobs.PYTHON} ", result.err)
        third = self.start_again(count=100002)
        self.wait_for_numbers()
        self.succeed("stop", "job", cli=self.remote)
        self.assertIn(f"goes on with the command that it has, {jobs.PYTHON} ", self.remote.finish(third).err)
        self.assert_each_number_once()

    def test_without_an_image_it_begins(self):
        command = self.start_again(count=3)
        self.let_end()
        result = self.remote.finish(command)
        self.assertEqual(result.code, DONE, str(result))
        self.assertIn("there is no image of 'job' to go on from", result.err)
        self.assert_counted(3)

    def test_an_image_that_can_not_be_restored_is_passed_over(self):
        self.start(100000, options=["--restarts", "3"])
        for image, options in (("job:1", ()), ("job:2", ("--ignore-path", self.numbers)),
                               ("job:3", ("--ignore-path", self.numbers))):  # fmt: skip
            self.wait_for_numbers()
            self.succeed("ckpt", "job", "-t", image, *options, cli=self.remote)
            if image == "job:1":
                size = os.path.getsize(self.numbers)  # at least what it was then, and less than at the next one
        self.succeed("stop", "job", "--grace", "0s", cli=self.remote)
        os.truncate(self.numbers, size)  # too short for the newer images, which have no content of it
        exact = self.remote.run("run", "--from", "job:3", *EVERY, "--detach")
        self.assertEqual(exact.code, FAILED, "whoever names an image means that one: " + str(exact))
        command = self.start_again()
        self.wait_for_numbers()
        self.succeed("stop", "job", cli=self.remote)
        result = self.remote.finish(command)
        for words in ("could not be brought back from job:3", "could not be brought back from job:2", self.numbers,
                      "it goes on from job:1"):  # fmt: skip
            self.assertIn(words, result.err)
        self.assert_each_number_once()

    def test_where_none_can_be_restored_each_is_told(self):
        self.start(100000, options=["--restarts", "3"])
        for image in ("job:1", "job:2"):
            self.wait_for_numbers()
            self.succeed("ckpt", "job", "-t", image, "--ignore-path", self.numbers, cli=self.remote)
        self.succeed("stop", "job", "--grace", "0s", cli=self.remote)
        os.truncate(self.numbers, 1)
        result = self.remote.run("run", "--name", "job", *EVERY, "--resume", "--", "true")
        self.assertEqual(result.code, FAILED, str(result))
        for words in ("any of its images", "job:2: ", "job:1: "):
            self.assertIn(words, result.message)
        self.assertEqual(os.path.getsize(self.numbers), 1)

    def test_images_are_called_as_one_job_calls_them(self):
        self.start(100000, options=[*EVERY, "--image-name", "images"])
        second = ("run", "--name", "second", *EVERY, "--image-name", "images", "--resume", "--detach", "--", "true")
        refused = self.remote.run(*second)
        self.assertEqual(refused.code, FAILED, str(refused))
        self.assertIn("the images of job 'job', which has not ended, are called images already", refused.message)
        self.wait_for_image()
        self.succeed("stop", "job", cli=self.remote)
        result = self.remote.run(*second)
        self.assertEqual(result.code, FAILED, str(result))
        for words in ("is of job 'job'", "the job is not begun anew", "--from images:"):
            self.assertIn(words, result.message)
        # Who gives one of them another name means it.
        self.succeed("tag", self.references(cli=self.remote)[-1], "images:kept", cli=self.remote)
        result = self.remote.run(*second)
        self.addCleanup(self.remote.run, "stop", "second", "--grace", "1s")
        self.assertEqual(result.code, DONE, str(result))
        self.assertIn("the job goes on from images:kept", str(result))

    def test_one_that_runs_is_followed(self):
        first = self.start_again()
        pid = self.job()["pid"]
        second = self.start_again()
        detached = self.remote.run("run", "--name", "job", *EVERY, "--resume", "--detach", "--", "false")
        self.assertEqual(detached.code, DONE, str(detached))
        self.assertEqual(self.job()["pid"], pid)
        self.succeed("stop", "job", cli=self.remote)
        for command in (first, second):
            self.assertEqual(self.remote.finish(command).code, 128 + signal.SIGTERM)
        self.assert_each_number_once()

    def test_who_begins_anew_is_told_of_the_images(self):
        self.start(100000, options=EVERY)
        self.wait_for_image()
        self.succeed("stop", "job", cli=self.remote)
        os.unlink(self.numbers)
        newest = self.references(cli=self.remote)[-1]
        (warning,) = self.start(3, options=EVERY)["warnings"]
        self.assertIn("there are images of an earlier job of this name", warning)
        self.assertIn("--from " + newest, warning)
        self.wait_for_end()
        self.assert_counted(3)

    def test_who_has_it_killed_without_images_is_told(self):
        (warning,) = self.start(3, options=["--hang", "1h"])["warnings"]
        self.assertIn("no images of it are taken by interval", warning)
        self.wait_for_end()

    def test_the_next_daemon_knows_what_it_has_come_from(self):
        for _ in range(2):
            command = self.start_again("--keep", "9")
            self.wait_for_image()
            self.succeed("stop", "job", "--checkpoint", cli=self.remote)
            self.remote.finish(command)
        earlier = set(self.references(cli=self.remote))
        command = self.start_again("--keep", "1")
        self.daemon.kill()
        self.restart_daemon()
        waiting.until(lambda: len(earlier & set(self.references(cli=self.remote))) <= 1, "those of before go", 60)
        self.succeed("stop", "job", cli=self.remote)
        self.remote.finish(command)
        self.assert_each_number_once()

    def test_bad_usage(self):
        for words, wrong in (
            (["--resume"], "--resume is for jobs that are supervised"),
            (["--resume", "--every", "1h"], "--resume goes by --name"),
            (["--resume", "--name", "job", "--every", "1h", "--from", "job:1"], "give one of the two"),
            (["--stop-on", "KILL", "--every", "1h"], "'KILL' is none of TERM"),
            (["--stop-on", "TERM", "--every", "1h", "--detach"], "rekindle stop --checkpoint"),
        ):
            with self.subTest(words=words):
                result = self.remote.run("run", *words, "--", "true")
                self.assertEqual(result.code, USAGE, str(result))
                self.assertIn(wrong, str(result))


class StopOnTest(ResumedTest):
    def test_a_job_that_is_preempted_each_time(self):
        for signum in (signal.SIGUSR1, signal.SIGTERM):
            command = self.start_again("--stop-on", "USR1,SIGTERM")
            self.wait_for_numbers()
            pid = self.job()["pid"]
            command.send_signal(signum)
            result = self.remote.finish(command)
            self.assertEqual(result.code, 128 + signum, str(result))
            self.assertFalse(procfs.alive(pid))
            self.assertIn("its last image is " + self.references(cli=self.remote)[-1], result.err)
        command = self.start_again("--stop-on", "TERM")
        self.wait_for_numbers()
        command.send_signal(signal.SIGINT)  # which is handed on
        self.assertIn(self.remote.finish(command).code, (1, 128 + signal.SIGINT))
        self.assert_each_number_once()

    def test_without_an_image_it_runs_on(self):
        command = self.start_again("--stop-on", "TERM")
        self.wait_for_image()
        at = self.state()["checkpoints"]
        self.succeed("quota", "--store-max", "1", cli=self.remote)
        self.wait_for(lambda job: job["supervised"]["last_error"], "no image can be taken")
        command.send_signal(signal.SIGTERM)
        self.wait_for_numbers()
        self.assertEqual(self.state()["checkpoints"], at)
        self.succeed("quota", "--store-max", "none", cli=self.remote)
        self.wait_for_image(at)
        command.send_signal(signal.SIGTERM)
        result = self.remote.finish(command)
        self.assertEqual(result.code, 128 + signal.SIGTERM, str(result))
        self.assertIn("SIGTERM was to end the job with a last image", result.err)

    def test_while_somebody_else_captures_it(self):
        """The signal comes once: what is in the way is waited for."""
        command = self.start_again("--stop-on", "TERM")
        self.wait_for_image()
        pid = self.job()["pid"]
        with open(f"/proc/{pid}/personality", "rb") as claimed:
            fcntl.flock(claimed, fcntl.LOCK_EX)  # as whoever captures it does
            command.send_signal(signal.SIGTERM)
            self.wait_for(lambda job: "another checkpoint" in job["supervised"]["last_error"], "it is in the way")
            self.assertIsNone(command.poll())
        result = self.remote.finish(command)
        self.assertEqual(result.code, 128 + signal.SIGTERM, str(result))
        self.assertFalse(procfs.alive(pid))
        self.assertIn("its last image is " + self.references(cli=self.remote)[-1], result.err)

    def test_a_hang_up_right_after_the_signal(self):
        """As systemd and closed terminals send both: what was asked for is done, and the command does not stay for it."""
        command = self.start_again("--stop-on", "TERM")
        self.wait_for_image()
        pid, taken = self.job()["pid"], self.state()["checkpoints"]
        command.send_signal(signal.SIGTERM)
        command.send_signal(signal.SIGHUP)
        result = self.remote.finish(command)
        # The image may be there before the command has gone.
        self.assertRegex(result.err, "hung up: the job ends with a last image|SIGTERM: the job has ended, its last image is")
        self.wait_for_end()
        self.assertFalse(procfs.alive(pid))
        self.assertGreater(self.state()["checkpoints"], taken)

    def test_the_daemon_is_away(self):
        command = self.start_again("--stop-on", "TERM")
        self.wait_for_image()
        pid = self.job()["pid"]
        self.daemon.kill()
        told = ""
        while "passes on a signal" not in told:
            told += command.stderr.readline()
        command.send_signal(signal.SIGTERM)
        self.wait_for_numbers()
        self.assertTrue(procfs.alive(pid))
        self.restart_daemon()
        result = self.remote.finish(command)
        self.assertEqual(result.code, 128 + signal.SIGTERM, str(result))
        self.assertIn("its last image is", result.err)


class WithoutDaemonTest(RekindleTest):
    def words(self, *options):
        return ["run", "--name", "job", *EVERY, "--resume", "--stop-on", "TERM", *options, "--", jobs.PYTHON,
                jobs.workload("counting.py"), self.path("numbers"), "100000", f"limit={self.limit()}"]  # fmt: skip

    def limit(self):
        return self.path("limit")

    def numbers(self):
        return lines_of(self.path("numbers"))

    def run_for_a_while(self, cli, *options):
        at = len(self.numbers())
        command = cli.start(*self.words(*options), json_output=False)
        waiting.until(lambda: len(self.numbers()) > at + 10, "numbers", 60)
        command.send_signal(signal.SIGTERM)
        result = cli.finish(command)
        self.assertEqual(result.code, 128 + signal.SIGTERM, str(result))
        self.assertEqual(self.numbers(), [str(number) for number in range(len(self.numbers()))])
        return result.err

    def run_until_there_are(self, images):
        """Of two starts at least."""
        self.run_for_a_while(self.cli, "--keep", "9")
        self.run_for_a_while(self.cli, "--keep", "9")
        while len(self.references()) < images:
            self.run_for_a_while(self.cli, "--keep", "9")

    def assert_refused(self, cli, *options):
        before = self.numbers()
        result = cli.run(*self.words(*options))
        self.assertEqual(result.code, FAILED, str(result))
        self.assertEqual(self.numbers(), before)
        return str(result)

    def test_stopped_and_resumed(self):
        self.run_for_a_while(self.cli)
        self.run_for_a_while(self.cli)
        # Where it is not known whether there are images nothing is begun.
        self.assert_refused(self.make_cli(store=self.path("numbers")))

    def test_a_clock_that_was_behind_makes_no_image_older(self):
        self.run_for_a_while(self.cli)
        behind = self.make_cli(store=self.store, env={"LD_PRELOAD": jobs.program("earlier_clock.so")})
        last = re.search(r"its last image is (job:\S+?)[.,]?\s", self.run_for_a_while(behind)).group(1)
        self.assertLess(last, self.references()[-1], "by its name it is older")
        self.assertIn(f"goes on from {last}", self.run_for_a_while(self.cli))

    def test_images_of_earlier_starts_count_for_those_that_are_kept(self):
        self.run_for_a_while(self.cli, "--keep", "1")
        self.succeed("tag", self.references()[-1], "job:milestone")
        for _ in range(4):
            self.run_for_a_while(self.cli, "--keep", "1")
        images = self.references()
        self.assertIn("job:milestone", images)
        # The newest, the one to go back to if that holds a failure, the next that will be old enough for that, and
        # until then one of the start before.
        self.assertLessEqual(len(images), 1 + 4, images)

    def test_images_of_another_way_stay(self):
        self.run_for_a_while(self.cli, "--keep", "9")
        self.run_for_a_while(self.cli, "--keep", "9")
        first, *others = self.references()
        command = self.cli.start("run", "--from", first, *EVERY, "--keep", "1", "--stop-on", "TERM", json_output=False)
        waiting.until(lambda: set(self.references()) - {first, *others}, "an image of it", 60)
        command.send_signal(signal.SIGTERM)
        self.cli.finish(command)
        self.assertLessEqual(set(others), set(self.references()))
        self.run_for_a_while(self.cli, "--keep", "1")
        self.run_for_a_while(self.cli, "--keep", "1")
        images = self.references()
        self.assertLessEqual(set(others), set(images))
        self.assertLessEqual(len(images), len(others) + 4, images)

    def test_a_late_copy_of_what_it_has_gone_on_from_is_no_newer(self):
        other, place = self.make_cli(store=self.path("other")), self.path("place")
        os.mkdir(place)
        for _ in range(2):
            self.run_for_a_while(self.cli, "--keep", "9")
        late, last = self.references()[0], self.references()[-1]
        self.succeed("copy", last, "--from", self.store, cli=other)
        self.run_for_a_while(other, "--copy-to", place)
        newest = self.references(cli=other)[-1]
        self.succeed("copy", late, "--to", place)
        self.succeed("copy", late, "--from", self.store, cli=other)
        self.assertIn(f"goes on from {newest}", self.run_for_a_while(other, "--copy-to", place))

    def test_what_has_come_of_an_image_is_newer_whatever_the_clocks_say(self):
        for kind in ("", "rclone:"):
            with self.subTest(kind=kind):
                folder = self.path(f"place-{len(kind)}")
                os.mkdir(folder)
                behind = self.make_cli(store=folder + ".other", env={"LD_PRELOAD": jobs.program("earlier_clock.so")})
                copies = ("--copy-to", kind + folder)
                self.run_for_a_while(self.cli, *copies)
                last = self.references()[-1]
                self.succeed("copy", last, "--from", kind + folder, cli=behind)
                told = self.run_for_a_while(behind, *copies)
                newest = re.search(r"its last image is (job:\S+?)[.,]?\s", told).group(1)
                self.assertLess(newest, last, "by its name it is older")
                self.assertIn(f"the images here are older than {newest}", self.assert_refused(self.cli, *copies))
                self.succeed("copy", newest, "--from", kind + folder)
                self.assertIn(f"goes on from {newest}", self.run_for_a_while(self.cli, *copies))

    def test_copies_that_the_node_before_has_left_go(self):
        self.run_until_there_are(4)
        images = self.references()
        old, before, last = images[0], *images[-2:]
        self.succeed("tag", last, "job:milestone")
        for kind in ("", "rclone:"):
            with self.subTest(kind=kind):
                folder = self.path(f"place-{len(kind)}")
                os.mkdir(folder)
                other, place = self.make_cli(store=folder + ".other"), kind + folder
                for image in (before, old, last, "job:milestone"):  # in whatever order
                    self.succeed("copy", image, "--whole", "--to", place)
                self.succeed("copy", last, "--from", place, cli=other)
                self.run_for_a_while(other, "--copy-to", place, "--keep", "1")
                there = {image["reference"] for image in self.succeed("ls", "--from", place)["images"]}
                self.assertIn(self.references(cli=other)[-1], there)
                # Of before the last one stays, with one to go back to; so does what somebody has named.
                self.assertEqual(there & {*images, "job:milestone"}, {before, last, "job:milestone"})

    def test_what_another_job_needs_stays_at_the_place(self):
        self.run_until_there_are(4)
        earlier = self.references()
        self.run_for_a_while(self.cli, "--keep", "9")
        needed, old, last = *earlier[:2], self.references()[-1]
        place = self.path("place")
        os.mkdir(place)
        for image in earlier:
            self.succeed("copy", image, "--to", place)
        there = self.make_cli(store=place)
        another = there.start("run", "--name", "another", "--from", needed, "--every", "1h", "--restarts", "3",
                              "--stop-on", "TERM", json_output=False)  # fmt: skip
        self.addCleanup(lambda: another.poll() is None and another.terminate())
        waiting.until(lambda: self.succeed("ps", cli=there)["jobs"], "it runs", 60)
        follower = self.cli.start("copy", "job", "--follow", "--keep", "1", "--to", place, json_output=False)
        self.addCleanup(lambda: follower.poll() is None and follower.kill())
        waiting.until(lambda: last in self.references(cli=there), "the last one is there", 60)
        waiting.until(lambda: old not in self.references(cli=there), "those that are too many go", 60)
        self.assertIn(needed, self.references(cli=there))
        another.terminate()
        there.finish(another)
        follower.terminate()
        self.cli.finish(follower)

    def test_what_is_known_to_be_sound_stays_whatever_later_starts_do(self):
        folder = self.path("place")
        places = [folder, "rclone:" + folder + ".objects"]
        for name in (folder, folder + ".objects"):
            os.mkdir(name)

        def images(*options):
            listed = self.cli.run("ls", *options)
            self.assertIn(listed.code, (DONE, NO_STORE), str(listed))  # who makes it may not have begun
            return listed.data.get("images", [])

        def there(place):
            return {image["reference"] for image in images("--from", place)}

        def sound():
            """Those that the newest image calls so."""
            here = images()
            stretch = re.fullmatch(r"(\d+):(\d+)-(\d+)", here[0]["labels"].get("rekindle.supervised-sound", ""))
            if not stretch:
                return set()
            start, first, last = stretch.groups()
            return {
                image["reference"]
                for image in here
                if image["labels"]["rekindle.supervised"] == start
                and int(first) <= int(image["labels"]["rekindle.supervised-number"]) <= int(last)
            }

        first = self.cli.start(*self.words("--keep", "999"), json_output=False)
        waiting.until(images, "an image", 60)
        followers = [
            self.cli.start("copy", "job", "--follow", "--whole", "--keep", "1", "--to", place, json_output=False)
            for place in places
        ]
        for follower in followers:
            self.addCleanup(lambda process=follower: process.poll() is None and process.kill())
        waiting.until(lambda: all(there(place) & sound() for place in places), "copies that are sound", 60)
        first.send_signal(signal.SIGTERM)
        self.cli.finish(first)
        known = sound()
        # Both die soon, and of all that they take none is old enough to go back to.
        for more in (40, 30):
            with open(self.limit(), "w", encoding="ascii") as file:
                file.write(str(len(self.numbers()) + more))
            result = self.cli.run(*self.words("--keep", "1", "--backoff", "10ms"), json_output=False)
            self.assertEqual(result.code, 7, str(result))
            newest = self.references()[-1]
            waiting.until(lambda last=newest: all(last in there(place) for place in places), "the last copies", 60)
        for follower in followers:
            follower.send_signal(signal.SIGINT)
            self.cli.finish(follower)
        self.assertTrue(known & set(self.references()), self.references())
        for place in places:
            self.assertTrue(known & there(place), there(place))
            self.assertLessEqual(len(there(place)), 1 + 2 + 2, "the last one, two of earlier starts, that one and the next")

    def test_two_of_one_job_are_told(self):
        """As when a node was given up that had only lost its network."""
        other, place = self.make_cli(store=self.path("other")), self.path("place")
        os.mkdir(place)
        self.run_for_a_while(self.cli, "--copy-to", place)
        follower = self.cli.start("copy", "job", "--follow", "--keep", "3", "--to", place, json_output=False)
        self.addCleanup(lambda: follower.poll() is None and follower.kill())
        waiting.until(lambda: self.is_followed(place), "it follows", 60)
        self.succeed("copy", "job", "--from", place, cli=other)
        self.assertIn("make sure that the job does not run there", self.run_for_a_while(other, "--copy-to", place))
        foreign = self.references(cli=other)[-1]
        self.run_for_a_while(self.cli)
        told = ""
        while "goes on elsewhere" not in told:
            told = follower.stderr.readline()
            self.assertNotEqual(told, "", "it has ended")
        self.assertIn(foreign, told)
        follower.terminate()
        self.cli.finish(follower)

    def test_what_was_taken_in_late_removes_no_newer_copy(self):
        """Of a follower that has just been started, and so has copied nothing yet."""
        side = self.path("side")
        os.mkdir(side)
        self.run_for_a_while(self.cli, "--keep", "9")
        old = self.references()[0]
        self.succeed("copy", old, "--to", side)
        self.run_for_a_while(self.cli, "--keep", "9")
        newest = self.references()[-1]
        self.succeed("rm", old)
        for kind in ("", "rclone:"):
            with self.subTest(kind=kind):
                folder = self.path(f"place-{len(kind)}")
                os.mkdir(folder)
                place = kind + folder
                self.follow_until(place, newest)
                self.succeed("copy", old, "--from", side)
                self.follow_until(place, old)
                self.succeed("rm", old)
                there = [image["reference"] for image in self.succeed("ls", "--from", place)["images"]]
                self.assertIn(newest, there)

    def follow_until(self, place, image):
        """It is there, and what is too many there has gone."""
        follower = self.cli.start("copy", "job", "--follow", "--whole", "--keep", "1", "--to", place, json_output=False)
        self.addCleanup(lambda: follower.poll() is None and follower.kill())
        waiting.until(lambda: self.is_followed(place, image), f"{image} is there", 60)
        follower.terminate()
        self.cli.finish(follower)

    def test_of_two_ways_the_user_chooses(self):
        """A node that was cut off has run on, and another one has gone on from what it had copied before."""
        for kind in ("", "rclone:"):
            with self.subTest(kind=kind):
                folder = self.path(f"place-{len(kind)}")
                os.mkdir(folder)
                cut_off, other = self.make_cli(store=folder + ".cut-off"), self.make_cli(store=folder + ".other")
                place, copies = kind + folder, ("--copy-to", kind + folder)
                if self.numbers():
                    os.unlink(self.path("numbers"))
                self.run_for_a_while(cut_off, *copies)
                self.succeed("copy", "job", "--from", place, cli=other)
                self.run_for_a_while(other, *copies)
                theirs = self.references(cli=other)[-1]
                self.run_for_a_while(cut_off)
                ours = self.references(cli=cut_off)[-1]
                self.assert_names(self.assert_refused(cut_off, *copies), ours, theirs)
                self.succeed("copy", ours, "--to", place, cli=cut_off)  # late, and the last one there
                self.assert_names(self.assert_refused(cut_off, *copies), ours, theirs)
                self.assert_names(self.assert_refused(other, *copies), ours, theirs)
                # As the message says.
                self.succeed("copy", theirs, "--from", place, cli=cut_off)
                self.assert_names(self.assert_refused(cut_off, *copies), ours, theirs)
                before = set(self.references(cli=cut_off))
                command = cut_off.start("run", "--from", ours, *EVERY, *copies, "--stop-on", "TERM", json_output=False)
                waiting.until(lambda: set(self.references(cli=cut_off)) - before, "an image of it", 60)
                command.send_signal(signal.SIGTERM)
                self.assertEqual(cut_off.finish(command).code, 128 + signal.SIGTERM)
                for _ in range(2):
                    chosen = self.references(cli=cut_off)[-1]
                    self.assertIn(f"goes on from {chosen}", self.run_for_a_while(cut_off, *copies))
                # Nobody is asked again, on whichever node.
                chosen_on = cut_off
                for node in (other, cut_off, self.make_cli(store=folder + ".new")):
                    chosen = self.references(cli=chosen_on)[-1]
                    self.succeed("copy", chosen, "--from", place, cli=node)
                    self.assertIn(f"goes on from {chosen}", self.run_for_a_while(node, *copies))
                    chosen_on = node

    def assert_names(self, told, *images):
        self.assertIn("each its own way", told)
        for image in images:
            self.assertIn(image, told)

    def is_followed(self, place, image=None):
        copies = [copy for copy in self.notes() if copy["place"] == place and not copy.get("ended")]
        return any(copy.get("image") if image is None else copy.get("image") == image for copy in copies)

    def notes(self):
        folder = os.path.join(self.store, "copies")
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.endswith(".json"):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    yield json.load(file)

    def test_it_does_not_go_back_to_what_another_node_has_left_behind(self):
        other, place = self.make_cli(store=self.path("other")), self.path("place")
        copies = ("--copy-to", place)
        os.mkdir(place)
        self.run_for_a_while(self.cli, *copies)
        self.assertIn("there is no image here, and job:", self.assert_refused(other, *copies))
        self.succeed("copy", "job", "--from", place, cli=other)
        self.run_for_a_while(other, *copies)
        self.assertIn("the images here are older than job:", self.assert_refused(self.cli, *copies))
        self.succeed("copy", "job", "--from", place)
        self.run_for_a_while(self.cli, *copies)

    def test_a_place_that_is_not_there_may_have_the_newest(self):
        other, place = self.make_cli(store=self.path("other")), self.path("place")
        os.mkdir(place)
        self.run_for_a_while(self.cli, "--copy-to", place)
        os.rename(place, place + ".unmounted")
        for copies in (place, "rclone:" + place):
            self.assertIn("is not there", self.assert_refused(other, "--copy-to", copies))

    def test_names_that_were_given_later_make_no_image_newer(self):
        for _ in range(2):
            self.run_for_a_while(self.cli, "--keep", "9")
        old, newest = self.references()[0], self.references()[-1]
        self.succeed("tag", old, "job:milestone")
        self.assertIn(f"goes on from {newest}", self.run_for_a_while(self.cli, "--keep", "9"))
        self.succeed("rm", old)
        self.succeed("tag", "job:milestone", "job:later")
        self.succeed("rm", "job:milestone")
        self.assertIn("job:later", self.assert_refused(self.cli))
        self.succeed("tag", "job:later", "kept:1")
        self.succeed("rm", "job:later")
        self.run_for_a_while(self.cli)

    def test_names_that_were_given_elsewhere_hide_nothing(self):
        other, place = self.make_cli(store=self.path("other")), self.path("place")
        copies = ("--copy-to", place)
        os.mkdir(place)
        self.run_for_a_while(self.cli, *copies)
        self.succeed("tag", self.references()[-1], "job:best")
        self.succeed("copy", "job", "--from", place, cli=other)
        self.run_for_a_while(other, *copies)
        self.assertIn("the images here are older than job:2", self.assert_refused(self.cli, *copies))


if __name__ == "__main__":
    unittest.main()
