"""`rekindle run --every … --restarts …`: the job goes on from its last image when it dies, whoever dies with it."""

import glob
import json
import os
import select
import signal
import subprocess
import unittest

from harness import jobs, locks, procfs, waiting
from harness.case import RekindleTest
from harness.cli import DONE, FAILED, NOT_FOUND, NOT_PERMITTED, USAGE

NOBODY = 65534


def lines_of(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="ascii") as file:
        return file.read().split("\n")[:-1]


class SupervisedTest(RekindleTest):
    """One daemon and one job, which counts."""

    def setUp(self):
        super().setUp()
        self.restart_daemon()
        self.numbers = self.path("numbers")
        self.may_end = self.path("may-end")
        self.addCleanup(self.end_job)

    def restart_daemon(self):
        self.daemon = self.start_daemon("--standby", "0")
        self.remote = self.make_cli(host=self.daemon.host)

    def end_job(self):
        if not self.daemon.running():
            self.daemon = self.start_daemon("--standby", "0")
        self.remote.run("stop", "job", "--grace", "1s")

    def start(self, count, *words, options=(), detach=True, cli=None):
        command = ["run", "--name", "job", *options, *(["--detach"] if detach else []), "--",
                   jobs.PYTHON, jobs.workload("counting.py"), self.numbers, str(count), *words]
        if detach:
            return self.succeed(*command, cli=cli or self.remote)
        return (cli or self.remote).start(*command, json_output=False)

    def job(self):
        """As `ps` shows it, once it is there."""

        def found():
            jobs.reap_orphans()  # of a killed daemon: nobody else takes their exit status
            listed = self.succeed("ps", "--all", cli=self.remote).get("jobs", [])
            return [job for job in listed if job["name"] == "job" and job["supervised"]]

        return waiting.until(found, "the job")[0]

    def state(self):
        return self.job()["supervised"]

    def wait_for(self, condition, what, seconds=60):
        return waiting.until(lambda: condition(self.job()), what, seconds, 0.02)

    def wait_for_image(self, more_than=0):
        return self.wait_for(lambda job: job["supervised"]["checkpoints"] > more_than and job, "an image")

    def kill_job(self):
        pid = self.job()["pid"]
        os.kill(pid, signal.SIGKILL)
        return pid

    def let_end(self):
        """A job that was started with until=`self.may_end`."""
        with open(self.may_end, "w", encoding="ascii"):
            pass

    def wait_for_end(self, phase="done"):
        self.wait_for(lambda job: job["supervised"]["phase"] in ("done", "failed"), "its end")
        self.assertEqual(self.state()["phase"], phase, self.state())

    def assert_counted(self, count):
        self.assertEqual(lines_of(self.numbers), [str(number) for number in range(count)])


