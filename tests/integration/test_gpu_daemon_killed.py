"""Jobs with a GPU, simulated, whose daemon is killed."""

import os
import signal
import unittest

from harness import procfs, waiting
from harness.cli import DONE
from harness.gpu_case import GpuTest
from harness.gpu_sim import MIB


class GpuDaemonKilledTest(GpuTest):
    """kill -9 of the daemon in each state of a move; what starts next puts things right."""

    def test_in_each_state(self):
        self.kill_in_each_state(self.start_vector_job(bytes=32 * MIB), (False, True))

    def test_of_a_job_that_synchronizes_all_the_time(self):
        """It would die of that without its memory: it stands until that has been put back."""
        self.kill_in_each_state(self.start_vector_job(bytes=32 * MIB, first_call="stream", step_ms=20), (False, True))

    def kill_in_each_state(self, job, helper_too):
        for call in ("lock", "checkpoint", "restore", "unlock"):
            for both in helper_too:
                self.kill_in(job, call, both)

    def kill_in(self, job, call, helper_too):
        daemon = self.start_daemon()
        cli = self.make_cli(host=daemon.host)
        self.sim.inject(call, "--delay-ms", 3000, nth=1)
        command = cli.start("ckpt", job.pid, "-t", f"{call}:{helper_too}", "--replace")

        def under_way():
            if command.poll() is not None:
                self.fail(f"{call}: {cli.finish(command)}")
            return any(entry["call"] == call and entry["result"] is None for entry in self.sim.calls())

        try:
            waiting.until(under_way, f"{call} under way")
        except TimeoutError as error:
            raise AssertionError(f"{error}: {self.sim.calls()}\n{daemon.log_text()}\n{job.log_text()}") from error
        helpers = [pid for pid in procfs.descendants(daemon.pid) if "gpu-helper" in procfs.command_line(pid)]
        self.assertEqual(len(helpers), 1)
        daemon.kill()
        if helper_too:
            os.kill(helpers[0], signal.SIGKILL)
        cli.finish(command)
        self.sim.clear()
        again = self.start_daemon()
        self.assertEqual(self.make_cli(host=again.host).run("gpu", "ps").code, DONE)
        self.assert_runs(job)
        again.stop()

    def test_parked_jobs_stay_parked(self):
        job = self.start_vector_job()
        daemon = self.start_daemon()
        self.succeed("gpu", "park", job.pid, cli=self.make_cli(host=daemon.host))
        daemon.kill()
        again = self.start_daemon()
        cli = self.make_cli(host=again.host)
        entry = next(entry for entry in self.succeed("gpu", "ps", cli=cli)["jobs"] if entry["pid"] == job.pid)
        self.assertTrue(entry["parked"])
        self.succeed("gpu", "resume", job.pid, cli=cli)
        self.assert_runs(job)


