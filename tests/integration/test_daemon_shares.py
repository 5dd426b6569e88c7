"""What one user may take of the daemon, so that the others have theirs."""

import os
import subprocess
import time

from harness import waiting
from harness.case import RekindleTest
from harness.http2 import ACK, DATA, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, Connection

_NOBODY = 65534
_REFLECTION = "http://localhost/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
_MOST_STREAMS = 8  # daemon/reflection_limit.cc


class ReflectionTest(RekindleTest):
    def setUp(self):
        super().setUp()
        os.chmod(self.directory, 0o755)
        self.daemon = self.start_daemon()

    def open_stream(self, uid, stdin=subprocess.PIPE):
        """A stream of the reflection service over which nothing is asked; it lasts as long as its stdin."""
        return subprocess.Popen(
            ["curl", "-sS", "--http2-prior-knowledge", "--unix-socket", self.daemon.socket, "-X", "POST", "-T", ".",
             "-H", "content-type: application/grpc", "-H", "te: trailers", _REFLECTION],
            stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            user=uid, group=uid, extra_groups=[], env={"PATH": os.environ["PATH"]},
        )

    def is_admitted(self, uid):
        code = self.open_stream(uid, subprocess.DEVNULL).wait(60)
        self.assertIn(code, (0, 52))  # 52: the stream was reset
        return code == 0

    def hold(self, uid):
        stream = self.open_stream(uid)
        self.addCleanup(self.end, stream)
        return stream

    @staticmethod
    def end(stream):
        stream.stdin.close()
        return stream.wait(60)

    def test_each_takes_a_thread(self):
        self.assertTrue(self.is_admitted(_NOBODY))
        held = [self.hold(_NOBODY) for _ in range(_MOST_STREAMS)]
        waiting.until(lambda: not self.is_admitted(_NOBODY), "it has as many as it may")
        for _ in range(_MOST_STREAMS + 1):
            self.hold(0)
        self.assertTrue(self.is_admitted(0))
        self.assertTrue(self.is_admitted(_NOBODY + 1))
        self.assertEqual(self.end(held[0]), 0)
        waiting.until(lambda: self.is_admitted(_NOBODY), "there is room again")


class WatchTest(RekindleTest):
    MOST = 256  # daemon/reflection_limit.cc

    def watch(self, uid, count):
        """How many of so many watches of the daemon's health are admitted, and the connection that has them."""
        connection = Connection(self.daemon.socket, uid)
        self.addCleanup(connection.close)
        streams = range(1, 2 * count, 2)
        for stream in streams:
            connection.call(stream, "/grpc.health.v1.Health/Watch")
        told, refused = set(), set()
        while len(told | refused) < count:
            kind, flags, stream, _ = connection.receive()
            if kind == DATA:
                told.add(stream)
            elif kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM):
                refused.add(stream)
        return len(told - refused), connection

    def test_each_takes_memory(self):
        os.chmod(self.directory, 0o755)
        self.daemon = self.start_daemon()
        admitted, first = self.watch(_NOBODY, self.MOST + 50)
        self.assertEqual(admitted, self.MOST)
        self.assertEqual(self.watch(_NOBODY, 1)[0], 0)
        self.assertEqual(self.watch(_NOBODY + 1, 1)[0], 1)
        self.assertEqual(self.watch(0, self.MOST + 50)[0], self.MOST + 50)
        first.close()
        waiting.until(lambda: self.watch(_NOBODY, 1)[0] == 1, "there is room again")


class EndTest(RekindleTest):
    def test_it_waits_for_nothing_that_is_no_call_of_its_own(self):
        """Anybody could keep the next daemon from its place with these."""
        daemon = self.start_daemon("--grace", "600")
        connection = Connection(daemon.socket)
        self.addCleanup(connection.close)
        connection.call(1, "/grpc.health.v1.Health/Watch")
        while connection.receive()[0] != DATA:
            pass
        connection.call(3, "/rekindle.v1.Rekindle/GetVersion", message=None)
        daemon.stop()


class IdleClientTest(RekindleTest):
    """One that looks now and then whether the daemon is still there, as routers do that keep their connection."""

    BETWEENPINGS = 1.6  # seconds: the daemon allows one each 1.5

    def test_it_may_ping_without_a_call(self):
        connection = Connection(self.start_daemon().socket)
        self.addCleanup(connection.close)
        for number in range(8):
            if number:
                time.sleep(self.BETWEENPINGS)
            payload = number.to_bytes(8, "big")
            connection.send(PING, payload=payload)
            kind, flags, _, answer = connection.receive()
            while (kind, flags, answer) != (PING, ACK, payload):
                self.assertNotEqual(kind, GOAWAY, f"after {number} pings: {answer}")
                kind, flags, _, answer = connection.receive()