class DeathTest(SupervisedTest):
    def test_killed_jobs_go_on_with_each_line_once(self):
        command = self.start(
            400, "child", f"until={self.may_end}", options=["--every", "300ms", "--restarts", "5"], detach=False
        )
        for killed in range(1, 4):
            before = self.wait_for_image(self.job_checkpoints() if killed > 1 else 0)
            self.kill_job()
            self.wait_for(lambda job, n=killed: job["supervised"]["restarts"] == n, "a restart")
            self.assertGreaterEqual(before["supervised"]["checkpoints"], 1)
        self.let_end()
        result = self.remote.finish(command)
        self.assertEqual(result.code, 0, str(result))
        self.assert_counted(400)
        self.assertEqual(result.out.split(), [str(number) for number in range(400)])
        self.assertEqual(result.err.count("goes on from job:"), 3, result.err)
        state = self.state()
        self.assertEqual(state["restarts"], 3)
        self.assertEqual(len([d for d in state["deaths"] if "signal 9" in d]), 3, state)
        self.assertGreater(state["lost_seconds"], 0)

    def job_checkpoints(self):
        return self.state()["checkpoints"]

    def test_the_end_says_whose_it_is(self):
        self.start(100000, options=["--every", "1h", "--restarts", "0"])
        pid = self.job()["pid"]
        self.assertEqual(self.succeed("stop", "job", cli=self.remote)["exited"]["pid"], pid)
        self.assertEqual(self.remote.run("attach", "job").data["pid"], pid)

    def test_exit_status_is_the_jobs(self):
        command = self.start(5, "status=3", options=["--every", "1s", "--restarts", "0"], detach=False)
        result = self.remote.finish(command)
        self.assertEqual(result.code, 3, str(result))
        self.assert_counted(5)

    def test_the_same_death_goes_further_back_and_is_given_up(self):
        command = self.start(
            200,
            "exit-at=60",
            f"until={self.may_end}",
            options=["--every", "200ms", "--restarts", "4", "--backoff", "10ms"],
            detach=False,
        )
        self.wait_for_image()
        self.let_end()
        result = self.remote.finish(command)
        self.assertEqual(result.code, 7, str(result))
        self.assertIn("given up", result.err)
        state = self.state()
        self.assertEqual(state["phase"], "failed")
        self.assertIn("exit status 7", state["report"])
        listed = self.remote.run("ps", "--all", json_output=False).out
        self.assertRegex(listed, r"\bjob +failed\b")
        for words in (f"job: {state['report']}", f"job: {state['deaths'][0]}", "of its work were lost"):
            self.assertIn(words, listed)
        self.assert_counted(60)
        self.assertLessEqual(state["restarts"], 4)

    def test_images_that_lead_to_a_death_do_not_push_out_what_comes_before(self):
        # Its death is in its second image, and in all that are taken on the way to it.
        limit = self.path("limit")
        command = self.start(10000, "pause=0.1", f"limit={limit}", detach=False,
                             options=["--every", "5s", "--keep", "1", "--restarts", "4", "--backoff", "10ms"])  # fmt: skip
        self.wait_for_image(1)
        with open(limit + ".new", "w", encoding="ascii") as file:
            file.write(str(len(lines_of(self.numbers)) + 5))
        os.rename(limit + ".new", limit)
        result = self.remote.finish(command)
        self.assertEqual(result.code, 7, str(result))
        images = self.references(cli=self.remote)
        self.assertGreater(len(images), 1, f"{images}: {result.err}")

    def test_a_hung_job_is_killed_and_goes_on(self):
        self.start(60, "hang-at=40", f"until={self.may_end}",
                   options=["--every", "200ms", "--restarts", "2", "--hang", "4s"])  # fmt: skip
        self.wait_for_image()  # in which it does not hang yet
        self.let_end()
        self.wait_for_end()
        self.assert_counted(60)
        self.assertIn("no progress", "".join(self.state()["deaths"]))

    def test_an_image_whose_file_can_not_be_put_back_is_passed_over(self):
        command = self.start(400, options=["--restarts", "3"], detach=False)
        for image, options in (("x:one", ()), ("x:two", ("--ignore-path", self.numbers))):
            count = len(lines_of(self.numbers))
            waiting.until(lambda at=count: len(lines_of(self.numbers)) > at + 10, "more lines")
            self.checkpoint("job", image, *options, cli=self.remote)
            if image == "x:one":
                size = os.path.getsize(self.numbers)  # at least what it was then, and less than at the next one
        # So that nobody brings it back before its file is too short for the newest image, which has no content of it.
        pid = self.job()["pid"]
        os.kill(pid, signal.SIGSTOP)
        waiting.until(lambda: procfs.state(pid) == "T", "it stands still")
        os.truncate(self.numbers, size)
        os.kill(pid, signal.SIGKILL)
        back = self.wait_for(lambda job: job["supervised"]["restarts"] == 1 and job, "it is brought back")
        self.assertEqual(back["supervised"]["last_error"], "")
        result = self.remote.finish(command)
        self.assertEqual(result.code, 0, str(result))
        self.assert_counted(400)
        for words in ("could not be brought back from x:two", self.numbers, "shorter", "goes on from x:one"):
            self.assertIn(words, result.err)
        self.assertEqual(self.state()["restarts"], 1)

    def test_nothing_is_cut_off_for_images_that_can_not_be_restored(self):
        read, written = self.path("read"), self.path("written")
        with open(read, "w", encoding="ascii") as file:
            file.write("text\n" * 300_000)  # more than a script has
        self.succeed("run", "--name", "job", "--detach", "--restarts", "5", "--", "sh", "-c",
                     'exec 8<"$1" 9>>"$2"; while :; do echo line >&9; sleep 0.01; done', "sh", read, written,
                     cli=self.remote)  # fmt: skip
        waiting.until(lambda: os.path.exists(written), "the job runs")
        for image in ("x:1", "x:2", "x:3"):
            count = len(lines_of(written))
            waiting.until(lambda at=count: len(lines_of(written)) > at + 10, "more lines")
            size = os.path.getsize(written)  # at most what it is in the image
            self.succeed("ckpt", "job", "-t", image, cli=self.remote)
        with open(read, "r+", encoding="ascii") as file:
            file.write("another\n" * 300_000)
        self.kill_job()
        self.wait_for_end("failed")
        self.assertIn(f"{read}, which it only reads, was edited", self.state()["last_error"])
        self.assertGreaterEqual(os.path.getsize(written), size)

    def test_a_lock_that_somebody_else_has_is_waited_for(self):
        path = self.path("locked")
        lock = f"{path}:flock:exclusive"
        self.succeed("run", "--name", "job", "--every", "300ms", "--restarts", "3", "--detach", "--",
                     *locks.command(self.path("job.ready"), lock), cli=self.remote)
        waiting.until(lambda: os.path.exists(self.path("job.ready")), "it has its lock")
        self.wait_for_image(self.state()["checkpoints"] + 1)  # the image of now may be one of before
        stranger = self.start_job(locks.command(self.path("stranger.ready"), lock), "stranger")
        waiting.until(lambda: locks.is_waiting(stranger.pid), "the next one waits for the lock")
        self.kill_job()
        waiting.until(lambda: "can't be brought back yet" in self.daemon.log_text(), "the first attempt")
        self.assertIn(f"PID {stranger.pid} (", self.daemon.log_text())
        stranger.kill_tree()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        self.assertFalse(locks.flock_is_free(path))
        self.assertNotIn("could not be brought back", self.daemon.log_text())

    def test_before_the_first_image_it_begins_anew(self):
        self.start(30, options=["--every", "1h", "--restarts", "1", "--rollback", "none"])
        waiting.until(lambda: len(lines_of(self.numbers)) > 3, "some lines")
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        self.wait_for_end()
        self.assertEqual(lines_of(self.numbers)[-30:], [str(number) for number in range(30)])


