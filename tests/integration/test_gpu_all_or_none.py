"""GPU jobs whose moves fail in part: all processes of a job run or none, and what does not run is listed."""

import os
import signal
import subprocess
import unittest

from harness import procfs, waiting
from harness.cli import DONE, FAILED, binary
from harness.gpu_case import GpuTest
from harness.gpu_sim import FIRST, GIB, MIB


class SeveralProcessesTest(GpuTest):
    def setUp(self):
        super().setUp()
        self.job = self.start_tree_job(2)
        self.children = sorted(procfs.descendants(self.job.pid))
        self.assertEqual(len(self.children), 2)

    def states(self):
        """Of the children, as the driver says."""
        return {entry["state"] for entry in self.succeed("gpu", "ps")["jobs"]}

    def parked(self):
        return [entry for entry in self.succeed("gpu", "ps")["jobs"] if entry["parked"]]

    def assert_listed(self, *states):
        """Both stand still, are listed as parked, and a resume brings them back."""
        (entry,) = self.parked()
        self.assertEqual((entry["pid"], sorted(entry["pids"])), (self.job.pid, self.children))
        self.assertEqual(entry["state"], ", ".join(sorted(states)))
        self.sim.clear()
        self.succeed("gpu", "resume", self.job.pid)
        self.assert_all_run()

    def assert_all_run(self):
        self.job.wait_for_steps()
        self.assertEqual(self.parked(), [])
        self.assertEqual(self.states(), {"running"})

    def test_one_that_goes_out_when_another_can_not(self):
        self.sim.inject("checkpoint", "--fail", 999, pid=self.children[1])
        result = self.cli.run("gpu", "park", self.job.pid)
        self.assertNotEqual(result.code, DONE, str(result))
        self.sim.clear()
        self.assert_all_run()

    def test_and_that_can_not_go_back_either(self):
        self.sim.inject("checkpoint", "--fail", 999, pid=self.children[1])
        self.sim.inject("restore", "--fail", 2, pid=self.children[0])
        result = self.cli.run("gpu", "park", self.job.pid)
        self.assert_refused(result, FAILED, "gpu resume", str(self.children[0]))
        self.assert_listed("checkpointed", "locked")

    def test_one_that_does_not_go_back_after_an_image(self):
        self.sim.inject("restore", "--fail", 2, pid=self.children[1])
        taken = self.checkpoint(self.job.pid, "tree:1")
        self.assertTrue(any("gpu resume" in warning for warning in taken["warnings"]), taken)
        self.assertEqual(self.used_bytes(FIRST), 0)
        self.assert_listed("checkpointed")

    def test_one_that_stays_locked(self):
        self.succeed("gpu", "park", self.job.pid)
        for fault in (("--fail", 999), ("--no-effect",)):
            with self.subTest(fault=fault):
                self.sim.inject("unlock", *fault, pid=self.children[1])
                self.assertNotEqual(self.cli.run("gpu", "resume", self.job.pid).code, DONE)
                self.assertEqual(self.used_bytes(FIRST), 0)
                self.sim.clear()
        self.assert_listed("checkpointed")

    def test_one_whose_state_the_driver_loses(self):
        """The image is good; the job is told to be beyond help, and its other process runs."""
        self.sim.inject("restore", "--fail", 999, "--then-failed", pid=self.children[1])
        taken = self.checkpoint(self.job.pid, "tree:1")
        lost = [warning for warning in taken["warnings"] if "only a new start" in warning]
        self.assertTrue(lost and str(self.children[1]) in lost[0], taken)
        self.assertIn(f"{self.children[1]}", str(self.parked()))
        self.assertNotIn(self.children[0], [pid for entry in self.parked() for pid in entry["pids"]])
        self.sim.clear()
        self.kill(self.job)
        self.come_back("tree:1", self.job)

    def test_parked_in_part_by_another_tool(self):
        """`park` takes the rest out, `resume` brings all back."""
        for action in ("lock", "checkpoint"):
            self.toggle(action, self.children[0])
        moved = self.succeed("gpu", "park", self.job.pid)
        self.assertGreater(moved["bytes"], 0)
        self.assertEqual(self.used_bytes(FIRST), 0)
        self.succeed("gpu", "resume", self.job.pid)
        self.assert_all_run()

    def test_brought_back_by_another_tool(self):
        self.succeed("gpu", "park", self.job.pid)
        for child in self.children:
            for action in ("restore", "unlock"):
                self.toggle(action, child)
        self.assertTrue(self.succeed("gpu", "resume", self.job.pid)["nothing_to_do"])
        self.assert_all_run()

    def toggle(self, action, pid):
        argv = [binary("gpu_sim/cuda-checkpoint"), "--action", action, "--pid", str(pid)]
        subprocess.run(argv, stdin=subprocess.DEVNULL, env={**os.environ, **self.sim.environment}, check=True)

    def test_killed_while_one_has_lost_its_state(self):
        """What starts next frees the other, and lists what it can't free."""
        daemon = self.start_daemon()
        cli = self.make_cli(host=daemon.host)
        self.sim.inject("checkpoint", "--fail", 999, "--then-failed", pid=self.children[0])
        self.sim.inject("checkpoint", "--delay-ms", 1500, pid=self.children[1], nth=1)
        command = cli.start("ckpt", self.job.pid, "-t", "tree:1")
        under_way = {"call": "checkpoint", "pid": self.children[1]}
        waiting.until(
            lambda: any(
                entry["result"] is None and under_way.items() <= entry.items() for entry in self.sim.calls()
            ),
            "the second checkpoint under way",
        )
        helpers = [pid for pid in procfs.descendants(daemon.pid) if "gpu-helper" in procfs.command_line(pid)]
        daemon.kill()
        for helper in helpers:
            os.kill(helper, signal.SIGKILL)
        cli.finish(command)
        self.sim.clear()
        again = self.start_daemon()
        entries = self.succeed("gpu", "ps", cli=self.make_cli(host=again.host))["jobs"]
        parked = [pid for entry in entries if entry["parked"] for pid in entry["pids"]]
        self.assertEqual(parked, [self.children[0]])
        self.assertIn("only a new start", str(entries))
        running = [pid for entry in entries if entry["state"] == "running" for pid in entry["pids"]]
        self.assertEqual(running, [self.children[1]])


