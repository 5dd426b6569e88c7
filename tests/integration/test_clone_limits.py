"""Limits of clones: what does not fit in them is refused in words that help, or stays out; who goes beyond them is ended
for it, and nobody else.
"""

import json
import os
import re
import signal
import unittest

from harness import jobs, procfs, waiting
from harness.case import MIB
from harness.cli import FAILED
from harness.clones import CloneTest
from harness.writer import Writer

_GROUPS = ("/sys/fs/cgroup/rekindle", *(f"/sys/fs/cgroup/{name}/rekindle" for name in ("memory", "cpu", "pids")))
_PAGE = 4096


def groups_of(pid):
    """The cgroups that this daemon has made and that are still there."""
    return [
        os.path.join(folder, name)
        for folder in _GROUPS
        if os.path.isdir(folder)
        for name in os.listdir(folder)
        if name.startswith(f"{pid}-")
    ]


class LimitTest(CloneTest):
    def setUp(self):
        # Last of all: groups are removed with the sandboxes that are in them, of which the daemon keeps some ready.
        self.addCleanup(self.assert_no_groups)
        super().setUp()

    def assert_no_groups(self):
        waiting.until(lambda: not groups_of(self.daemon.pid), "the daemon's cgroups removed")

    def refused_clone(self, reference, *options):
        """It is not started, nothing of it stays; returns the message."""
        result = self.cli.run("restore", reference, "--clone", "--detach", *options)
        self.assertEqual(result.code, FAILED, str(result))
        self.wait_for_no_sandbox()
        return result.message

    def kill(self, answer):
        os.kill(answer["job"]["pid"], signal.SIGKILL)
        self.wait_for_end(answer["job"]["pid"])

    def wait_for_record(self, *words):
        def told():
            return any(all(word in line for word in words) for line in self.daemon.log_text().splitlines())

        waiting.until(told, f"a record with {words}")


class TooLowTest(LimitTest):
    """Limits within which the copy can't even be restored."""

    def test_processes(self):
        log = self.path("rounds")
        job = self.start_job([jobs.PYTHON, jobs.workload("multiprocess.py"), log], "workers")
        waiting.until(lambda: os.path.exists(log) and os.path.getsize(log), "rounds", 60)
        self.take_image(job, "workers:1")
        message = self.refused_clone("workers:1", "--processes", "2")
        self.assertRegex(message, r"workers:1.*limit of 2\b.*--processes")
        # So many will do, and not one less.
        needed = int(re.search(r"it has (\d+) processes and threads", message).group(1))
        self.refused_clone("workers:1", "--processes", needed - 1)
        before = os.path.getsize(log)
        answer = self.clone("workers:1", "--processes", needed)
        waiting.until(lambda: os.path.getsize(log) > before, "rounds of the clone", 60)
        self.kill(answer)
        self.wait_for_no_sandbox()

    def test_memory_for_anything(self):
        writer = Writer(self, 4)
        message = self.refused_clone(writer.reference, "--memory", "512K")
        self.assertRegex(message, r"writer:parked.*limit of 512\.0 KiB.*--memory")

    def test_memory_of_a_mapped_file(self):
        """The changed pages of a private mapping are written through /proc/PID/mem before the copy runs, all of them: the
        limit is reached while they are."""
        writer = Writer(self, 32, "file")
        message = self.refused_clone(writer.reference, "--memory", "12M", "--name", "small")
        self.assertRegex(message, r"writer:parked.*limit of 12\.0 MiB.*--memory")
        self.assertIsNone(writer.result("small"))
        answer = self.clone(writer.reference, "--memory", "64M", "--name", "large")
        writer.check()
        writer.go("large")
        writer.wait_for_ok("large", answer["job"]["pid"])

    def test_memory_for_an_eager_fill(self):
        writer = Writer(self, 32)
        message = self.refused_clone(writer.reference, "--memory", "16M", "--fill", "eager", "--name", "small")
        self.assertRegex(message, r"--fill eager.* 32\.\d MiB .*room for 1\d\.\d MiB.*--memory")
        answer = self.clone(writer.reference, "--memory", "64M", "--fill", "eager", "--name", "large")
        self.assertEqual(self.missing_pages(answer["instance"]), 0)
        writer.check()
        writer.go("large")
        writer.wait_for_ok("large", answer["job"]["pid"])