class DaemonTest(SupervisedTest):
    def kill_both(self):
        pid = self.job()["pid"]
        self.daemon.kill()
        os.kill(pid, signal.SIGKILL)
        waiting.for_exit(pid)
        jobs.reap_orphans()

    def test_a_killed_daemons_job_is_taken_over(self):
        self.start(400, options=["--every", "300ms", "--restarts", "3"])
        self.wait_for_image()
        pid = self.job()["pid"]
        self.daemon.kill()
        self.assertTrue(procfs.alive(pid))
        self.restart_daemon()
        before = self.wait_for_image()["supervised"]["checkpoints"]
        self.wait_for_image(before)
        self.assertEqual(self.job()["pid"], pid)
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        self.wait_for_end()
        self.assert_counted(400)

    def test_both_killed(self):
        self.start(300, options=["--every", "300ms", "--restarts", "3"])
        self.wait_for_image()
        self.kill_both()
        self.restart_daemon()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        self.wait_for_end()
        self.assert_counted(300)

    def restart_machine(self):
        """As far as it can be done here: nothing of job and daemon is left, and they were of another boot."""
        self.kill_both()
        (record,) = glob.glob(os.path.join(self.store, "supervised", "*.json"))
        with open(record, "r+", encoding="utf-8") as file:
            content = json.load(file)
            self.assertIn("boot_id", content)
            content["boot_id"] = "00000000-0000-4000-8000-000000000000"
            file.seek(0)
            file.truncate()
            json.dump(content, file)
        self.restart_daemon()

    def test_after_a_restart_of_the_machine(self):
        self.start(300, options=["--every", "300ms", "--restarts", "3", "--at-boot"])
        self.wait_for_image()
        with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
            self.assertGreater(self.job()["pid"], min(65536, int(file.read()) // 2))
        self.restart_machine()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        self.wait_for_end()
        self.assert_counted(300)

    def test_restarts_of_the_machine_use_up_none_of_its_own(self):
        self.start(100000, options=["--every", "300ms", "--restarts", "1", "--at-boot"])
        for restarts in (1, 2, 3):
            self.wait_for_image(self.state()["checkpoints"])
            self.restart_machine()
            self.wait_for(lambda job, n=restarts: job["supervised"]["restarts"] == n, f"restart {restarts}")
        self.assertIn("its machine", self.state()["deaths"][0])
        self.wait_for_image(self.state()["checkpoints"])
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 4, "its own")

    def end_container(self):
        """The daemon's, with the job in it."""
        pid = self.job()["pid"]
        self.daemon.stop()
        os.kill(pid, signal.SIGKILL)
        waiting.for_exit(pid)
        jobs.reap_orphans()

    def test_planned_ends_of_the_daemons_container_use_up_none_of_its_own(self):
        self.start(100000, options=["--every", "1h", "--restarts", "1"])
        for restarts in (1, 2, 3):
            self.end_container()
            self.restart_daemon()
            self.wait_for(lambda job, n=restarts: job["supervised"]["restarts"] == n, f"restart {restarts}")
        self.assertIn("with the daemon's container", self.state()["deaths"][0])
        # One that was taken over is left no more: how it ends after that is its own affair.
        self.daemon.stop()
        self.restart_daemon()
        self.wait_for(lambda job: job["supervised"]["phase"] == "running", "it is taken over")
        self.kill_both()
        self.restart_daemon()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 4, "its own")
        self.assertIn("nobody watched", self.state()["deaths"][0])
        self.wait_for_image(self.state()["checkpoints"])
        self.kill_job()
        self.wait_for_end("failed")

    def test_what_it_has_run_is_known_to_the_next_daemon(self):
        """No image is taken, with which it would be written."""
        self.start(100000, options=["--restarts", "1"])
        before = self.wait_for(lambda job: job["supervised"]["run_seconds"] > 1.5 and job, "run time")
        self.daemon.kill()
        self.restart_daemon()
        known = self.wait_for(lambda job: job["supervised"]["run_seconds"] > 0 and job, "run time")
        self.assertGreater(known["supervised"]["run_seconds"], before["supervised"]["run_seconds"])

    def test_who_follows_one_that_ended_meanwhile_is_told(self):
        following = self.start(100000, options=["--every", "300ms"], detach=False)
        self.wait_for_image()
        self.daemon.kill()
        self.succeed("--no-daemon", "stop", "job")
        self.restart_daemon()
        result = self.remote.finish(following)
        # Nobody who saw it was its parent, but it is there still, as a zombie.
        ended = 128 + signal.SIGTERM
        self.assertEqual(result.code, ended, str(result))
        # Whoever comes later, too.
        result = self.remote.run("attach", "job", json_output=False)
        self.assertEqual(result.code, ended, str(result))

    def test_not_to_be_resumed_after_a_restart_of_the_machine(self):
        self.start(300, options=["--every", "300ms", "--restarts", "3"])
        self.wait_for_image()
        self.restart_machine()
        state = self.wait_for(lambda job: job["supervised"]["phase"] == "failed" and job, "its end")["supervised"]
        told = json.dumps(state)
        for words in ("the machine was restarted", "rekindle run --from", "--at-boot"):
            self.assertIn(words, told)

    def test_the_end_of_a_job_taken_over_is_known(self):
        self.start(300, "status=5", options=["--every", "300ms", "--restarts", "0"])
        self.wait_for_image()
        self.daemon.kill()
        self.restart_daemon()
        waiting.until(lambda: len(lines_of(self.numbers)) == 300, "its last line")
        jobs.reap_orphans()
        self.wait_for(lambda job: job["supervised"]["deaths"], "its end")
        self.assertIn("exit status 5", self.state()["deaths"][0])

    def test_a_daemon_that_is_asked_to_end_takes_a_last_image(self):
        self.start(300, options=["--every", "1h", "--restarts", "3"])
        waiting.until(lambda: len(lines_of(self.numbers)) > 10, "some lines")
        before = self.state()["checkpoints"]
        pid = self.job()["pid"]
        self.daemon.stop()
        self.assertTrue(procfs.alive(pid))
        self.restart_daemon()
        self.assertEqual(self.state()["checkpoints"], before + 1)
        self.assertEqual(self.job()["pid"], pid)
        self.wait_for_end()
        self.assert_counted(300)


