"""Jobs with a GPU, simulated as drivers are that lose for good what does not fit: whoever brings memory back looks for
room first."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import unittest

from harness import jobs, procfs, waiting
from harness.cli import DONE, FAILED, USAGE
from harness.gpu_case import GpuTest
from harness.gpu_sim import FIRST, GIB, MIB, SECOND

TURN = "\0rekindle-gpu-turn-" + FIRST


class RoomTest(GpuTest):
    def start_sim(self, **options):
        return super().start_sim(missing_room_is_final=1, **options)

    def fill(self, left):
        """So much of the job's GPU is free from now on, once jobs have left it that are on their way out."""

        def filled():
            with contextlib.suppress(RuntimeError):
                self.sim.control("reserve", FIRST, 4 * GIB - left)
                return True
            return False

        waiting.until(filled, "room that can be taken")

    def call_under_way(self, call):
        return any(entry["call"] == call and entry["result"] is None for entry in self.sim.calls())

    def with_room_timeout(self, seconds):
        self.environment["REKINDLE_GPU_ROOM_TIMEOUT"] = str(seconds)
        self.cli = self.make_cli(store=self.store)


class DeadDaemonTest(RoomTest):
    def kill_daemon_while_it_is_out(self):
        """Where there is no room any more for what comes back: the job, and the helper that is left."""
        job = self.start_vector_job(bytes=256 * MIB)
        daemon = self.start_daemon()
        cli = self.make_cli(host=daemon.host)
        self.sim.inject("checkpoint", "--delay-ms", 1000, "--when", "after", nth=1)
        command = cli.start("ckpt", job.pid, "-t", "vector:1")
        waiting.until(lambda: self.call_under_way("checkpoint"), "the job on its way out")
        helper = next(pid for pid in procfs.descendants(daemon.pid) if "gpu-helper" in procfs.command_line(pid))
        self.fill(128 * MIB)
        daemon.kill()
        cli.finish(command)
        return job, helper

    def test_its_helper_looks_for_room(self):
        self.with_room_timeout(1)
        job, helper = self.kill_daemon_while_it_is_out()
        waiting.for_exit(helper)
        self.assertNotIn("restore", [entry["call"] for entry in self.sim.calls()])
        # What runs next finds no room either, and says so.
        self.assertTrue(self.gpu_job(job.pid)["parked"])
        self.fill(4 * GIB)
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)

    def test_its_helper_waits_for_room(self):
        job, helper = self.kill_daemon_while_it_is_out()
        waiting.until(lambda: self.sim.calls()[-1]["result"] is not None, "the job out")
        self.fill(4 * GIB)
        waiting.for_exit(helper)
        self.assert_runs(job)


class ForgottenTest(RoomTest):
    def forget(self):
        """What is noted of parked jobs in the runtime folder has gone."""
        self.environment["REKINDLE_RUNTIME_DIR"] = self.path("other")
        self.with_room_timeout(0)

    @staticmethod
    def end_watch(job):
        """It is all that still knows where the job was."""
        watch = procfs.traced_by(job.pid)
        os.kill(watch, signal.SIGKILL)
        waiting.until(lambda: procfs.traced_by(job.pid) == 0, "the job unwatched")


