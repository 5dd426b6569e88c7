"""What one user may take of the daemon, so that the others have theirs."""

import os
import subprocess

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
