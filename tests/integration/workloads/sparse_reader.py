"""Fills MEGABYTES of memory and says so in DIR/ready. Once DIR/go.HOST is there it reads every eighth page, and writes
what it found to DIR/result.HOST: copies are told apart by their host names.
"""

import mmap
import os
import socket
import sys
import time

_EACH = 8


def main():
    directory, size = sys.argv[1], int(sys.argv[2]) << 20
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(size // mmap.PAGESIZE):
        memory[page * mmap.PAGESIZE : page * mmap.PAGESIZE + 8] = (page + 1).to_bytes(8, "little")
    with open(os.path.join(directory, "ready"), "w", encoding="ascii"):
        pass
    while not os.path.exists(os.path.join(directory, "go." + socket.gethostname())):
        time.sleep(0.01)
    wrong = [
        page
        for page in range(0, size // mmap.PAGESIZE, _EACH)
        if int.from_bytes(memory[page * mmap.PAGESIZE : page * mmap.PAGESIZE + 8], "little") != page + 1
    ]
    path = os.path.join(directory, "result." + socket.gethostname())
    with open(path + ".new", "w", encoding="ascii") as file:
        file.write(f"wrong: {wrong[:8]}" if wrong else "ok")
    os.rename(path + ".new", path)


main()
