"""Waiting for a condition with a deadline: the only place where the tests pass time."""

import errno
import os
import select
import time

DEFAULT_SECONDS = 30.0
# On a slow machine (an emulated one) all is waited for so many times as long.
PATIENCE = float(os.environ.get("REKINDLE_TEST_PATIENCE", "1"))
_POLL_SECONDS = 0.002
# A look at the condition is followed by a rest of so many times what it took, of so many seconds at most. Who asks by a
# command that starts for each question would else keep a processor busy that what is waited for could use.
_REST, _LONGEST_REST = 2, 0.25
# Nor does who has waited for long look as often as at first: again after this share of it, and so many seconds at most.
_SHARE, _LONGEST_SHARE = 0.05, 0.02


def until(condition, what, seconds=DEFAULT_SECONDS, poll_seconds=_POLL_SECONDS):
    """Calls `condition` until it returns something true, and returns that. For what may be over before a rest is:
    `poll_seconds` of less than a usual one's, which there is no rest beside.
    """
    seconds *= PATIENCE
    start = time.monotonic()
    deadline = start + seconds
    while True:
        began = time.monotonic()
        value = condition()
        if value:
            return value
        now = time.monotonic()
        if now > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        rest = max(min(_REST * (now - began), _LONGEST_REST), min(_SHARE * (now - start), _LONGEST_SHARE))
        time.sleep(poll_seconds if poll_seconds < _POLL_SECONDS else max(poll_seconds, rest))


def for_exit(pid, seconds=DEFAULT_SECONDS):
    """Until the process has ended (a zombie has)."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError as error:
        # It has gone, and its number is still that of its process group or session (Linux before 6.16).
        if error.errno == errno.EINVAL:
            return
        raise
    seconds *= PATIENCE
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        if not poller.poll(seconds * 1000):
            raise TimeoutError(f"process {pid} did not end within {seconds:g} s")
    finally:
        os.close(pidfd)
