"""The script that checks Rekindle on a real GPU, as far as a simulated driver can tell: what is in its report."""

import os
import re
import shutil
import subprocess
import unittest

from harness.case import RekindleTest
from harness.cli import binary

SCRIPTS = os.path.join(os.path.dirname(__file__), "..", "..", "scripts")
SCRIPT = os.path.join(SCRIPTS, "gpu_check.sh")
# A rekindle whose captures go wrong until a variable switches off what is at fault.
FAILING = """#!/bin/bash
if [[ " $* " == *" ckpt "* && ${%s:-} != 0 ]]; then
  echo '{"error":{"message":"made to fail"}}'
  exit 1
fi
exec %s "$@"
"""
# Says what it was called with, and writes a report that has a row for what it has switched off.
STUB = """#!/bin/bash
echo "$* REKINDLE_GPU_HUGE_PAGES=${REKINDLE_GPU_HUGE_PAGES:-}" >>"$CALLS"
while [[ $1 != --report ]]; do shift; done
echo "| huge pages | switched off from here on | REKINDLE_GPU_HUGE_PAGES=0 |" >"$2"
"""


class ReportTest(RekindleTest):
    def rows(self, *options, programs=os.path.dirname(binary("rekindle")), work=None, check=True, path=""):
        """Of a run on the simulated driver: what each says, by its name. `path`: a folder of programs beside the machine's."""
        report = self.path("report.md")
        command = [SCRIPT, programs, "--sim", "--python", "/usr/bin/python3"]
        self.ended = subprocess.run(
            [*command, "--work", work or self.directory, "--report", report, *options],
            env={**os.environ, "PATH": f"{os.environ['PATH']}:{path}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=check,
            timeout=240,
        )
        with open(report, encoding="utf-8") as file:
            rows = [line.split(" | ", 1) for line in file if line.startswith("| ")]
        return {row[0].removeprefix("| "): row[1].strip(" |\n") for row in rows if len(row) == 2}

    def test_servers_only_where_there_is_time_for_them(self):
        for sizes, options, servers in (("1", (), True), ("1", ("--no-servers",), False), ("1 9", (), False)):
            with self.subTest(sizes=sizes, options=options):
                rows = self.rows("--rehearse", "--figures", sizes, "--minutes", "0", *options)
                self.assertIn("no time left", rows["1 GB"])
                self.assertEqual("warm start" in rows, servers, rows)

    def test_servers_alone(self):
        rows = self.rows("--rehearse", "--servers", "1 8", "--minutes", "0")
        self.assertIn("warm start", rows)
        self.assertNotIn("1 GB", rows)
        self.assertNotIn("restore of a sparse job", rows)
        self.assertNotIn("doctor", rows)

    def programs_with(self, name, text):
        """All programs, but another one in the place of this."""
        folder = self.path("bin")
        os.mkdir(folder)
        there = os.path.dirname(binary("rekindle"))
        for entry in os.listdir(there):
            if entry != name:
                os.symlink(os.path.join(there, entry), os.path.join(folder, entry))
        with open(os.path.join(folder, name), "w", encoding="ascii") as file:
            file.write(text)
        os.chmod(os.path.join(folder, name), 0o755)
        return folder

    def test_captures_that_fail_of_what_can_be_switched_off(self):
        """The last thing that is tried helps, and stays so."""
        text = FAILING % ("REKINDLE_GPU_HOLD_THREADS", binary("rekindle"))
        rows = self.rows("--quick", "--brief", programs=self.programs_with("rekindle", text), check=False)
        name = "vector: captured, stopped, restored"
        self.assertIn("**failed** | ", rows[name])
        self.assertIn("made to fail", rows[f"{name}, without huge pages"])
        self.assertTrue(rows[f"{name}, its threads not held"].startswith("ok"), rows)
        self.assertIn("REKINDLE_GPU_HOLD_THREADS=0", rows["threads that stand still"])
        self.assertNotIn("huge pages", rows)
        self.assertEqual(rows["vector: captured while parked"], "ok", rows)

    def test_where_stock_criu_finds_its_image(self):
        """Where the disk is short in memory, and the second image where a restore of the first goes wrong."""
        small = self.path("small")
        os.mkdir(small)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1G", "none", small], check=True)
        self.addCleanup(subprocess.run, ["umount", small], check=True)
        real = binary("gpu_bare_calls")
        # The memory of the first job that stock CRIU has restored does not come back.
        text = f"""#!/bin/bash
[[ $1 != back ]] || mkdir {self.path("failed")} 2>/dev/null || exec {real} "$@"
[[ $1 == back ]] || exec {real} "$@"
echo "made to fail"
exit 1
"""
        programs = self.programs_with("gpu_bare_calls", text)
        rows = self.rows("--rehearse", "--figures", "1", "--no-servers", programs=programs, work=small)
        name = "restore to first step 1 x 8 MB, cached"
        self.assertIn("figures1:2 is tried", rows[f"{name}, by stock CRIU of figures1:1"])
        by_stock = r"criu restore and bare calls [\d.]+ s \(its image lies in /dev/shm\)"
        self.assertRegex(rows[name], rf"^[\d.]+ s \| {by_stock}")
        self.assertEqual([entry for entry in os.listdir("/dev/shm") if entry.startswith("gpu-check")], [])

    def test_a_daemon_whose_first_answer_fails(self):
        text = f"""#!/bin/bash
if [[ " $* " == *" --host "*" gpu ps "* ]] && mkdir {self.path("failed")} 2>/dev/null; then
  echo '{{"error":{{"message":"made to fail"}}}}'
  exit 1
fi
exec {binary("rekindle")} "$@"
"""
        rows = self.rows(
            "--rehearse", "--figures", "1", "--minutes", "0", "--no-servers", programs=self.programs_with("rekindle", text)
        )
        self.assertTrue(os.path.exists(self.path("failed")))
        self.assertNotIn("all", rows)
        self.assertIn("1 GB", rows)

    def test_no_daemon(self):
        programs = self.programs_with("rekindled", "#!/bin/bash\necho made to fail\nexit 1\n")
        rows = self.rows("--rehearse", "--figures", "1", "--no-servers", programs=programs, check=False)
        self.assertEqual(self.ended.returncode, 1)
        self.assertRegex(rows["all"], "^FAILED: .*made to fail")

    def test_where_the_time_of_a_freeze_and_of_stock_criu_goes(self):
        rows = self.rows(
            "--rehearse", "--figures", "1", "--no-servers", path=os.path.dirname(binary("gpu_sim/cuda-checkpoint"))
        )
        self.assertRegex(rows["freeze 1 x 8 MB, where CRIU's time goes"], r"^[\d.]+ in all;([\d.]+ [^;]+;){3,6} ?; phases: ")
        self.assertRegex(rows["restore to first step 1 x 8 MB, cached, with the utility"], "criu restore and cuda-checkpoint")

    def test_what_the_kernel_made_for_the_memory(self):
        rows = self.rows("--rehearse", "--figures", "1", "--no-servers")
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


class LentMachineTest(RekindleTest):
    def run_parts(self, part, *options):
        calls = self.path("calls")
        environment = {**os.environ, "CALLS": calls, "OUT": self.path("out"), "TMPDIR": self.directory}
        subprocess.run(
            [os.path.join(self.directory, "gpu_lent_machine.sh"), part, *options],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=60,
        )
        with open(calls, encoding="ascii") as file:
            lines = file.read().splitlines()
        os.unlink(calls)
        return lines

    def test_what_is_run_in_which_time(self):
        shutil.copy(os.path.join(SCRIPTS, "gpu_lent_machine.sh"), self.directory)
        with open(self.path("gpu_check.sh"), "w", encoding="ascii") as file:
            file.write(STUB)
        os.chmod(self.path("gpu_check.sh"), 0o755)
        first, large = self.run_parts("A", "--python", "python3.11")
        self.assertIn("--brief --quick --minutes 3 ", first)
        self.assertIn(f"--report {self.path('out')}/first.md --logs {self.path('out')}/first.tgz ", first)
        self.assertIn("--python python3.11 REKINDLE_GPU_HUGE_PAGES=", first)
        self.assertTrue(first.endswith("="), first)
        self.assertIn("--figures 40 --minutes 6 ", large)
        # What the first part has found holds for all others, in another run too.
        for line in (large, *self.run_parts("B")):
            self.assertTrue(line.endswith("REKINDLE_GPU_HUGE_PAGES=0"), line)
        # No part has more time than there is.
        lines = self.run_parts("B", "--seconds", "220")
        self.assertEqual([re.search(r"--minutes (\d+)", line).group(1) for line in lines], ["2"] * 4)


if __name__ == "__main__":
    unittest.main()
