"""A daemon that ends while last images are taken: it answers, begins nothing, and has all that is its own until the end."""

import os
import signal
import socket
import subprocess
import unittest
import urllib.request

from harness import procfs, waiting
from harness.case import RekindleTest
from harness.cli import FAILED, binary, environment
from harness.stock_criu import StandingCriu


class DrainTest(RekindleTest):
    def setUp(self):
        super().setUp()
        self.criu = StandingCriu(self.path("criu"))
        self.environment["REKINDLE_CRIU"] = self.criu.path
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.metrics = f"127.0.0.1:{free.getsockname()[1]}"
        self.daemon = self.start_daemon("--grace", "600", "--metrics", self.metrics)
        self.remote = self.make_cli(host=self.daemon.host)
        self.succeed("run", "--name", "job", "--detach", "--restarts", "1", "--", "sleep", "1000", cli=self.remote)
        (job,) = self.succeed("ps", cli=self.remote)["jobs"]
        self.kill_job_at_end(int(job["pid"]))
        os.kill(self.daemon.pid, signal.SIGTERM)
        self.criu.wait_until_it_stands()

    def end(self):
        self.criu.go_on()
        waiting.for_exit(self.daemon.pid, 60)
        self.assertEqual(len(self.references()), 1)

    def test_it_answers_and_begins_nothing(self):
        self.assertEqual([job["name"] for job in self.succeed("ps", cli=self.remote)["jobs"]], ["job"])
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=30) as answer:
            self.assertIn(b"rekindle_jobs", answer.read())
        for work in (("run", "--detach", "--", "true"), ("ckpt", "job", "-t", "x:1"), ("restore", "job", "--detach")):
            refused = self.remote.run(*work)
            self.assert_refused(refused, FAILED, "the daemon is ending")
            self.assertNotIn("no answer", refused.message)
        self.end()
        self.assertFalse(os.path.exists(self.daemon.socket))

    def test_the_next_one_waits_for_its_end(self):
        argv = [binary("rekindled"), "--store", self.store, "--socket", self.daemon.socket]
        ended = subprocess.run(
            argv, env=environment(self.environment), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )
        self.assertEqual(ended.returncode, 1, ended.stderr)
        self.assertIn("another rekindled has it, maybe one that is ending", ended.stderr)
        self.assertTrue(procfs.alive(self.daemon.pid))
        self.end()
        self.daemon = self.start_daemon()
        self.assertNotIn("there are no functions", self.daemon.log_text())


if __name__ == "__main__":
    unittest.main()
