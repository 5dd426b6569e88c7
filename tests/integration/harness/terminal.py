"""A terminal for one command, to see what it draws."""

import fcntl
import os
import pty
import struct
import subprocess
import termios

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