class CommandTest(SupervisedTest):
    def test_a_later_job_of_the_name_is_shown(self):
        self.start(3, options=["--every", "1h"])
        self.wait_for_end()
        started = self.succeed("run", "--detach", "--name", "job", "--", "/bin/sleep", "1000", cli=self.remote)
        pid = started["job"]["pid"]
        shown = self.succeed("ps", cli=self.remote)["jobs"]
        self.assertEqual([(job["name"], job["pid"], job["state"]) for job in shown], [("job", pid, "running")])
        shown = self.succeed("ps", "--all", cli=self.remote)["jobs"]
        self.assertEqual(sorted(job["state"] for job in shown), ["exited", "running"])
        self.succeed("stop", "job", cli=self.remote)
        waiting.for_exit(pid)

    def test_stop_ends_for_good(self):
        self.start(1000, options=["--every", "300ms", "--restarts", "3"])
        self.wait_for_image()
        pid = self.job()["pid"]
        answer = self.succeed("stop", "job", "--checkpoint", cli=self.remote)
        self.assertFalse(procfs.alive(pid))
        self.assertEqual(answer["exited"]["signal"], signal.SIGTERM)
        self.assertIn(answer["image"], self.references(cli=self.remote))
        self.assertEqual(self.state()["phase"], "done")

    def test_an_interrupt_is_not_brought_back(self):
        command = self.start(1000, options=["--every", "300ms", "--restarts", "3"], detach=False)
        # It shows the job's output once it knows of the job: before that nothing but the command is interrupted.
        waiting.until(lambda: select.select([command.stdout], [], [], 0)[0], "some output", 60)
        command.send_signal(signal.SIGINT)
        result = self.remote.finish(command)
        self.assertIn(result.code, (1, 130), str(result))  # as Python ends it
        self.assertEqual(self.state()["phase"], "done")
        self.assertEqual(self.state()["restarts"], 0)

    def test_signals_that_mean_what_the_job_makes_of_them(self):
        """Its first process gets them, and no other that may not know them."""
        heard = self.path("heard")
        script = 'trap "echo one >> $0" USR1; trap "echo two >> $0" USR2; sleep 1000 & echo ready; while :; do wait; done'
        for options in ((), ("--every", "1h", "--restarts", "0")):
            with self.subTest(options=options):
                command = self.remote.start("run", "--name", "job", *options, "--", "sh", "-c", script, heard,
                                            json_output=False)  # fmt: skip
                waiting.until(lambda c=command: select.select([c.stdout], [], [], 0)[0], "some output", 60)
                for signum, lines in ((signal.SIGUSR1, ["one"]), (signal.SIGUSR2, ["one", "two"])):
                    command.send_signal(signum)
                    waiting.until(lambda n=lines: lines_of(heard) == n or command.poll() is not None, "it is heard")
                    self.assertEqual(lines_of(heard), lines)
                command.send_signal(signal.SIGTERM)
                self.assertEqual(self.remote.finish(command).code, 128 + signal.SIGTERM)
                os.unlink(heard)

    def test_attach(self):
        self.start(100, options=["--every", "1h", "--restarts", "0"])
        waiting.until(lambda: len(lines_of(self.numbers)) > 3, "some lines")
        result = self.remote.run("attach", "job", json_output=False)
        self.assertEqual(result.code, 0, str(result))
        self.assertIn("99", result.out.split())
        self.assertNotIn("0", result.out.split())

    def test_attach_lets_go_when_the_connection_is_lost(self):
        self.start(1000, options=["--every", "1h", "--restarts", "0"])
        pid = self.job()["pid"]
        command = self.remote.start("attach", "job", json_output=False)
        waiting.until(lambda: select.select([command.stdout], [], [], 0)[0], "some output", 60)
        command.send_signal(signal.SIGHUP)
        result = self.remote.finish(command)
        self.assertEqual(result.code, 1, str(result))
        self.assertIn("the job runs on", result.err)
        at = len(lines_of(self.numbers))
        waiting.until(lambda: len(lines_of(self.numbers)) > at + 3, "it counts on")
        self.assertEqual(self.job()["pid"], pid)
        self.succeed("stop", "job", cli=self.remote)

    def test_a_lost_connection_does_not_end_it(self):
        command = self.start(1000, options=["--every", "1h", "--restarts", "3"], detach=False)
        waiting.until(lambda: select.select([command.stdout], [], [], 0)[0], "some output", 60)
        pid = self.job()["pid"]
        command.send_signal(signal.SIGHUP)
        result = self.remote.finish(command)
        self.assertEqual(result.code, FAILED, str(result))
        self.assertIn("the job runs on, and 'rekindle attach job' follows it again", result.err)
        at = len(lines_of(self.numbers))
        waiting.until(lambda: len(lines_of(self.numbers)) > at + 3, "it counts on")
        self.assertEqual(self.job()["pid"], pid)
        self.succeed("stop", "job", cli=self.remote)

    def test_attach_follows_a_log_that_is_rotated(self):
        self.start(150, options=["--every", "1h", "--restarts", "0"])
        waiting.until(lambda: len(lines_of(self.numbers)) > 3, "some lines")
        command = self.remote.start("attach", "job", json_output=False)
        first = b""
        while not first.endswith(b"\n"):  # it follows
            first += os.read(command.stdout.fileno(), 1)
        log = self.job()["log"]
        os.rename(log, log + ".1")
        with open(log, "w", encoding="ascii") as file:
            file.write("of the new one\n")
        result = self.remote.finish(command)
        self.assertEqual(result.code, 0, str(result))
        shown = result.out.split("\n")
        self.assertEqual(shown.count("of the new one"), 1, shown)
        # The job knows nothing of the new one.
        numbers = [int(line) for line in shown if line.isdigit()]
        self.assertEqual(numbers, list(range(int(first) + 1, 150)), shown)

    def test_images_are_kept_to_their_number(self):
        self.start(150, options=["--every", "100ms", "--restarts", "0", "--keep", "2"])
        self.wait_for_image(4)
        self.wait_for_end()
        # Those two, and the next that had been one to go back to.
        self.assertLessEqual(len([i for i in self.references(cli=self.remote) if i.startswith("job:")]), 3)
        self.assert_store_whole(self.references(cli=self.remote), cli=self.remote)

    def test_standard_input_is_a_file(self):
        given = self.path("given")
        with open(given, "w", encoding="ascii") as file:
            file.write("from a file\n")
        out = self.path("out")
        for options in ([], ["--every", "1h"]):
            argv = self.remote.argv("run", "--name", "cat", *options, "--", "cat")
            with open(given, encoding="ascii") as source, open(out, "w", encoding="ascii") as sink:
                done = subprocess.run(argv, stdin=source, stdout=sink, check=False)
            self.assertEqual(done.returncode, 0)
            with open(out, encoding="ascii") as file:
                self.assertEqual(file.read(), "from a file\n")

    def test_standard_input_is_no_pipe(self):
        touched = self.path("touched")
        argv = self.remote.argv("run", "--name", "piped", "--every", "1h", "--", "touch", touched)

        def run(write):
            """Its exit status, and what it says."""
            reader, writer = os.pipe()
            if write:
                os.write(writer, b"data")
            with subprocess.Popen(argv, stdin=reader, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as command:
                os.close(reader)
                code, said = command.wait(60), command.stderr.read()
            os.close(writer)
            return code, said

        code, said = run(write=True)
        self.assertEqual(code, USAGE)
        self.assertIn(b"< FILE", said)
        self.assertFalse(os.path.exists(touched))
        # As over ssh: most often nothing comes.
        code, said = run(write=False)
        self.assertEqual(code, DONE)
        self.assertIn(b"reads /dev/null", said)
        self.assertTrue(os.path.exists(touched))
        os.unlink(touched)
        with subprocess.Popen(["true"], stdout=subprocess.PIPE) as ended:
            ended.wait(60)
            done = subprocess.run(argv, stdin=ended.stdout, stdout=subprocess.DEVNULL, check=False)
        self.assertEqual(done.returncode, 0)
        self.assertTrue(os.path.exists(touched))

    def test_refusals(self):
        self.start(1000, options=["--every", "1h", "--restarts", "0"])
        refused = self.remote.run("run", "--name", "job", "--", "true")
        self.assertIn("job", refused.message)
        self.assertNotEqual(refused.code, 0)
        self.assert_refused(self.remote.run("run", "--keep", "2", "--", "true"), USAGE, "--keep", "--every")
        self.assert_refused(self.remote.run("run", "--every", "soon", "--", "true"), USAGE, "--every")
        # It would run without an image.
        for options in (("--name", "Train"), ("--name", "x", "--image-name", "Train"), ("--image-name", "train:1")):
            refused = self.remote.run("run", "--every", "1s", *options, "--", "true")
            self.assert_refused(refused, USAGE, options[-1], "--image-name train")
        self.assert_refused(self.remote.run("stop", "nobody"), NOT_FOUND, "nobody")
        self.assert_refused(self.remote.run("attach", "nobody"), NOT_FOUND, "nobody")
        other = self.make_cli(host=self.daemon.host, uid=NOBODY)
        self.assert_refused(other.run("stop", "job"), NOT_PERMITTED, "stop")
        self.assert_refused(other.run("attach", "job"), NOT_PERMITTED, "attach")
        self.assertEqual(self.job()["state"], "running")


class WithoutDaemonTest(RekindleTest):
    def test_a_name_that_no_image_can_have(self):
        program = self.path("Train..X")
        with open(program, "w", encoding="ascii") as file:
            file.write(f"#!/bin/sh\nexec {jobs.PYTHON} {jobs.workload('counting.py')} \"$@\"\n")
        os.chmod(program, 0o755)
        numbers = self.path("numbers")
        command = self.cli.start("run", "--every", "300ms", "--restarts", "2", "--", program, numbers, "200",
                                 json_output=False)  # fmt: skip
        waiting.until(lambda: len(lines_of(numbers)) > 60 or command.poll() is not None, "some lines")
        result = self.cli.finish(command)
        self.assertEqual(result.code, 0, str(result))
        self.assertRegex(" ".join(self.references()), r"^train\.x:")

    def test_several_are_stopped(self):
        for name in ("one", "two"):
            self.succeed("run", "--detach", "--name", name, "--", "sleep", "1000")
        result = self.cli.run("stop", "one", "none", "two")
        self.assertEqual(result.code, NOT_FOUND, str(result))
        self.assertIn("none", result.out + result.err)
        self.assertEqual(self.succeed("ps")["jobs"], [])

    def test_the_command_itself_supervises(self):
        numbers = self.path("numbers")
        command = self.cli.start("run", "--every", "300ms", "--restarts", "2", "--name", "job", "--", jobs.PYTHON,
                                 jobs.workload("counting.py"), numbers, "200", json_output=False)
        waiting.until(lambda: len(lines_of(numbers)) > 60, "some lines")
        with open(os.path.join(self.runtime, "jobs/job.json"), encoding="utf-8") as file:
            os.kill(json.load(file)["pid"], signal.SIGKILL)
        result = self.cli.finish(command)
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual(lines_of(numbers), [str(number) for number in range(200)])
        self.assertEqual(self.succeed("ps")["jobs"], [])
        (ended,) = self.succeed("ps", "--all")["jobs"]
        self.assertEqual((ended["name"], ended["supervised"]["phase"]), ("job", "done"))
        self.assertEqual(ended["supervised"]["restarts"], 1)

    def test_a_daemon_takes_over_what_a_killed_command_leaves(self):
        numbers = self.path("numbers")
        words = ["run", "--every", "300ms", "--restarts", "2", "--name", "job", "--", jobs.PYTHON,
                 jobs.workload("counting.py"), numbers, "100000"]  # fmt: skip
        command = self.cli.start(*words, json_output=False)
        self.addCleanup(command.wait)
        self.addCleanup(command.kill)
        waiting.until(lambda: self.references() if lines_of(numbers) else None, "an image", 60)
        daemon = self.start_daemon("--standby", "0")
        remote = self.make_cli(host=daemon.host)
        with open(os.path.join(self.runtime, "jobs/job.json"), encoding="utf-8") as file:
            pid = json.load(file)["pid"]
        self.addCleanup(jobs.kill_tree, pid)  # it comes back with this one
        self.addCleanup(remote.run, "stop", "job", "--grace", "1s")

        # As long as the command lives, the job is its own.
        for cli in (self.cli, remote):
            self.assert_refused(cli.run(*words[:-1], "1"), FAILED, "'job'", "another --name")
        self.assert_refused(remote.run("stop", "job"), FAILED, f"kill {command.pid}")
        for cli in (self.cli, remote):
            self.assert_refused(cli.run("attach", "job"), FAILED, f"PID {command.pid}")
            listed = self.succeed("ps", cli=cli)["jobs"]
            self.assertEqual([(job["name"], job["pid"]) for job in listed], [("job", pid)])
            self.assertEqual(listed[0]["supervised"]["phase"], "running")
        self.assertTrue(procfs.alive(pid))
        waits = remote.start("wait", "job")
        self.addCleanup(waits.wait)
        self.addCleanup(waits.kill)
        # Of one that ends meanwhile.
        end = self.path("end")
        brief = self.cli.start("run", "--restarts", "0", "--name", "brief", "--", "sh", "-c",
                               "until test -e $0; do sleep 0.05; done; exit 7", end)  # fmt: skip
        json.loads(brief.stdout.readline())
        self.succeed("run", "--detach", "--name", "ended", "--", "true", cli=remote)
        brief_waits = [cli.start("wait", "ended", "brief") for cli in (self.cli, remote)]
        for wait in brief_waits:
            self.assertEqual(json.loads(wait.stdout.readline())["name"], "ended")
        with open(end, "w", encoding="ascii"):
            pass
        self.assertEqual(self.cli.finish(brief).code, 7)
        for wait in brief_waits:
            result = self.cli.finish(wait)
            self.assertEqual((result.code, result.data["exit_code"], result.data["unknown"]), (7, 7, False), result)

        command.kill()
        self.cli.finish(command)

        def supervised():
            jobs.reap_orphans()
            listed = self.succeed("ps", cli=remote).get("jobs", [])
            return next((job for job in listed if job["name"] == "job" and job["supervised"]), None)

        self.assertEqual(waiting.until(supervised, "the job taken over", 30)["pid"], pid)
        os.kill(pid, signal.SIGKILL)
        waiting.until(lambda: (job := supervised()) and job["supervised"]["restarts"], "it back", 60)
        at = len(lines_of(numbers))
        waiting.until(lambda: len(lines_of(numbers)) > at + 5, "more lines", 60)
        found = lines_of(numbers)
        self.assertEqual(found, [str(number) for number in range(len(found))])
        self.succeed("stop", "job", cli=remote)
        self.assertEqual(self.cli.finish(waits).data["name"], "job")

    def test_nobody_would_stay(self):
        refused = self.cli.run("run", "--every", "1s", "--detach", "--", "true")
        self.assertIn("rekindled", refused.message)
        self.assertNotEqual(refused.code, 0)


if __name__ == "__main__":
    unittest.main()
