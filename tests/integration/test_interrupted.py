"""Ctrl-C, kill -9 of the daemon, and two at once, in each phase of a checkpoint and of a restore: the job
runs on or nothing of it is there, and the store is whole.
"""

import json
import os
import random
import shlex
import signal
import subprocess
import time
import unittest

from harness import jobs, phases, procfs, waiting
from harness.case import MIB, RekindleTest
from harness.cli import DONE, FAILED, binary, environment
from harness.held_copies import HeldCopiesTest
from harness.terminal import Shell

POLL = 7
SIZE = 768 * MIB  # every phase lasts long enough to be seen


class InterruptedTest(RekindleTest):
    def prepare(self):
        job, memory = self.start_memory_job(SIZE)
        return job, memory, memory.digest()

    def assert_untouched(self, job, memory, digest, images=(), cli=None):
        memory.wait_for_tick()
        self.assertEqual(memory.digest(), digest)
        self.assertEqual(procfs.traced_by(job.pid), 0)
        self.assert_store_whole(list(images), cli=cli)


class CtrlCTest(InterruptedTest):
    def interrupt(self, command, wait):
        """Ctrl-C as a terminal sends it: to the whole process group of the command."""
        wait(lambda: command.poll() is not None)
        os.killpg(command.pid, signal.SIGINT)
        result = self.cli.finish(command, 60)
        self.assertNotEqual(result.code, DONE, str(result))
        return result

    def test_checkpoint(self):
        job, memory, digest = self.prepare()
        for phase in phases.CHECKPOINT_PHASES:
            with self.subTest(phase=phase):
                command = self.cli.start("ckpt", job.pid, "-t", "x:1")
                result = self.interrupt(
                    command,
                    lambda ended: phases.wait_for_checkpoint_phase(phase, command.pid, job.pid, ended),
                )
                self.assertNotIn("internal", result.message.lower())
                self.assert_untouched(job, memory, digest)
        self.checkpoint(job.pid, "x:1")
        self.assert_untouched(job, memory, digest, ["x:1"])

    def test_checkpoint_with_stop(self):
        """--stop ends the job only when its image is safe."""
        job, memory, digest = self.prepare()
        for phase in ("freeze", "commit"):
            with self.subTest(phase=phase):
                command = self.cli.start("ckpt", job.pid, "-t", "x:1", "--stop")

                def wait(ended):
                    if phase == "freeze":
                        return phases.wait_for_checkpoint_phase("freeze", command.pid, job.pid, ended)
                    # The job stays stopped through the commit: the dump is over when CRIU has let go of it.
                    phases.wait_for_checkpoint_phase("freeze", command.pid, job.pid, ended)
                    return waiting.until(
                        lambda: ended() or not phases.criu_processes(command.pid, "dump"),
                        "the dump over",
                        60,
                        0.0005,
                    )

                self.interrupt(command, wait)
                self.assert_untouched(job, memory, digest)

    def test_a_job_that_is_not_held_yet(self):
        command = self.cli.start("run", "--hold", "--detach", "--name", "job", "--", "sleep", "1000")
        pid = json.loads(command.stdout.readline())["job"]["pid"]
        self.kill_job_at_end(pid)
        result = self.interrupt(command, lambda _: None)
        for words in ("job 'job'", str(pid), "runs on", "ready()", "rekindle stop job"):
            self.assertIn(words, result.err + result.out)

    def test_a_pipe_without_another_end(self):
        job, memory, digest = self.prepare()
        self.checkpoint(job.pid, "x:1")
        pipe = self.path("pipe")
        os.mkfifo(pipe)
        for arguments in (("import", "--file", pipe, "-t", "y:1"), ("export", "x:1", "--file", pipe)):
            with self.subTest(arguments):
                command = self.cli.start(*arguments)
                result = self.interrupt(
                    command,
                    lambda ended, pid=command.pid: waiting.until(
                        lambda: ended() or procfs.in_system_call(pid, POLL), "it waits for the pipe"
                    ),
                )
                self.assertIn(pipe, result.message)
        self.assert_untouched(job, memory, digest, ["x:1"])

    def test_export(self):
        """While it is being read."""
        job, memory, digest = self.prepare()
        self.checkpoint(job.pid, "x:1")
        pipe = self.path("pipe")
        os.mkfifo(pipe)
        command = self.cli.start("export", "x:1", "--file", pipe)
        with open(pipe, "rb", buffering=0) as reader:
            reader.read(1)
            os.killpg(command.pid, signal.SIGINT)
            waiting.until(lambda: not procfs.pending_signals(command.pid), "it has taken the signal")
            while reader.read(MIB):
                pass
        self.assert_refused(self.cli.finish(command, 60), FAILED, "interrupted before all of the image was sent")
        self.assert_untouched(job, memory, digest, ["x:1"])

    def test_restore(self):
        job, memory, digest = self.prepare()
        self.checkpoint(job.pid, "x:1", "--stop")
        job.reap()
        for phase in ("start", "criu", "tasks"):
            with self.subTest(phase=phase):
                command = self.cli.start("restore", "x:1", "--detach")
                self.interrupt(
                    command, lambda ended: phases.wait_for_restore_phase(phase, command.pid, job.pid, ended)
                )
                waiting.until(lambda: not procfs.alive(job.pid), "nothing of the job is left")
                jobs.reap_orphans()
                self.assert_store_whole(["x:1"])
        self.restore("x:1")
        self.assert_untouched(job, memory, digest, ["x:1"])

    def test_restore_at_any_moment(self):
        """The job never runs on while its command has ended without a word of it."""
        job, _ = self.start_memory_job(16 * MIB)
        self.checkpoint(job.pid, "x:1", "--stop")
        job.reap()
        for words in (("restore", "x:1"), ("run", "--from", "x:1", "--every", "1h", "--name", "again")):
            for milliseconds in (0, 10, 20, 30, 40, 50, 60, 80, 100, 130, 170, 220):
                with self.subTest(words=words, milliseconds=milliseconds):
                    command = self.cli.start(*words)
                    self.interrupt(command, lambda ended, ms=milliseconds: time.sleep(ms / 1000))
                    waiting.until(lambda: not procfs.alive(job.pid), "nothing of the job is left")
                    jobs.reap_orphans()
        self.assert_store_whole(["x:1"])


