"""Jobs of Slurm that are preempted and go on where they were, with examples/slurm."""

import os
import pwd
import re
import signal
import subprocess
import unittest

from harness import jobs, procfs, slurm, waiting
from harness.case import RekindleTest
from harness.cli import DONE, FAILED, NO_STORE, NOT_FOUND, NOT_PERMITTED, binary, environment
from test_torch import steps_in

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/slurm")
NOBODY = 65534
CAP_SYS_RESOURCE = 24


class SlurmTest(RekindleTest):
    """The base: a cluster, and the example's batch script with another command."""

    uid = 0

    def image(self, job):
        return f"slurm-{pwd.getpwuid(self.uid).pw_name}-{job}"

    def start_slurm(self, **options):
        reason = slurm.missing()
        if reason:
            self.skipTest(reason)
        self.slurm = slurm.Slurm(self, **options)
        self.work = self.path("work")
        os.mkdir(self.work)
        os.chown(self.work, self.uid, self.uid)
        # Through the batch script's environment, as users' settings come.
        self.job_environment = {
            "PATH": f"{os.path.realpath(EXAMPLES)}:{os.path.dirname(binary('rekindle'))}:/usr/bin:/bin",
            "REKINDLE_STORE": self.store,
            **self.environment,
        }

    def submit(self, command, *options, wrapper_options=""):
        """Submits the example, with this command in the place of its own. Returns the job's number."""
        with open(os.path.join(EXAMPLES, "rekindle.sbatch"), encoding="utf-8") as file:
            text = file.read()
        script, replaced = re.subn(
            r"rekindle-slurm .* -- python3 train.py", f"rekindle-slurm {wrapper_options} -- {command}", text
        )
        self.assertEqual(replaced, 1, text)
        path = os.path.join(self.work, "job.sbatch")
        with open(path, "w", encoding="utf-8") as file:
            file.write(script)
        return self.slurm.submit(
            path,
            "--output",
            self.work + "/out.%a" if "--array" in " ".join(options) else self.output(),
            "--chdir",
            self.work,
            *options,
            environment=self.job_environment,
            uid=self.uid,
        )

    def submit_counter(self, *options, **more):
        return self.submit(f"{jobs.PYTHON} {jobs.workload('counter.py')} {self.work}/end", *options, **more)

    def end_counter(self, status):
        """The counter ends with this status."""
        path = self.path("status")
        with open(path, "w", encoding="ascii") as file:
            file.write(str(status))
        os.rename(path, self.work + "/end")

    def output(self, task=""):
        return f"{self.work}/out.{task}"

    def numbers(self, task=""):
        """The lines of the output that are numbers."""
        if not os.path.exists(self.output(task)):
            return []
        with open(self.output(task), encoding="utf-8", errors="replace") as file:
            return [int(line) for line in file.read().split("\n")[:-1] if line.isdigit()]

    def wait_for_numbers(self, more, task=""):
        at = len(self.numbers(task))
        try:
            waiting.until(lambda: len(self.numbers(task)) >= at + more, f"{more} more numbers", 60, 0.05)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.story(task)}\n{self.slurm.logs()}") from None

    def story(self, task=""):
        """What the user would look at."""
        with open(self.output(task), encoding="utf-8", errors="replace") as file:
            return file.read()

    def requeue_and_complete(self, number):
        self.slurm.run("scontrol", "requeue", number)
        waiting.until(self.counters, "it counts again", 60, 0.1)
        self.wait_for_numbers(10)
        self.end_counter(0)
        self.slurm.wait_for_state(number, "COMPLETED")
        self.assert_each_number_once()

    def assert_each_number_once(self, task=""):
        numbers = self.numbers(task)
        self.assertEqual(numbers, list(range(1, len(numbers) + 1)), self.story(task))

    def preempt(self, *numbers):
        """Lets another job take the place of these, until all of them wait for their turn."""
        gate = self.path("gate")
        os.mkfifo(gate)
        script = self.path("high.sbatch")
        with open(script, "w", encoding="ascii") as file:
            file.write(f"#!/bin/sh\ncat {gate}\n")
        high = self.slurm.submit(script, "-p", "high", "--exclusive", "-o", "/dev/null")
        self.slurm.wait_for_state(high, "RUNNING")
        for number in numbers:
            self.slurm.wait_for_state(number, "PENDING")
        self.assertEqual(self.counters(), [])
        with open(gate, "w", encoding="ascii"):  # until the job has it open too
            pass
        self.slurm.wait_for_state(high, "COMPLETED")
        os.unlink(gate)

    def counters(self):
        """PIDs of those that count."""
        command = f"{jobs.PYTHON} {jobs.workload('counter.py')} {self.work}/end"
        return [pid for pid in procfs.all_pids() if procfs.command_line(pid) == command]