class NotedJobTest(ForgottenTest):
    """A parked job of which nothing is noted in the runtime folder, but by its watch."""

    def test_only_its_own_gpu_needs_room(self):
        jobs_of = [self.start_vector_job("one", bytes=256 * MIB), self.start_vector_job("two", first_gpu=1)]
        for job in jobs_of:
            self.succeed("gpu", "park", job.pid)
        self.forget()
        for job in jobs_of:
            entry = self.gpu_job(job.pid)
            self.assertTrue(entry["parked"])
            self.assertEqual(entry["why"], "parked by uid 0")
        # No room on the first one, and none that is needed there.
        self.fill(128 * MIB)
        self.succeed("gpu", "resume", jobs_of[1].pid)
        self.assert_runs(jobs_of[1])
        result = self.cli.run("gpu", "resume", jobs_of[0].pid)
        self.assert_refused(result, FAILED, FIRST, "needs 264.0 MiB")
        self.assertNotIn("is not known", result.err)
        self.fill(1 * GIB)
        self.succeed("gpu", "resume", jobs_of[0].pid)
        self.assert_runs(jobs_of[0])
        self.assertEqual(sum(job["parked"] for job in self.succeed("gpu", "ps")["jobs"]), 0)

    def test_an_image_of_it_knows_where_it_was(self):
        job = self.start_vector_job(first_gpu=1)
        self.succeed("gpu", "park", job.pid)
        self.forget()
        self.checkpoint(job.pid, "vector:1")
        (device,) = self.succeed("inspect", "vector:1")["gpu"]["devices"]
        self.assertEqual(device["uuid"], SECOND)
        # It is watched again, and that knows it too.
        self.environment["REKINDLE_RUNTIME_DIR"] = self.path("third")
        self.with_room_timeout(0)
        self.fill(0)
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)

    def test_a_lease_makes_room_for_it(self):
        self.fill(512 * MIB)
        job = self.start_vector_job("parked", bytes=256 * MIB)
        self.succeed("gpu", "park", job.pid)
        self.forget()
        cli = self.make_cli(host=self.start_daemon().host)
        other = self.start_vector_job("other", bytes=384 * MIB)
        for server in (other, job):
            self.succeed("gpu", "lease", server.pid, cli=cli)
            self.succeed("gpu", "release", server.pid, cli=cli)
        self.assert_runs(job)
        self.assertTrue(self.gpu_job(other.pid)["parked"])


class UnknownJobTest(ForgottenTest):
    """A parked job of which nothing is noted anywhere."""

    def park_and_forget(self, name="vector", **options):
        job = self.start_vector_job(name, **options)
        self.succeed("gpu", "park", job.pid)
        self.end_watch(job)
        self.forget()
        return job

    def test_no_room(self):
        job = self.park_and_forget(bytes=256 * MIB)
        self.fill(128 * MIB)
        for _ in range(2):
            result = self.cli.run("gpu", "resume", job.pid)
            self.assert_refused(result, FAILED, "is not known", FIRST, "free", "rekindle gpu park", "--gpu-map OLD=OLD")
            # It is listed, with why it is where it is, and without a guess at where it was.
            entry = self.gpu_job(job.pid)
            self.assertTrue(entry["parked"])
            self.assertEqual((entry["state"], entry["uses"]), ("checkpointed", []))
            self.assertIn("free", entry["why"])
            self.assertIn(entry["why"][:60], self.cli.run("gpu", "ps", json_output=False).out)
        self.fill(1 * GIB)
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)

    def test_it_is_listed_before_anybody_asks_for_it(self):
        job = self.park_and_forget()
        # The management library names those that run.
        self.start_vector_job("other", first_gpu=1)
        entry = self.gpu_job(job.pid)
        self.assertEqual(entry["state"], "checkpointed")
        self.assertIn("nothing is noted", entry["why"])
        self.assertIn("nothing is noted", self.cli.run("gpu", "ps", json_output=False).out)
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)

    def test_whoever_knows_where_it_was_says_so(self):
        job = self.park_and_forget(bytes=256 * MIB, first_gpu=1)
        self.fill(128 * MIB)
        self.assert_refused(self.cli.run("gpu", "resume", job.pid), FAILED, "is not known", FIRST)
        # Who is wrong does no harm, where the driver wants each GPU named too.
        self.fill(1 * GIB)
        for strict in (0, 1):
            self.sim.control("set", "pairs-name-visible-gpus", strict)
            result = self.cli.run("gpu", "resume", job.pid, "--gpu-map", f"{FIRST}={FIRST}")
            self.assert_refused(result, USAGE, "other GPUs than --gpu-map says")
        self.sim.control("set", "pairs-name-visible-gpus", 0)
        self.fill(128 * MIB)
        self.assert_refused(
            self.cli.run("gpu", "resume", job.pid, "--gpu-map", f"{SECOND}={FIRST}"), FAILED, "is not known", FIRST, "free"
        )
        self.succeed("gpu", "resume", job.pid, "--gpu-map", f"{SECOND}={SECOND}")
        self.assert_runs(job)
        self.assertGreaterEqual(self.used_bytes(SECOND), 256 * MIB)

    def test_onto_another_gpu(self):
        job = self.park_and_forget(bytes=256 * MIB)
        self.fill(128 * MIB)
        self.succeed("gpu", "resume", job.pid, "--gpu-map", f"{FIRST}={SECOND}")
        self.assert_runs(job)
        self.assertGreaterEqual(self.used_bytes(SECOND), 256 * MIB)

    def test_a_lease_makes_room_for_it(self):
        job = self.park_and_forget("parked", bytes=256 * MIB)
        self.with_room_timeout(30)  # a lease that parks nobody waits so long, and its own time is up
        cli = self.make_cli(host=self.start_daemon().host)
        self.fill(512 * MIB)
        self.sim.control("reserve", SECOND, 4 * GIB - 512 * MIB)
        others = [self.start_vector_job(name, bytes=384 * MIB, first_gpu=gpu) for gpu, name in enumerate(("one", "two"))]
        for server in others:
            self.succeed("gpu", "lease", server.pid, cli=cli)
            self.succeed("gpu", "release", server.pid, cli=cli)
        self.succeed("gpu", "lease", others[0].pid, cli=cli)
        result = cli.run("gpu", "lease", job.pid, "--timeout", "1")
        self.assert_refused(result, FAILED, "is not known", "--gpu-map OLD=OLD", f"job {others[0].pid} has")
        self.succeed("gpu", "release", others[0].pid, cli=cli)
        self.succeed("gpu", "lease", job.pid, "--timeout", "20", cli=cli)
        self.assert_runs(job)
        self.assertTrue(self.gpu_job(others[0].pid)["parked"])
        # It is known where it is by now.
        self.succeed("gpu", "release", job.pid, cli=cli)
        self.succeed("gpu", "lease", others[0].pid, cli=cli)

    def test_an_empty_gpu_is_room_enough(self):
        """Most of what the job has in host memory is none of a GPU's."""
        self.sim.stop()
        sizes = ((FIRST, "NVIDIA H200", 96 * MIB), (SECOND, "NVIDIA H200", 96 * MIB))
        self.sim = self.start_sim(gpus=sizes, host_extra_bytes=128 * MIB)
        job = self.park_and_forget(bytes=16 * MIB)
        other = self.start_vector_job("other", bytes=16 * MIB)
        self.assert_refused(self.cli.run("gpu", "resume", job.pid), FAILED, "is not known", str(other.pid))
        self.kill(other)
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)