class GivenUpTest(InterruptedTest):
    """A checkpoint by a daemon that is interrupted: its command comes back when the job is free."""

    def setUp(self):
        super().setUp()
        self.job, self.memory, self.digest = self.prepare()
        self.daemon = self.start_daemon()
        self.cli = self.make_cli(host=self.daemon.host)

    def start_checkpoint(self, phase):
        command = self.cli.start("ckpt", self.job.pid, "-t", "x:1")
        phases.wait_for_checkpoint_phase(phase, self.daemon.pid, self.job.pid, lambda: command.poll() is not None)
        return command

    def start_checkpoint_that_stands(self):
        """In its freeze, which lasts until CRIU goes on."""
        command = self.start_checkpoint("freeze")
        criu = phases.main_criu(self.daemon.pid, "dump")
        os.kill(criu, signal.SIGSTOP)
        self.addCleanup(lambda: procfs.alive(criu) and os.kill(criu, signal.SIGCONT))
        return command, criu

    def interrupt(self, command):
        os.killpg(command.pid, signal.SIGINT)
        waiting.until(lambda: not procfs.pending_signals(command.pid), "it has taken the signal")

    def assert_given_up(self, command):
        result = self.cli.finish(command, 60)
        self.assert_refused(result, FAILED, "was cancelled")
        self.assertEqual(procfs.traced_by(self.job.pid), 0)
        self.assert_untouched(self.job, self.memory, self.digest)

    def test_while_the_job_stands_still(self):
        command, criu = self.start_checkpoint_that_stands()
        self.interrupt(command)
        with self.assertRaises(subprocess.TimeoutExpired):
            command.wait(1)
        os.kill(criu, signal.SIGCONT)
        self.assert_given_up(command)
        self.checkpoint(self.job.pid, "x:1")

    def test_while_the_image_is_stored(self):
        command = self.start_checkpoint("commit")
        self.interrupt(command)
        self.assert_given_up(command)
        self.checkpoint(self.job.pid, "x:1")

    def test_a_restore_is_over_when_its_command_is(self):
        self.checkpoint(self.job.pid, "x:1", "--stop")
        self.job.reap()
        supervised = ("run", "--from", "x:1", "--name", "again", "--every", "1h", "--detach")
        for words, told in ((("restore", "x:1", "--detach"), "cancelled"), (supervised, "ended again")):
            with self.subTest(words=words):
                command = self.cli.start(*words)
                phases.wait_for_restore_phase(
                    "tasks", self.daemon.pid, self.job.pid, lambda command=command: command.poll() is not None
                )
                self.interrupt(command)
                self.assert_refused(self.cli.finish(command, 60), FAILED, told)
                self.assertFalse(procfs.alive(self.job.pid))
        self.restore("x:1")
        self.assert_untouched(self.job, self.memory, self.digest, ["x:1"])

    def test_who_interrupts_twice_waits_no_longer(self):
        command, criu = self.start_checkpoint_that_stands()
        self.interrupt(command)
        self.interrupt(command)
        self.assert_refused(self.cli.finish(command, 30), FAILED, "puts back what was half done")
        self.assertNotEqual(procfs.traced_by(self.job.pid), 0)
        os.kill(criu, signal.SIGCONT)
        waiting.until(lambda: procfs.traced_by(self.job.pid) == 0, "the job is free", 60)
        self.assert_untouched(self.job, self.memory, self.digest)


