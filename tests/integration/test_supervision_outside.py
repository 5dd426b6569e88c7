"""Supervised jobs that come back while something outside of them is amiss, which their images are not to blame for."""

import glob
import os
import re
import shlex
import signal
import time
import unittest

from harness import jobs, phases, procfs, stock_criu, waiting
from harness.case import shell
from harness.cli import FAILED
from test_supervision import SupervisedTest, lines_of


class OutsideTest(SupervisedTest):
    def wait_for_words(self, words, times=1, seconds=60):
        waiting.until(lambda: self.daemon.log_text().count(words) >= times, f"'{words}' in the log", seconds, 0.02)

    def waits_for_longer_than_it_is_tried(self):
        """Of a job with `--retry-for 1s`."""
        until = time.monotonic() + 2
        waiting.until(lambda: time.monotonic() > until, "more than a second")
        self.assertIn(self.state()["phase"], ("waiting", "restarting"))

    def assert_goes_on(self, restarts=1):
        """From its newest image: none was passed over."""
        self.wait_for(lambda job: job["supervised"].get("restarts", 0) == restarts, "a restart")
        log = self.daemon.log_text()
        self.assertNotIn("could not be brought back from", log)
        self.assertNotIn("further back", log)
        at = len(lines_of(self.numbers))
        waiting.until(lambda: len(lines_of(self.numbers)) > at, "more lines", 30, 0.02)


class KilledRestoreTest(OutsideTest):
    """As the kernel does where memory is short, more often than a job has images."""

    KILLS = 4

    MOST_MISSES = 12

    def begin(self, restarts=3):
        self.start(100000, "memory=64", options=["--every", "300ms", "--restarts", str(restarts)])
        self.wait_for_image()

    def test_criu(self):
        self.begin()
        self.kill_job()
        for kills in range(1, self.KILLS + 1):
            phases.wait_for_restore_phase("criu", self.daemon.pid, 0, lambda: False)
            for pid in phases.criu_processes(self.daemon.pid, "swrk") or phases.criu_processes(
                self.daemon.pid, "restore"
            ):
                os.kill(pid, signal.SIGKILL)
                break
            self.wait_for_words("can't be brought back yet", kills)
        self.assert_goes_on()

    def test_the_process_that_is_coming_back(self):
        self.begin(restarts=2 + self.MOST_MISSES)
        pid = self.job()["pid"]
        seen = {None, procfs.start_ticks(pid)}
        self.kill_job()
        hits = misses = 0
        while hits < self.KILLS and misses < (1 if hits else self.MOST_MISSES):
            waiting.until(lambda: procfs.start_ticks(pid) not in seen, "it comes back", 60, 0.0005)
            seen.add(procfs.start_ticks(pid))
            os.kill(pid, signal.SIGKILL)
            waiting.until(lambda: self.kills_told() > hits or self.restarts() > misses, "the kill is seen", 60, 0.02)
            misses = self.restarts()  # it was back already: a death as any other
            hits = self.kills_told()
        self.assertGreater(hits, 0, "no kill came in time")
        self.assert_goes_on(restarts=1 + misses)

    def test_a_daemon_that_is_stopped_meanwhile_costs_no_restart(self):
        """As in an upgrade."""
        self.start(100000, "memory=64", options=["--every", "300ms", "--restarts", "1"])
        self.wait_for_image()
        self.kill_job()
        phases.wait_for_restore_phase("criu", self.daemon.pid, 0, lambda: False)
        for pid in phases.criu_processes(self.daemon.pid, "swrk") or phases.criu_processes(self.daemon.pid, "restore"):
            os.kill(pid, signal.SIGSTOP)
        self.daemon.stop()
        self.assertNotIn("runs again", self.daemon.log_text())
        self.restart_daemon()
        self.assert_goes_on()

    def kills_told(self):
        return self.daemon.log_text().count("can't be brought back yet")

    def restarts(self):
        return self.job()["supervised"].get("restarts", 0)


