"""Memory and semaphores that processes share by name are part of an image, and come back as they were in it."""

import json
import mmap
import os
import signal
import unittest

from harness import clones, jobs, phases, procfs, waiting
from harness.case import RekindleTest
from harness.cli import DONE

_MOST_DUMPS = 10


class Steps:
    """The job, and what it writes."""

    def setUp(self):
        super().setUp()
        self.before = set(os.listdir("/dev/shm"))
        self.name = f"rekindle-it-{os.getpid()}"
        self.memory = "/dev/shm/" + self.name
        self.steps = self.path("steps.txt")

    def start(self, *options):
        self.addCleanup(self.remove_shared)
        argv = [jobs.PYTHON, jobs.workload("shared_memory.py"), self.name, self.steps, *options]
        job = self.start_job(argv, "shared", cwd=self.directory)
        self.wait_for_steps(20)
        return job

    def remove_shared(self):
        for name in self.shared():
            os.unlink("/dev/shm/" + name)

    def shared(self):
        new = set(os.listdir("/dev/shm")) - self.before
        return {name for name in new if name.startswith((self.name, "sem.mp-", "link_remap.", "rekindle-nameless."))}

    def lines(self):
        if not os.path.exists(self.steps):
            return []
        with open(self.steps, encoding="ascii") as file:
            return file.read().splitlines()

    def wait_for_steps(self, more, hosts=(os.uname().nodename,)):
        """That many of each process, from now on."""
        seen = len(self.lines())

        def stepped():
            new = [tuple(line.split()[:2]) for line in self.lines()[seen:]]
            return all(new.count((host, who)) >= more for host in hosts for who in ("parent", "child"))

        waiting.until(stepped, "all processes step", 30)

    def assert_whole(self):
        self.assertEqual([line for line in self.lines() if "torn" in line], [])