class OtherFolderTest(RoomTest):
    def test_one_at_a_time_though_they_share_no_folder(self):
        parked, clis = [], []
        for name in ("a", "b"):
            parked.append(self.start_vector_job(name, bytes=256 * MIB))
            clis.append(
                self.make_cli(
                    store=self.path("store-" + name),
                    env={"REKINDLE_RUNTIME_DIR": self.path("run-" + name), "REKINDLE_GPU_ROOM_TIMEOUT": "1"},
                )
            )
            self.succeed("gpu", "park", parked[-1].pid, cli=clis[-1])
        self.fill(448 * MIB)
        self.sim.inject("restore", "--delay-ms", 500, "--when", "before")
        commands = [cli.start("gpu", "resume", job.pid) for cli, job in zip(clis, parked)]
        results = [cli.finish(command) for cli, command in zip(clis, commands)]
        self.assertEqual(sorted(result.code for result in results), [DONE, FAILED], results)
        self.sim.clear()
        self.fill(4 * GIB)
        for cli, job, result in zip(clis, parked, results):
            if result.code == FAILED:
                self.assert_refused(result, FAILED, "free")
                self.succeed("gpu", "resume", job.pid, cli=cli)
            job.wait_for_steps()

    def test_who_keeps_the_turn_for_ever(self):
        job = self.start_vector_job()
        self.succeed("gpu", "park", job.pid)
        self.with_room_timeout(1)
        # Of root's it is waited for.
        with contextlib.closing(self.taken_turn()):
            command = self.cli.start("gpu", "resume", job.pid)
            with self.assertRaises(subprocess.TimeoutExpired):
                command.wait(2.5)
        self.assertEqual(self.cli.finish(command).code, DONE)
        self.succeed("gpu", "park", job.pid)
        # Of another user's, only as long as for room.
        holder = self.start_holder(uid=4321)
        result = self.cli.run("gpu", "resume", job.pid)
        self.assertEqual(result.code, DONE, str(result))
        self.assertIn(f"process {holder.pid}", result.err)
        self.assert_runs(job)

    @staticmethod
    def taken_turn():
        turn = socket.socket(socket.AF_UNIX)
        turn.bind(TURN)
        turn.listen()
        return turn

    def start_holder(self, uid):
        program = (
            "import socket, time; s = socket.socket(socket.AF_UNIX); s.bind('\\0' + %r); s.listen();"
            "print('has it', flush=True); time.sleep(600)" % TURN[1:]
        )
        holder = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, user=uid, group=uid, extra_groups=[], cwd="/"
        )
        jobs.waited_elsewhere.add(holder.pid)

        def end():
            holder.kill()
            holder.communicate()
            jobs.waited_elsewhere.discard(holder.pid)

        self.addCleanup(end)
        self.assertEqual(holder.stdout.readline(), b"has it\n")
        return holder


