"""CRIU by itself, without Rekindle; one that stands still for a while; one whose restored processes are killed."""

import os
import shlex
import signal

from harness import jobs, procfs, waiting


def criu_command():
    """The same CRIU that Rekindle finds."""
    for prefix in (os.environ.get("REKINDLE_CRIU", ""), "/opt/rekindle/criu"):
        loader = os.path.join(prefix, "lib64/ld-linux-x86-64.so.2")
        if prefix and os.path.exists(loader):
            return [
                loader,
                "--library-path",
                os.path.join(prefix, "usr/lib/x86_64-linux-gnu"),
                os.path.join(prefix, "usr/sbin/criu"),
            ]
    return ["criu"]


class StandingCriu:
    """The program at `path` (for $REKINDLE_CRIU) stops itself where it is to dump, before it has touched the job: as over a
    file server that is away.
    """

    def __init__(self, path):
        self.path = path
        self._pid_file = path + ".pid"
        with open(path, "w", encoding="ascii") as file:
            file.write(f'#!/bin/sh\n[ "$1" = dump ] && echo $$ > {self._pid_file} && kill -STOP $$\n')
            file.write(f'exec {shlex.join(criu_command())} "$@"\n')
        os.chmod(path, 0o755)

    def wait_until_it_stands(self):
        """Its PID."""
        waiting.until(self._stands, "CRIU stands still", 30)
        return self._pid()

    def go_on(self):
        os.kill(self._pid(), signal.SIGCONT)

    def _pid(self):
        try:
            with open(self._pid_file, encoding="ascii") as file:
                return int(file.read() or 0)
        except FileNotFoundError:
            return 0

    def _stands(self):
        pid = self._pid()
        return pid and procfs.state(pid) == "T"


class KillingCriu:
    """The program at `path` (for $REKINDLE_CRIU) has a process killed that it restores, just before it makes a certain call
    of ptrace(2) on it.
    """

    INTERRUPT, DETACH = 0x4207, 17

    def __init__(self, path):
        self.path = path
        self._order = path + ".order"
        library = jobs.program("kill_at_ptrace.so")
        with open(path, "w", encoding="ascii") as file:
            file.write(f'#!/bin/sh\n[ "$1" = dump ] || export KILL_AT_PTRACE={self._order}')
            file.write(f' LD_PRELOAD="{library} $LD_PRELOAD"\n')
            file.write(f'exec {shlex.join(criu_command())} "$@"\n')
        os.chmod(path, 0o755)

    def kill_once(self, pid, request):
        """`pid`: as CRIU sees it."""
        with open(self._order + ".new", "w", encoding="ascii") as file:
            file.write(f"{pid} {request}")
        os.rename(self._order + ".new", self._order)

    def has_killed(self):
        return not os.path.exists(self._order)
