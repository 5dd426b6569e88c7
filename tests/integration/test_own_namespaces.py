"""Jobs with namespaces of their own: what comes back in new ones, and what is refused before anything has happened to
the job, because it never could.
"""

import fcntl
import os
import subprocess
import unittest

from harness import jobs, procfs, waiting
from harness.case import MIB, RekindleTest
from harness.cli import DONE, FAILED, UNSUPPORTED

_CLONE_NEWNS = 0x00020000
_CLONE_NEWNET = 0x40000000

# Becomes a process with such a namespace alone, as a child or as a thread of this one, and says so.
_ONE_APART = """
import ctypes, os, sys, threading, time
kind, flag, ready = sys.argv[1], int(sys.argv[2]), sys.argv[3]
def apart():
    if ctypes.CDLL(None).unshare(flag) != 0:
        os._exit(1)
    open(ready, "w").close()
    time.sleep(1e4)
if kind == "thread":
    threading.Thread(target=apart).start()
elif os.fork() == 0:
    apart()
time.sleep(1e4)
"""


def namespace(pid, kind):
    return os.readlink(f"/proc/{pid}/ns/{kind}")


def is_mounted(place, pid="self"):
    with open(f"/proc/{pid}/mountinfo", encoding="ascii") as mounts:
        return f" {place} " in mounts.read()


class OwnTimeTest(RekindleTest):
    def test_a_job_that_was_started_in_another_time_is_known(self):
        """The kernel tells each process the times since boot by the clock of its own time namespace."""
        later = ("unshare", "-T", "--fork", "--monotonic", "500000", "--boottime", "500000")
        words = ("run", "--name", "later", "--detach", "--log", self.path("log"), "--", "sleep", "1000")
        started = self.cli.run(*words, prefix=later)
        self.assertEqual(started.code, DONE, str(started))
        pid = started.data["job"]["pid"]
        self.kill_job_at_end(pid)
        (job,) = [job for job in self.succeed("ps", "--all")["jobs"] if job["name"] == "later"]
        self.assertEqual((job["pid"], job["state"]), (pid, "running"))
        self.succeed("run", "--name", "now", "--detach", "--log", self.path("log2"), "--", "sleep", "1000")
        inside = self.cli.run("ps", prefix=later)
        self.assertEqual(sorted(job["name"] for job in inside.data["jobs"]), ["later", "now"], str(inside))
        for name in ("later", "now"):
            self.succeed("stop", name, "--grace", "0s")
        self.assertFalse(procfs.alive(pid))


