"""TCP connections at the moment of a checkpoint: accepted, waiting to be accepted, a job's own."""

import ctypes
import os
import signal
import socket
import unittest

from harness import jobs, phases, procfs, waiting
from harness.case import RekindleTest, shell
from harness.cli import DONE, FAILED


_MOST_DUMPS = 10
_PIDFD_GETFD = 438
_TCP_REPAIR = 19
_libc = ctypes.CDLL(None, use_errno=True)


def in_repair(pid):
    """Is one of the process's TCP sockets as CRIU has them while it dumps?"""
    pidfd = os.pidfd_open(pid)
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            if not os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:"):
                continue
            taken = _libc.syscall(_PIDFD_GETFD, pidfd, int(number), 0)
            if taken < 0:
                continue
            with socket.socket(fileno=taken) as ours:
                if ours.type == socket.SOCK_STREAM and ours.getsockopt(socket.IPPROTO_TCP, _TCP_REPAIR) == 1:
                    return True
        return False
    finally:
        os.close(pidfd)


def is_stopped(pid):
    """It has been stopped, and not ended before."""
    try:
        os.kill(pid, signal.SIGSTOP)
    except ProcessLookupError:
        return False
    waiting.until(lambda: procfs.state(pid) == "T" or not procfs.alive(pid), "it stands still")
    return procfs.alive(pid)