class PreemptedTest(SlurmTest):
    """As root, without a daemon."""

    def test_goes_on_where_it_was_each_time(self):
        self.start_slurm()
        number = self.submit_counter()
        self.wait_for_numbers(20)
        pid = self.counters()
        for restarts in (1, 2):
            self.preempt(number)
            self.assertEqual(self.references(), [self.image(number) + ":latest"])
            self.wait_for_numbers(20)
            self.assertEqual(self.slurm.job(number)["Restarts"], str(restarts))
            self.assertEqual(self.counters(), pid, "the very process")
        self.end_counter(0)
        self.slurm.wait_for_state(number, "COMPLETED")
        self.assert_each_number_once()
        self.assertEqual(self.story().count("DUE TO PREEMPTION"), 2, "what Slurm writes is left alone")
        self.assert_store_whole([])

    def test_training_comes_to_the_same_tensors(self):
        self.start_slurm()
        training = jobs.workload("torch_training.py")
        log, reference = self.work + "/steps", self.path("reference.steps")

        def wait_for_steps(more):
            at = len(steps_in(log)) if os.path.exists(log) else 0
            waiting.until(
                lambda: os.path.exists(log) and len(steps_in(log)) >= at + more, f"{more} more steps", 90
            )

        number = self.submit(f"{jobs.PYTHON} {training} {log}")
        wait_for_steps(3)
        self.preempt(number)
        wait_for_steps(3)
        self.slurm.run("scancel", number)
        self.slurm.wait_for_state(number, "CANCELLED")
        steps = steps_in(log)
        untouched = self.start_job([jobs.PYTHON, training, reference, str(steps[-1][0])], "reference")
        untouched.reap(120)
        self.assertEqual(steps, steps_in(reference))

    def test_array_and_exit_status(self):
        """Two tasks at a time; they have images of their own, and fail as their commands do."""
        self.start_slurm(cpus=2)
        number = self.submit_counter("--array", "3,7")
        for task in ("3", "7"):
            self.wait_for_numbers(10, task)
        tasks = [self.slurm.job(f"{number}_{task}")["JobId"] for task in ("3", "7")]
        self.preempt(*tasks)
        images = [self.image(f"{number}_{task}") + ":latest" for task in ("3", "7")]
        self.assertEqual(self.references(), images, self.story("3") + self.story("7"))
        for task in ("3", "7"):
            self.wait_for_numbers(10, task)
        self.end_counter(9)
        for task, job in zip(("3", "7"), tasks):
            self.slurm.wait_for_state(job, "FAILED")
            self.assertEqual(self.slurm.job(job)["ExitCode"], "9:0")
            self.assert_each_number_once(task)
        self.assert_store_whole(images)

    def test_killed_between_two_images(self):
        """The job has failed, its last image is there; once it is started again, it goes on from that."""
        if "--rollback" not in self.cli.run("restore", "--help", json_output=False).out:
            self.skipTest("this rekindle does not roll files back")
        self.start_slurm()
        number = self.submit_counter(wrapper_options="--every 1")
        image = self.image(number)
        waiting.until(lambda: self.cli.run("inspect", image).code == DONE, "an image", 60, 0.1)
        self.wait_for_numbers(10)
        (pid,) = self.counters()
        os.kill(pid, signal.SIGKILL)
        self.slurm.wait_for_state(number, "FAILED")
        self.assertEqual(self.slurm.job(number)["ExitCode"], f"{128 + signal.SIGKILL}:0")
        self.requeue_and_complete(number)
        self.assert_store_whole([])

    def test_goes_on_twice_from_the_image_of_a_stop(self):
        self.start_slurm()
        number = self.submit_counter()
        self.wait_for_numbers(10)
        self.preempt(number)
        self.wait_for_numbers(10)
        (pid,) = self.counters()
        os.kill(pid, signal.SIGKILL)
        self.slurm.wait_for_state(number, "FAILED")
        self.requeue_and_complete(number)

    def test_signal_before_the_time_limit_and_cancelled(self):
        """Slurm sends USR1 to the batch script ahead of the time limit; `scancel` ends the job for good."""
        self.start_slurm()
        number = self.submit_counter(wrapper_options="--remove-images")
        self.wait_for_numbers(10)
        self.slurm.run("scancel", "--batch", "--signal=USR1", number)
        self.slurm.wait_for_state(number, "PENDING", "RUNNING")
        waiting.until(lambda: self.slurm.job(number)["Restarts"] == "1", "it was started again", 60, 0.1)
        # Slurm takes that for a job that waits only, so the script asks for it after that.
        at_home = lambda: self.slurm.job(number)["ReqNodeList"] == slurm.NODE  # noqa: E731
        waiting.until(at_home, "it stays where its image is", 60, 0.1)
        self.wait_for_numbers(10)
        self.slurm.run("scancel", number)
        self.slurm.wait_for_state(number, "CANCELLED")
        self.assertEqual(self.counters(), [])
        self.assert_each_number_once()
        self.assert_store_whole([])


