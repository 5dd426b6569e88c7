"""Holds a kernel object of the kind that is named, and does something with it at each SIGUSR1.

    kernel_objects.py KIND [ARGUMENT]

It writes a line when it has it, and one for each signal with what it has seen.
"""

import ctypes
import os
import resource
import signal
import socket
import struct
import sys
import threading

_SEM_UNDO = 0x1000
_IPC_CREAT = 0o1000
_GETVAL, _SETVAL = 12, 16
_SO_PEEK_OFF = 42
_SO_ATTACH_BPF, _SO_DETACH_BPF = 50, 27
_UDP_CORK = 1
_BPF, _PIDFD_OPEN = 321, 434
_libc = ctypes.CDLL(None, use_errno=True)


def connection():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    server.settimeout(60)
    return client, server


def read_all(server, count):
    """In pieces, as they come."""
    pieces = []
    while sum(len(piece) for piece in pieces) < count:
        pieces.append(server.recv(100).decode("ascii"))
    return ",".join(pieces)


def urgent(how):
    client, server = connection()
    client.send(b"abc")
    client.send(b"U", socket.MSG_OOB)
    client.send(b"defghi")
    if how == "inline":
        server.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    if how == "heard":
        assert server.recv(1, socket.MSG_OOB) == b"U"
    if how == "at the mark":
        assert server.recv(3) == b"abc"
    yield "has it"
    yield read_all(server, {"inline": 10, "at the mark": 6}.get(how, 9))
    while True:
        client.send(b"later")
        yield read_all(server, 5)


def ended(_how):
    client, server = connection()
    client.send(b"abc")
    client.shutdown(socket.SHUT_WR)
    yield "has it"
    yield server.recv(3).decode("ascii") + "|" + server.recv(3).decode("ascii")


def peeked(_how):
    client, server = connection()
    server.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, 0)
    client.send(b"ab")
    assert server.recv(1, socket.MSG_PEEK) == b"a"
    yield "has it"
    yield read_all(server, 2)
    yield "idle"


def semaphore(how):
    """A lock: 1 is free. "plain": without anything to undo."""
    lock = _libc.semget(4711, 1, _IPC_CREAT | 0o600)
    assert lock >= 0 and _libc.semctl(lock, 0, _SETVAL, 1) == 0
    flags = 0 if how == "plain" else _SEM_UNDO

    def change(by):
        assert _libc.semop(lock, struct.pack("Hhh", 0, by, flags), 1) == 0

    if how == "thread":
        threading.Thread(target=signal.pause, daemon=True).start()
    change(-1)
    yield "has it"
    while True:
        change(1)
        yield f"free {_libc.semctl(lock, 0, _GETVAL)}"
        change(-1)
        yield f"held {_libc.semctl(lock, 0, _GETVAL)}"


def php_semaphore(_how):
    """As sem_get() makes one, sem_acquire() takes it and sem_release() gives it back: the lock, the number of users,
    and one by which these two are changed together."""
    made = _libc.semget(4712, 3, _IPC_CREAT | 0o600)
    assert made >= 0

    def change(*operations):
        packed = b"".join(struct.pack("Hhh", number, by, _SEM_UNDO) for number, by in operations)
        assert _libc.semop(made, packed, len(operations)) == 0

    change((2, 0), (2, 1), (1, 1))
    assert _libc.semctl(made, 0, _SETVAL, 1) == 0
    change((2, -1))
    yield "has it"
    change((0, -1))
    yield "holds it"
    change((0, 1))
    yield "free"


def pipes(count):
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    held = [os.pipe() for _ in range(int(count))]
    yield "has it"
    os.close(held[0][0])
    yield "closed one"


def packet_pipe(how):
    reads, writes = os.pipe2(os.O_DIRECT)
    yield "has it"
    os.close(reads)
    os.close(writes)
    yield "closed it"


def credentials(_how):
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    one.send(b"abc")
    yield "has it"
    yield other.recv(3).decode("ascii")
    yield "idle"


def corked(_how):
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect(receiver.getsockname())
    sender.setsockopt(socket.IPPROTO_UDP, _UDP_CORK, 1)
    sender.send(b"ab")
    yield "has it"
    sender.setsockopt(socket.IPPROTO_UDP, _UDP_CORK, 0)
    yield receiver.recv(10).decode("ascii")
    yield "idle"


def thread_descriptor(_how):
    taken = _libc.syscall(_PIDFD_OPEN, os.getpid(), os.O_EXCL)
    assert taken >= 0, os.strerror(ctypes.get_errno())
    yield "has it"
    os.close(taken)
    yield "closed it"


def filtered(_how):
    # mov64 r0, -1; exit: let all of it pass.
    program = ctypes.create_string_buffer(struct.pack("=BBhiBBhi", 0xB7, 0, 0, -1, 0x95, 0, 0, 0), 16)
    name = ctypes.create_string_buffer(b"GPL")
    attributes = struct.pack("=IIQQ", 1, 2, ctypes.addressof(program), ctypes.addressof(name)).ljust(120, b"\0")
    loaded = _libc.syscall(_BPF, 5, attributes, len(attributes))
    assert loaded >= 0, os.strerror(ctypes.get_errno())
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_BPF, loaded)
    os.close(loaded)
    yield "has it"
    receiver.setsockopt(socket.SOL_SOCKET, _SO_DETACH_BPF, 0)
    yield "took it off"


_KINDS = {"urgent": urgent, "ended": ended, "peeked": peeked, "semaphore": semaphore, "php semaphore": php_semaphore,
          "pipes": pipes, "packet_pipe": packet_pipe, "credentials": credentials, "corked": corked,
          "thread_descriptor": thread_descriptor, "filtered": filtered}  # fmt: skip


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    for line in _KINDS[sys.argv[1]]((sys.argv[2:] or [""])[0]):
        print(line, flush=True)
        signal.sigwait({signal.SIGUSR1})


if __name__ == "__main__":
    main()
