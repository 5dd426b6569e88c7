"""Images go to and come from stock CRIU."""

import os
import subprocess
import unittest

from harness import jobs, procfs, waiting
from harness.case import MIB, RekindleTest
from harness.cli import FAILED
from harness.stock_criu import criu_command


class PortabilityTest(RekindleTest):
    def criu(self, *arguments):
        done = subprocess.run(
            [*criu_command(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout)

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


if __name__ == "__main__":
    unittest.main()
