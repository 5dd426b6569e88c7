"""A service with one of everything that a checkpoint must carry.

    service.py DIRECTORY PORT [SHARED_NAME]

A parent and three forked workers. HTTP on 127.0.0.1:PORT:
    /state        JSON: every part of the state, and one digest over all that does not move by itself
    /put?K=V      changes the state (memory of every worker, SQLite, shared memory)
DIRECTORY gets service.sock (a listening Unix socket, in use within the tree) and data.sqlite. A file that
is deleted but open, an anonymous shared mapping, one of a file in /dev/shm, a memfd, pipes with bytes in
them, epoll, eventfds and a timerfd are in use too.
"""

import ctypes
import hashlib
import json
import mmap
import os
import select
import signal
import socket
import sqlite3
import struct
import sys
import urllib.parse

WORKERS = 3
DELETED_BYTES = 3 * 1024 * 1024
SHARED_BYTES = 256 * 1024
IN_PIPE = b"bytes that nobody has read yet" * 20
TIMER_NS = 20 * 1000 * 1000


def noise(label, size):
    return hashlib.shake_128(label.encode()).digest(size)


def sha(*parts):
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def periodic_timerfd(period_ns):
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.timerfd_create(1, 0o2004000)  # CLOCK_MONOTONIC; TFD_NONBLOCK | TFD_CLOEXEC
    spec = struct.pack("@4q", 0, period_ns, 0, period_ns)
    if fd < 0 or libc.timerfd_settime(fd, 0, spec, None) != 0:
        raise OSError(ctypes.get_errno(), "timerfd")
    return fd


def receive_line(connection):
    line = b""
    while not line.endswith(b"\n"):
        piece = connection.recv(4096)
        if not piece:
            return b""
        line += piece
    return line


def worker(number, control, heartbeat, shared, unix_path):
    """Answers lines on `control`, greets the parent's Unix socket, beats into a pipe."""
    state = {}
    heap = noise(f"worker {number}", 4 * 1024 * 1024)
    to_parent = socket.socket(socket.AF_UNIX)
    to_parent.connect(unix_path)
    beats = 0
    while True:
        line = receive_line(control)
        if not line:
            return
        request = json.loads(line)
        if "put" in request:
            state.update(request["put"])
            at = 1024 * number
            shared[at : at + 32] = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).digest()
        beats += 1
        os.write(heartbeat, b"%d\n" % number)
        to_parent.sendall(b"worker %d beat %d\n" % (number, beats))
        answer = {
            "pid": os.getpid(),
            "beats": beats,
            "digest": sha(heap, json.dumps(state, sort_keys=True).encode()),
        }
        control.sendall(json.dumps(answer).encode() + b"\n")


