"""Clients that read nothing of what is sent to them, and do not go: what stands still for their calls does not wait for them."""

import os
import signal
import unittest

from harness import jobs, waiting
from harness.case import RekindleTest
from harness.clones import HOOK_PYTHON, hook_library, is_parked
from harness.http2 import Connection
from test_supervision import lines_of


def _text(field, value):
    """A string of a message, as protobuf writes it."""
    return bytes([field << 3 | 2, len(value)]) + value.encode("ascii")


class UnreadCallTest(RekindleTest):
    def setUp(self):
        super().setUp()
        self.daemon = self.start_daemon()
        self.remote = self.make_cli(host=self.daemon.host)

    def call(self, path, message):
        """Without room for a byte of the answer."""
        connection = Connection(self.daemon.socket, window=0)
        self.addCleanup(connection.close)
        connection.call(1, "/rekindle.v1." + path, message)
        return connection

    def test_an_image_of_a_held_job(self):
        answers, program = self.path("woken"), self.path("held.py")
        with open(program, "w", encoding="ascii") as file:
            file.write("import rekindle, signal\nhow = rekindle.ready()\n"
                       f"open({answers!r}, 'w').write(str(how))\nsignal.pause()\n")  # fmt: skip
        held = {"REKINDLE_HOLD": "1", "REKINDLE_HOOK_LIBRARY": hook_library(), "PYTHONPATH": HOOK_PYTHON}
        job = self.start_job([jobs.PYTHON, "-B", program], "held", env=held)
        waiting.until(lambda: is_parked(job.pid), "it is held")
        self.call("Rekindle/Checkpoint", b"\x08" + _varint(job.pid) + _text(3, "held:1"))
        waiting.until(lambda: os.path.exists(answers) and os.path.getsize(answers), "the job goes on")
        self.assertIn("held:1", self.references(cli=self.remote))
        self.checkpoint(job.pid, "held:2", cli=self.remote)

    def test_the_restore_of_a_group(self):
        numbers = [self.path(f"numbers.{name}") for name in "ab"]
        members = [self.start_job([jobs.PYTHON, jobs.workload("counting.py"), path, "100000"], os.path.basename(path))
                   for path in numbers]  # fmt: skip
        waiting.until(lambda: all(lines_of(path) for path in numbers), "they run")
        named = [word for job in members for word in ("--member", job.pid)]
        self.succeed("group", "ckpt", "grp:1", *named, "--stop", cli=self.remote)
        for job in members:
            job.reap()
        at = [len(lines_of(path)) for path in numbers]
        self.call("Groups/RestoreGroup", _text(1, "grp:1"))
        for path, count in zip(numbers, at):
            waiting.until(lambda path=path, count=count: len(lines_of(path)) > count + 5, "it runs again")
        for job in members:
            self.kill_job_at_end(job.pid)

    def test_a_daemon_that_ends(self):
        job = self.start_job([jobs.PYTHON, jobs.workload("counting.py"), self.path("numbers"), "100000"], "job")
        self.call("Rekindle/Checkpoint", b"\x08" + _varint(job.pid) + _text(3, "job:1"))
        waiting.until(lambda: "job:1" in self.references(cli=self.remote), "the image is there")
        self.daemon.stop()
        at = len(lines_of(self.path("numbers")))
        waiting.until(lambda: len(lines_of(self.path("numbers"))) > at, "the job runs on")
        os.kill(job.pid, signal.SIGKILL)


def _varint(number):
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


if __name__ == "__main__":
    unittest.main()
