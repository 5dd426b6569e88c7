"""One end of an exchange of numbers: 1, 2, 3, ...

    exchange.py send|receive file:PATH STATUS
    exchange.py send tcp:ADDRESS:PORT STATUS
    exchange.py receive tcp:PORT STATUS

The sender counts in its memory and passes each number on, through a file that is rewritten in place or over one TCP
connection whose buffers are small, so that a receiver that pauses soon holds it up. The receiver keeps in its memory
the last number that it got; over TCP none may be missing or come twice.
STATUS holds the number as text, or what went wrong. While STATUS.pause exists, both write their number to
STATUS.paused before they do anything else, and wait.
"""

import os
import socket
import struct
import sys
import time

NUMBER = struct.Struct("<Q")
STEP_SECONDS = 0.001
BUFFER = 4096


class Status:
    def __init__(self, path):
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def write(self, text):
        os.pwrite(self._file, f"{text:<64}".encode(), 0)

    def pause(self, number):
        if not os.path.exists(self._path + ".pause"):
            return
        with open(self._path + ".writing", "w", encoding="ascii") as file:
            file.write(str(number))
        os.rename(self._path + ".writing", self._path + ".paused")
        while os.path.exists(self._path + ".pause"):
            time.sleep(STEP_SECONDS)


def send_by_file(path, status):
    channel = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    number = 0
    while True:
        status.pause(number)
        number += 1
        os.pwrite(channel, NUMBER.pack(number), 0)
        status.write(number)
        time.sleep(STEP_SECONDS)


def receive_by_file(path, status):
    channel = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    number = 0
    while True:
        status.pause(number)
        data = os.pread(channel, NUMBER.size, 0)
        # Zeros are put there by a test, whose image may have been taken just before this look.
        if len(data) == NUMBER.size and any(data):
            number = NUMBER.unpack(data)[0]
        status.write(number)
        time.sleep(STEP_SECONDS)


def send_by_tcp(address, port, status):
    connection = socket.create_connection((address, port))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    number = 0
    while True:
        status.pause(number)
        connection.sendall(NUMBER.pack(number + 1))
        number += 1
        status.write(number)
        time.sleep(STEP_SECONDS)


def receive_by_tcp(port, status):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    listener.bind(("", port))
    listener.listen()
    status.write("listening")
    connection, _ = listener.accept()
    number = 0
    while True:
        status.pause(number)
        data = b""
        while len(data) < NUMBER.size:
            piece = connection.recv(NUMBER.size - len(data))
            if not piece:
                raise ConnectionError("the connection has ended")
            data += piece
        got = NUMBER.unpack(data)[0]
        if got != number + 1:
            raise ValueError(f"{got} came after {number}")
        number = got
        status.write(number)


def main():
    role, medium, path = sys.argv[1:]
    status = Status(path)
    kind, where = medium.split(":", 1)
    try:
        if kind == "file":
            (send_by_file if role == "send" else receive_by_file)(where, status)
        elif role == "send":
            address, port = where.rsplit(":", 1)
            send_by_tcp(address, int(port), status)
        else:
            receive_by_tcp(int(where), status)
    except (OSError, ValueError) as error:
        status.write(f"error: {error}")
        while True:
            time.sleep(1)


if __name__ == "__main__":
    main()
