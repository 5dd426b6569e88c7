"""Terminals: for one command, to see what it draws, and with a shell that controls its jobs."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios

from harness import jobs, procfs, waiting
from harness.cli import environment

_ROWS_AND_COLUMNS = (50, 200)


def shown_by(cli_argv, env, seconds=120):
    """(exit code, all that the command wrote to its terminal)."""
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *_ROWS_AND_COLUMNS, 0, 0))
        child = subprocess.Popen(
            cli_argv,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env=environment(env),
            start_new_session=True,
        )
        os.close(theirs)
        theirs = -1
        text = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # the last holder of the other side has closed it
                break
            if not part:
                break
            text += part
        return child.wait(seconds), text.decode(errors="replace")
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)


class Shell:
    """An interactive shell in a terminal of its own."""

    def __init__(self, env):
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *_ROWS_AND_COLUMNS, 0, 0))
        self._child = subprocess.Popen(
            ["/bin/bash", "--norc", "--noprofile", "-i"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment({**env, "PS1": "$ ", "HISTFILE": ""}),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        jobs.waited_elsewhere.add(self._child.pid)
        os.close(theirs)
        self._shown = b""

    def type(self, keys):
        os.write(self._ours, keys.encode())

    def shown(self):
        while select.select([self._ours], [], [], 0)[0]:
            try:
                self._shown += os.read(self._ours, 1 << 16)
            except OSError:  # it has ended
                break
        return self._shown.decode(errors="replace")

    def wait_for(self, pattern):
        try:
            waiting.until(lambda: re.search(pattern, self.shown()), pattern)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; it shows: {self.shown()[-2000:]!r}") from None

    def command(self):
        """The PID of the one that it has started, which may have ended; 0: none."""
        return next(iter(procfs.children_by_parent().get(self._child.pid, ())), 0)

    def close(self):
        jobs.waited_elsewhere.discard(self._child.pid)
        jobs.kill_tree(self._child.pid)
        self._child.poll()
        os.close(self._ours)
