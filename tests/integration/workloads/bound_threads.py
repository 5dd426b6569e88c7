"""Two threads besides the first: one is bound to processor 0, one to processor 1."""

import os
import threading

_bound = threading.Barrier(3)


def wait(processor):
    os.sched_setaffinity(0, {processor})
    _bound.wait()
    threading.Event().wait()


for number in (0, 1):
    threading.Thread(target=wait, args=(number,), daemon=True).start()
_bound.wait()
print("bound", flush=True)
threading.Event().wait()
