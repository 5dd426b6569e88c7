"""The NVIDIA driver is another one than that which jobs were parked with: they stay parked, and that is told before."""

import os
import subprocess
import unittest

from harness.cli import DONE, FAILED, UNSUPPORTED, binary
from harness.gpu_case import GpuTest
from harness.gpu_sim import FIRST, GIB, MIB

OLD, NEW = "580.95.05", "590.48.01"


class ParkedTest(GpuTest):
    def change_driver(self, version):
        """Nobody who has loaded the old one runs meanwhile, as where the kernel's module is to go."""
        self.sim.control("set", "driver-text", version)

    def gpus_check(self):
        return next(check for check in self.cli.run("doctor").data["checks"] if check["name"] == "gpus")

    def park_and_change(self, *names):
        jobs = [self.start_vector_job(name) for name in names]
        for job in jobs:
            self.succeed("gpu", "park", job.pid)
            self.assertEqual((self.gpu_job(job.pid)["driver"], self.gpu_job(job.pid)["trouble"]), (OLD, ""))
        self.change_driver(NEW)
        return jobs

    def assert_untouched(self, job):
        entry = self.gpu_job(job.pid)
        self.assertEqual((entry["parked"], entry["why"]), (True, "parked by uid 0"))
        self.assertNotIn("restore", [call["call"] for call in self.sim.calls()])

    def test_it_is_told_before_and_at_a_resume(self):
        (job,) = self.park_and_change("vector")
        entry = self.gpu_job(job.pid)
        self.assertEqual(entry["driver"], OLD)
        text = self.cli.run("gpu", "ps", json_output=False).out
        check = self.gpus_check()
        self.assertEqual(check["result"], "warning")
        self.assertIn(OLD, check["cure"])
        for told in (entry["trouble"], text, check["detail"]):
            for word in (OLD, NEW, "install " + OLD):
                self.assertIn(word, told)
        for _ in range(2):
            for more in ((), ("--gpu-map", f"{FIRST}={FIRST}")):
                self.assert_refused(self.cli.run("gpu", "resume", job.pid, *more), FAILED, OLD, NEW, "stays parked", "install")
            self.assert_untouched(job)
        self.change_driver(OLD)
        self.assertEqual(self.gpus_check()["result"], "ok")
        self.succeed("gpu", "resume", job.pid)
        self.assert_runs(job)

    def test_nobody_is_parked_for_it(self):
        (job,) = self.park_and_change("vector")
        self.sim.control("reserve", FIRST, 4 * GIB - 40 * MIB)
        other = self.start_vector_job("other")
        self.assert_refused(self.cli.run("gpu", "swap", other.pid, job.pid), FAILED, OLD, NEW)
        cli = self.make_cli(host=self.start_daemon().host)
        self.succeed("gpu", "lease", other.pid, cli=cli)
        self.succeed("gpu", "release", other.pid, cli=cli)
        self.assert_refused(cli.run("gpu", "lease", job.pid, "--timeout", "5"), FAILED, OLD, NEW)
        self.assert_untouched(job)
        self.assertNotIn("checkpoint", [call["call"] for call in self.sim.calls() if call["pid"] == other.pid])
        self.assert_runs(other)

    def test_what_its_watch_knows(self):
        (job,) = self.park_and_change("vector")
        self.environment["REKINDLE_RUNTIME_DIR"] = self.path("other")
        self.cli = self.make_cli(store=self.store)
        self.assertIn(NEW, self.gpu_job(job.pid)["trouble"])
        self.assert_refused(self.cli.run("gpu", "resume", job.pid), FAILED, OLD, NEW)
        self.assert_untouched(job)

    def test_one_that_another_tool_has_brought_back(self):
        (job,) = self.park_and_change("vector")
        # What is noted of it is of no use any more.
        for action in ("restore", "unlock"):
            argv = [binary("gpu_sim/cuda-checkpoint"), "--action", action, "--pid", str(job.pid)]
            subprocess.run(argv, stdin=subprocess.DEVNULL, env={**os.environ, **self.sim.environment}, check=True)
        result = self.cli.run("gpu", "resume", job.pid)
        self.assertEqual(result.code, DONE, str(result))
        self.assert_runs(job)


class HalfUpgradedTest(GpuTest):
    def test_its_library_and_its_module_differ(self):
        job = self.start_vector_job()
        self.sim.inject("init", "--fail", 803)
        for arguments in (("gpu", "ps"), ("gpu", "park", job.pid)):
            self.assert_refused(self.cli.run(*arguments), FAILED, "803", "kernel module", "parked")
        check = next(check for check in self.cli.run("doctor").data["checks"] if check["name"] == "gpus")
        self.assertEqual(check["result"], "warning")
        self.assertIn("kernel module", check["detail"])
        self.sim.control("clear")
        self.assert_runs(job)


class UtilityTest(GpuTest):
    """A driver whose library has no checkpoint functions: what NVIDIA's utility says is told, and not taken for "uses no CUDA"."""

    def setUp(self):
        super().setUp()
        self.sim.stop()
        self.sim = self.start_sim(driver_version=12050, driver_text="555.42.02")
        self.job = self.start_vector_job()

    def break_utility(self, option, commands):
        """For what has this among its arguments."""
        folder = self.path("broken")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "cuda-checkpoint")
        with open(path, "w", encoding="ascii") as script:
            script.write(f'#!/bin/sh\ncase "$*" in *{option}*) {commands} ;; esac\n')
            script.write(f'exec {binary("gpu_sim/cuda-checkpoint")} "$@"\n')
        os.chmod(path, 0o755)
        return {"PATH": folder + ":" + self.sim.environment["PATH"]}

    def test_what_befalls_it(self):
        usage = "echo 'unrecognized option' >&2; exit 1"
        for commands, code, words in (
            ("kill -SEGV $$", FAILED, ("killed by signal 11",)),
            ("echo no driver for you >&2; exit 1", FAILED, ("no driver for you",)),
            ("exec /nowhere/cuda-checkpoint", FAILED, ("exit status 127", "/nowhere")),
            ("echo 'Error initializing CUDA: \"initialization error\"'; exit 1", FAILED, ("initializing", "nvidia-smi")),
            (usage, UNSUPPORTED, ("unrecognized option", "newer")),
        ):
            for arguments in (("gpu", "park", self.job.pid), ("ckpt", self.job.pid, "-t", "vector:1")):
                with self.subTest(f"{commands} {arguments[0]}"):
                    result = self.cli.run(*arguments, env=self.break_utility("--get-state", commands))
                    self.assert_refused(result, code, "cuda-checkpoint --get-state", *words)
                    self.assertNotIn("no CUDA", result.err)
        result = self.cli.run("gpu", "park", self.job.pid, env=self.break_utility("lock", "kill -KILL $$"))
        self.assert_refused(result, FAILED, "--action lock", "killed by signal 9")
        self.assert_runs(self.job)
        result = self.cli.run("gpu", "ps", env=self.break_utility("--help", "echo broken >&2; exit 3"))
        self.assert_refused(result, UNSUPPORTED, "570", "exit status 3", "broken")

    def test_a_process_without_cuda(self):
        other = self.start_job(["/bin/sleep", "1000"], "sleep")
        self.assert_refused(self.cli.run("gpu", "park", other.pid), FAILED, "no CUDA")
        self.succeed("gpu", "park", self.job.pid)
        self.succeed("gpu", "resume", self.job.pid)
        self.assert_runs(self.job)


if __name__ == "__main__":
    unittest.main()
