"""A TCP server that accepts no connection before SIGUSR1, and then returns each line.

    late_server.py PORT [own|polls]

"own": it connects to itself before, and sends a line when it accepts. What it gets back goes to the output.
"polls": it waits for lines in poll(), not in recv(), and has some memory.
"""

import signal
import socket
import sys
import threading


def serve(connection, polls):
    connection.settimeout(3600 if polls else None)
    with connection, connection.makefile("rb") as lines:
        for line in lines:
            connection.sendall(line)


def talk(connection):
    connection.sendall(b"own\n")
    print(connection.makefile().readline(), end="", flush=True)


def main():
    _memory = bytes(range(1, 256)) * 400_000 if sys.argv[2:] == ["polls"] else b""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    address = ("127.0.0.1", int(sys.argv[1]))
    listener = socket.create_server(address)
    own = socket.create_connection(address) if sys.argv[2:] == ["own"] else None
    print("listens", flush=True)
    signal.sigwait({signal.SIGUSR1})
    if own:
        threading.Thread(target=talk, args=(own,), daemon=True).start()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, sys.argv[2:] == ["polls"]), daemon=True).start()


if __name__ == "__main__":
    main()
