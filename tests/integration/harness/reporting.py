"""Jobs that report through the hook, with the supervisor's side of their file played by the test."""

import os
import sys

from harness import jobs, waiting
from harness.case import RekindleTest
from harness.clones import HOOK_PYTHON, SOURCE, hook_library

sys.path.insert(0, os.path.join(SOURCE, "tests", "hook"))
from job_file import JobFile  # noqa: E402  pylint: disable=wrong-import-position


class Reporting:
    """What tests have whose jobs report: on top of a RekindleTest with a daemon."""

    @property
    def log(self):
        return self.path("steps")

    def start_reporting_with(self, *command, env=None):
        self.succeed(
            *command, "--", jobs.PYTHON, jobs.workload("training_steps.py"), self.log,
            env={"PYTHONPATH": HOOK_PYTHON, "REKINDLE_HOOK_LIBRARY": hook_library(), "REKINDLE_BOUNDARY_SECONDS": "600",
                 **(env or {})},
        )

    def job(self, name):
        return next(job for job in self.succeed("ps")["jobs"] if job["name"] == name)

    def lines(self):
        if not os.path.exists(self.log):
            return []
        with open(self.log, encoding="ascii") as file:
            return file.read().splitlines()

    def last_step(self):
        return int(next(line for line in reversed(self.lines()) if line.startswith("step ")).split()[1])

    def wait_for_event(self, event, seconds=waiting.DEFAULT_SECONDS):
        """The step at which it came."""
        return int(waiting.until(
            lambda: next((line for line in self.lines() if line.startswith(event)), None), event, seconds).split()[-1])

    def assert_no_step_is_missing(self):
        steps = [int(line.split()[1]) for line in self.lines() if line.startswith("step ")]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))


class ReportingTest(Reporting, RekindleTest):
    """A daemon, and jobs that report."""

    def setUp(self):
        super().setUp()
        self.daemon = self.start_daemon("--standby", "0")
        self.cli = self.make_cli(host=self.daemon.host)
        os.makedirs(os.path.join(self.runtime, "progress"), exist_ok=True)

    def start_reporting(self, name="train"):
        self.file = JobFile(os.path.join(self.runtime, "progress", name))
        self.start_reporting_with("run", "--detach", "--name", name, env={"REKINDLE_JOB_FILE": self.file.path})
        pid = self.job(name)["pid"]
        self.kill_job_at_end(pid)
        return pid