class SharedMemoryTest(Steps, RekindleTest):
    def assert_goes_on_from(self, image):
        os.truncate(self.steps, 0)
        self.restore(image)
        self.wait_for_steps(20)
        self.assert_whole()

    def test_comes_back_as_it_was(self):
        job = self.start()
        self.checkpoint(job.pid, "shared:first")
        self.wait_for_steps(20)
        self.checkpoint(job.pid, "shared:second", "--stop")
        job.reap()
        self.assertTrue(os.path.exists(self.memory))
        self.assertEqual([name for name in os.listdir("/dev/shm") if name.startswith("link_remap")], [])
        files = self.succeed("inspect", "shared:first")["written_files"]
        self.assertIn(self.memory, [file["path"] for file in files if file.get("shared_memory")])

        # Its memory is older than what it left behind.
        self.assert_goes_on_from("shared:first")
        jobs.kill_tree(job.pid)
        # As after a reboot.
        self.remove_shared()
        self.assert_goes_on_from("shared:second")
        jobs.kill_tree(job.pid)
        self.assert_goes_on_from("shared:first")

    def test_without_a_name(self):
        job = self.start("unlink")
        self.checkpoint(job.pid, "shared:first")
        self.wait_for_steps(20)
        self.checkpoint(job.pid, "shared:second", "--stop")
        job.reap()
        # What had no name has none: neither in the job that ran on, nor in those that come back.
        names = {name for name in self.shared() if not name.startswith("sem.mp-")}
        self.assertEqual(names, set())
        self.assert_goes_on_from("shared:first")
        jobs.kill_tree(job.pid)
        self.assert_goes_on_from("shared:second")
        # A job that came back is as good as the first.
        self.checkpoint(job.pid, "shared:third", "--stop")
        waiting.for_exit(job.pid)
        jobs.reap_orphans()
        self.assert_goes_on_from("shared:third")
        names = {name for name in self.shared() if not name.startswith("sem.mp-")}
        self.assertEqual(names, set())

    def test_that_of_a_killed_restore_goes_with_the_next(self):
        job = self.start("unlink")
        self.checkpoint(job.pid, "shared:first", "--stop")
        job.reap()
        other = self.start_job(["/bin/sleep", "1000"], "other")
        self.checkpoint(other.pid, "other:1", "--stop")
        other.reap()
        daemon = self.start_daemon()
        command = self.make_cli(host=daemon.host).start("restore", "shared:first", "--detach")
        phases.wait_for_restore_phase("criu", daemon.pid, job.pid, lambda: command.poll() is not None)
        daemon.kill()
        self.cli.finish(command)
        waiting.until(lambda: not procfs.alive(job.pid), "nothing of the job is left")
        self.addCleanup(jobs.kill_tree, self.restore("other:1"))
        self.assertEqual({name for name in self.shared() if name.startswith("rekindle-nameless.")}, set())

    def test_names_that_others_dumps_have_left_are_in_nobodys_way(self):
        """CRIU's extra names have small numbers, the same in each dump."""
        left = {f"link_remap.{number}" for number in range(1, 300)}
        for name in left:
            os.symlink("/proc/1/fd/1024", "/dev/shm/" + name)
        job = self.start("unlink")
        self.checkpoint(job.pid, "shared:first", "--stop")
        job.reap()
        self.assertEqual({name for name in self.shared() if name.startswith("link_remap.")}, left)
        self.assert_goes_on_from("shared:first")

    def test_names_of_a_killed_dump_are_removed(self):
        job = self.start("unlink")
        self.kill_when_named(job)
        self.assertEqual(self.extra_names(), set())
        self.kill_when_named(job, and_the_command=True)
        self.checkpoint(job.pid, "shared:first")
        self.assertEqual(self.extra_names(), set())
        self.wait_for_steps(20)

    def extra_names(self):
        return {name for name in self.shared() if name.startswith("link_remap.")}

    def kill_when_named(self, job, and_the_command=False):
        """CRIU, in the middle of a dump that has made extra names."""
        for attempt in range(_MOST_DUMPS):
            command = self.cli.start("ckpt", job.pid, "-t", f"shared:lost-{int(and_the_command)}-{attempt}")
            processes = self.stop_when_named(job, command)
            if processes is None:
                result = self.cli.finish(command)
                self.assertEqual(result.code, DONE, result.err)
                continue
            if and_the_command:
                command.kill()
            for pid in processes:
                os.kill(pid, signal.SIGKILL)
            self.assertNotEqual(self.cli.finish(command).code, DONE)
            return
        self.fail(f"{_MOST_DUMPS} dumps were over too soon")

    def stop_when_named(self, job, command):
        """CRIU's processes, stopped. None: the dump was over before it stood at a place where it may be killed."""
        tree = [job.pid, *procfs.descendants(job.pid)]

        def named():
            return command.poll() is not None or (self.extra_names() and phases.criu_processes(command.pid, "dump"))

        while True:
            waiting.until(named, "CRIU's extra names", 60, 0.0002)
            if command.poll() is not None:
                return None
            processes = phases.criu_processes(command.pid, "dump")
            for pid in processes:
                os.kill(pid, signal.SIGSTOP)
            try:
                waiting.until(lambda: phases.parasite_waits(tree), "the parasite waits for CRIU", 0.5, 0.001)
                if processes and self.extra_names():
                    return processes
            except TimeoutError:
                pass
            for pid in processes:
                os.kill(pid, signal.SIGCONT)

    def test_of_others_is_left(self):
        job = self.start()
        self.checkpoint(job.pid, "shared:first")
        self.wait_for_steps(20)
        job.kill_tree()
        with open(self.memory, "r+b") as file, mmap.mmap(file.fileno(), 0) as ours:
            ours[4096:4104] = b"meantime"  # where the job itself writes nothing
            self.kill_job_at_end(job.pid)
            result = self.cli.run("restore", "shared:first", "--detach")
            self.assertEqual(result.code, DONE, str(result))
            # What was put back is not told, like the rest of the memory.
            (left,) = json.loads(result.out.splitlines()[0])["files"]
            self.assertEqual((left["path"], left["action"]), (self.memory, "left"), result)
            self.assertIn(f"process {os.getpid()} ", left["why"])
            self.assertEqual(ours[4096:4104], b"meantime")


class CloneTest(Steps, clones.CloneTest):
    def test_each_copy_has_its_own(self):
        self.check_copies()

    def test_each_copy_has_its_own_without_a_name(self):
        self.check_copies("unlink")

    def check_copies(self, *options):
        job = self.start(*options)
        self.checkpoint(job.pid, "shared:first", "--stop")
        job.reap()
        self.remove_shared()
        os.truncate(self.steps, 0)
        self.clones("shared:first", 2, "--name", "copy")
        self.wait_for_steps(20, ["copy-1", "copy-2"])
        # One that has gone on is an image in turn.
        pid = next(job["pid"] for job in self.succeed("ps")["jobs"] if job["name"] == "copy-1")
        self.checkpoint(pid, "shared:copy")
        self.clone("shared:copy", "--name", "later")
        self.wait_for_steps(20, ["copy-1", "copy-2", "later"])
        self.assert_whole()
        self.assertEqual(self.shared(), set())


if __name__ == "__main__":
    unittest.main()
