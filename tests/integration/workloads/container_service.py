"""Two processes that talk over TCP and share memory by a name, in a container. Each step is a line of /data/steps, or another
file, and of standard output: what is in memory, and that connection and shared memory are what they were.
"""

import hashlib
import os
import socket
import sys
import time
from multiprocessing import shared_memory

PORT = 7000
NAME = "rekindle-it-container"


def serve(listener):
    connection, _ = listener.accept()
    while True:
        connection.sendall(connection.recv(64))


def main():
    secret = os.urandom(8 << 20)
    shared = shared_memory.SharedMemory(NAME, create=True, size=1 << 20)
    shared.buf[:32] = secret[:32]
    listener = socket.create_server(("127.0.0.1", PORT))
    if os.fork() == 0:
        serve(listener)
    client = socket.create_connection(("127.0.0.1", PORT))
    steps = open(sys.argv[1] if len(sys.argv) > 1 else "/data/steps", "a", encoding="ascii", buffering=1)
    for step in range(sys.maxsize):
        client.sendall(b"%d" % step)
        same = bytes(shared.buf[:32]) == secret[:32] and client.recv(64) == b"%d" % step
        line = f"{step} {os.getpid()} {hashlib.sha256(secret).hexdigest()[:16]} {same} {os.listdir('/dev/shm')}"
        print(line, flush=True)
        steps.write(line + "\n")
        time.sleep(0.02)


main()