class OtherMachineTest(OutsideTest):
    """Booted into what its images do not fit, as an older kernel, and back."""

    def setUp(self):
        super().setUp()
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            text = file.read()
        self.assertRegex(text, r"\bsse2\b", "a machine that has what is to be missing")
        self.lesser = self.path("cpuinfo")
        with open(self.lesser, "w", encoding="utf-8") as file:
            file.write(re.sub(r"\bsse2\b", "", text))

    def test_its_owner_may_try(self):
        self.start(100000, options=["--every", "300ms", "--restarts", "3"])
        self.wait_for_image(2)
        last = self.succeed("stop", "job", "--checkpoint", cli=self.remote)["image"]
        self.daemon.stop()
        self.daemon_prefix = ("unshare", "-m", "sh", "-c", 'mount --bind "$0" /proc/cpuinfo && exec "$@"', self.lesser)
        self.restart_daemon()
        words = ("run", "--from", last, "--name", "job", "--restarts", "3", "--detach")
        self.assert_refused(self.remote.run(*words), FAILED, "this processor lacks sse2", "--ignore-mismatch")
        self.succeed(*words, "--ignore-mismatch", cli=self.remote)
        self.kill_job()
        self.assert_goes_on()

    def test_it_waits_for_its_own(self):
        self.start(100000, options=["--every", "300ms", "--restarts", "3"])
        self.wait_for_image(2)
        pid = self.job()["pid"]
        self.daemon.stop()
        newest = max(self.succeed("ls")["images"], key=lambda image: int(image["created_unix_ns"]))["reference"]
        jobs.kill_tree(pid)
        self.daemon_prefix = ("unshare", "-m", "sh", "-c", 'mount --bind "$0" /proc/cpuinfo && exec "$@"', self.lesser)
        self.restart_daemon()
        self.wait_for_words("can't be brought back yet: ")
        self.wait_for(lambda job: job["supervised"]["phase"] == "waiting", "that it waits")
        self.assertIn("does not fit this machine: this processor lacks sse2", self.state()["last_error"])
        self.succeed("prune", "--all", "--keep-label", "no=such", cli=self.remote)
        self.assertIn(newest, self.references())
        self.daemon.stop()
        self.daemon_prefix = ()
        self.restart_daemon()
        self.wait_for(lambda job: job["supervised"].get("restarts", 0) == 1, "a restart")
        self.assertEqual(re.findall("goes on from (.*?):[^:]*$", self.daemon.log_text(), re.M)[-1], newest)


class LackingTest(OutsideTest):
    """What every image needs is not there, as while packages are replaced: the job waits, however long it lasts."""

    def setUp(self):
        super().setUp()
        self.criu = self.path("criu")
        with open(self.criu, "w", encoding="ascii") as file:
            file.write(f'#!/bin/sh\nexec {shlex.join(stock_criu.criu_command())} "$@"\n')
        os.chmod(self.criu, 0o755)
        self.environment["REKINDLE_CRIU"] = self.criu
        self.daemon.stop()
        self.restart_daemon()

    def wait_without_criu(self):
        os.rename(self.criu, self.criu + ".away")
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["phase"] == "waiting", "that it waits")
        self.assertIn(self.criu, self.state()["last_error"])

    def test_criu_that_is_away(self):
        self.start(100000, options=["--every", "300ms", "--restarts", "3", "--retry-for", "1s"])
        self.wait_for_image(2)
        self.wait_without_criu()
        self.waits_for_longer_than_it_is_tried()
        os.rename(self.criu + ".away", self.criu)
        self.assert_goes_on()

    def test_a_stop_meanwhile_leaves_the_image_that_it_would_have_gone_on_from(self):
        command = self.start(
            100000, options=["--every", "300ms", "--restarts", "3", "--stop-on", "TERM"], detach=False)
        self.wait_for_image(2)
        self.wait_without_criu()
        newest = max(self.succeed("ls")["images"], key=lambda image: int(image["created_unix_ns"]))["reference"]
        command.send_signal(signal.SIGTERM)
        result = self.remote.finish(command)
        self.assertEqual(result.code, 128 + signal.SIGTERM, str(result))
        self.assertIn(f"its last image is {newest}", result.err)
        self.assertFalse(self.state()["deaths"][1:], self.state())


LISTENS_AND_COUNTS = """
import socket, sys
listener = socket.create_server((sys.argv[1], 9188))
with open(sys.argv[2], "a") as numbers:
    number = 0
    while True:
        numbers.write(f"{number}\\n")
        numbers.flush()
        number += 1
        try:
            listener.settimeout(0.01)
            listener.accept()
        except TimeoutError:
            pass
"""