class SeveralProcessesTest(GpuTest):
    """What a killed daemon has moved of a job of several processes comes back as with a resume."""

    def start_tree(self):
        """Whose children's numbers do not tell in which order they were started: the last free ones are used up between."""
        with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
            highest = int(file.read())
        for attempt in range(3, 40):
            with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as file:
                file.write(str(highest - attempt))
            tree = self.start_tree_job(3, name=f"tree{attempt}")
            with open(f"/proc/{tree.pid}/task/{tree.pid}/children", encoding="ascii") as file:
                children = [int(word) for word in file.read().split()]
            if len(children) == 3 and children != sorted(children):
                return tree, children
            self.kill(tree)
        self.skipTest("the children's numbers could not be chosen")

    def kill_while_all_is_out(self, tree, helper_too):
        """Returns where the calls begin that come after it."""
        daemon = self.start_daemon()
        self.sim.inject("checkpoint", "--delay-ms", 1500, "--when", "after")
        command = self.make_cli(host=daemon.host).start("gpu", "park", tree.pid)
        waiting.until(lambda: sum(gpu["used"] for gpu in self.sim.stats()["gpus"]) == 0, "all of it is out")
        (helper,) = [pid for pid in procfs.descendants(daemon.pid) if "gpu-helper" in procfs.command_line(pid)]
        calls = len(self.sim.calls())
        daemon.kill()
        if helper_too:
            os.kill(helper, signal.SIGKILL)
        self.cli.finish(command)
        return calls, helper

    def assert_all_run(self, tree, children):
        tree.wait_for_steps()
        states = {pid: job["state"] for job in self.succeed("gpu", "ps")["jobs"] for pid in job["pids"]}
        self.assertEqual([states.get(child) for child in children], ["running"] * 3)

    def test_a_launch_jobs_come_back_in_the_order_in_which_they_left(self):
        job_file = self.path("job-file")
        with open(job_file, "w", encoding="ascii"):
            pass
        self.sim.environment["CUDA_CHECKPOINT_JOB_FILE"] = job_file
        tree, children = self.start_tree()
        for helper_too in (False, True):
            with self.subTest(helper_too=helper_too):
                before = len(self.sim.calls())
                after, _ = self.kill_while_all_is_out(tree, helper_too)
                if helper_too:
                    self.sim.clear()
                    again = self.start_daemon()
                    self.succeed("gpu", "ps", cli=self.make_cli(host=again.host))
                    again.stop()
                self.assert_all_run(tree, children)
                calls = self.sim.calls()
                left = [call["pid"] for call in calls[before:] if call["call"] == "lock"]
                back = [call["pid"] for call in calls[after:] if call["call"] == "restore"]
                self.assertEqual(len(left), 3)
                self.assertEqual(back, left)
                self.sim.clear()

    def test_those_whose_turn_had_not_come_follow(self):
        job_file = self.path("job-file")
        with open(job_file, "w", encoding="ascii"):
            pass
        self.sim.environment["CUDA_CHECKPOINT_JOB_FILE"] = job_file
        tree = self.start_tree_job(3)
        children = procfs.descendants(tree.pid)
        daemon = self.start_daemon()
        cli = self.make_cli(host=daemon.host)
        self.succeed("gpu", "park", tree.pid, cli=cli)
        self.sim.inject("restore", "--delay-ms", 1500, nth=1)
        command = cli.start("gpu", "resume", tree.pid)
        waiting.until(lambda: any(call["call"] == "restore" for call in self.sim.calls()), "the first is on its way")
        (helper,) = [pid for pid in procfs.descendants(daemon.pid) if "gpu-helper" in procfs.command_line(pid)]
        daemon.kill()
        self.cli.finish(command)
        waiting.until(lambda: not procfs.alive(helper), "the helper has done what it could")
        tree.wait_for_steps()
        calls = self.sim.calls()
        back = [call["pid"] for call in calls if call["call"] == "restore" and call["result"] == 0]
        self.assertEqual(back, [call["pid"] for call in calls if call["call"] == "lock"])
        self.assert_all_run(tree, children)

    def test_all_come_back_or_none(self):
        tree = self.start_tree_job(3)
        children = procfs.descendants(tree.pid)
        self.sim.inject("restore", "--fail", 2, pid=children[1])
        after, helper = self.kill_while_all_is_out(tree, helper_too=False)
        waiting.until(lambda: not procfs.alive(helper), "the helper has done what it could")
        calls = self.sim.calls()[after:]
        self.assertIn(0, [call["result"] for call in calls if call["call"] == "restore"], "others could go back")
        self.assertEqual([call for call in calls if call["call"] == "unlock"], [])
        self.assertEqual(sum(gpu["used"] for gpu in self.sim.stats()["gpus"]), 0)
        self.sim.clear()
        again = self.start_daemon()
        self.succeed("gpu", "ps", cli=self.make_cli(host=again.host))
        self.assert_all_run(tree, children)


if __name__ == "__main__":
    unittest.main()
