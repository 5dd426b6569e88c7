"""`criu restore` of a held job in a PID namespace of its own, where all its PIDs are free."""

import json
import os
import signal
import socket
import time

from start_world import libc_call, mount

_CLONE_NEWNS, _CLONE_NEWPID = 0x20000, 0x20000000
_PR_SET_PDEATHSIG = 1
_HELLO = b'{"type":"restored","instance":"bench","name":"","environment":{},"template":false}'


class CriuStart:
    """Made ahead: the namespace, its /proc, the job's new channel with the message that wakes it, and, with
    `pages`, a lazy-pages daemon that listens. Then the clock runs: from exec of `restore` to the answer, or to
    what comes after it: `last` waits for that and returns when it was.
    """

    def __init__(self, restore, pages, sockets, seconds, last=time.monotonic):
        self._channel, self._job_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.send(_HELLO)
        self._orders, self._their_orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.settimeout(seconds)
        self._init, self._messages = 0, {}
        self._helper = os.fork()
        if self._helper == 0:
            try:
                self._help(restore, pages, sockets)
            finally:
                os._exit(127)
        self._job_end.close()
        self._their_orders.close()
        try:
            self._init = self._told("init")
            self._told("prepared")
            self._orders.send(b"go")
            self._channel.settimeout(seconds)
            answer = self._channel.recv(4096)
            answered = last() if b'"up"' in answer else 0
            began = self._told("began")
            status = self._told("status")
            if b'"up"' not in answer or status != 0:
                raise RuntimeError(f"`{' '.join(restore)}` ended with {status}, the job answered {answer!r}")
            self.seconds = answered - began
        except BaseException:
            self.stop()
            raise

    def stop(self):
        if self._init:
            os.kill(self._init, signal.SIGKILL)  # the rest of the namespace goes with it
        else:
            os.kill(self._helper, signal.SIGKILL)
        os.waitpid(self._helper, 0)
        self._channel.close()
        self._orders.close()

    def _told(self, name):
        while name not in self._messages:  # they come from two processes, in any order
            packet = self._orders.recv(4096)
            self._messages.update(json.loads(packet) if packet else {"error": "it ended"})
            if "error" in self._messages:
                raise RuntimeError(f"the PID namespace for CRIU failed: {self._messages['error']}")
        return self._messages[name]

    # In the child.

    def _tell(self, **message):
        self._their_orders.send(json.dumps(message).encode())

    def _help(self, restore, pages, sockets):
        """The parent of the namespace's first process: collects it."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        libc_call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc_call("unshare", _CLONE_NEWNS | _CLONE_NEWPID)
        init = os.fork()
        if init == 0:
            try:
                self._be_init(restore, pages, sockets)
            except BaseException as error:
                self._tell(error=repr(error))
            finally:
                os._exit(127)
        self._orders.close()
        self._tell(init=init)
        self._their_orders.close()
        self._job_end.close()
        self._channel.close()
        os.waitpid(init, 0)
        os._exit(0)

    def _be_init(self, restore, pages, sockets):
        libc_call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        mount("proc", "/proc", "proc", 0)
        self._orders.close()
        self._channel.close()
        null = os.open("/dev/null", os.O_RDWR)
        actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in range(3)]
        environment = dict(os.environ)
        if pages:
            listening, status = os.pipe()
            os.set_inheritable(status, True)
            argv = [*pages, "--status-fd", str(status)]
            os.posix_spawn(argv[0], argv, environment, file_actions=actions)
            os.close(status)
            if os.read(listening, 1) != b"\0":
                raise RuntimeError(f"`{' '.join(argv)}` does not listen")
        ends = (self._job_end.fileno(), os.dup(self._job_end.fileno()))
        argv = list(restore)
        for number, resource in zip(ends, sockets):
            os.set_inheritable(number, True)
            argv += ["--inherit-fd", f"fd[{number}]:{resource}"]
        self._tell(prepared=True)
        if self._their_orders.recv(16) != b"go":
            os._exit(0)
        began = time.monotonic()
        criu = os.posix_spawn(argv[0], argv, environment, file_actions=actions)
        for number in ends:
            os.close(number)
        self._tell(began=began)
        while True:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                signal.pause()
                continue
            if pid == criu:
                self._tell(status=os.waitstatus_to_exitcode(status))
