"""What the kernel holds for a job and does not tell, or CRIU can't save: the job is told of, and goes on."""

import os
import signal
import unittest

from harness import jobs, procfs, waiting
from harness.case import RekindleTest
from harness.cli import DONE, FAILED, UNSUPPORTED


class ObjectsTest(RekindleTest):
    def start(self, *words, prefix=()):
        argv = [*prefix, jobs.PYTHON, "-B", jobs.workload("kernel_objects.py"), *words]
        self.job = self.start_job(argv, " ".join([*prefix, *words]).replace("/", "-"))
        self.said = 0
        self.expect("has it")
        return self.job

    def lines(self):
        if not os.path.exists(self.job.log):
            return []
        with open(self.job.log, encoding="ascii") as file:
            return file.read().splitlines()

    def expect(self, line):
        self.said += 1
        waiting.until(lambda: len(self.lines()) >= self.said, f"it says '{line}'")
        self.assertEqual(self.lines()[self.said - 1], line)

    def poke(self, line):
        os.kill(self.job.pid, signal.SIGUSR1)
        self.expect(line)

    def expect_refused(self, *words, code=FAILED):
        for options in ([], ["--stop"]):
            refused = self.cli.run("ckpt", self.job.pid, "-t", "job:1", "--replace", *options)
            self.assert_refused(refused, code, *words)
            self.assertNotIn("does not know", str(refused))
        self.assertTrue(procfs.alive(self.job.pid))
        self.assertNotEqual(procfs.state(self.job.pid), "T")

    def come_back(self):
        """The warnings of the image."""
        taken = self.cli.run("ckpt", self.job.pid, "-t", "job:back", "--stop")
        self.assertEqual(taken.code, DONE, str(taken))
        self.job.reap()
        self.restore("job:back")
        return taken.data.get("warnings", [])


class UrgentDataTest(ObjectsTest):
    def test_none_of_it_is_lost(self):
        for how, lost, rest in (("unread", 7, "abc,defghi"), ("heard", 7, "abc,defghi"), ("at the mark", 7, "defghi")):
            with self.subTest(how):
                self.start("urgent", how)
                self.expect_refused(str(self.job.pid), "urgent data (MSG_OOB)", f"the last {lost} bytes", "try again")
                self.poke(rest)
                self.come_back()
                self.poke("later")
                self.succeed("rm", "job:back")

    def test_among_the_rest(self):
        self.start("urgent", "inline")
        self.expect_refused("SO_OOBINLINE", "Try again")
        self.poke("abc,Udefghi")
        self.come_back()
        self.poke("later")

    def test_of_connections_that_are_closed_nothing_is_to_be_kept(self):
        self.start("urgent", "unread")
        self.checkpoint(self.job.pid, "job:1", "--tcp-close")
        self.poke("abc,defghi")

    def test_the_end_of_a_connection_is_no_such_data(self):
        self.start("ended")
        self.come_back()
        self.poke("abc|")


class SemaphoresTest(ObjectsTest):
    def test_a_lock_that_it_holds(self):
        for prefix in ((), ("unshare", "--ipc")):
            with self.subTest(prefix):
                self.start("semaphore", prefix=prefix)
                self.expect_refused("semaphore 0", "0x1267", "SEM_UNDO", "flock()", "try again")
                self.poke("free 1")
                (warning,) = self.come_back()
                self.assertIn("SEM_UNDO", warning)
                self.poke("held 0")
                self.succeed("rm", "job:back")

    def test_php_s_is_a_lock_only_while_it_is_held(self):
        self.start("php semaphore")
        (warning,) = self.checkpoint(self.job.pid, "job:1").get("warnings", [])
        self.assertIn("SEM_UNDO", warning)
        self.poke("holds it")
        self.expect_refused("semaphore 0", "0x1268", "SEM_UNDO")
        self.poke("free")
        self.checkpoint(self.job.pid, "job:1", "--replace")

    def test_without_anything_to_undo(self):
        self.start("semaphore", "plain")
        self.assertEqual(self.come_back(), [])
        self.poke("free 1")

    def test_with_threads_it_may_be(self):
        self.start("semaphore", "thread")
        (warning,) = self.come_back()
        self.assertIn("(now 0)", warning)
        self.poke("free 2")


class PipesTest(ObjectsTest):
    def test_too_many(self):
        self.start("pipes", "1025")
        self.expect_refused("1025 pipes", "1024", "socketpair()", code=UNSUPPORTED)
        self.poke("closed one")
        self.come_back()


class RefusedTest(ObjectsTest):
    def refuse(self, kind, *words, line, code=FAILED):
        with self.subTest(kind):
            self.start(kind)
            self.expect_refused(*words, code=code)
            self.poke(line)
            self.come_back()
            self.assertTrue(procfs.alive(self.job.pid))
            jobs.kill_tree(self.job.pid)
            self.succeed("rm", "job:back")

    def test_the_cause_is_told_and_the_cure_helps(self):
        self.refuse("packet_pipe", "packet mode", "be it empty", "SOCK_SEQPACKET", line="closed it", code=UNSUPPORTED)
        self.refuse("credentials", "SO_PASSCRED", "Try again", line="abc")
        self.refuse("corked", "UDP_CORK", "Try again", line="ab")
        self.refuse("peeked", "SO_PEEK_OFF", "Try again", line="ab")
        self.refuse("thread_descriptor", "descriptor of a thread", line="closed it", code=UNSUPPORTED)
        self.refuse("filtered", "SO_ATTACH_BPF", "SO_DETACH_FILTER", line="took it off", code=UNSUPPORTED)


class SurroundingsTest(RekindleTest):
    def below(self, *argv, begin="setsid"):
        """The PID of a job below such a command."""
        top = self.start_job([*argv, "sh", "-c", f"{begin} sleep 1000; true"], "top")
        found = []

        def there():
            found[:] = [pid for pid in procfs.descendants(top.pid) if procfs.command_line(pid).startswith("sleep ")]
            return found

        waiting.until(there, "the sleep")
        return found[0]

    def test_a_proc_of_another(self):
        pid = self.below("unshare", "--pid", "--fork", "--kill-child")
        self.assert_refused(self.cli.run("ckpt", pid, "-t", "job:1"), UNSUPPORTED, "/proc", "--mount-proc", "bwrap")
        self.assertTrue(procfs.alive(pid))
        self.checkpoint(self.below("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"), "job:1")

    def test_a_root_of_the_jobs_own_needs_no_proc(self):
        root = self.path("root")
        os.mkdir(root)
        begin = f"mount --bind / {root} && setsid /usr/sbin/chroot {root}"
        pid = self.below("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", begin=begin)
        self.assertFalse(os.path.exists(f"/proc/{pid}/root/proc/1"))
        self.checkpoint(pid, "job:1")
        self.assertTrue(procfs.alive(pid))

    def test_a_root_can_not_be_unmounted(self):
        # As bwrap does for `--bind / /`.
        binds = "mount --rbind / /mnt && mount -o remount,bind,nosuid /mnt && cd /mnt"
        enters = "/usr/sbin/pivot_root . . && umount --lazy . && cd / && exec sleep 1000"
        argv = ["unshare", "--mount", "sh", "-c", f"{binds} && {enters}"]
        job = self.start_job(argv, "bound")
        waiting.until(lambda: procfs.command_line(job.pid).startswith("sleep "), "the sleep")
        refused = self.cli.run("ckpt", job.pid, "-t", "job:1")
        self.assert_refused(refused, UNSUPPORTED, "mounted at /", "container with an init")
        self.assertNotIn("umount", str(refused))


if __name__ == "__main__":
    unittest.main()
