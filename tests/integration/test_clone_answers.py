"""Working sets of servers without the hook: recorded until the first request has been answered."""

import os
import signal
import socket
import subprocess
import sys
import unittest

from harness import jobs, waiting
from harness.clones import CloneTest

sys.path.insert(0, jobs.WORKLOADS)
from listener import PAGES  # noqa: E402

NEVER = ("--record-ms", "600000")  # as far as a test can see


class AnswerTest(CloneTest):
    def setUp(self):
        super().setUp()
        self.connections = []
        self.addCleanup(lambda: [connection.close() for connection in self.connections])

    def image_of_listener(self, *arguments):
        job = self.start_job([jobs.PYTHON, jobs.workload("listener.py"), *arguments], "listener")
        # It listens, and has done what is done once.
        self.address = ("127.0.0.1", int(arguments[1])) if arguments[0] == "tcp" else arguments[1]
        waiting.until(self.connects, "the listener up")
        self.ask("answer")
        self.assertEqual(self.read(), b"touched\n")
        self.connections.pop().close()
        self.waits_alone(job.pid)
        return self.take_image(job, "listener:1")

    def waits_alone(self, pid):
        """Its threads that served have ended."""
        waiting.until(lambda: len(os.listdir(f"/proc/{pid}/task")) == 1, "nothing being served")

    def connects(self):
        connection = socket.socket(socket.AF_INET if isinstance(self.address, tuple) else socket.AF_UNIX)
        connection.settimeout(waiting.DEFAULT_SECONDS)
        try:
            connection.connect(self.address)
        except OSError:
            connection.close()
            return False
        self.connections.append(connection)
        return True

    def ask(self, what):
        self.connections[-1].sendall(what.encode() + b"\n")

    def read(self):
        return self.connections[-1].recv(100)

    def working_set(self):
        return self.succeed("inspect", "listener:1")["working_set"]

    def recorded(self):
        return waiting.until(self.working_set, "a recording")

    def faults(self, instance):
        return next(c["faults"] for c in self.pager_stats()["clones"] if c["clone"] == instance)

    def end(self, started):
        for connection in self.connections:
            connection.close()
        os.kill(started["job"]["pid"], signal.SIGKILL)
        self.wait_for_end(started["job"]["pid"])

    def ask_without_an_answer(self, started):
        """The request has been seen and worked on when this returns."""
        self.assertTrue(self.connects())
        self.ask("keep")
        waiting.until(lambda: self.faults(started["instance"]) >= PAGES, "the request worked on")

    def check_recorded(self, end):
        found = self.recorded()
        self.assertEqual((found["recordings"], found["end"]), (1, end))
        return found


class TcpTest(AnswerTest):
    def test_until_a_request_is_answered(self):
        port = str(jobs.free_port())
        reference = self.image_of_listener("tcp", port)
        first = self.clone(reference, *NEVER, "--fill", "never")
        self.ask_without_an_answer(first)
        self.assertIsNone(self.working_set())
        self.ask("answer")
        self.assertEqual(self.read(), b"touched\n")
        found = self.check_recorded("answered")
        self.assertGreaterEqual(found["pages"], PAGES)
        shown = self.cli.run("inspect", reference, json_output=False)
        self.assertIn("until it answered on a socket that it listens on", shown.out)
        self.end(first)
        # What the handler touched is in place before the next one runs.
        second = self.clone(reference, *NEVER, "--fill", "never")
        self.assertEqual(second["prefilled_pages"], found["pages"])
        self.end(second)

    def test_one_request_and_away(self):
        reference = self.image_of_listener("tcp", str(jobs.free_port()))
        started = self.clone(reference, *NEVER)
        self.assertTrue(self.connects())
        self.ask("answer")
        self.assertEqual(self.read(), b"touched\n")
        self.connections.pop().close()
        self.assertGreaterEqual(self.check_recorded("answered")["pages"], PAGES)
        # Only now the rest comes.
        waiting.until(lambda: not self.missing_pages(started["instance"]), "all memory in place")
        self.end(started)

    def test_in_a_network_of_its_own(self):
        port = str(jobs.free_port())
        reference = self.image_of_listener("tcp", port)
        started = self.clone(reference, *NEVER, "--net", "own", "--fill", "never")
        self.assertFalse(self.connects())
        client = f"import socket; s = socket.create_connection(('127.0.0.1', {port})); s.sendall(b'answer\\n'); s.recv(9)"
        subprocess.run(
            ["nsenter", f"--net=/proc/{started['job']['pid']}/ns/net", jobs.PYTHON, "-c", client], check=True, timeout=60
        )
        self.assertGreaterEqual(self.check_recorded("answered")["pages"], PAGES)
        self.end(started)

    def test_nobody_asks(self):
        reference = self.image_of_listener("tcp", str(jobs.free_port()))
        result = self.cli.run(
            "restore", reference, "--clone", "--detach", "--name", "quiet", "--record-ms", "100", "--explain"
        )
        self.assertEqual(result.code, 0, str(result))
        self.assertIn("a socket that it listens on, at most 100.0 ms", result.err)
        self.assertLess(self.check_recorded("time")["pages"], PAGES)
        shown = self.cli.run("inspect", reference, json_output=False)
        self.assertIn("for as long as was allowed", shown.out)


class UnixTest(AnswerTest):
    def record(self, *options):
        path = self.path("listener.sock")
        reference = self.image_of_listener("unix", path)
        started = self.clone(reference, *NEVER, "--fill", "never", *options)
        self.ask_without_an_answer(started)
        self.assertIsNone(self.working_set())
        return started

    def test_an_answer_that_has_not_been_read(self):
        started = self.record()
        self.ask("answer")
        self.assertGreaterEqual(self.check_recorded("answered")["pages"], PAGES)
        self.end(started)

    def test_a_connection_that_has_ended(self):
        started = self.record()
        self.ask("answer")
        self.assertEqual(self.read(), b"touched\n")
        self.connections.pop().close()
        self.assertGreaterEqual(self.check_recorded("answered")["pages"], PAGES)
        self.end(started)

    def test_who_connects_from_another_network(self):
        started = self.record("--net", "none")
        self.ask("answer")
        self.assertGreaterEqual(self.check_recorded("answered")["pages"], PAGES)
        self.end(started)


if __name__ == "__main__":
    unittest.main()
