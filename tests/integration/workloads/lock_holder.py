"""A process that holds file locks.

    lock_holder.py READY LOCK...

Takes each LOCK, FILE:KIND:MODE[:START:LENGTH] with KIND flock, posix, mapped (posix, of a file that it has mapped too) or
ofd and MODE shared or exclusive, as soon as it can; then it makes READY and waits to be ended.
"""

import fcntl
import mmap
import os
import signal
import struct
import sys

_OFD_SETLKW = 38

mappings = []


def take(path, kind, mode, start="0", length="0"):
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if kind == "mapped":
        os.ftruncate(descriptor, mmap.PAGESIZE)
        mappings.append(mmap.mmap(descriptor, mmap.PAGESIZE))
    shared = mode == "shared"
    if kind == "flock":
        fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        return
    # struct flock: type, whence, start, length, pid
    lock = struct.pack(
        "@hhqqi", fcntl.F_RDLCK if shared else fcntl.F_WRLCK, os.SEEK_SET, int(start), int(length), 0
    )
    fcntl.fcntl(descriptor, _OFD_SETLKW if kind == "ofd" else fcntl.F_SETLKW, lock)


def main():
    for lock in sys.argv[2:]:
        take(*lock.split(":"))
    os.close(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600))
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
