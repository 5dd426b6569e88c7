"""What a shell, a login profile or a job's own ways bring along that a program seldom meets."""

import os
import shutil
import subprocess
import unittest

from harness import jobs, procfs, waiting
from harness.case import MIB, RekindleTest
from harness.cli import DONE, FAILED, UNSUPPORTED, USAGE, binary, environment
from harness.clones import CloneTest

_CAP_SYS_RESOURCE = 24

# Holds a file of this name, which it has removed, and says so.
_HOLDER = """
import os, sys, time
name, ready = sys.argv[1:]
file = open(name, "w+")
file.write("content")
file.flush()
os.unlink(name)
while True:
    time.sleep(0.05)
    file.seek(0)
    open(ready + ".read", "w").write(file.read())
"""


def through_shell(line):
    return ("sh", "-c", line + '; exec "$@"', "sh")


class ClosedDescriptorsTest(RekindleTest):
    def test_nothing_of_the_daemons_takes_their_place(self):
        job, memory = self.start_memory_job(4 * MIB)
        images = []
        for closed in ("2>&-", ">&- 2>&-", "<&- >&- 2>&-"):
            with self.subTest(closed):
                self.daemon_prefix = ("sh", "-c", f'exec "$@" {closed}', "sh")
                daemon = self.start_daemon()
                remote = self.make_cli(host=daemon.host)
                for _ in range(3):
                    images.append(f"x:{len(images)}")
                    self.checkpoint(job.pid, images[-1], cli=remote)
                    started = self.succeed("run", "--detach", "--", "sleep", "1000", cli=remote)
                    self.kill_job_at_end(started["job"]["pid"])
                    opened = procfs.descriptor_targets(daemon.pid)
                    for fd in (0, 1, 2):
                        self.assertIn(opened[fd], ("/dev/null", daemon.log), opened)
                    self.assertNotIn("rekindled: ", self.catalog_text())
                daemon.stop()
        self.assert_store_whole(images)
        memory.wait_for_tick()

    def catalog_text(self):
        folder = os.path.join(self.store, "catalog")
        text = b""
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), "rb") as file:
                text += file.read()
        return text.decode("latin-1")

    def test_an_answer_that_goes_nowhere_is_an_error(self):
        self.assertEqual(self.cli.run("version", prefix=("sh", "-c", 'exec "$@" >&-', "sh")).code, FAILED)


