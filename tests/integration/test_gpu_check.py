"""The script that checks Rekindle on a real GPU, as far as a simulated driver can tell: what is in its report."""

import os
import re
import subprocess
import unittest

from harness.case import RekindleTest
from harness.cli import binary

SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "scripts", "gpu_check.sh")


class ReportTest(RekindleTest):
    def rows(self, *options):
        """Of a rehearsal: what each says, by its name."""
        report = self.path("report.md")
        command = [SCRIPT, os.path.dirname(binary("rekindle")), "--sim", "--rehearse", "--python", "/usr/bin/python3"]
        subprocess.run(
            [*command, "--work", self.directory, "--report", report, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=240,
        )
        with open(report, encoding="utf-8") as file:
            rows = [line.split(" | ", 1) for line in file if line.startswith("| ")]
        return {row[0].removeprefix("| "): row[1].strip(" |\n") for row in rows if len(row) == 2}

    def test_servers_only_where_there_is_time_for_them(self):
        for sizes, options, servers in (("1", (), True), ("1", ("--no-servers",), False), ("1 9", (), False)):
            with self.subTest(sizes=sizes, options=options):
                rows = self.rows("--figures", sizes, "--minutes", "0", *options)
                self.assertIn("no time left", rows["1 GB"])
                self.assertEqual("warm start" in rows, servers, rows)

    def test_servers_alone(self):
        rows = self.rows("--servers", "1 8", "--minutes", "0")
        self.assertIn("warm start", rows)
        self.assertNotIn("1 GB", rows)
        self.assertNotIn("restore of a sparse job", rows)
        self.assertNotIn("doctor", rows)

    def test_what_the_kernel_made_for_the_memory(self):
        rows = self.rows("--figures", "1", "--no-servers")
        with open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="ascii") as file:
            allowed = file.read().split("[")[1].split("]")[0]
        self.assertTrue(rows["transparent huge pages"].startswith(allowed), rows["transparent huge pages"])
        seen = r"(\d+) MiB of huge pages, (\d+) faults of thread \d+"
        self.assertRegex(rows["park 1 x 8 MB, more"], f"^parked: {seen}; {seen}$")
        both = re.fullmatch(
            rf"REKINDLE_GPU_HUGE_PAGES=1 [\d.]+ s, {seen}; REKINDLE_GPU_HUGE_PAGES=0 [\d.]+ s, {seen}",
            rows["park 1 x 8 MB, without a daemon"],
        )
        self.assertIsNotNone(both, rows)
        huge, faults, plain_huge, plain_faults = (int(number) for number in both.groups())
        sparse = rows["restore of a sparse job of 1 x 8 MB"]
        self.assertRegex(sparse, r"phases: .*gpu .*; \d+ faults of thread \d+; at most \d+ MiB of host memory$")
        if allowed == "madvise":
            self.assertGreater(huge, 0)
            self.assertEqual(plain_huge, 0)
            self.assertLess(faults, plain_faults)


if __name__ == "__main__":
    unittest.main()
