"""Jobs that report through the hook, with the supervisor's side of their file played by the test."""

import os
import sys

from harness import jobs
from harness.case import RekindleTest
from harness.clones import HOOK_PYTHON, SOURCE, hook_library

sys.path.insert(0, os.path.join(SOURCE, "tests", "hook"))
from job_file import JobFile  # noqa: E402  pylint: disable=wrong-import-position


class ReportingTest(RekindleTest):
    """A daemon, and jobs that report."""

    def setUp(self):
        super().setUp()
        self.daemon = self.start_daemon("--standby", "0")
        self.cli = self.make_cli(host=self.daemon.host)
        os.mkdir(os.path.join(self.runtime, "progress"))
        self.log = self.path("steps")

    def start_reporting(self, name="train"):
        self.file = JobFile(os.path.join(self.runtime, "progress", name))
        self.succeed(
            "run", "--detach", "--name", name, "--", jobs.PYTHON, jobs.workload("training_steps.py"), self.log,
            env={"REKINDLE_JOB_FILE": self.file.path, "PYTHONPATH": HOOK_PYTHON,
                 "REKINDLE_HOOK_LIBRARY": hook_library(), "REKINDLE_BOUNDARY_SECONDS": "600"},
        )
        job = self.job(name)
        self.kill_job_at_end(job["pid"])
        return job["pid"]

    def job(self, name):
        return next(job for job in self.succeed("ps")["jobs"] if job["name"] == name)

    def lines(self):
        if not os.path.exists(self.log):
            return []
        with open(self.log, encoding="ascii") as file:
            return file.read().splitlines()
