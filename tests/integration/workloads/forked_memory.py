"""Two processes that have memory in common: of anonymous pages that are shared, and of what the parent had when it forked.

    forked_memory.py LOG SHARED_MIB PRIVATE_MIB

Each step of each is a line of LOG: host, who, step, and whether both memories hold what they held at first.
"""

import hashlib
import mmap
import os
import sys
import time


def main():
    log, shared_bytes, private_bytes = sys.argv[1], int(sys.argv[2]) << 20, int(sys.argv[3]) << 20
    shared = mmap.mmap(-1, shared_bytes or mmap.PAGESIZE)
    shared[:] = os.urandom(len(shared))
    private = os.urandom(private_bytes)

    def digests():
        return hashlib.sha256(shared).digest(), hashlib.sha256(private).digest()

    first = digests()
    who = "child" if os.fork() == 0 else "parent"
    with open(log, "a", encoding="ascii", buffering=1) as file:
        for step in range(sys.maxsize):
            file.write(f"{os.uname().nodename} {who} {step} {digests() == first}\n")
            time.sleep(0.02)


main()
