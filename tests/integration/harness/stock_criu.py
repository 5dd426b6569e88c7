"""CRIU by itself, without Rekindle, and one that stands still for a while."""

import os
import shlex
import signal

from harness import procfs, waiting


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
