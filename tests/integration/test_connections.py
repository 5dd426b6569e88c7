"""TCP connections at the moment of a checkpoint: accepted, waiting to be accepted, a job's own."""

import os
import signal
import socket
import unittest

from harness import jobs, waiting
from harness.case import RekindleTest
from harness.cli import FAILED


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