class WithoutSlurmTest(RekindleTest):
    """The script alone, with a `rekindle` of ours that says how it was called, and of an image what it is told to."""

    def run_script(self, answer, *command, lives=1):
        fake = self.path("rekindle")
        with open(fake, "w", encoding="ascii") as file:
            file.write(f'#!/bin/sh\necho "$1" >> {self.path("calls")}\n')
            file.write('[ "$1" != inspect ] || { echo "the reason" >&2; exit "$ANSWER"; }\n')
        os.chmod(fake, 0o755)
        return subprocess.run(
            [os.path.join(EXAMPLES, "rekindle-slurm"), "--", *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=environment(
                {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(lives), "REKINDLE": fake, "ANSWER": str(answer)}
            ),
        )

    def calls(self):
        with open(self.path("calls"), encoding="ascii") as file:
            return file.read().split()

    def test_begins_anew_where_there_is_no_image(self):
        done = self.run_script(NOT_FOUND, "echo", "begun")
        self.assertEqual((done.returncode, done.stdout), (DONE, "begun\n"), done.stderr)
        self.assertNotIn("restore", self.calls())

    def test_begins_where_no_store_was_made_yet(self):
        done = self.run_script(NO_STORE, "echo", "begun", lives=0)
        self.assertEqual((done.returncode, done.stdout), (DONE, "begun\n"), done.stderr)

    def test_goes_on_where_there_is_one(self):
        done = self.run_script(DONE, "echo", "begun")
        self.assertEqual((done.returncode, done.stdout), (DONE, ""), done.stderr)
        self.assertIn("restore", self.calls())

    def test_does_neither_where_that_is_not_known(self):
        for answer in (FAILED, NOT_PERMITTED, NO_STORE):
            with self.subTest(answer=answer):
                done = self.run_script(answer, "echo", "begun")
                self.assertEqual((done.returncode, done.stdout), (FAILED, ""), done.stderr)
                self.assertIn("the reason", done.stderr)
                self.assertEqual(set(self.calls()), {"version", "inspect"})


class DaemonTest(SlurmTest):
    """With the daemon; as an ordinary user, where CRIU may capture the processes of one. Slurm finds the
    processes of a job by their control group.
    """

    uid = NOBODY if procfs.has_capability(CAP_SYS_RESOURCE) else 0

    def setUp(self):
        super().setUp()
        if slurm.cgroups_missing():
            self.skipTest(slurm.cgroups_missing())
        self.start_slurm(proctrack="cgroup")
        self.daemon = self.start_daemon()
        del self.job_environment["REKINDLE_STORE"]
        self.job_environment["REKINDLE_HOST"] = self.daemon.host

    def assert_counts_in_slurms_cgroup(self, number):
        (pid,) = self.counters()
        with open(f"/proc/{pid}/cgroup", encoding="ascii") as file:
            self.assertIn(f"freezer:/slurm_{slurm.NODE}/uid_{self.uid}/job_{number}/step_batch\n", file.read())

    def test_goes_on_in_slurms_cgroup(self):
        number = self.submit_counter()
        self.wait_for_numbers(20)
        self.assert_counts_in_slurms_cgroup(number)
        self.preempt(number)
        self.wait_for_numbers(20)
        self.assert_counts_in_slurms_cgroup(number)
        self.end_counter(0)
        self.slurm.wait_for_state(number, "COMPLETED")
        self.assert_each_number_once()
        self.assertEqual(self.references(), [])

    def test_killed_with_its_job(self):
        """What was restored ends with the job, even when the batch script can't see to it."""
        number = self.submit_counter()
        self.wait_for_numbers(10)
        self.preempt(number)
        self.wait_for_numbers(10)
        self.slurm.run("scancel", "--full", "--signal=KILL", number)
        self.slurm.wait_for_state(number, "CANCELLED", "FAILED", "COMPLETED")
        self.assertEqual(self.counters(), [])
        self.assertEqual(self.references(), [self.image(number) + ":latest"])


if __name__ == "__main__":
    unittest.main()
