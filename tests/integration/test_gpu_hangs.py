"""GPU jobs whose driver does not answer, and what becomes of those that are left without their device memory."""

import os
import signal
import subprocess
import unittest

from harness import procfs, waiting
from harness.cli import DONE, FAILED, binary
from harness.gpu_case import GpuTest
from harness.gpu_sim import FIRST, GIB, MIB


def helpers_of(daemon):
    return [pid for pid in procfs.descendants(daemon.pid) if "gpu-helper" in procfs.command_line(pid)]


class HangTest(GpuTest):
    """The driver's thread in the job hangs on when its caller has been killed, as no caller's end helps a real one."""

    def setUp(self):
        super().setUp()
        self.environment["REKINDLE_GPU_MOVE_TIMEOUT"] = "2"
        self.cli = self.make_cli(store=self.store)

    def assert_is_watched(self, pid):
        self.assertEqual(procfs.command_line(procfs.traced_by(pid)), binary("rekindle-gpu-keeper"))

    def test_the_job_is_let_go_and_told_of(self):
        job = self.start_vector_job()
        for command, call in (
            (("ckpt", job.pid, "-t", "vector:1"), "checkpoint"),
            (("gpu", "park", job.pid), "checkpoint"),
            (("gpu", "resume", job.pid), "restore"),
        ):
            with self.subTest(command=command):
                if call == "restore":
                    self.succeed("gpu", "park", job.pid)
                before = len(self.sim.calls())
                self.sim.inject(call, "--hang", "--until-cleared", nth=1)
                self.assert_refused(self.cli.run(*command), FAILED, "no answer", "gpu resume")
                calls = [entry["call"] for entry in self.sim.calls()[before:]]
                self.assertEqual(calls[calls.index(call) + 1 :].count("state"), 1, calls)
                self.assertFalse({"lock", "checkpoint", "restore", "unlock"} & set(calls[calls.index(call) + 1 :]), calls)
                # Nobody keeps its threads from running, but where its memory is nobody knows.
                self.assert_is_watched(job.pid)
                entry = self.gpu_job(job.pid)
                self.assertEqual((entry["parked"], entry["state"]), (True, "unknown"), entry)
                self.assertIn("no answer", entry["why"])
                self.sim.clear()
                self.succeed("gpu", "resume", job.pid)
                self.assert_runs(job)

    def test_the_others_of_its_job_stay_where_they_are(self):
        job = self.start_tree_job(3)
        first, second, third = sorted(procfs.descendants(job.pid))
        for pid in (second, third):
            self.sim.inject("checkpoint", "--hang", "--until-cleared", pid=pid, nth=1)
        self.assert_refused(self.cli.run("gpu", "park", job.pid), FAILED, str(second), str(third), "no answer")
        (entry,) = [entry for entry in self.succeed("gpu", "ps")["jobs"] if entry["parked"]]
        self.assertEqual(sorted(entry["pids"]), [first, second, third])
        self.assert_is_watched(first)
        self.sim.clear()
        self.succeed("gpu", "resume", job.pid)
        job.wait_for_steps()

    def test_a_question_without_an_answer_costs_no_helper(self):
        """It is left alone: who is killed in a call harms the process, and the driver may only be busy with it."""
        job = self.start_vector_job()
        daemon = self.start_daemon()
        self.cli = self.make_cli(host=daemon.host)
        self.assert_runs(job)
        (helper,) = helpers_of(daemon)
        self.sim.inject("state", "--hang", "--until-cleared", pid=job.pid, nth=1)
        self.assertEqual(self.gpu_job(job.pid)["state"], "unknown")
        self.assertEqual(helpers_of(daemon), [helper])
        self.sim.clear()
        self.assert_runs(job)
        self.assertEqual(helpers_of(daemon), [helper])


class ReplacedHelperTest(GpuTest):
    def test_it_puts_back_what_the_one_before_it_has_moved(self):
        """The daemon's helper is killed in another job's move, and then the daemon while this job's memory is out."""
        held, other = (self.start_vector_job(name, bytes=32 * MIB) for name in ("held", "other"))
        self.environment.update(REKINDLE_GPU_MOVE_TIMEOUT="4", REKINDLE_GPU_ROOM_TIMEOUT="60")
        daemon = self.start_daemon()
        cli = self.make_cli(host=daemon.host)
        used = self.used_bytes()
        self.sim.inject("checkpoint", "--delay-ms", 1500, "--when", "after", pid=held.pid, nth=1)
        command = cli.start("ckpt", held.pid, "-t", "held:1")
        waiting.until(lambda: self.sim.stats()["gpus"][0]["used"] < used, "its memory is out")
        self.sim.control("reserve", FIRST, 4 * GIB - self.sim.stats()["gpus"][0]["used"])
        (helper,) = helpers_of(daemon)
        self.sim.inject("checkpoint", "--hang", pid=other.pid, nth=1)
        self.assert_refused(cli.run("gpu", "park", other.pid), FAILED, "did not answer")
        other.wait_for_steps()
        self.assertNotIn(helper, helpers_of(daemon))
        daemon.kill()
        cli.finish(command)
        self.sim.control("reserve", FIRST, 0)
        held.wait_for_steps()
        self.assert_runs(held)