class RoomTest(LimitTest):
    """Memory that a copy does not touch never ends it."""

    def test_background_fill(self):
        writer = Writer(self, 32)
        small = self.clone(writer.reference, "--memory", "16M", "--record-ms", "1", "--name", "small")
        # The fill takes its turns with all copies: when it is through with this one it has tried the other.
        large = self.clone(writer.reference, "--memory", "64M", "--record-ms", "1", "--name", "large")
        waiting.until(
            lambda: large["instance"] not in [clone["clone"] for clone in self.pager_stats()["clones"]], "a copy complete"
        )
        self.assertTrue(procfs.alive(small["job"]["pid"]))
        self.assertGreater(self.missing_pages(small["instance"]), 7000)
        # What it touches is another matter.
        writer.check()
        writer.go("small")
        self.wait_for_end(small["job"]["pid"])
        self.assertIsNone(writer.result("small"))
        self.wait_for_record(small["instance"], "was ended", "memory limit of 16.0 MiB", "--memory")
        writer.go("large")
        writer.wait_for_ok("large", large["job"]["pid"])

    def test_working_set(self):
        writer = Writer(self, 32)
        writer.check()
        for number in range(4):
            name = f"first-{number}"
            writer.go(name)
            answer = self.clone(writer.reference, "--record-ms", "60000", "--name", name)
            writer.wait_for_ok(name, answer["job"]["pid"])
            self.wait_for_no_sandbox()
        whole = self.clone(writer.reference, "--name", "whole")
        self.assertGreater(whole["prefilled_pages"] * _PAGE, 30 * MIB)
        part = self.clone(writer.reference, "--memory", "16M", "--name", "part")
        self.assertGreater(part["prefilled_pages"] * _PAGE, 8 * MIB)
        self.assertLess(part["prefilled_pages"] * _PAGE, 16 * MIB)
        self.assertTrue(procfs.alive(part["job"]["pid"]))
        self.kill(part)
        writer.go("whole")
        writer.wait_for_ok("whole", whole["job"]["pid"])

    def test_neighbours_of_what_is_touched(self):
        """They are charged to it too; with all of them it would have twice what it may."""
        folder, reference = self.path("reader"), "reader:1"
        os.mkdir(folder)
        job = self.start_job([jobs.PYTHON, jobs.workload("sparse_reader.py"), folder, "64"], "reader")
        waiting.until(lambda: os.path.exists(os.path.join(folder, "ready")), "the reader parked", 60)
        self.take_image(job, reference)
        # No more is recorded after that: a page brings its neighbours along.
        for number in range(1, 5):
            answer = self.clone(reference, "--fill", "never", "--record-ms", "1", "--name", f"first-{number}")
            waiting.until(
                lambda: (self.succeed("inspect", reference)["working_set"] or {}).get("recordings") == number,
                f"{number} recordings",
            )
            self.kill(answer)
        for name, limit in (("small", "32M"), ("large", "256M")):
            answer = self.clone(reference, "--fill", "never", "--memory", limit, "--name", name)
            result = os.path.join(folder, "result." + name)
            with open(os.path.join(folder, "go." + name), "w", encoding="ascii"):
                pass
            self.wait_for_end(answer["job"]["pid"])
            self.assertTrue(os.path.exists(result), f"{name} was ended\n{self.records()}")
            with open(result, encoding="ascii") as file:
                self.assertEqual(file.read(), "ok")


class ManyTest(LimitTest):
    """200 copies that each write all of their memory; every tenth takes more than it may."""

    count, megabytes, limit_megabytes = 200, 16, 28

    def test_each_within_its_limit(self):
        writer = Writer(self, self.megabytes)
        names = [f"writer-{number}" for number in range(1, self.count + 1)]
        greedy = {name for number, name in enumerate(names, 1) if number % 10 == 0}
        for name in names:
            writer.go(name, greedy=name in greedy)
        limit = f"{self.limit_megabytes}M"
        answers = self.clones(writer.reference, self.count, "--name", "writer", "--memory", limit)
        pids = {answer["job"]["name"]: answer["job"]["pid"] for answer in answers}
        self.assertEqual(set(pids), set(names))
        for name in names:
            writer.wait_for_written(name)
        for name in greedy:
            self.wait_for_end(pids[name])
        # The others have seen nothing of it.
        writer.check()
        digests = [writer.wait_for_ok(name, pids[name]) for name in names if name not in greedy]
        self.assertEqual(len(set(digests)), self.count - len(greedy))
        self.assertEqual([writer.result(name) for name in greedy], [None] * len(greedy))

        instances = {answer["instance"]: answer["job"]["name"] for answer in answers}

        def ended():
            """Whom the daemon's log has as ended for the limit."""
            lines = [line for line in self.daemon.log_text().splitlines() if "was ended:" in line]
            for line in lines:
                self.assertIn(f"memory limit of {self.limit_megabytes}.0 MiB", line)
            return {name for instance, name in instances.items() if any(instance in line for line in lines)}

        waiting.until(lambda: len(ended()) >= len(greedy), "the records")
        self.assertEqual(ended(), greedy)
        waiting.until(lambda: len(self.exits()) == self.count, "all ends written down")
        killed, well = (0, signal.SIGKILL), (0, 0)
        self.assertEqual(self.exits(), {name: killed if name in greedy else well for name in names})
        self.wait_for_no_sandbox()

    def exits(self):
        """Exit code and signal of each job that has ended, as the daemon wrote them down."""
        found = {}
        folder = os.path.join(self.runtime, "jobs")
        for file_name in os.listdir(folder):
            if file_name.endswith(".json"):
                with open(os.path.join(folder, file_name), encoding="utf-8") as file:
                    record = json.load(file)
                if "exit_code" in record:
                    found[record.get("name")] = record["exit_code"], record["signal"]
        return found


if __name__ == "__main__":
    unittest.main()
