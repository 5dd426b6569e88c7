"""Images go to and come from stock CRIU."""

import os
import subprocess
import unittest

from harness import jobs, procfs, waiting
from harness.case import MIB, RekindleTest
from harness.cli import FAILED, UNSUPPORTED, USAGE
from harness.clones import CloneTest
from harness.stock_criu import criu_command


class CriuTest(RekindleTest):
    def criu(self, *arguments):
        done = subprocess.run(
            [*criu_command(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout + self.log_of(arguments))

    def log_of(self, arguments):
        try:
            with open(os.path.join(arguments[arguments.index("-D") + 1], "dump.log"), encoding="utf-8") as file:
                return file.read()[-3000:]
        except (OSError, ValueError):
            return ""


class PortabilityTest(CriuTest):
    def test_export_then_stock_restore(self):
        log = self.path("rounds")
        job = self.start_job([jobs.PYTHON, jobs.workload("multiprocess.py"), log])
        waiting.until(lambda: os.path.exists(log) and os.path.getsize(log) > 200, "rounds", 60)
        self.checkpoint(job.pid, "out:1", "--stop")
        job.reap()
        images = self.path("images")
        exported = self.succeed("export", "out:1", "--criu", images)
        self.assertEqual(exported["files"], len(os.listdir(images)))
        size = os.path.getsize(log)
        self.criu("restore", "-D", images, "-d", "-o", self.path("restore.log"))
        self.kill_job_at_end(job.pid)
        waiting.until(lambda: os.path.getsize(log) > size + 200, "rounds after the restore", 60)
        self.assertTrue(procfs.alive(job.pid))
        self.assert_refused(self.cli.run("export", "out:1", "--criu", images), FAILED, images)

    def test_export_of_shared_memory_without_a_name(self):
        steps, name = self.path("steps"), f"rekindle-it-{os.getpid()}"
        before = set(os.listdir("/dev/shm"))
        self.addCleanup(
            lambda: [os.unlink("/dev/shm/" + new) for new in set(os.listdir("/dev/shm")) - before]
        )

        def lines():
            if not os.path.exists(steps):
                return []
            with open(steps, encoding="ascii") as file:
                return file.read().splitlines()

        job = self.start_job([jobs.PYTHON, jobs.workload("shared_memory.py"), name, steps, "unlink"])
        waiting.until(lambda: len(lines()) > 20, "steps", 60)
        self.checkpoint(job.pid, "out:1", "--stop")
        job.reap()
        images = self.path("images")
        exported = self.succeed("export", "out:1", "--criu", images)
        self.assertEqual(exported["files"], len(os.listdir(images)))
        os.truncate(steps, 0)
        self.criu("restore", "-D", images, "-d", "-o", self.path("restore.log"))
        self.kill_job_at_end(job.pid)
        waiting.until(lambda: len(lines()) > 20, "steps after the restore", 60)
        self.assertEqual([line for line in lines() if "torn" in line], [])

    def test_stock_dump_then_import(self):
        job, memory = self.start_memory_job(32 * MIB)
        digest = memory.digest()
        images = self.path("images")
        os.mkdir(images)
        self.criu("dump", "-t", str(job.pid), "-D", images, "-o", "dump.log", "--manage-cgroups=ignore")
        job.reap()
        self.succeed("import", "--criu", images, "-t", "in:1")
        self.assert_store_whole(["in:1"])
        self.assertEqual(self.restore("in:1"), job.pid)
        memory.wait_for_tick()
        self.assertEqual(memory.digest(), digest)

    def test_import_of_what_was_not_copied_whole(self):
        job, _ = self.start_memory_job(MIB)
        images = self.path("images")
        os.mkdir(images)
        self.criu("dump", "-t", str(job.pid), "-D", images, "-o", "dump.log", "--manage-cgroups=ignore")
        job.reap()
        import_it = ("import", "--criu", images, "-t", "in:1")
        needed = ("core-", "fdinfo-", "files.img", "fs-", "ids-", "inventory.img", "mm-", "pagemap-", "pages-", "pstree.img")
        names = [name for name in os.listdir(images) if name.endswith(".img")]
        for kind in needed:
            self.assertTrue([name for name in names if name.startswith(kind)], kind)
        for name in names:
            path = os.path.join(images, name)
            with open(path, "rb") as file:
                content = file.read()
            os.truncate(path, len(content) - 1)
            self.assert_refused(self.cli.run(*import_it), FAILED, name)
            if name.startswith(needed):
                os.unlink(path)
                self.assert_refused(self.cli.run(*import_it), FAILED, name)
            with open(path, "wb") as file:
                file.write(content)
        self.assert_store_whole([])
        self.succeed(*import_it)

    def test_import_of_something_else(self):
        folder = self.path("folder")
        self.assert_refused(self.cli.run("import", "--criu", folder, "-t", "in:1"), FAILED, folder)
        os.mkdir(folder)
        self.assert_refused(self.cli.run("import", "--criu", folder, "-t", "in:1"), FAILED, folder)
        with open(os.path.join(folder, "inventory.img"), "wb") as file:
            file.write(b"no image")
        self.assertNotEqual(self.cli.run("import", "--criu", folder, "-t", "in:1").code, 0)
        self.assert_store_whole([])


class ContainerCheckpointTest(CriuTest, CloneTest):
    embedded = True

    def test_a_checkpoint_of_a_container(self):
        """As podman and the kubelet write them: of the first process of a PID namespace."""
        job = self.start_job(["unshare", "--pid", "--fork", "--kill-child", "setsid", "sleep", "1000"], "container")
        first = waiting.until(lambda: procfs.descendants(job.pid), "the first process in it")[-1]
        waiting.until(lambda: procfs.command_line(first).startswith("sleep"), "that it runs")
        checkpoint, archive = self.path("container/checkpoint"), self.path("container.tar")
        os.makedirs(checkpoint)
        self.criu("dump", "-t", str(first), "-D", checkpoint, "-o", "dump.log", "--manage-cgroups=ignore", "--shell-job")
        for name in ("spec.dump", "config.dump"):
            with open(self.path("container/" + name), "w", encoding="ascii") as file:
                file.write("{}")
        subprocess.run(["tar", "-C", self.path("container"), "-cf", archive, "."], check=True)
        cure = "import --criu DIR/checkpoint"
        self.assert_refused(self.cli.run("import", "--file", archive), USAGE, archive, "podman and the kubelet", cure)
        subprocess.run(["gzip", archive], check=True)
        self.assert_refused(self.cli.run("import", "--file", archive + ".gz"), USAGE, "gzip", "podman", cure)
        into = ("-t", "in:1")
        self.assert_refused(self.cli.run("import", "--criu", archive + ".gz", *into), FAILED, "unpack", "checkpoint")
        self.assert_refused(self.cli.run("import", "--criu", self.path("container"), *into), FAILED, checkpoint)
        self.assert_store_whole([])
        self.succeed("import", "--criu", checkpoint, *into)
        self.assert_store_whole(["in:1"])
        self.assertEqual(self.succeed("inspect", "in:1")["processes"][0]["pid"], 1)
        for options in ([], ["--clone"]):
            refused = self.cli.run("restore", "in:1", "--detach", *options)
            self.assert_refused(refused, UNSUPPORTED, "first process of a PID namespace", "container's engine")
        self.succeed("export", "in:1", "--criu", self.path("out"))
        self.assertIn("pstree.img", os.listdir(self.path("out")))


if __name__ == "__main__":
    unittest.main()