class OwnMountsTest(RekindleTest):
    def prefix(self):
        """What it has open was opened outside: its output, and descriptor 9, which it holds locked."""
        within = f'exec 9<>{self.path("lock")} && flock -n 9 && exec unshare --mount "$@"'
        return ("sh", "-c", within, "sh")

    def test_they_come_back_and_again(self):
        job, memory = self.start_memory_job(4 * MIB, prefix=self.prefix())
        pid, digest = job.pid, memory.digest()
        with open(job.log, "a", encoding="ascii") as log:
            log.write("before\n")
        self.checkpoint(pid, "job:1", "--stop")
        job.reap()
        self.assertEqual(self.restore("job:1"), pid)
        self.expect_as_before(job, memory, digest)
        self.checkpoint(pid, "job:2", "--stop")
        job.reap()
        self.assertEqual(self.restore("job:2"), pid)
        self.expect_as_before(job, memory, digest)
        self.assert_store_whole(["job:1", "job:2"])

    def expect_as_before(self, job, memory, digest):
        memory.wait_for_tick()
        self.assertEqual(memory.digest(), digest)
        self.assertNotEqual(namespace(job.pid, "mnt"), namespace("self", "mnt"))
        self.assertIn("before", open(job.log, encoding="ascii").read())
        opened = procfs.descriptor_targets(job.pid)
        self.assertEqual([opened[fd] for fd in (0, 1, 2)], ["/dev/null", job.log, job.log])
        with open(self.path("lock"), encoding="ascii") as lock:
            with self.assertRaises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_what_is_mounted_later_stays_within(self):
        """Here that is the machine's: it must not get the job's mounts."""
        place, go = self.path("place"), self.path("go")
        os.mkdir(place)
        waits = 'until [ -e "$1" ]; do sleep 0.05; done; mount -t tmpfs none "$0" && : >"$0/made"; exec sleep 1000'
        job = self.start_job(["unshare", "--mount", "sh", "-c", waits, place, go])
        waiting.until(lambda: procfs.command_line(job.pid).startswith("sh "), "the shell")
        self.checkpoint(job.pid, "job:1", "--stop")
        job.reap()
        pid = self.restore("job:1")
        open(go, "w").close()
        waiting.until(lambda: os.path.exists(f"/proc/{pid}/root{place}/made"), "the mount")
        self.assertEqual(os.listdir(place), [])
        # One that would have to be made again.
        waiting.until(lambda: procfs.command_line(pid).startswith("sleep "), "the sleep")
        refused = self.cli.run("ckpt", pid, "-t", "job:2", "--stop")
        words = ("mount namespace", f"{place} (tmpfs,", "PrivateTmp=no", "container")
        self.assert_refused(refused, UNSUPPORTED, str(pid), *words)
        self.assertTrue(procfs.alive(pid))
        self.assert_store_whole(["job:1"])

    def tied_folder(self):
        """A mount of ours that hears of others; what is below it shows what a job's do."""
        tied = self.path("tied")
        os.mkdir(tied)
        subprocess.run(["mount", "-t", "tmpfs", "none", tied], check=True)
        self.addCleanup(subprocess.run, ["umount", "--recursive", tied], check=True)
        subprocess.run(["mount", "--make-shared", tied], check=True)
        for name in ("of-ours", "of-its"):
            os.mkdir(os.path.join(tied, name))
        return tied

    def start_among(self, propagation):
        job = self.start_job(["unshare", "--mount", "--propagation", propagation, "sleep", "1000"], propagation)
        waiting.until(lambda: procfs.command_line(job.pid).startswith("sleep "), "the sleep")
        return job

    def heard_of(self, pid, tied):
        """Whether the process hears of our mounts below it, and we of its."""
        ours, its = os.path.join(tied, "of-ours"), os.path.join(tied, "of-its")
        within = ["nsenter", "--mount", f"--target={pid}"]
        subprocess.run(["mount", "-t", "tmpfs", "none", ours], check=True)
        subprocess.run([*within, "mount", "-t", "tmpfs", "none", its], check=True)
        heard = is_mounted(ours, pid), is_mounted(its)
        subprocess.run(["umount", ours], check=True)
        subprocess.run([*within, "umount", its], check=True)
        return heard

    def test_they_hear_of_others_as_before(self):
        tied = self.tied_folder()
        for propagation, heard in (("unchanged", (True, True)), ("slave", (True, False)), ("private", (False, False))):
            with self.subTest(propagation):
                job = self.start_among(propagation)
                self.assertEqual(self.heard_of(job.pid, tied), heard)
                self.checkpoint(job.pid, f"{propagation}:1", "--stop")
                job.reap()
                self.assertEqual(self.heard_of(self.restore(f"{propagation}:1"), tied), heard)

    def test_peers_of_each_other_alone(self):
        """They are shared, but not with ours."""
        tied = self.tied_folder()
        job = self.start_among("private")
        within = ["nsenter", "--mount", f"--target={job.pid}"]
        subprocess.run([*within, "mount", "--make-rshared", "/"], check=True)
        self.checkpoint(job.pid, "job:1", "--stop")
        job.reap()
        self.assertEqual(self.heard_of(self.restore("job:1"), tied), (False, False))

    def test_what_was_unmounted_here_since(self):
        place = self.path("place")
        os.mkdir(place)
        subprocess.run(["mount", "-t", "proc", "none", place], check=True)
        job = self.start_job(["unshare", "--mount", "sleep", "1000"])
        waiting.until(lambda: procfs.command_line(job.pid).startswith("sleep "), "the sleep")
        subprocess.run(["umount", place], check=True)
        result = self.checkpoint(job.pid, "job:1", "--stop")
        job.reap()
        self.assertIn(f"umount {place}", " ".join(result["warnings"]))
        pid = self.restore("job:1")
        self.assertFalse(is_mounted(place, pid))

    def test_network_of_its_own_too(self):
        """For which CRIU runs programs."""
        job = self.start_job(["unshare", "--mount", "--net", "sleep", "1000"])
        waiting.until(lambda: procfs.command_line(job.pid).startswith("sleep "), "the sleep")
        self.checkpoint(job.pid, "job:1", "--stop")
        job.reap()
        pid = self.restore("job:1")
        for kind in ("mnt", "net"):
            self.assertNotEqual(namespace(pid, kind), namespace("self", kind))

    def test_networks_below_its_own(self):
        within = "unshare --net sleep 1000 & exec sleep 1000"
        job = self.start_job(["unshare", "--net", "sh", "-c", within])
        waiting.until(lambda: [procfs.command_line(pid)[:6] for pid in procfs.descendants(job.pid)] == ["sleep "]
            and procfs.command_line(job.pid).startswith("sleep "), "both")  # fmt: skip
        self.checkpoint(job.pid, "job:1", "--stop")
        job.reap()
        pid = self.restore("job:1")
        (child,) = procfs.descendants(pid)
        self.assertEqual(len({namespace(process, "net") for process in (pid, child, "self")}), 3)

    def test_another_root(self):
        """What is mounted is then told by other names."""
        root = self.path("root")
        os.mkdir(root)
        within = 'mount --rbind / "$0" && exec /usr/sbin/chroot "$0" sleep 1000'
        job = self.start_job(["unshare", "--mount", "sh", "-c", within, root])
        waiting.until(lambda: procfs.command_line(job.pid).startswith("sleep "), "the sleep")
        refused = self.cli.run("ckpt", job.pid, "-t", "job:1", "--stop")
        self.assert_refused(refused, UNSUPPORTED, str(job.pid), "mount namespace", f"another root ({root})")
        self.assertTrue(procfs.alive(job.pid))

    def test_of_time(self):
        """CRIU brings these back, all else being the same."""
        clock = self.path("clock")
        tells = (
            "import os, sys, time\n"
            "while True:\n"
            "    open(sys.argv[1] + '.new', 'w').write(str(time.clock_gettime(time.CLOCK_BOOTTIME)))\n"
            "    os.rename(sys.argv[1] + '.new', sys.argv[1])\n"
            "    time.sleep(0.02)\n"
        )
        job = self.start_job(["unshare", "--time", "--boottime", "1000000", jobs.PYTHON, "-c", tells, clock])
        waiting.until(lambda: os.path.exists(clock), "the clock")
        self.checkpoint(job.pid, "job:1", "--stop")
        job.reap()
        with open(clock, encoding="ascii") as file:
            before = float(file.read())
        os.unlink(clock)
        self.restore("job:1")
        waiting.until(lambda: os.path.exists(clock), "the clock")
        with open(clock, encoding="ascii") as file:
            after = float(file.read())
        self.assertGreater(before, 1000000)
        self.assertGreaterEqual(after, before)