class ConnectionsTest(RekindleTest):
    def start(self, *arguments):
        self.port = jobs.free_port()
        job = self.start_job([jobs.PYTHON, jobs.workload("late_server.py"), str(self.port), *arguments], "server")
        waiting.until(lambda: self.output(job) == "listens\n", "it listens")
        return job

    def output(self, job):
        if not os.path.exists(job.log):
            return ""
        with open(job.log, encoding="ascii") as file:
            return file.read()

    def connect(self):
        client = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        self.addCleanup(client.close)
        return client

    def assert_answers(self, client, line):
        client.sendall(line)
        self.assertEqual(client.makefile("rb").readline(), line)

    def test_accepted(self):
        job = self.start()
        client = self.connect()
        os.kill(job.pid, signal.SIGUSR1)
        self.assert_answers(client, b"before\n")
        self.checkpoint(job.pid, "server:first")
        self.assert_answers(client, b"after\n")
        self.checkpoint(job.pid, "server:second", "--stop")
        job.reap()
        client.sendall(b"mean")  # kept by this side until the other is there again
        self.restore("server:second")
        client.sendall(b"while\n")
        self.assertEqual(client.makefile("rb").readline(), b"meanwhile\n")

    def test_an_image_that_is_removed(self):
        """What holds back the packets of the job's peers goes with it."""
        self.check_lock_goes_with("rm", "server:1")

    def test_an_image_that_is_replaced(self):
        other = self.start_job(["sleep", "1000"], "other")
        self.check_lock_goes_with("ckpt", other.pid, "-t", "server:1", "--replace")

    def test_an_image_with_a_second_name(self):
        """It can still be restored under that one."""
        job = self.start()
        client = self.connect()
        os.kill(job.pid, signal.SIGUSR1)
        self.assert_answers(client, b"before\n")
        self.checkpoint(job.pid, "server:1", "--stop")
        job.reap()
        self.succeed("tag", "server:1", "kept:1")
        self.succeed("rm", "server:1")
        client.sendall(b"after\n")
        self.restore("kept:1")
        self.assertEqual(client.makefile("rb").readline(), b"after\n")

    def check_lock_goes_with(self, *removal):
        job = self.start()
        client = self.connect()
        os.kill(job.pid, signal.SIGUSR1)
        self.assert_answers(client, b"before\n")
        self.checkpoint(job.pid, "server:1", "--stop")
        job.reap()
        client.sendall(b"lost\n")  # which is sent again and again
        self.succeed(*removal)
        client.settimeout(120)
        with self.assertRaises(ConnectionResetError):
            client.recv(1)

    def test_an_image_that_can_not_be_kept(self):
        """With --stop CRIU leaves the job stopped, and its connections locked."""
        job = self.start()
        client = self.connect()
        os.kill(job.pid, signal.SIGUSR1)
        self.assert_answers(client, b"before\n")
        os.mkdir(self.store)
        shell("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", self.store)
        self.addCleanup(lambda: shell("umount", self.store))
        self.assert_refused(self.cli.run("ckpt", job.pid, "-t", "server:lost", "--stop"), FAILED, "space")
        self.assert_answers(client, b"after\n")

    def test_killed_with_something_to_send(self):
        """The kernel goes on sending, for as long as the client does not read."""
        job = self.start()
        client = self.connect()
        os.kill(job.pid, signal.SIGUSR1)
        self.assert_answers(client, b"before\n")
        self.checkpoint(job.pid, "server:first")
        client.setblocking(False)
        line = b"x" * 65535 + b"\n"

        def full():
            try:
                client.send(line)
                return False
            except BlockingIOError:
                return True  # the server does not read on before it has sent

        waiting.until(full, "neither side reads")
        job.kill_tree()
        self.restore("server:first")
        self.assert_answers(self.connect(), b"new\n")
        client.setblocking(True)
        with self.assertRaises(ConnectionError):
            while client.recv(1 << 20):
                pass

    def kill_when_locked(self, job, and_the_command=False):
        """CRIU, when it has locked the job's connections. A dump that is over too soon for that works, and another one is
        tried.
        """
        for attempt in range(_MOST_DUMPS):
            command = self.cli.start("ckpt", job.pid, "-t", f"server:lost-{int(and_the_command)}-{attempt}")

            def locked(command=command):
                return command.poll() is not None or (phases.criu_processes(command.pid, "dump") and in_repair(job.pid))

            waiting.until(locked, "connections locked", 60, 0.0002)
            processes = phases.criu_processes(command.pid, "dump") if command.poll() is None else []
            processes = [pid for pid in processes if is_stopped(pid)]
            if not processes or not in_repair(job.pid):
                for pid in processes:
                    os.kill(pid, signal.SIGCONT)
                result = self.cli.finish(command)
                self.assertEqual(result.code, DONE, str(result))
                continue
            if and_the_command:
                command.kill()
            for pid in processes:
                os.kill(pid, signal.SIGKILL)
            return self.cli.finish(command)
        self.fail(f"{_MOST_DUMPS} dumps were over too soon")

    def test_criu_killed(self):
        job = self.start("polls")
        client = self.connect()
        os.kill(job.pid, signal.SIGUSR1)
        self.assert_answers(client, b"before\n")
        self.assert_refused(self.kill_when_locked(job), FAILED, "criu")
        self.assert_answers(client, b"after\n")
        self.kill_when_locked(job, and_the_command=True)
        # Whatever comes next puts things right.
        self.checkpoint(job.pid, "server:first")
        self.assert_answers(client, b"again\n")
        self.checkpoint(job.pid, "server:second", "--stop")
        job.reap()
        self.restore("server:second")
        self.assert_answers(client, b"restored\n")

    def test_not_accepted_yet(self):
        job = self.start()
        client = self.connect()
        self.checkpoint(job.pid, "server:first")
        os.kill(job.pid, signal.SIGUSR1)
        self.assert_answers(client, b"live\n")

    def test_not_accepted_yet_when_it_stops(self):
        job = self.start()
        client = self.connect()
        self.checkpoint(job.pid, "server:stopped", "--stop")
        job.reap()
        self.restore("server:stopped")
        os.kill(job.pid, signal.SIGUSR1)
        with self.assertRaises(ConnectionError):
            self.assert_answers(client, b"none\n")
        self.assert_answers(self.connect(), b"new\n")

    def test_its_own_not_accepted_yet(self):
        """Without one of its ends the restored job could wait for ever."""
        job = self.start("own")
        result = self.cli.run("ckpt", job.pid, "-t", "server:refused")
        self.assert_refused(result, FAILED, "had not yet accepted", "Try again")
        os.kill(job.pid, signal.SIGUSR1)
        waiting.until(lambda: self.output(job) == "listens\nown\n", "it has accepted")
        self.checkpoint(job.pid, "server:taken")


if __name__ == "__main__":
    unittest.main()