# A copy whose name is told to wait does, before it answers.
WAITS = """
import time
@rekindle.register_after_restore
def wait():
    if rekindle.instance.name in os.environ.get("WAITING", "").split(","):
        open(os.path.join(os.environ["ANSWERS"], "waits-" + rekindle.instance.name), "w").close()
        while not os.path.exists(os.path.join(os.environ["ANSWERS"], "go")):
            time.sleep(0.01)
"""


class CopiesTest(HeldCopiesTest):
    """Copies of which their client has not been told end with the call that was to start them; others run on."""

    def interrupt(self, command, *waiting_copies):
        """Ctrl-C once these are there, and wait."""
        for name in waiting_copies:
            path = os.path.join(self.answers, "waits-" + name)
            waiting.until(
                lambda path=path: os.path.exists(path) or command.poll() is not None, f"{name} waits", 60
            )
        os.killpg(command.pid, signal.SIGINT)
        result = self.cli.finish(command, 60)
        self.assertEqual(result.code, FAILED, str(result))
        self.assertIn("interrupted", result.message)

    def copies(self):
        """The root processes of all there are, told of or not; a template's too."""
        return {pid for pid in procfs.all_pids() if procfs.alive(pid) and self.number_inside(pid) == self.root}

    @staticmethod
    def number_inside(pid):
        try:
            return procfs.namespace_pid(pid)
        except OSError:
            return None

    def running_copies(self):
        return sorted(job["name"] for job in self.succeed("ps")["jobs"] if job["name"].startswith("copy"))

    def test_a_clone(self):
        reference = self.prepare(extra=WAITS)
        command = self.cli.start(
            "restore", reference, "--clone", "--detach", "--name", "copy", "--env", "WAITING=copy"
        )
        self.interrupt(command, "copy")
        self.wait_for_no_sandbox()
        self.assertEqual(self.running_copies(), [])

    def test_a_copy_of_a_template(self):
        self.prepare(extra=WAITS)
        self.succeed("template", "up", "held:1", "--name", "tpl")
        template = self.copies()
        command = self.cli.start(
            "template", "start", "tpl", "--detach", "--name", "copy", "--env", "WAITING=copy"
        )
        self.interrupt(command, "copy")
        self.assertEqual(self.running_copies(), [])
        waiting.until(lambda: self.copies() == template, "nothing but the template is left")
        self.assertEqual([int(entry["copies"]) for entry in self.succeed("template", "ls")["templates"]], [0])

    def test_those_that_were_told_of_run_on(self):
        reference = self.prepare(extra=WAITS)
        command = self.cli.start(
            "restore", reference, "--clone", "--detach", "--name", "copy", "--count", "8",
            "--env", "WAITING=" + ",".join(f"copy-{number}" for number in range(3, 9)),
        )
        told = [json.loads(command.stdout.readline())["job"] for _ in range(2)]
        self.interrupt(command, "copy-3")
        self.assertEqual(sorted(job["name"] for job in told), ["copy-1", "copy-2"])
        self.assertEqual(self.running_copies(), ["copy-1", "copy-2"])
        waiting.until(lambda: len(self.sandboxes()) == 2, "the others' sandboxes removed")


