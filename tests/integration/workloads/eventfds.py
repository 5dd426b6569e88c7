"""Holds eventfds. At SIGUSR1 it writes what each is, and what a read of it takes, and ends."""

import fcntl
import os
import signal

counters = [
    os.eventfd(3, os.EFD_SEMAPHORE),
    os.eventfd(3, 0),
    os.eventfd(5, os.EFD_SEMAPHORE | os.EFD_NONBLOCK),
    os.eventfd(5, os.EFD_NONBLOCK | os.EFD_CLOEXEC),
]
# A second descriptor of the first one.
counters.append(os.dup(counters[0]))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})


def look(counter):
    """What a read takes, O_NONBLOCK and O_APPEND, and whether it is closed by exec."""
    flags = fcntl.fcntl(counter, fcntl.F_GETFL)
    os.set_blocking(counter, False)
    try:
        taken = os.eventfd_read(counter)
    except BlockingIOError:
        taken = None
    return f"{taken} {bool(flags & os.O_NONBLOCK)} {bool(flags & os.O_APPEND)} {os.get_inheritable(counter)}"


print("ready", flush=True)
signal.sigwait({signal.SIGUSR1})
print(", ".join(look(counter) for counter in counters), flush=True)