class ManualMovesTest(GpuTest):
    """`park` and `resume` beside images and leases."""

    SIZE = 64 * MIB

    def start_image(self, job):
        """A `ckpt` that stands still in the middle, and what makes it go on."""
        self.sim.inject("checkpoint", "--delay-ms", 500, nth=1)
        command = self.cli.start("ckpt", job.pid, "-t", "vector:1")
        waiting.until(
            lambda: any(entry["call"] == "checkpoint" and entry["result"] is None for entry in self.sim.calls()),
            "the checkpoint under way",
        )
        # Without it nobody hears that the call has returned.
        (helper,) = [pid for pid in procfs.descendants(command.pid) if "gpu-helper" in procfs.command_line(pid)]
        os.kill(helper, signal.SIGSTOP)
        return command, lambda: os.kill(helper, signal.SIGCONT)

    def test_parking_while_an_image_is_taken(self):
        job = self.start_vector_job()
        command, let_go = self.start_image(job)
        self.assert_refused(self.cli.run("gpu", "park", job.pid), FAILED, "being moved")
        let_go()
        taken = self.cli.finish(command)
        self.assertEqual(taken.code, DONE, str(taken))
        self.assert_runs(job)

    def test_looking_while_an_image_is_taken(self):
        """Asks the job nothing: what a frozen process is asked would be in its image."""
        job = self.start_vector_job()
        command, let_go = self.start_image(job)
        self.assertEqual(self.gpu_job(job.pid)["state"], "being moved")
        let_go()
        taken = self.cli.finish(command)
        self.assertEqual(taken.code, DONE, str(taken))
        self.assert_runs(job)

    def start_in_group(self, limit, **options):
        """A job that gets no more host memory than that from here on, and its group."""
        top = "/sys/fs/cgroup/memory"
        if not os.access(os.path.join(top, "memory.limit_in_bytes"), os.W_OK):
            self.skipTest("no memory cgroup (v1) that can be written to")
        group = os.path.join(top, f"rekindle-test-{os.getpid()}")
        os.mkdir(group)
        self.addCleanup(os.rmdir, group)
        self.write(group, "memory.limit_in_bytes", limit)
        inner = os.path.join(group, "inner")
        os.mkdir(inner)
        self.addCleanup(os.rmdir, inner)
        job = self.start_vector_job(**options)
        self.addCleanup(self.kill, job)
        self.write(inner, "cgroup.procs", job.pid)
        return job, group

    def test_a_driver_that_takes_host_memory_for_itself(self):
        """Its context is saved as well: what is told of the device alone would fit."""
        self.sim.stop()
        self.sim = self.start_sim(host_extra_bytes=160 * MIB)
        self.environment.pop("REKINDLE_GPU_CONTEXT_MEMORY")
        self.cli = self.make_cli(store=self.store)
        job, group = self.start_in_group(160 * MIB, bytes=64 * MIB)
        for command in (("gpu", "park", job.pid), ("ckpt", job.pid, "-t", "vector:1")):
            with self.subTest(command=command):
                self.assert_refused(self.cli.run(*command), FAILED, f"cgroup {group})", "contexts", "nothing was moved")
                self.assert_runs(job)

    def test_a_job_with_less_host_memory_than_device_memory(self):
        job, group = self.start_in_group(GIB, bytes=3 * GIB, sparse=True)
        for command in (("gpu", "park", job.pid), ("ckpt", job.pid, "-t", "vector:1")):
            with self.subTest(command=command):
                self.assert_refused(self.cli.run(*command), FAILED, f"cgroup {group})", "nothing was moved")
                self.assert_runs(job)

    def write_program(self, name, line):
        path = self.path(name)
        with open(path, "w", encoding="ascii") as file:
            file.write(f"#!/bin/sh\n{line}\n")
        os.chmod(path, 0o755)
        return path

    def write(self, folder, name, value):
        with open(os.path.join(folder, name), "w", encoding="ascii") as file:
            file.write(str(value))

    def test_files_are_as_they_were_when_device_memory_does_not_come_back(self):
        """A newer image may need what is behind the end."""
        job = self.start_vector_job()
        self.checkpoint(job.pid, "vector:1")
        self.kill(job)
        with open(job.job.log, "a", encoding="utf-8") as log:
            log.write("what comes after the image\n")
        size = os.path.getsize(job.job.log)
        self.sim.inject("restore", "--fail", 2)
        result = self.cli.run("restore", "vector:1", "--detach", "--rollback", "append")
        self.assert_refused(result, FAILED, "GPU state")
        self.assertEqual(os.path.getsize(job.job.log), size)
        folder = os.path.dirname(job.job.log)
        self.assertEqual([name for name in os.listdir(folder) if ".rekindle-tail-" in name], [])
        self.sim.clear()
        self.come_back("vector:1", job, "--rollback", "append")
        self.assertEqual(os.path.getsize(job.job.log), size - len("what comes after the image\n"))

    def test_no_image_and_no_way_back(self):
        """The error says both: why there is no image, and where the job is now."""
        job = self.start_vector_job()
        criu = self.checkpoint(job.pid, "vector:0")["command_lines"][0].split(" dump ")[0]
        # It fails when the memory is out.
        at_the_end = self.write_program("at-the-end", '[ "$CRTOOLS_SCRIPT_ACTION" != post-dump ]')
        failing = self.write_program(
            "criu", f'[ "$1" = dump ] && exec {criu} "$@" --action-script {at_the_end}; exec {criu} "$@"'
        )
        self.sim.inject("restore", "--fail", 2)
        result = self.cli.run("ckpt", job.pid, "-t", "vector:1", env={"REKINDLE_CRIU": failing})
        self.assert_refused(result, FAILED, "CRIU", f"gpu resume {job.pid}")
        self.assertTrue(self.gpu_job(job.pid)["parked"])
        self.sim.clear()
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)

    def start_small_daemon(self, *options):
        """Two of the jobs fit the GPU, with their contexts."""
        self.sim.stop()
        self.sim = self.start_sim(gpus=((FIRST, "NVIDIA H200", 2 * 80 * MIB),))
        self.daemon_options = options
        self.daemon = self.start_daemon(*options)
        self.cli = self.make_cli(host=self.daemon.host)

    def start_daemon_again(self):
        self.daemon.kill()
        self.daemon = self.start_daemon(*self.daemon_options)

    def parked(self):
        return {job["pid"] for job in self.succeed("gpu", "ps")["jobs"] if job["parked"]}

    def test_one_that_was_resumed_by_hand_makes_room(self):
        self.start_small_daemon()
        jobs = [self.start_vector_job(name, bytes=self.SIZE) for name in ("first", "second")]
        self.succeed("gpu", "park", jobs[1].pid)
        self.succeed("gpu", "park", jobs[0].pid)
        jobs.append(self.start_vector_job("third", bytes=self.SIZE))
        self.succeed("gpu", "park", jobs[2].pid)
        self.succeed("gpu", "resume", jobs[0].pid)
        self.succeed("gpu", "lease", jobs[1].pid)
        self.succeed("gpu", "lease", jobs[2].pid, "--timeout", "30")
        self.assertEqual(self.parked(), {jobs[0].pid})

    def test_what_is_parked_counts_after_a_restart(self):
        self.start_small_daemon("--gpu-host-memory", str(100 * MIB))
        first, second = (self.start_vector_job(name, bytes=self.SIZE) for name in ("first", "second"))
        self.succeed("gpu", "park", first.pid)
        self.start_daemon_again()
        self.assert_refused(self.cli.run("gpu", "park", second.pid), FAILED, "host", str(first.pid))
        self.succeed("gpu", "resume", first.pid)
        self.succeed("gpu", "park", second.pid)

    def test_those_that_were_released_make_room_after_a_restart(self):
        self.start_small_daemon()
        first, second = (self.start_vector_job(name, bytes=self.SIZE) for name in ("first", "second"))
        self.succeed("gpu", "park", second.pid)
        self.succeed("gpu", "park", first.pid)
        third = self.start_vector_job("third", bytes=self.SIZE)
        self.succeed("gpu", "park", third.pid)
        for server in (second, first):
            self.succeed("gpu", "lease", server.pid)
            self.succeed("gpu", "release", server.pid)
        self.start_daemon_again()
        self.succeed("gpu", "lease", third.pid, "--timeout", "30")
        self.assertEqual(self.parked(), {second.pid}, "the one that was used longest ago")


if __name__ == "__main__":
    unittest.main()