class AddressTest(OutsideTest):
    """The job's network address is away when it is to come back, as that of a late interface."""

    ADDRESS = "10.99.7.1"

    def move(self, verb):
        shell("ip", "address", verb, f"{self.ADDRESS}/32", "dev", "lo")

    def test_it_is_waited_for_and_nothing_is_cut_off_before(self):
        self.move("add")
        self.addCleanup(lambda: self.ADDRESS in shell("ip", "address", "show", "dev", "lo") and self.move("del"))
        program = self.path("listens.py")
        with open(program, "w", encoding="ascii") as file:
            file.write(LISTENS_AND_COUNTS)
        self.succeed(
            "run", "--detach", "--name", "job", "--every", "300ms", "--", jobs.PYTHON, program,
            self.ADDRESS, self.numbers, cli=self.remote,
        )  # fmt: skip
        self.wait_for_image(2)
        # So that there is something behind the newest image.
        images = self.state()["checkpoints"]
        at = len(lines_of(self.numbers))
        waiting.until(lambda: len(lines_of(self.numbers)) > at + 5, "more lines", 30, 0.02)
        follower = self.remote.start("attach", "job")
        for end in (follower.stdout.close, follower.stderr.close, follower.wait, follower.kill):
            self.addCleanup(end)
        self.assertIn("started", follower.stdout.readline())
        self.move("del")
        self.kill_job()
        self.wait_for(lambda job: "network address" in job["supervised"]["last_error"], "it waits", 60)
        self.assertIn("can't be brought back yet", follower.stderr.readline())
        written = lines_of(self.numbers)
        self.assertGreater(len(written), at)
        self.assertEqual([name for name in os.listdir(self.directory) if "tail" in name], [])
        self.move("add")
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        self.assertGreaterEqual(self.state()["checkpoints"], images)
        self.assertNotIn("could not be brought back from", self.daemon.log_text())
        waiting.until(lambda: len(lines_of(self.numbers)) > len(written), "more lines", 30, 0.02)
        numbers = lines_of(self.numbers)
        self.assertEqual(numbers, [str(number) for number in range(len(numbers))])


class RotatedLogTest(OutsideTest):
    """The log in which it goes on is not the one that it had when its image was taken."""

    # `print`s lines after {first} bytes.
    JOB = "import time\nprint('x' * {first})\nwhile True:\n    print('line')\n    time.sleep(0.02)"

    def named(self, name):
        return next(job for job in self.succeed("ps", cli=self.remote)["jobs"] if job["name"] == name)

    def wait_for_images_of(self, name, count):
        waiting.until(lambda: self.named(name)["supervised"]["checkpoints"] >= count, "an image", 60)

    def wait_for_lines(self, log, count):
        waiting.until(lambda: len(lines_of(log)) >= count, "more lines in the log", 60)

    def assert_all_ways(self, folder, first):
        def truncated(log):
            os.truncate(log, 0)

        def renamed(log):
            os.rename(log, log + ".1")
            with open(log, "w", encoding="ascii"):
                os.chmod(log, 0o640)

        for name, rotate in (("truncated", truncated), ("renamed", renamed), ("removed", os.unlink)):
            with self.subTest(name):
                log = os.path.join(folder, name + ".log")
                self.succeed(
                    "run", "--detach", "--name", name, "--log", log, "--every", "300ms", "--restarts", "3", "--rollback", "append", "--",
                    jobs.PYTHON, "-u", "-c", self.JOB.format(first=first), cli=self.remote,
                )  # fmt: skip
                self.addCleanup(self.remote.run, "stop", name, "--grace", "0s")
                self.wait_for_lines(log, 4)
                images = self.named(name)["supervised"]["checkpoints"]
                self.wait_for_images_of(name, images + 2)
                pid = self.named(name)["pid"]
                rotate(log)  # no image is begun between this and its end
                os.kill(pid, signal.SIGKILL)
                waiting.until(lambda name=name: self.named(name)["supervised"].get("restarts", 0) == 1, "it is back", 60)
                self.wait_for_lines(log, len(lines_of(log)) + 4)
        self.assertNotIn("could not be brought back", self.daemon.log_text())

    def test_all_ways(self):
        self.assert_all_ways(self.directory, first=1)

    def test_all_ways_of_one_whose_content_no_image_has(self):
        folder = self.path("logs-of-unknown-age")  # a file system that does not tell when a file was made
        os.mkdir(folder)
        shell("mount", "-t", "ramfs", "none", folder)
        self.addCleanup(shell, "umount", "--lazy", folder)
        self.assert_all_ways(folder, first=1 << 21)