class CtrlZTest(InterruptedTest):
    """A shell stops a command that works without a daemon: never with a job that stands still."""

    def start_shell(self):
        shell = Shell(self.environment)
        self.addCleanup(shell.close)
        shell.wait_for(r"\$ ")
        return shell

    def test_the_command_stops_when_the_job_runs_on(self):
        job, memory, digest = self.prepare()
        shell = self.start_shell()
        shell.type(shlex.join(self.cli.argv("ckpt", job.pid, "-t", "x:1")) + "\n")
        waiting.until(lambda: phases.frozen(job.pid), "phase freeze", 60, 0.0005)
        shell.type("\x1a")
        shell.wait_for("Stopped")
        self.assertFalse(phases.frozen(job.pid))
        memory.wait_for_tick()
        self.assertEqual(procfs.state(shell.command()), "T")
        shell.type("fg\n")
        shell.wait_for("  committed ")
        self.assert_untouched(job, memory, digest, ["x:1"])

    def test_from_the_background_of_a_terminal_that_stops_who_writes(self):
        job, memory, digest = self.prepare()
        shell = self.start_shell()
        shell.type("stty tostop\n")
        shell.type(shlex.join(self.cli.argv("ckpt", job.pid, "-t", "x:1")) + " &\n")
        shell.wait_for("  committed ")
        self.assertNotIn("100 %", shell.shown())  # no bar over what is typed meanwhile
        self.assert_untouched(job, memory, digest, ["x:1"])


class DaemonKilledTest(InterruptedTest):
    def test_during_checkpoint(self):
        job, memory, digest = self.prepare()
        for phase in phases.CHECKPOINT_PHASES:
            with self.subTest(phase=phase):
                daemon = self.start_daemon()
                cli = self.make_cli(host=daemon.host)
                command = cli.start("ckpt", job.pid, "-t", "x:1")
                if phase == "prepare":
                    # The daemon's thread has begun when the work folder is there.
                    waiting.until(
                        lambda: command.poll() is not None
                        or os.path.isdir(self.runtime)
                        and any(name.startswith("capture-") for name in os.listdir(self.runtime)),
                        "begun",
                        30,
                        0.0005,
                    )
                else:
                    phases.wait_for_checkpoint_phase(
                        phase, daemon.pid, job.pid, lambda: command.poll() is not None
                    )
                daemon.kill()
                result = cli.finish(command, 60)
                self.assertEqual(result.code, FAILED, str(result))
                self.assertIn("rekindled", result.message)
                # Whatever starts next frees the job, should it still stand.
                again = self.start_daemon()
                self.assert_untouched(job, memory, digest, cli=self.make_cli(host=again.host))
                again.stop()

    def test_a_criu_that_does_not_end_keeps_the_next_daemon_from_nothing_else(self):
        job, memory, digest = self.prepare()
        daemon = self.start_daemon()
        command = self.make_cli(host=daemon.host).start("ckpt", job.pid, "-t", "x:1")
        phases.wait_for_checkpoint_phase("freeze", daemon.pid, job.pid, lambda: command.poll() is not None)
        for criu in phases.criu_processes(daemon.pid, "dump"):
            os.kill(criu, signal.SIGSTOP)
            self.addCleanup(jobs.kill_tree, criu)
        daemon.kill()
        self.cli.finish(command, 60)
        again = self.start_daemon()
        cli = self.make_cli(host=again.host)
        self.assertEqual(self.references(cli), [])
        self.succeed("run", "--", "true", cli=cli)
        self.assertIn(procfs.state(job.pid), ("t", "T"))
        os.kill(criu, signal.SIGCONT)
        waiting.until(
            lambda: not any(name.startswith("capture-") for name in os.listdir(self.runtime)), "it is tidied up", 60
        )
        self.assert_untouched(job, memory, digest, cli=cli)

    def test_during_checkpoint_then_plain_command(self):
        """Without a daemon it is the next command that frees the job."""
        job, memory, digest = self.prepare()
        command = self.cli.start("ckpt", job.pid, "-t", "x:1", "--stop")
        phases.wait_for_checkpoint_phase("freeze", command.pid, job.pid, lambda: command.poll() is not None)
        os.kill(command.pid, signal.SIGKILL)
        self.cli.finish(command)
        self.assertEqual(self.references(), [])
        self.assert_untouched(job, memory, digest)
        self.checkpoint(job.pid, "x:1")

    def test_during_restore(self):
        job, memory, digest = self.prepare()
        self.checkpoint(job.pid, "x:1", "--stop")
        job.reap()
        for phase in ("criu", "tasks"):
            with self.subTest(phase=phase):
                daemon = self.start_daemon()
                cli = self.make_cli(host=daemon.host)
                command = cli.start("restore", "x:1", "--detach")
                phases.wait_for_restore_phase(phase, daemon.pid, job.pid, lambda: command.poll() is not None)
                daemon.kill()
                result = cli.finish(command, 60)
                self.assertEqual(result.code, FAILED, str(result))
                # No half-made job runs on with pages missing.
                waiting.until(lambda: not procfs.alive(job.pid), "nothing of the job is left")
                jobs.reap_orphans()
                again = self.start_daemon()
                self.assert_store_whole(["x:1"], cli=self.make_cli(host=again.host))
                again.stop()
        self.restore("x:1")
        self.assert_untouched(job, memory, digest, ["x:1"])

    def test_jobs_survive_the_daemon(self):
        daemon = self.start_daemon()
        cli = self.make_cli(host=daemon.host)
        job, memory = self.start_memory_job(8 * MIB)
        digest = memory.digest()
        self.checkpoint(job.pid, "x:1", "--stop", cli=cli)
        job.reap()
        self.restore("x:1", cli=cli)
        daemon.kill()
        memory.wait_for_tick()
        again = self.start_daemon()
        listed = self.succeed("ps", cli=self.make_cli(host=again.host))["jobs"]
        self.assertIn(job.pid, [entry["pid"] for entry in listed])
        again.stop()
        memory.wait_for_tick()
        self.assertEqual(memory.digest(), digest)

    def test_two_daemons_on_one_socket(self):
        first = self.start_daemon()
        second = subprocess.run(
            [binary("rekindled"), "--store", self.store, "--socket", first.socket],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment(self.environment),
            timeout=30,
            check=False,
        )
        self.assertNotEqual(second.returncode, 0)
        self.assertIn(first.socket, second.stdout + second.stderr)
        self.assertTrue(first.running())


