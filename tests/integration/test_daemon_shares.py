"""What one user may take of the daemon, so that the others have theirs."""

import os
import socket
import subprocess
import time

from harness import waiting
from harness.case import RekindleTest

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


_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4


class Connection:
    """HTTP/2, as far as it takes to see what the daemon answers."""

    _HEADER = 9

    def __init__(self, path, uid=0):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        os.seteuid(uid)
        try:
            self._socket.connect(path)
        finally:
            os.seteuid(0)
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self._input = self._socket.makefile("rb")
        self.send(_SETTINGS)

    def close(self):
        self._input.close()
        self._socket.close()

    def send(self, kind, flags=0, stream=0, payload=b""):
        head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
        self._socket.sendall(head + payload)

    def call(self, stream, path, has_message=True):
        """Without a compressed header field, and with an empty message or none yet."""

        def text(value):
            return bytes([len(value)]) + value.encode("ascii")

        fields = b"\x83\x86\x04" + text(path) + b"\x01" + text("localhost")
        for name, value in (("content-type", "application/grpc"), ("te", "trailers")):
            fields += b"\x00" + text(name) + text(value)
        self.send(_HEADERS, _END_HEADERS, stream, fields)
        if has_message:
            self.send(_DATA, _END_STREAM, stream, bytes(5))

    def receive(self):
        """The kind of the next frame, its flags, stream and payload."""
        header = self._input.read(self._HEADER)
        if len(header) < self._HEADER:
            raise EOFError("the daemon has ended the connection")
        return header[3], header[4], int.from_bytes(header[5:], "big"), self._input.read(int.from_bytes(header[:3], "big"))


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
            if kind == _DATA:
                told.add(stream)
            elif kind == _RST_STREAM or (kind == _HEADERS and flags & _END_STREAM):
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
        while connection.receive()[0] != _DATA:
            pass
        connection.call(3, "/rekindle.v1.Rekindle/GetVersion", has_message=False)
        daemon.stop()


class IdleClientTest(RekindleTest):
    """One that looks now and then whether the daemon is still there, as routers do that keep their connection."""

    BETWEEN_PINGS = 1.6  # seconds: the daemon allows one each 1.5

    def test_it_may_ping_without_a_call(self):
        connection = Connection(self.start_daemon().socket)
        self.addCleanup(connection.close)
        for number in range(8):
            if number:
                time.sleep(self.BETWEEN_PINGS)
            payload = number.to_bytes(8, "big")
            connection.send(_PING, payload=payload)
            kind, flags, _, answer = connection.receive()
            while (kind, flags, answer) != (_PING, _ACK, payload):
                self.assertNotEqual(kind, _GOAWAY, f"after {number} pings: {answer}")
                kind, flags, _, answer = connection.receive()
