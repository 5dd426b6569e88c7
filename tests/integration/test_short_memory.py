"""Where memory is short: what this process may promise itself, its addresses, and file systems in memory."""

import os
import unittest

from harness import jobs, waiting
from harness.case import MIB, RekindleTest, shell
from harness.clones import CloneTest
from harness.containers_case import PLACEHOLDER, ContainersCase

GIB = 1 << 30
# What Rekindle leaves to others in such a file system, and little more.
SMALL = 24 * MIB


class ForkedMemory:
    """A job of two processes, whose memory CRIU puts back from files."""

    log = None

    def start_forked(self, shared, private):
        self.log = self.path("log")
        argv = [jobs.PYTHON, jobs.workload("forked_memory.py"), self.log, str(shared), str(private)]
        job = self.start_job(argv, "forked", cwd=self.directory)
        self.wait_for_both()
        return job

    def lines(self):
        if not os.path.exists(self.log):
            return []
        with open(self.log, encoding="ascii") as file:
            return [line.split() for line in file.read().splitlines()]

    def wait_for_both(self, host=os.uname().nodename):
        seen = len(self.lines())

        def stepped():
            steps = [line[1] for line in self.lines()[seen:] if line[0] == host]
            return all(steps.count(who) >= 3 for who in ("parent", "child"))

        waiting.until(stepped, f"steps of both on {host}", 60)
        self.assertEqual({line[3] for line in self.lines()}, {"True"})

    def make_runtime_small(self):
        os.makedirs(self.runtime, exist_ok=True)
        shell("mount", "-t", "tmpfs", "-o", f"size={SMALL},mode=755", "tmpfs", self.runtime)
        self.addCleanup(shell, "umount", self.runtime)

    def room_left(self):
        info = os.statvfs(self.runtime)
        return info.f_bavail * info.f_frsize


class LimitsTest(ForkedMemory, RekindleTest):
    """`ulimit -v`, and `ulimit -d`, which counts as vm.overcommit_memory=2 does for the whole machine."""

    def check(self, *limits):
        job = self.start_forked(4, 16)
        prefix = ["prlimit", *limits]
        for reference in ("job:1", "job:2"):
            self.succeed("ckpt", job.pid, "-t", reference, prefix=prefix)
            self.wait_for_both()
        self.checkpoint(job.pid, "job:3", "--stop")
        job.reap()
        for reference in ("job:1", "job:2", "job:3"):
            pid = self.restore(reference, "--rollback", "append")
            self.wait_for_both()
            jobs.kill_tree(pid)
            waiting.for_exit(pid)
        self.assert_store_whole(["job:1", "job:2", "job:3"])

    def test_few_addresses(self):
        self.check(f"--as={2 * GIB}")

    def test_little_memory_of_its_own(self):
        self.check(f"--data={GIB // 2}")


class SmallRuntimeFolderTest(ForkedMemory, RekindleTest):
    def test_a_job_comes_back(self):
        job = self.start_forked(8, 24)
        self.checkpoint(job.pid, "job:1", "--stop")
        job.reap()
        self.make_runtime_small()
        self.restore("job:1")
        self.wait_for_both()


class SmallRuntimeFolderOfContainersTest(ContainersCase):
    def test_into_another_container(self):
        one, job = self.start_service()
        self.checkpoint(job, "box:1", "--stop")
        one.end()
        os.makedirs(self.runtime, exist_ok=True)
        # Less than is left to others.
        shell("mount", "-t", "tmpfs", "-o", "size=16m,mode=755", "tmpfs", self.runtime)
        self.addCleanup(shell, "umount", self.runtime)
        before = set(os.listdir("/dev/shm"))
        two = self.start("two", PLACEHOLDER)
        self.restore("box:1", "--into", two.first())
        self.wait_for_steps()
        self.assertEqual({line[3] for line in self.steps()}, {"True"})
        self.assertEqual(set(os.listdir("/dev/shm")), before)


class SmallRuntimeFolderOfClonesTest(ForkedMemory, CloneTest):
    embedded = True

    def setUp(self):
        super().setUp()
        self.make_runtime_small()
        self.addCleanup(self.end_everything)
        self.restart_daemon()

    def test_shared_memory_that_does_not_fit(self):
        job = self.start_forked(32, 1)
        self.checkpoint(job.pid, "job:1", "--stop")
        job.reap()
        left = self.room_left()
        for name in ("one", "two"):
            self.clone("job:1", "--name", name)
            self.wait_for_both(name)
        self.assertGreater(self.room_left(), left - 2 * MIB)
        self.daemon.stop()


if __name__ == "__main__":
    unittest.main()
