"""The daemon's side of a supervised job's file (proto/rekindle/v1/job_file.h), played by a test."""

import collections
import os
import struct

SIZE = 192
_HEAD = struct.Struct("=QII48x")
_JOB = struct.Struct("=QQqQQQQd")
_DAEMON = struct.Struct("=QQQQQ24x")
_MAGIC = int.from_bytes(b"JRKNFILE", "little")

Job = collections.namedtuple("Job", "step total unix_ns calls boundaries waiting wanted steps_per_second")
Daemon = collections.namedtuple("Daemon", "due released taken restored storing")


class JobFile:
    def __init__(self, path, make=True):
        self.path = path
        if make:
            self.make()

    def make(self, version=1):
        with open(self.path, "wb") as file:
            file.write(_HEAD.pack(_MAGIC, version, 0).ljust(SIZE, b"\0"))

    def job(self):
        return Job(*_JOB.unpack(self._read()[64:128]))

    def daemon(self):
        return Daemon(*_DAEMON.unpack(self._read()[128:]))

    def write_job(self, **changes):
        self._write(64, _JOB.pack(*self.job()._replace(**changes)))

    def write_daemon(self, **changes):
        self._write(128, _DAEMON.pack(*self.daemon()._replace(**changes)))

    def _read(self):
        with open(self.path, "rb") as file:
            return file.read()

    def _write(self, offset, data):
        fd = os.open(self.path, os.O_WRONLY)
        try:
            os.pwrite(fd, data, offset)
        finally:
            os.close(fd)
