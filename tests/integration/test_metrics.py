"""What Prometheus reads of a daemon."""

import os
import re
import signal
import socket
import unittest
import urllib.error
import urllib.request

from harness import jobs, waiting
from harness.case import MIB, RekindleTest

_SAMPLE = re.compile(r'^(rekindle_[a-z_]+)(\{[a-z]+="(?:[^"\\]|\\.)*"(?:,[a-z]+="(?:[^"\\]|\\.)*")*\})? (-?[0-9.e+-]+)$')


class MetricsTest(RekindleTest):
    def setUp(self):
        super().setUp()
        self.port = jobs.free_port()
        daemon = self.start_daemon("--metrics", f"127.0.0.1:{self.port}", "--standby", "0")
        self.addCleanup(daemon.kill)  # first: it would bring the job back
        self.remote = self.make_cli(host=daemon.host)

    def url(self, path="/metrics"):
        return f"http://127.0.0.1:{self.port}{path}"

    def samples(self):
        """By name and labels. Each line is one, or says what one is; each name's lines are together."""
        with urllib.request.urlopen(self.url(), timeout=30) as answer:
            self.assertTrue(answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"))
            text = answer.read().decode()
        found, order = {}, []
        for line in text.splitlines():
            if line.startswith("# "):
                self.assertRegex(line, r"^# (HELP rekindle_[a-z_]+ .+|TYPE rekindle_[a-z_]+ (gauge|counter))$")
                continue
            match = _SAMPLE.match(line)
            self.assertIsNotNone(match, line)
            if not order or order[-1] != match[1]:
                order.append(match[1])
            found[match[1] + (match[2] or "")] = float(match[3])
        self.assertEqual(len(order), len(set(order)), "the samples of a metric are apart")
        return found

    def test_a_job_and_its_images(self):
        before = self.samples()
        self.assertEqual(before["rekindle_store_images"], 0)
        self.assertEqual(before['rekindle_jobs{state="running"}'], 0)
        name = "llm"
        self.succeed(
            "run", "--detach", "--name", name, "--every", "500ms", "--backoff", "100ms", "--",
            jobs.program("memory_job"), str(8 * MIB), self.path("status"), cli=self.remote,
        )  # fmt: skip
        label = '{job="llm"}'
        pid = next(job["pid"] for job in self.succeed("ps", cli=self.remote)["jobs"] if job["name"] == name)
        self.kill_job_at_end(pid)

        def value(metric):
            return self.samples().get(f"rekindle_{metric}{label}", 0)

        waiting.until(lambda: value("job_checkpoints_total") >= 2, "two images", 60, 0.1)
        now = self.samples()
        self.assertEqual(now['rekindle_jobs{state="running"}'], 1)
        self.assertGreater(now["rekindle_store_images"], 0)
        self.assertGreater(now["rekindle_store_pack_bytes"], 8 * MIB)
        self.assertGreaterEqual(now['rekindle_captures_total{result="done"}'], 2)
        self.assertGreater(now["rekindle_captures_frozen_seconds_total"], 0)
        self.assertGreater(now["rekindle_captures_stored_bytes_total"], 8 * MIB)
        self.assertEqual(now["rekindle_store_high_water_ratio"], 0.95)
        self.assertGreater(now["rekindle_store_file_system_bytes"], now["rekindle_store_file_system_used_bytes"])
        self.assertGreater(now["rekindle_store_owner_used_bytes{uid=\"0\"}"], 8 * MIB)
        self.assertGreater(now[f"rekindle_job_frozen_seconds_total{label}"], 0)
        self.assertGreater(now[f"rekindle_job_last_image_timestamp_seconds{label}"], 1.7e9)
        self.assertEqual(now[f"rekindle_job_given_up{label}"], 0)
        os.kill(pid, signal.SIGKILL)
        waiting.until(lambda: value("job_restarts_total") == 1, "it is brought back", 60, 0.1)
        self.assertGreater(value("job_lost_seconds_total"), 0)
        self.assertEqual((value("job_attempts_total"), value("job_restarts_limit")), (1, 3))
        self.assertEqual(self.samples()['rekindle_restores_total{result="done"}'], 1)
        # An alert for images that do not come would go by them.
        awaited = [f"rekindle_job_{of}{label}" for of in ("interval_seconds", "last_image_timestamp_seconds", "troubled")]
        self.assertTrue(set(awaited) <= set(self.samples()))
        self.succeed("stop", name, cli=self.remote)
        self.assertFalse(set(awaited) & set(self.samples()))
        (ended,) = self.succeed("ps", "--all", cli=self.remote)["jobs"]
        state = ended["supervised"]
        self.assertEqual((state["interval_seconds"], state["next_checkpoint_unix_ns"]), (0, 0))
        waiting.until(lambda: self.samples()['rekindle_jobs{state="running"}'] == 0, "it has ended", 60, 0.1)

    def test_damage_that_is_not_known_is_not_none(self):
        job, _ = self.start_memory_job(MIB)
        self.checkpoint(job.pid, "job:1", cli=self.remote)
        damaged = "rekindle_store_damaged_images"
        self.assertEqual(self.samples()[damaged], 0)
        with open(os.path.join(self.store, "SCRUB"), "w", encoding="ascii") as file:
            file.write('{"magic": "rekindle-scrub", "version": 99}')
        self.assertNotIn(damaged, self.samples())
        told = self.succeed("stats", cli=self.remote)
        self.assertIsNone(told["scrub"])
        self.assertIn("SCRUB", "".join(told["warnings"]))

    def test_other_requests(self):
        for path, status in (("/", 404), ("/metrics/x", 404)):
            with self.assertRaises(urllib.error.HTTPError) as raised:
                urllib.request.urlopen(self.url(path), timeout=30)
            self.assertEqual(raised.exception.code, status)
            raised.exception.close()
        with self.assertRaises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(self.url(), data=b"x", timeout=30)
        self.assertIn(raised.exception.code, (405, 413))
        raised.exception.close()
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as raw:
            raw.sendall(b"\x00\x01nonsense\r\n\r\n")
            self.assertTrue(raw.recv(100).startswith(b"HTTP/1.1 400"))
        self.samples()


if __name__ == "__main__":
    unittest.main()
