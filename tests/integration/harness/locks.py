"""File locks: processes that hold them, and whether a lock could be had."""

import fcntl
import os
import struct

from harness import jobs, waiting

_OFD_GETLK = 36


def command(ready, *locks):
    """Of a job that holds `locks`, each as lock_holder.py has them, and then makes the file `ready`."""
    return [jobs.PYTHON, jobs.workload("lock_holder.py"), ready, *locks]


def start_holder(test, name, *locks):
    """A job that has them."""
    ready = test.path(name + ".ready")
    job = test.start_job(command(ready, *locks), name)
    waiting.until(lambda: os.path.exists(ready), f"{name} has its locks")
    return job


def is_waiting(pid):
    """For a lock that somebody else has."""
    with open("/proc/locks", encoding="ascii") as file:
        return any(" -> " in line and str(pid) in line.split() for line in file)


def flock_is_free(path):
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False


def range_is_free(path, start, length):
    """Of POSIX and OFD locks."""
    with open(path, "rb") as file:
        query = struct.pack("@hhqqi", fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        return struct.unpack("@hhqqi", fcntl.fcntl(file, _OFD_GETLK, query))[0] == fcntl.F_UNLCK