class EnvironmentTest(RekindleTest):
    def test_a_value_that_can_not_be_understood(self):
        for variable, value, takes in (
            ("REKINDLE_STREAM_TIMEOUT", "x", "seconds"), ("REKINDLE_COPY_PART", "1.5", "MiB"),
            ("REKINDLE_GPU_ROOM_TIMEOUT", "-1", "seconds"), ("REKINDLE_GPU_MOVE_TIMEOUT", "nan", "seconds"),
            ("REKINDLE_GPU_CONTEXT_MEMORY", "much", "size"), ("REKINDLE_GPU_HUGE_PAGES", "no", "0 or 1"),
        ):
            with self.subTest(variable):
                warned = self.cli.run("ps", env={variable: value})
                self.assertEqual(warned.code, DONE, str(warned))
                self.assertRegex(warned.err, rf"\${variable} is '{value}'.*{takes}")
                self.assertNotIn(variable, self.cli.run("ps", env={variable: ""}).err)

    def test_a_daemon_that_can_not_listen(self):
        """It says so, and what in its environment can't be understood, before."""
        variables = {"REKINDLE_COPY_PART": "zz", "REKINDLE_RUNTIMES": "/nonexistent"}
        ended = subprocess.run(
            [binary("rekindled"), "--store", self.store, "--socket", "/nonexistent/d.sock"],
            env=environment({**self.environment, **variables}), text=True,
            stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
        self.assertEqual(ended.returncode, FAILED, ended.stderr)
        for words in ("$REKINDLE_COPY_PART is 'zz'", "$REKINDLE_RUNTIMES is '/nonexistent'", "mkdir -p /nonexistent"):
            self.assertIn(words, ended.stderr)

    def test_no_folder_for_logs(self):
        refused = self.cli.run("run", "--", "true", env={"REKINDLE_LOG_DIR": "/proc/nonexistent"})
        self.assert_refused(refused, FAILED, "/proc/nonexistent", "--log FILE", "REKINDLE_LOG_DIR")


class FileSizeLimitTest(RekindleTest):
    def test_what_does_not_fit_fails_and_nothing_else(self):
        self.daemon_prefix = through_shell("ulimit -f 2000")
        daemon = self.start_daemon()
        remote = self.make_cli(host=daemon.host)
        job, memory = self.start_memory_job(64 * MIB)
        digest = memory.digest()
        for cli, prefix in ((remote, ()), (self.cli, self.daemon_prefix)):
            refused = cli.run("ckpt", job.pid, "-t", "x:1", prefix=prefix)
            self.assert_refused(refused, FAILED, "file too large")
            memory.wait_for_tick()
            self.assertEqual(memory.digest(), digest)
        self.assertTrue(daemon.running())
        self.assert_store_whole([])


class OutOfMemoryScoreTest(CloneTest):
    """Others go first than the daemon, when memory runs out, or later: what it restores and starts does not."""

    embedded = True  # until the daemon is there, which has another score
    daemon_prefix = ("choom", "-n", "400", "--")

    def setUp(self):
        super().setUp()
        self.restart_daemon()
        self.assertEqual(self.score(self.daemon.pid), 400)

    @staticmethod
    def score(pid):
        with open(f"/proc/{pid}/oom_score_adj", encoding="ascii") as file:
            return int(file.read())

    def restored(self, *options):
        data = self.succeed("restore", "x:1", "--detach", *options)
        self.kill_job_at_end(data["job"]["pid"])
        return data["job"]["pid"]

    def test_of_what_it_brings_back(self):
        for own in (0, 300):
            with self.subTest(own):
                job = self.start_job(["choom", "-n", str(own), "--", "sleep", "1000"])
                waiting.until(lambda pid=job.pid: procfs.command_line(pid) == "sleep 1000", "it runs")
                self.checkpoint(job.pid, "x:1", "--stop", "--replace")
                job.reap()
                self.assertEqual(self.score(self.restored("--clone")), own)
                restored = self.restored()
                self.assertEqual(self.score(restored), own)
                jobs.kill_tree(restored)

    def test_of_a_supervised_job_and_its_copier(self):
        folder = self.path("programs")
        os.mkdir(folder)
        told = self.path("rclone.told")
        with open(os.path.join(folder, "rclone"), "w", encoding="ascii") as file:
            file.write(f"#!/bin/sh\necho $(cat /proc/self/oom_score_adj) $(ulimit -n) $(nice) >> {told}\nexit 1\n")
        os.chmod(os.path.join(folder, "rclone"), 0o755)
        self.cli = self.make_cli(host=self.daemon.host, env={"PATH": f"{folder}:{os.environ['PATH']}"})
        refused = self.cli.run("run", "--detach", "--every", "1h", "--copy-to", "rclone:far:away", "--", "sleep", "1000",
                                  prefix=through_shell("ulimit -n 500; renice -n 5 $$ >/dev/null"))
        self.assertNotEqual(refused.code, DONE)
        with open(told, encoding="ascii") as file:
            self.assertEqual(set(file.read().splitlines()), {"0 500 5"})
        data = self.succeed("run", "--detach", "--name", "kept", "--every", "1h", "--restarts", "1", "--", "sleep", "1000")
        self.addCleanup(lambda: self.cli.run("stop", "kept", "--grace", "1s"))
        first = data["job"]["pid"]

        def supervised():
            return next(job for job in self.succeed("ps")["jobs"] if job["name"] == "kept")

        waiting.until(lambda: supervised()["supervised"]["checkpoints"] > 0, "its first image", 30)
        os.kill(first, 9)
        waiting.until(lambda: supervised()["supervised"]["restarts"] == 1
                      and supervised()["supervised"]["phase"] == "running", "it is brought back", 30)
        self.assertEqual(self.score(supervised()["pid"]), 0)


class LowerLimitsTest(RekindleTest):
    @unittest.skipIf(procfs.has_capability(_CAP_SYS_RESOURCE), "with CAP_SYS_RESOURCE limits are put back")
    def test_a_limit_that_does_not_come_back_is_told(self):
        job, _ = self.start_memory_job(MIB)
        self.checkpoint(job.pid, "x:1", "--stop")
        job.reap()
        result = self.cli.run("restore", "x:1", "--detach", prefix=through_shell("ulimit -l 0"))
        self.assertEqual(result.code, DONE, str(result))
        self.kill_job_at_end(result.data["job"]["pid"])
        self.assertIn("locked memory (ulimit -l) is 0, at most 0", " ".join(result.data["warnings"]))


class LongNamesTest(RekindleTest):
    def hold(self, name):
        ready = self.path(f"ready-{len(name)}")
        job = self.start_job([jobs.PYTHON, "-c", _HOLDER, self.path(name), ready], f"holder-{len(name)}")
        waiting.until(lambda: os.path.exists(ready + ".read"), "the file is removed")
        return job, ready

    def test_removed_files(self):
        job, _ = self.hold("n" * 243)
        refused = self.cli.run("ckpt", job.pid, "-t", "x:1", "--stop")
        self.assert_refused(refused, FAILED, "was removed", "243 bytes", "at most 242")
        self.assertTrue(procfs.alive(job.pid))
        job, ready = self.hold("n" * 242)
        self.checkpoint(job.pid, "y:1", "--stop")
        job.reap()
        self.restore("y:1")
        os.unlink(ready + ".read")
        waiting.until(lambda: os.path.exists(ready + ".read"), "it reads its file")

    def test_the_runtime_folder(self):
        job, memory = self.start_memory_job(MIB)
        folder = self.path("r" * 71)
        env = {"REKINDLE_RUNTIME_DIR": folder}
        refused = self.cli.run("ckpt", job.pid, "-t", "x:1", env=env)
        self.assert_refused(refused, USAGE, folder, "REKINDLE_RUNTIME_DIR")
        memory.wait_for_tick()
        doctor = self.cli.run("doctor", env=env)
        self.assertEqual(doctor.code, UNSUPPORTED, str(doctor))
        self.assertIn("no socket can be made in it", str(doctor))
        short = os.path.join("/tmp", "r" * 65)  # of 70 bytes, the most
        self.addCleanup(shutil.rmtree, short)
        self.checkpoint(job.pid, "x:1", cli=self.make_cli(store=self.store, env={"REKINDLE_RUNTIME_DIR": short}))


if __name__ == "__main__":
    unittest.main()
