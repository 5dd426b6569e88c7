"""Node.js and Redis with data in them: nothing is lost."""

import subprocess
import unittest

from harness import jobs, procfs, waiting
from harness.case import RekindleTest


class NodeTest(RekindleTest):
    def test_http_server(self):
        port = jobs.free_port()
        job = self.start_job(
            ["/usr/bin/node", jobs.workload("node_server.js"), str(port)],
            "node",
            env={"UV_USE_IO_URING": "0"},
        )
        jobs.wait_for_http(port)
        before = jobs.http_json(port, "/put?a=1&b=two")

        self.checkpoint(job.pid, "node:1")
        self.assertEqual(jobs.http_json(port)["digest"], before["digest"])
        changed = jobs.http_json(port, "/put?c=3")
        self.checkpoint(job.pid, "node:2", "--stop")
        job.reap()

        self.restore("node:2")
        after = jobs.http_json(port)
        self.assertEqual(
            (after["pid"], after["state"], after["digest"]),
            (before["pid"], changed["state"], changed["digest"]),
        )
        waiting.until(lambda: jobs.http_json(port)["ticks"] > after["ticks"], "its timers run")
        # The older image is a state of its own.
        jobs.kill_tree(job.pid)
        self.restore("node:1")
        self.assertEqual(jobs.http_json(port)["digest"], before["digest"])
        self.assert_store_whole(["node:1", "node:2"])


class RedisTest(RekindleTest):
    KEYS = 5000

    def redis(self, *words):
        return subprocess.run(
            ["redis-cli", "-p", str(self.port), *words],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=30,
        ).stdout.strip()

    def test_nothing_lost(self):
        self.port = jobs.free_port()
        job = self.start_job(
            [
                "/usr/bin/redis-server",
                "--save",
                "",
                "--port",
                str(self.port),
                "--bind",
                "127.0.0.1",
                "--dir",
                self.directory,
                "--enable-debug-command",
                "local",
                "--logfile",
                self.path("redis.txt"),
            ],
            "redis",
        )

        def answers():
            done = subprocess.run(
                ["redis-cli", "-p", str(self.port), "ping"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                check=False,
            )
            return done.stdout == b"PONG\n"

        waiting.until(answers, "redis answers", 30, 0.02)
        self.redis("debug", "populate", str(self.KEYS), "key", "200")
        self.redis("rpush", "list", *(str(n) for n in range(100)))
        digest = self.redis("debug", "digest")

        self.checkpoint(job.pid, "redis:1")
        self.assertEqual(self.redis("debug", "digest"), digest)
        self.redis("set", "later", "yes")
        self.redis("flushall")
        job.kill_tree()

        self.restore("redis:1")
        self.assertEqual(self.redis("dbsize"), str(self.KEYS + 1))
        self.assertEqual(self.redis("debug", "digest"), digest)
        self.assertEqual(self.redis("lrange", "list", "98", "-1"), "98\n99")
        self.assertEqual(self.redis("set", "more", "data"), "OK")
        self.assertTrue(procfs.alive(job.pid))
        self.assert_store_whole(["redis:1"])


if __name__ == "__main__":
    unittest.main()