class ChangesBeforeTheFreezeTest(RekindleTest):
    """What was looked at while the job ran is otherwise when it stands still."""

    def setUp(self):
        super().setUp()
        self.pipe, self.place, self.go = self.path("pipe"), self.path("place"), self.path("go")
        os.mkfifo(self.pipe)
        os.mkdir(self.place)
        opens = 'until [ -e "$2" ]; do sleep 0.05; done; exec 8>"$1/held" && exec sleep 1000'
        within = f'( {opens} ) & exec {jobs.PYTHON} -c "$3" "$0"'
        apart = f'exec 9>{self.path("temporary")} && exec unshare --mount sh -c "$@"'
        self.job = self.start_job(["sh", "-c", apart, "sh", within, self.pipe, self.place, self.go, jobs.WAITS_IN_VFORK])
        waiting.until(lambda: procfs.state(self.job.pid) == "D", "it waits for its child")
        self.addCleanup(self.let_go)

    def let_go(self):
        if os.path.exists(self.pipe):
            with open(self.pipe, "wb"):
                os.unlink(self.pipe)

    def expect_failure(self, change, *words):
        command = self.cli.start("ckpt", self.job.pid, "-t", "job:1", "--stop")
        waiting.until(lambda: os.path.isdir(self.runtime) and any(
            name.startswith("capture-") for name in os.listdir(self.runtime)), "it has begun")  # fmt: skip
        change()
        self.let_go()
        self.assert_refused(self.cli.finish(command), FAILED, str(self.job.pid), *words)
        self.assertTrue(procfs.alive(self.job.pid))
        self.assert_store_whole([])

    def test_a_mount(self):
        def change():
            mount = ["nsenter", "--mount", f"--target={self.job.pid}", "mount", "-t", "tmpfs", "none", self.place]
            subprocess.run(mount, check=True)
            open(self.go, "w").close()
            held = f"/proc/{self.job.pid}/root{self.place}/held"
            waiting.until(lambda: os.path.exists(held), "the file")

        self.expect_failure(change, "has changed", f"{self.place} (tmpfs,", "try again")

    def test_a_renamed_file(self):
        def change():
            os.rename(self.job.log, self.job.log + ".1")
            open(self.job.log, "w").close()

        self.expect_failure(change, self.job.log, "renamed or removed", "try again")

    def test_a_removed_file(self):
        self.expect_failure(lambda: os.unlink(self.path("temporary")), "temporary", "renamed or removed")