class Service:
    def __init__(self, directory, port, shared_name):
        self.state, self.ticks, self.greetings = {}, 0, 0
        self.anonymous = mmap.mmap(-1, SHARED_BYTES, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        shm = os.open("/dev/shm/" + shared_name, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(shm, SHARED_BYTES)
        self.named = mmap.mmap(shm, SHARED_BYTES)
        os.close(shm)
        self.memfd = os.memfd_create("rekindle-test")
        os.ftruncate(self.memfd, SHARED_BYTES)
        self.memfd_view = mmap.mmap(self.memfd, SHARED_BYTES)
        for view in (self.anonymous, self.named, self.memfd_view):
            view[65536 : 65536 + 65536] = noise("shared memory", 65536)

        deleted_path = os.path.join(directory, "deleted")
        self.deleted = os.open(deleted_path, os.O_RDWR | os.O_CREAT, 0o600)
        os.write(self.deleted, noise("deleted file", DELETED_BYTES))
        os.unlink(deleted_path)

        self.unix_path = os.path.join(directory, "service.sock")
        self.unix_listener = socket.socket(socket.AF_UNIX)
        self.unix_listener.bind(self.unix_path)
        self.unix_listener.listen(8)

        self.pipe = os.pipe()
        os.write(self.pipe[1], IN_PIPE)
        self.eventfd_kept = os.eventfd(7)
        self.eventfd = os.eventfd(0, os.EFD_NONBLOCK)
        self.timer = periodic_timerfd(TIMER_NS)

        self.heartbeat = os.pipe()
        self.controls, self.pids = [], []
        for number in range(WORKERS):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                ours.close()
                os.close(self.heartbeat[0])
                for fd in (self.deleted, self.timer, self.eventfd, self.eventfd_kept, *self.pipe):
                    os.close(fd)
                for control in self.controls:
                    control.close()
                worker(number, theirs, self.heartbeat[1], self.anonymous, self.unix_path)
                os._exit(0)
            theirs.close()
            self.controls.append(ours)
            self.pids.append(pid)
        os.close(self.heartbeat[1])
        self.greeters = [self.unix_listener.accept()[0] for _ in range(WORKERS)]

        self.database = sqlite3.connect(os.path.join(directory, "data.sqlite"), isolation_level=None)
        self.database.execute("pragma journal_mode=wal")
        self.database.execute("create table if not exists state (name text primary key, value text)")

        self.http = socket.socket()
        self.http.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.http.bind(("127.0.0.1", port))
        self.http.listen(16)
        self.epoll = select.epoll()
        for fd in (
            self.http.fileno(),
            self.eventfd,
            self.timer,
            self.heartbeat[0],
            *(g.fileno() for g in self.greeters),
        ):
            self.epoll.register(fd, select.EPOLLIN)

    def ask_workers(self, request):
        answers = []
        for control in self.controls:
            control.sendall(json.dumps(request).encode() + b"\n")
            answers.append(json.loads(receive_line(control)))
        return answers

    def put(self, items):
        self.state.update(items)
        self.ask_workers({"put": items})
        for name, value in items.items():
            self.database.execute("insert or replace into state values (?, ?)", (name, value))
        mark = hashlib.sha256(json.dumps(self.state, sort_keys=True).encode()).digest()
        self.named[:32] = self.memfd_view[:32] = mark
        os.eventfd_write(self.eventfd, 1)

    def unread_in_pipe(self):
        """What is in the pipe, put back in the same order."""
        content = os.read(self.pipe[0], 65536)
        os.write(self.pipe[1], content)
        return content

    def kept_count(self):
        count = os.eventfd_read(self.eventfd_kept)
        os.eventfd_write(self.eventfd_kept, count)
        return count

    def report(self):
        answers = self.ask_workers({})
        rows = self.database.execute("select name, value from state order by name").fetchall()
        parts = {
            "state": self.state,
            "workers": [answer["digest"] for answer in answers],
            "database": rows,
            "integrity": self.database.execute("pragma integrity_check").fetchone()[0],
            "deleted": sha(os.pread(self.deleted, DELETED_BYTES, 0)),
            "deleted_position": os.lseek(self.deleted, 0, os.SEEK_CUR),
            "anonymous": sha(self.anonymous[:]),
            "named": sha(self.named[:]),
            "memfd": sha(self.memfd_view[:], os.pread(self.memfd, SHARED_BYTES, 0)),
            "pipe": sha(self.unread_in_pipe()),
            "eventfd": self.kept_count(),
        }
        digest = sha(json.dumps(parts, sort_keys=True).encode())
        return {
            "digest": digest,
            "parts": parts,
            "pid": os.getpid(),
            "workers": [a["pid"] for a in answers],
            "beats": answers[0]["beats"],
            "ticks": self.ticks,
            "greetings": self.greetings,
        }

    def serve_one(self):
        connection, _ = self.http.accept()
        with connection:
            request = b""
            while b"\r\n\r\n" not in request:
                piece = connection.recv(4096)
                if not piece:
                    return
                request += piece
            target = urllib.parse.urlsplit(request.split()[1].decode())
            if target.path == "/put":
                self.put(dict(urllib.parse.parse_qsl(target.query)))
            body = json.dumps(self.report()).encode()
            head = f"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)

    def run(self):
        by_fd = {g.fileno(): g for g in self.greeters}
        while True:
            for fd, _ in self.epoll.poll():
                if fd == self.http.fileno():
                    self.serve_one()
                elif fd == self.timer:
                    self.ticks += struct.unpack("<Q", os.read(fd, 8))[0]
                elif fd == self.eventfd:
                    os.eventfd_read(fd)
                elif fd == self.heartbeat[0]:
                    os.read(fd, 4096)
                else:
                    self.greetings += by_fd[fd].recv(4096).count(b"\n")


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    Service(sys.argv[1], int(sys.argv[2]), sys.argv[3]).run()


if __name__ == "__main__":
    main()