class RemovedFilesTest(RoomTest):
    """A second Rekindle meets somebody's capture, and what the first one has noted of it is damaged."""

    def look_during_capture(self, job, spoil):
        daemon = self.start_daemon()
        cli = self.make_cli(host=daemon.host)
        self.sim.inject("checkpoint", "--delay-ms", 2500, nth=1)
        command = cli.start("ckpt", job.pid, "-t", "vector:1")
        waiting.until(lambda: self.call_under_way("checkpoint"), "the job on its way out")
        spoil()
        beside = self.cli.run("gpu", "ps")
        self.assertEqual(beside.code, DONE, str(beside))
        self.assertFalse(any(entry["parked"] for entry in beside.data["jobs"]), beside.data)
        result = cli.finish(command)
        self.assertEqual(result.code, DONE, str(result))
        self.assert_runs(job)

    def test_lock_file_that_a_cleaner_removes(self):
        def remove():
            folder = os.path.join(self.runtime, "gpu")
            movers = [name for name in os.listdir(folder) if name.startswith("mover-")]
            self.assertTrue(movers)
            for name in movers:
                os.unlink(os.path.join(folder, name))

        self.look_during_capture(self.start_vector_job(), remove)

    def test_folder_whose_name_is_no_utf8(self):
        self.runtime = self.path("run-\udcff")
        self.environment["REKINDLE_RUNTIME_DIR"] = self.runtime
        self.cli = self.make_cli(store=self.store)
        self.look_during_capture(self.start_vector_job(), lambda: None)


class GivenUpTest(RoomTest):
    def test_resume_that_waits_for_room(self):
        job = self.start_vector_job(bytes=256 * MIB)
        daemon = self.start_daemon()
        for cli in (self.make_cli(host=daemon.host), self.cli):
            self.succeed("gpu", "park", job.pid, cli=cli)
            why = self.gpu_job(job.pid)["why"]
            self.fill(128 * MIB)
            command = cli.start("gpu", "resume", job.pid)
            waiting.until(lambda: not (self.gpu_job(job.pid) or {}).get("parked"), "the resume at work")
            command.send_signal(signal.SIGINT)
            self.assert_refused(cli.finish(command, 10), FAILED, "nothing was moved", "gpu ps")
            entry = self.gpu_job(job.pid)
            self.assertEqual((entry["parked"], entry["why"]), (True, why))
            self.fill(4 * GIB)
            self.assertTrue(self.gpu_job(job.pid)["parked"])
            self.succeed("gpu", "resume", job.pid, cli=cli)
            self.assert_runs(job)

    def test_swap_that_waits_for_room(self):
        first = self.start_vector_job("first", bytes=256 * MIB)
        daemon = self.start_daemon()
        cli = self.make_cli(host=daemon.host)
        self.succeed("gpu", "park", first.pid, cli=cli)
        second = self.start_vector_job("second", bytes=64 * MIB)
        self.fill(160 * MIB)
        command = cli.start("gpu", "swap", second.pid, first.pid)
        waiting.until(lambda: self.gpu_job(second.pid)["parked"], "the first half done")
        command.send_signal(signal.SIGINT)
        self.assert_refused(cli.finish(command, 10), FAILED, "nothing was moved", "as it was")
        self.assert_runs(second)
        self.assertTrue(self.gpu_job(first.pid)["parked"])


if __name__ == "__main__":
    unittest.main()