class MemberKilledTest(RekindleTest):
    """One of a job's processes is killed at a random moment of a dump."""

    rounds = int(os.environ.get("REKINDLE_MEMBER_KILLS", "8"))
    dump_takes = 0.1  # seconds
    program = "for i in 1 2 3 4 5 6 7 8; do sleep 1000 & done; wait"

    def members(self, job):
        return [pid for pid in procfs.descendants(job.pid) if procfs.state(pid) not in (None, "Z")]

    def start(self, name):
        job = self.start_job(["/bin/sh", "-c", self.program], name)
        waiting.until(lambda: len(self.members(job)) == 8, "the job's processes")
        return job

    def kill_during_a_dump(self, job, victim):
        command = self.cli.start("ckpt", job.pid, "-t", "lost:1")
        waiting.until(lambda: phases.frozen(job.pid) or command.poll() is not None, "a dump", 60, 0.0002)
        moment = time.monotonic() + random.uniform(0, self.dump_takes)
        while time.monotonic() < moment:
            pass
        os.kill(victim, signal.SIGKILL)
        if self.cli.finish(command, 60).code == DONE:  # it was too late for this one
            self.succeed("rm", "lost:1")

    def test_the_others_live_on(self):
        for number in range(self.rounds):
            job = self.start(f"members-{number}")
            victim, *others = random.sample(self.members(job), 8)
            self.kill_during_a_dump(job, victim)
            self.assertEqual(procfs.traced_by(job.pid), 0)
            self.assertEqual(sorted(self.members(job)), sorted(others), "alive")
            # They are what they were, also after a dump that was given up in the middle.
            image = f"members:{number}"
            self.checkpoint(job.pid, image, "--stop")
            job.reap()
            self.restore(image)
            self.assertEqual(sorted(self.members(job)), sorted(others), "brought back")
            jobs.kill_tree(job.pid)


class TwoAtOnceTest(InterruptedTest):
    def test_two_checkpoints_of_one_job(self):
        job, memory, digest = self.prepare()
        first = self.cli.start("ckpt", job.pid, "-t", "first:1")
        phases.wait_for_checkpoint_phase("freeze", first.pid, job.pid, lambda: first.poll() is not None)
        second = self.cli.run("ckpt", job.pid, "-t", "second:1")
        done = self.cli.finish(first)
        self.assertEqual(done.code, DONE, str(done))
        self.assert_refused(second, FAILED, str(job.pid), "another")
        self.assert_untouched(job, memory, digest, ["first:1"])

    def test_checkpoints_of_two_jobs(self):
        one, one_memory = self.start_memory_job(64 * MIB, "one")
        two, two_memory = self.start_memory_job(64 * MIB, "two")
        commands = [
            self.cli.start("ckpt", pid, "-t", name) for pid, name in ((one.pid, "one:1"), (two.pid, "two:1"))
        ]
        for command in commands:
            result = self.cli.finish(command)
            self.assertEqual(result.code, DONE, str(result))
        one_memory.wait_for_tick()
        two_memory.wait_for_tick()
        self.assert_store_whole(["one:1", "two:1"])


if __name__ == "__main__":
    unittest.main()
