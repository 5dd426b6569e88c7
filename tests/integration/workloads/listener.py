"""A server without the hook that touches memory for each request.

    listener.py tcp PORT | unix PATH

One request a line, any number on a connection: "answer" is answered with a line, "keep" never. Both touch PAGES pages
that nothing else does.
"""

import mmap
import socket
import sys
import threading

PAGES = 600
PAGE = 4096
_STEP = 4  # not each: neighbours may come together


class Memory:
    def __init__(self):
        self.bytes = mmap.mmap(-1, PAGES * _STEP * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for page in range(PAGES * _STEP):
            # No two are the same, and none is zero.
            self.bytes[page * PAGE : page * PAGE + 8] = (page + 1).to_bytes(8, "little")

    def touch(self):
        return sum(self.bytes[page * _STEP * PAGE] != 0 for page in range(PAGES))


def serve(connection, memory):
    with connection, connection.makefile("rb") as requests:
        for line in requests:
            memory.touch()
            if line == b"answer\n":
                connection.sendall(b"touched\n")


def main():
    memory = Memory()
    if sys.argv[1] == "tcp":
        listener = socket.create_server(("127.0.0.1", int(sys.argv[2])))
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(sys.argv[2])
        listener.listen(8)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, memory), daemon=True).start()


if __name__ == "__main__":
    main()