class KilledMasterTest(GpuTest):
    def test_a_job_that_hangs_keeps_no_other_from_going_back(self):
        out, hanging = (self.start_vector_job(name, bytes=32 * MIB) for name in ("out", "hanging"))
        daemon = self.start_daemon()
        cli = self.make_cli(host=daemon.host)
        used = self.used_bytes()
        self.sim.inject("checkpoint", "--hang", "--until-cleared", pid=hanging.pid, nth=1)
        self.sim.inject("checkpoint", "--delay-ms", 1500, "--when", "after", pid=out.pid, nth=1)
        parks = [cli.start("gpu", "park", job.pid) for job in (hanging, out)]
        waiting.until(lambda: self.sim.stats()["gpus"][0]["used"] < used, "its memory is out")

        def hangs():
            return any(call["call"] == "checkpoint" and call["pid"] == hanging.pid for call in self.sim.calls())

        waiting.until(hangs, "the other one hangs")
        (helper,) = helpers_of(daemon)
        daemon.kill()
        for park in parks:
            cli.finish(park)
        out.wait_for_steps()
        self.assertTrue(procfs.alive(helper), "it still waits for the other one")
        self.sim.clear()
        hanging.wait_for_steps()
        self.assert_runs(out)
        self.assert_runs(hanging)


# PTRACE_SEIZE, until its input ends.
DEBUGGER = """
import ctypes, sys
assert ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), None, None) == 0
print("traces it", flush=True)
sys.stdin.read()
"""


class WithoutMemoryTest(GpuTest):
    """A job that goes on without its device memory after a capture is watched before it does."""

    def assert_is_watched(self, job, pid):
        self.assertTrue(procfs.alive(pid), job.log_text())
        self.assertEqual(procfs.command_line(procfs.traced_by(pid)), binary("rekindle-gpu-keeper"))
        self.assertNotEqual(procfs.state(job.pid), "T")

    def write_lingering(self, criu):
        """A CRIU that takes a while to end after it has let the job go."""
        path = self.path("criu")
        with open(path, "w", encoding="ascii") as file:
            file.write(f'#!/bin/sh\n[ "$1" = dump ] || exec {criu} "$@"\n{criu} "$@"\ncode=$?\nsleep 0.5\nexit $code\n')
        os.chmod(path, 0o755)
        return path

    def test_one_that_can_go_neither_out_nor_back(self):
        job = self.start_tree_job(2, first_call="stream", step_ms=50)
        first, second = sorted(procfs.descendants(job.pid))
        self.sim.inject("checkpoint", "--fail", 999, pid=second)
        self.sim.inject("restore", "--fail", 2, pid=first)
        self.assert_refused(self.cli.run("ckpt", job.pid, "-t", "tree:1"), FAILED, "gpu resume")
        self.assert_is_watched(job, first)
        self.sim.clear()
        self.succeed("gpu", "resume", job.pid)
        job.wait_for_steps()

    def test_one_that_can_not_go_back_after_its_image(self):
        """It would die of the first synchronize after CRIU has let it go."""
        job = self.start_vector_job(first_call="stream", step_ms=50)
        criu = self.checkpoint(job.pid, "vector:0")["command_lines"][0].split(" dump ")[0]
        self.sim.inject("restore", "--fail", 2)
        result = self.cli.run("ckpt", job.pid, "-t", "vector:1", env={"REKINDLE_CRIU": self.write_lingering(criu)})
        self.assertEqual(result.code, DONE, str(result))
        self.assert_is_watched(job, job.pid)
        self.sim.clear()
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)

    def test_one_whose_watch_was_killed_has_another_one(self):
        job = self.start_vector_job()
        daemon = self.start_daemon()
        self.cli = self.make_cli(host=daemon.host)
        self.succeed("gpu", "park", job.pid)

        def kill_watch():
            os.kill(procfs.traced_by(job.pid), signal.SIGKILL)
            waiting.until(lambda: procfs.traced_by(job.pid) == 0, "nobody traces the job")

        kill_watch()
        self.assertTrue(self.gpu_job(job.pid)["parked"])
        self.assert_is_watched(job, job.pid)
        kill_watch()
        daemon.kill()
        again = self.start_daemon()
        self.cli = self.make_cli(host=again.host)
        self.assert_is_watched(job, job.pid)
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)

    def test_one_that_can_not_be_watched_is_told_of(self):
        job = self.start_vector_job()
        self.succeed("gpu", "park", job.pid)
        self.assertEqual(self.gpu_job(job.pid)["trouble"], "")
        os.kill(procfs.traced_by(job.pid), signal.SIGKILL)
        waiting.until(lambda: procfs.traced_by(job.pid) == 0, "nobody traces the job")
        argv = ["/usr/bin/python3", "-c", DEBUGGER, str(job.pid)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as debugger:
            self.assertEqual(debugger.stdout.readline(), b"traces it\n")
            self.assertIn("nobody watches", self.gpu_job(job.pid)["trouble"])
            debugger.stdin.close()
        self.assertEqual(self.gpu_job(job.pid)["trouble"], "")
        self.assert_is_watched(job, job.pid)


class KeptRoomTest(GpuTest):
    def test_a_job_that_comes_back_waits_for_no_other(self):
        """Its room is its own, and its threads stand still until it is back."""
        held, other = (self.start_vector_job(name) for name in ("held", "other"))
        daemon = self.start_daemon()
        cli = self.make_cli(host=daemon.host)
        self.succeed("gpu", "park", other.pid, cli=cli)
        self.sim.inject("restore", "--hang", "--until-cleared", pid=other.pid, nth=1)
        command = cli.start("gpu", "resume", other.pid)
        waiting.until(lambda: any(entry["call"] == "restore" for entry in self.sim.calls()), "the other comes back")
        self.assertEqual(cli.run("ckpt", held.pid, "-t", "held:1").code, DONE)
        held.wait_for_steps()
        self.assertIsNone(command.poll())
        self.sim.clear()
        cli.finish(command)
        self.succeed("gpu", "resume", other.pid, cli=cli)
        other.wait_for_steps()


if __name__ == "__main__":
    unittest.main()