class OrphansTest(OutsideTest):
    """Where nobody above the daemon collects orphans, such as this test: as in containers whose first process is any
    program.
    """

    def test_a_job_whose_children_outlive_it_for_a_moment(self):
        log = self.path("lines")
        self.succeed(
            "run", "--detach", "--name", "job", "--log", log, "--every", "300ms", "--restarts", "3", "--rollback", "append", "--",
            "/bin/sh", "-c", "i=0; while :; do i=$((i + 1)); echo line $i; sleep 0.02; done", cli=self.remote,
        )  # fmt: skip
        self.addCleanup(self.remote.run, "stop", "job", "--grace", "0s")

        def supervised():
            return next(job for job in self.succeed("ps", cli=self.remote)["jobs"] if job["name"] == "job")["supervised"]

        waiting.until(lambda: supervised()["checkpoints"] > 0, "an image", 60)
        for restart in range(1, 4):
            os.kill(self.succeed("ps", cli=self.remote)["jobs"][0]["pid"], signal.SIGKILL)
            waiting.until(lambda restart=restart: supervised().get("restarts", 0) == restart, "it is back", 60)
        self.assertNotIn("could not be brought back", self.daemon.log_text())
        zombies = [pid for pid in procfs.descendants(self.daemon.pid) if procfs.state(pid) == "Z"]
        waiting.until(lambda: not any(procfs.state(pid) == "Z" for pid in zombies), "none is left as a zombie", 60)


class StoreAwayTest(OutsideTest):
    """Its file system is not mounted for a while."""

    def begin(self, *options):
        self.start(100000, options=["--every", "300ms", "--restarts", "2", *options])
        self.wait_for_image()

    def test_it_comes_back_with_the_store(self):
        self.begin()
        elsewhere = self.store + ".away"
        os.rename(self.store, elsewhere)
        os.mkdir(self.store)  # as the folder in which it is mounted
        self.kill_job()
        self.wait_for_words("can't be brought back yet")
        self.assertIn(f"the store at {self.store} is not there: is its file system mounted?", self.daemon.log_text())
        self.assertEqual(os.listdir(self.store), [])
        os.rmdir(self.store)
        os.rename(elsewhere, self.store)
        self.assert_goes_on()

    def waits_for_what_no_image_can_be_read_without(self, words):
        """However long that takes: older images are no better off."""
        self.kill_job()
        self.wait_for(lambda job: words in job["supervised"]["last_error"], f"that it waits: {words}")
        self.waits_for_longer_than_it_is_tried()

    def test_its_packs_alone_are_away(self):
        self.begin("--retry-for", "1s")
        packs = os.path.join(self.store, "packs")
        os.rename(packs, packs + ".away")
        self.waits_for_what_no_image_can_be_read_without("is its file system mounted?")
        os.rename(packs + ".away", packs)
        self.assert_goes_on()
        os.rename(packs, packs + ".away")
        os.mkdir(packs)  # as the folder in which they are mounted
        self.waits_for_what_no_image_can_be_read_without("Is its file system mounted?")
        os.rmdir(packs)
        os.rename(packs + ".away", packs)
        self.assert_goes_on(restarts=2)

    def test_its_catalog_is_damaged(self):
        self.begin("--retry-for", "1s")
        os.kill(self.job()["pid"], signal.SIGSTOP)  # no image is due any more
        for path in glob.glob(os.path.join(self.store, "catalog", "*.[ab]")):
            with open(path, "wb") as file:
                file.write(b"not a catalog")
        self.waits_for_what_no_image_can_be_read_without("fsck --repair")
        self.remote.run("fsck", "--repair")
        self.assert_goes_on()

    def test_no_image_can_be_taken_meanwhile(self):
        command = self.start(100000, options=["--every", "300ms", "--restarts", "1"], detach=False)
        self.wait_for_image()
        elsewhere = self.store + ".away"
        os.rename(self.store, elsewhere)
        self.wait_for(lambda job: "is not there" in job["supervised"]["last_error"], "an image that was not taken")
        os.rename(elsewhere, self.store)
        self.wait_for_image(self.state()["checkpoints"])
        self.remote.run("stop", "job", "--grace", "0s")
        told = self.remote.finish(command).err
        # One may have been in the making as the store went.
        self.assertRegex(told, r"no image was taken of the job.*is not there")
        self.assertLessEqual(told.count("no image was taken of the job"), 2, told)
        self.assertEqual(told.count("images of the job are taken again"), 1, told)

    def test_it_is_mounted_a_moment_after_the_daemon_has_begun(self):
        self.begin()
        pid = self.job()["pid"]
        self.daemon.kill()
        jobs.kill_tree(pid)
        mounted, self.store = self.store, self.path("mounted")
        os.mkdir(self.store)
        self.restart_daemon()
        shell("mount", "--bind", mounted, self.store)
        self.addCleanup(shell, "umount", "--lazy", self.store)
        self.assert_goes_on()


if __name__ == "__main__":
    unittest.main()