class OtherNamespacesTest(RekindleTest):
    def tearDown(self):
        self.assert_store_whole([])

    def expect_refused(self, pid, *words):
        for options in ([], ["--stop"]):
            refused = self.cli.run("ckpt", pid, "-t", "job:1", *options)
            self.assert_refused(refused, UNSUPPORTED, str(pid), *words)
        self.assertTrue(procfs.alive(pid))

    def test_of_users(self):
        for options in (["--map-root-user"], ["--map-root-user", "--mount"], []):
            with self.subTest(options):
                job = self.start_job(["unshare", "--user", *options, "sleep", "1000"], "job" + "".join(options))
                waiting.until(lambda: procfs.command_line(job.pid).startswith("sleep "), "the sleep")
                self.expect_refused(job.pid, "user namespace of its own", "bwrap")

    def test_mounts_of_other_users(self):
        """Who has made them may mount there what root would run."""
        owner = self.start_job(["unshare", "--user", "--map-root-user", "--mount", "sleep", "1000"], "owner")
        waiting.until(lambda: procfs.command_line(owner.pid).startswith("sleep "), "the sleep")
        job = self.start_job(["nsenter", "--mount", f"--target={owner.pid}", "sleep", "1000"])
        waiting.until(lambda: procfs.command_line(job.pid).startswith("sleep "), "the sleep")
        self.assertEqual(namespace(job.pid, "user"), namespace("self", "user"))
        self.expect_refused(job.pid, "user namespace of its own")

    def test_one_apart(self):
        for kind in ("process", "thread"):
            for flag, words in ((_CLONE_NEWNET, "network namespace"), (_CLONE_NEWNS, "mount namespace")):
                if (kind, flag) == ("thread", _CLONE_NEWNS):
                    continue  # it would need a folder of its own first
                with self.subTest(kind=kind, words=words):
                    name = f"{kind}{flag}"
                    argv = [jobs.PYTHON, "-c", _ONE_APART, kind, str(flag), self.path(name)]
                    job = self.start_job(argv, name + ".log")
                    waiting.until(lambda: os.path.exists(self.path(name)), "the namespace")
                    self.expect_refused(job.pid, kind, words, "whole job")

    def test_message_queue(self):
        holds = (
            "import ctypes, sys, time\n"
            "librt = ctypes.CDLL('librt.so.1')\n"
            "assert librt.mq_open(b'/rekindle-test', 0o100 | 2, 0o600, None) >= 0\n"
            "assert librt.mq_unlink(b'/rekindle-test') == 0\n"
            "open(sys.argv[1], 'w').close()\n"
            "time.sleep(1e4)\n"
        )
        job = self.start_job([jobs.PYTHON, "-c", holds, self.path("ready")])
        waiting.until(lambda: os.path.exists(self.path("ready")), "the queue")
        refused = self.cli.run("ckpt", job.pid, "-t", "job:1", "--stop")
        self.assert_refused(refused, FAILED, str(job.pid), "message queue /rekindle-test,", "pipe")
        self.assertTrue(procfs.alive(job.pid))


if __name__ == "__main__":
    unittest.main()
