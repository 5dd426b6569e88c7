"""The units: what systemd would run for the examples, without a systemd, and what it makes of the daemon's."""

import os
import shlex
import shutil
import signal
import subprocess
import unittest

from harness import jobs, waiting
from harness.case import RekindleTest, shell
from harness.cli import binary, environment

SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
UNIT = os.path.join(SOURCES, "examples/systemd/train.service")
TRAINING_UNIT = os.path.join(SOURCES, "examples/training/rekindle-training.service")
PRUNE_UNIT = os.path.join(SOURCES, "examples/systemd/rekindle-prune.service")
DAEMON_UNIT = os.path.join(SOURCES, "packaging/rekindled.service.in")


class UnitTest(RekindleTest):
    def setUp(self):
        super().setUp()
        with open(UNIT, encoding="utf-8") as file:
            text = file.read()
        counter = f"{jobs.workload('counter.py')} {self.path('end')}"
        self.assertIn("train.py", text)
        self.unit = self.path("train.service")
        with open(self.unit, "w", encoding="utf-8") as file:
            file.write(text.replace("/srv/train", self.directory).replace("train.py", counter))

    def command(self, setting):
        with open(self.unit, encoding="utf-8") as file:
            lines = file.read().replace("\\\n", " ").split("\n")
        (line,) = [line for line in lines if line.startswith(setting + "=")]
        return shlex.split(line.split("=", 1)[1])

    def variables(self, more):
        path = f"{self.directory}:{os.path.dirname(binary('rekindle'))}:/usr/bin:/bin"
        return environment(
            {
                **self.environment,
                "REKINDLE_STORE": self.store,
                "RUNTIME_DIRECTORY": self.path("runtime-directory"),
                "PATH": path,
                **more,
            }
        )

    def start(self):
        shutil.rmtree(self.path("runtime-directory"), ignore_errors=True)
        os.mkdir(self.path("runtime-directory"))
        child = subprocess.Popen(
            self.command("ExecStart"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=self.directory,
            env=self.variables({}),
        )
        jobs.waited_elsewhere.add(child.pid)
        self.addCleanup(jobs.kill_tree, child.pid)
        self.addCleanup(jobs.waited_elsewhere.discard, child.pid)
        return child

    def run_hook(self, setting, code=0, **variables):
        done = subprocess.run(
            self.command(setting),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=self.variables(variables),
        )
        self.assertEqual(done.returncode, code, done.stderr)

    def numbers(self):
        if not os.path.exists(self.path("train.log")):
            return []
        with open(self.path("train.log"), encoding="ascii") as file:
            return [int(line) for line in file.read().split("\n")[:-1]]

    def wait_for_numbers(self, more):
        at = len(self.numbers())
        waiting.until(lambda: len(self.numbers()) >= at + more, f"{more} more numbers", 60, 0.02)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "no systemd-analyze")
    def test_systemd_understands_it(self):
        self.assertEqual(shell("systemd-analyze", "verify", self.unit), "")

    def test_a_job_killed_for_want_of_memory_does_not_end_the_daemon(self):
        with open(DAEMON_UNIT, encoding="utf-8") as file:
            text = file.read()
        self.assertIn("\nOOMPolicy=continue\n", text)
        if shutil.which("systemd-analyze"):
            installed = self.path("rekindled.service")
            with open(installed, "w", encoding="utf-8") as file:
                file.write(text.replace("@CMAKE_INSTALL_FULL_SBINDIR@/rekindled", binary("rekindled")))
            self.assertEqual(shell("systemd-analyze", "verify", "--man=no", installed), "")

    def test_the_daemon_is_tried_again_until_its_group_is_there(self):
        """A directory service that is not up yet has none."""
        with open(DAEMON_UNIT, encoding="utf-8") as file:
            lines = file.read().split("\n")
        self.assertIn("After=nss-user-lookup.target", lines)
        self.assertIn("Restart=on-failure", lines)
        done = subprocess.run(
            [binary("rekindled"), "--store", self.store, "--group", "rk-no-such-group"],
            capture_output=True,
            text=True,
            check=False,
            env=self.variables({}),
        )
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("--group: finding group 'rk-no-such-group'", done.stderr)
        (kept,) = [line.split("=")[1] for line in lines if line.startswith("RestartPreventExitStatus=")]
        self.assertNotIn(str(done.returncode), kept.split())

    def test_goes_on_after_a_stop(self):
        first = self.start()
        self.wait_for_numbers(10)
        self.run_hook("ExecStop", MAINPID=str(first.pid))
        self.assertEqual(first.wait(60), 128 + signal.SIGKILL)
        self.run_hook("ExecStopPost", EXIT_CODE="exited", EXIT_STATUS="137")
        self.assertEqual(self.references(), ["train:last"])

        # From the same image a second time, because it was killed.
        second = self.start()
        self.wait_for_numbers(10)
        (job,) = self.succeed("ps")["jobs"]
        os.kill(job["pid"], signal.SIGKILL)
        self.assertEqual(second.wait(60), 128 + signal.SIGKILL)

        third = self.start()
        self.wait_for_numbers(10)
        with open(self.path("status"), "w", encoding="ascii") as file:
            file.write("0")
        os.rename(self.path("status"), self.path("end"))
        self.assertEqual(third.wait(60), 0)
        self.run_hook("ExecStop")
        self.run_hook("ExecStopPost", EXIT_CODE="exited", EXIT_STATUS="0")
        self.assertEqual(self.numbers(), list(range(1, len(self.numbers()) + 1)))
        self.assert_store_whole([])

    def test_begins_anew_only_where_there_is_no_image(self):
        """A `rekindle` of ours says how it was called, and of an image what it is told to."""
        with open(self.path("rekindle"), "w", encoding="ascii") as file:
            file.write('#!/bin/sh\n[ "$1" != inspect ] || { echo "the reason" >&2; exit "$ANSWER"; }\necho "$1"\n')
        os.chmod(self.path("rekindle"), 0o755)

        def started(answer):
            done = subprocess.run(
                self.command("ExecStart"),
                capture_output=True,
                text=True,
                check=False,
                env=self.variables({"ANSWER": answer}),
            )
            return done.returncode, done.stdout, done.stderr

        self.assertEqual(started("0"), (0, "restore\n", ""))
        self.assertEqual(started("3"), (0, "run\n", ""))
        self.assertEqual(started("1"), (1, "", "the reason\n"))
        # No store: the first image makes it. Once something was written it must be one that is not mounted.
        self.assertEqual(started("6"), (0, "run\n", ""))
        with open(self.path("train.log"), "w", encoding="ascii") as file:
            file.write("1\n")
        self.assertEqual(started("6"), (1, "", "the reason\n"))

    def test_the_image_of_who_was_stopped_stays(self):
        first = self.start()
        self.wait_for_numbers(10)
        self.succeed("ckpt", "train", "-t", "train:last")
        # No image can be taken now, so systemd sends SIGTERM, on which the job ends with 0.
        with open(self.path("rekindle"), "w", encoding="ascii") as file:
            file.write("#!/bin/sh\nexit 1\n")
        os.chmod(self.path("rekindle"), 0o755)
        self.run_hook("ExecStop", code=1, MAINPID=str(first.pid))
        os.unlink(self.path("rekindle"))
        with open(self.path("status"), "w", encoding="ascii") as file:
            file.write("0")
        os.rename(self.path("status"), self.path("end"))
        self.assertEqual(first.wait(60), 0)
        self.run_hook("ExecStopPost", EXIT_CODE="exited", EXIT_STATUS="0")
        self.assertEqual(self.references(), ["train:last"])

    def test_old_images_go_but_for_those_with_the_label(self):
        with open(PRUNE_UNIT, encoding="utf-8") as file:
            text = file.read()
        (host,) = [line.split("=", 2)[2] for line in text.split("\n") if line.startswith("Environment=REKINDLE_HOST=")]
        self.assertEqual(host, "unix:///run/rekindle/rekindled.sock")
        with open(self.unit, "w", encoding="utf-8") as file:
            file.write(text.replace("--keep-within 30d", "--keep-within 1s"))
        self.assertIn("--keep-within 1s", " ".join(self.command("ExecStart")))
        if shutil.which("systemd-analyze"):
            copies = [shutil.copy(PRUNE_UNIT.replace(".service", end), self.directory) for end in (".service", ".timer")]
            self.assertEqual(shell("systemd-analyze", "verify", "--man=no", *copies), "")
        job = self.start_job(["sleep", "1000"])
        self.succeed("ckpt", job.pid, "-t", "kept:1", "--label", "keep=yes")
        self.succeed("ckpt", job.pid, "-t", "old:1")

        def gone():
            self.run_hook("ExecStart")
            return "old:1" not in self.references()

        waiting.until(gone, "the old one goes")
        self.assertEqual(self.references(), ["kept:1"])

    def test_a_training_is_done_once(self):
        with open(TRAINING_UNIT, encoding="utf-8") as file:
            text = file.read()
        with open(self.unit, "w", encoding="utf-8") as file:
            file.write(text.replace("/srv/training", self.directory))
        self.assertIn(f"ConditionPathExists=!{self.path('done')}\n", text.replace("/srv/training", self.directory))
        os.mkdir(self.path("runtime-directory"))
        for stopped, code, status, done in (
            (False, "exited", "1", False),
            (False, "killed", "KILL", False),
            (True, "exited", "0", False),
            (False, "exited", "0", True),
        ):
            with self.subTest(stopped=stopped, code=code, status=status):
                marker = self.path("runtime-directory/stopped")
                if stopped:
                    with open(marker, "w", encoding="ascii"):
                        pass
                self.run_hook("ExecStopPost", EXIT_CODE=code, EXIT_STATUS=status)
                self.assertEqual(os.path.exists(self.path("done")), done)
                if stopped:
                    os.unlink(marker)


if __name__ == "__main__":
    unittest.main()
