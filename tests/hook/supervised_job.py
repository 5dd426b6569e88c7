"""supervised_job.c in Python."""

import os
import signal
import sys
import time
import types

import rekindle


def writes():
    with open("/proc/self/io", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("syscw:"))


def raise_it(*_):
    raise KeyboardInterrupt


drops = []
signal.signal(signal.SIGUSR1, lambda *_: print("signalled", flush=True))
signal.signal(signal.SIGUSR2, raise_it)

for line in sys.stdin:
    word, *numbers = line.split()
    numbers = [int(number) for number in numbers]
    answer = "said"
    if word == "progress":
        rekindle.progress(*numbers)
    elif word == "burst":
        before, begin = writes(), time.monotonic()
        for step in range(1, numbers[0] + 1):
            rekindle.progress(step)
        seconds = time.monotonic() - begin
        answer = "%d %.6f" % (writes() - before, seconds)
    elif word == "child":
        child = os.fork()
        if child == 0:
            rekindle.progress(*numbers)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            answer = "the child failed"
    elif word == "caches":
        rekindle.register_before_checkpoint(drops.append, "dropped")
    elif word == "torch":  # one that has memory on a GPU
        cuda = types.SimpleNamespace(is_initialized=lambda: True, empty_cache=lambda: drops.append("emptied"))
        sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
    elif word == "drops":
        answer = len(drops)
    else:
        try:
            answer = rekindle.checkpoint_here(force=word == "now")
        except KeyboardInterrupt:
            answer = "raised"
    print(answer, flush=True)
