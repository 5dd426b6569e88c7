"""Sets what the kernel keeps of a process beside its memory and files, says so, and waits."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29
SYS_IOPRIO_SET = 251  # x86-64

libc = ctypes.CDLL(None)
assert libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) == 0
assert libc.prctl(PR_SET_TIMERSLACK, 123456) == 0
assert libc.syscall(SYS_IOPRIO_SET, 1, 0, 3 << 13) == 0  # idle
os.sched_setscheduler(0, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0))
print("ready", flush=True)
while True:
    signal.pause()
