"""A service of four processes that uses one of everything: it answers before, after a checkpoint that
leaves it running, and after a stop and restore, with the same state.
"""

import os
import socket
import unittest

from harness import jobs, procfs, waiting
from harness.case import RekindleTest


class ServiceTest(RekindleTest):
    def start_service(self):
        self.port = jobs.free_port()
        shared_name = "rekindle-it-service"
        self.addCleanup(os.unlink, "/dev/shm/" + shared_name)
        job = self.start_job(
            [jobs.PYTHON, jobs.workload("service.py"), self.directory, str(self.port), shared_name], "service"
        )
        jobs.wait_for_http(self.port, "/state")
        jobs.http_json(self.port, "/put?colour=green&size=7")
        return job

    def state(self):
        return jobs.http_json(self.port, "/state")

    def assert_same_and_at_work(self, before):
        """Nothing of the state is lost, and everything that moves by itself moves."""
        after = self.state()
        self.assertEqual(after["parts"], before["parts"])
        self.assertEqual(after["digest"], before["digest"])
        self.assertEqual((after["pid"], after["workers"]), (before["pid"], before["workers"]))
        self.assertGreater(after["beats"], before["beats"])  # socketpairs and workers
        waiting.until(lambda: self.state()["ticks"] > after["ticks"] + 2, "timerfd ticks")
        waiting.until(
            lambda: self.state()["greetings"] > after["greetings"], "the Unix socket carries greetings"
        )

    def test_answers_before_after_and_restored(self):
        job = self.start_service()
        tree = [job.pid, *procfs.descendants(job.pid)]
        self.assertEqual(len(tree), 4)
        before = self.state()

        result = self.checkpoint(job.pid, "service:running")
        self.assertEqual(result["processes"], 4)
        self.assert_same_and_at_work(before)

        changed = jobs.http_json(self.port, "/put?colour=blue")
        self.assertNotEqual(changed["digest"], before["digest"])
        self.checkpoint(job.pid, "service:stopped", "--stop")
        job.reap()
        self.assertEqual([pid for pid in tree if procfs.alive(pid)], [], "--stop ends the whole tree")

        self.assertEqual(self.restore("service:stopped"), job.pid)
        self.assertEqual(sorted([job.pid, *procfs.descendants(job.pid)]), sorted(tree))
        self.assert_same_and_at_work(changed)
        # It takes changes as before, and what the first image holds is another state.
        again = jobs.http_json(self.port, "/put?colour=green")
        self.assertEqual(again["parts"]["state"], before["parts"]["state"])
        self.assertEqual(again["parts"]["integrity"], "ok")
        self.assert_store_whole(["service:running", "service:stopped"])

    def half_a_request(self, job):
        """A client that is connected: the service has accepted and waits for the rest of the request."""
        client = socket.create_connection(("127.0.0.1", self.port))
        self.addCleanup(client.close)
        client.settimeout(20)
        client.sendall(b"GET /state HTTP/1.0\r\n")
        waiting.until(lambda: _established(job.pid), "the service accepted")
        return client

    def assert_answered(self, client, state):
        client.sendall(b"\r\n")
        answer = b""
        while piece := client.recv(65536):
            answer += piece
        self.assertIn(state["digest"].encode(), answer)

    def test_a_connection_outlives_the_checkpoint_and_the_restore(self):
        job = self.start_service()
        before = self.state()
        client = self.half_a_request(job)
        self.checkpoint(job.pid, "service:connected")
        self.assert_answered(client, before)

        client = self.half_a_request(job)
        self.checkpoint(job.pid, "service:moved", "--stop")
        job.reap()
        self.restore("service:moved")
        self.assert_answered(client, before)
        self.assert_same_and_at_work(before)
        self.assert_store_whole(["service:connected", "service:moved"])

    def test_connections_can_be_left_out(self):
        job = self.start_service()
        before = self.state()
        client = self.half_a_request(job)
        self.checkpoint(job.pid, "service:alone", "--tcp-close")
        self.assert_answered(client, before)
        job.kill_tree()
        job.reap()
        self.restore("service:alone")
        self.assertEqual(_established(job.pid), [])
        self.assert_same_and_at_work(before)
        self.assert_store_whole(["service:alone"])


def _established(pid):
    inodes = {
        target[8:-1] for target in procfs.descriptor_targets(pid).values() if target.startswith("socket:[")
    }
    with open(f"/proc/{pid}/net/tcp", encoding="ascii") as table:
        return [line for line in table if line.split()[3] == "01" and line.split()[9] in inodes]


if __name__ == "__main__":
    unittest.main()
