"""Where function_figures.py runs: a daemon with functions, its command, and the Runtime API's side of a start."""

import json
import os
import re
import select
import shutil
import socket
import subprocess
import time

from harness import cli, jobs, waiting
from start_world import World, end

_SECONDS = 120


class FunctionWorld(World):
    def __init__(self, work):
        super().__init__(work)
        self.port = jobs.free_port()
        self._asker = None

    def start_daemon(self, *options):
        arguments = ["--functions-http", f"127.0.0.1:{self.port}", *options]
        self.daemon = cli.Daemon(self.directory, self.store, self.environment, arguments)
        self.cli = cli.Cli(host=self.daemon.host, env=self.environment)

    def end_rekindle(self):
        if self._asker is not None:
            self._asker.stdin.close()
            self._asker.wait(_SECONDS)
            jobs.waited_elsewhere.discard(self._asker.pid)
            self._asker = None
        super().end_rekindle()

    def new_store(self, name, *options):
        """Begins again with nothing in it."""
        self.end_rekindle()
        shutil.rmtree(self.path("logs", "functions"), ignore_errors=True)  # they lie outside the store
        self.store = self.path(name)
        self.start_daemon(*options)

    def ask(self, what, **request):
        """(when it was asked, JobStarted) of a copy; `what` is "clone" or "template"."""
        if self._asker is None:
            self._asker = subprocess.Popen(
                [cli.binary("start_requests"), self.daemon.host],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=cli.environment(self.environment),
            )
            jobs.waited_elsewhere.add(self._asker.pid)
        self._asker.stdin.write(f"{what} {json.dumps({'detach': True, **request})}\n")
        self._asker.stdin.flush()
        return Asked(self._asker)

    # Functions.

    def deploy(self, name, code, environment, dependencies="auto", *more):
        variables = [word for item in environment.items() for word in ("--env", "=".join(item))]
        where = ("--runtime", "python", "--handler", "app.handler", "--code", code)
        limits = ("--deps", dependencies, "--memory", "2G", "--timeout", "120s")
        answer = self.run("fn", "deploy", name, *where, *limits, *variables, *more, seconds=600)
        if answer.get("warnings"):
            raise RuntimeError(f"deploying {name}: {answer['warnings']}")
        return answer["result"]

    def invoke(self, name, event):
        """What `fn invoke` says, with the payload's JSON as `result`."""
        answer = self.run("fn", "invoke", name, "--payload", json.dumps(event), seconds=300)
        if answer.get("function_error"):
            raise RuntimeError(f"{name} failed: {answer}")
        return answer

    def function(self, name):
        return next(entry for entry in self.run("fn", "ls")["functions"] if entry["spec"]["name"] == name)

    def wait_for_image(self, name):
        """The reference of the function's own image, which is made after its first invocation."""

        def made():
            function = self.function(name)
            return function.get("function_image")

        try:
            return waiting.until(made, f"the image of {name}", 15, 0.1)
        except TimeoutError as error:
            raise RuntimeError(f"{error}: {self.function(name)}{self.records()}") from error

    def end_instances(self):
        """Idle instances of all functions: as if they had crashed. The daemon makes new ones when it needs them."""
        for pid in self.instances():
            end(pid)
        waiting.until(lambda: not self.busy_or_idle(), "no instance of a function", 60)

    def instances(self):
        """Processes at the other ends of the daemon's connections of the Runtime API."""
        done = subprocess.run(["ss", "-xpnH"], stdout=subprocess.PIPE, text=True, check=True)
        lines = [line.split() for line in done.stdout.splitlines()]
        ours = {line[7] for line in lines if line[4].startswith(self.runtime + "/f/")} - {"0"}
        pids = {int(pid) for line in lines if line[5] in ours for pid in re.findall(r"pid=(\d+)", line[-1])}
        return pids - {self.daemon.pid}

    def busy_or_idle(self):
        functions = self.run("fn", "ls").get("functions", [])
        return sum(each.get("instances_busy", 0) + each.get("instances_idle", 0) for each in functions)


class Asked:
    """The answer comes while the copy runs already."""

    def __init__(self, asker):
        self._asker = asker

    def wait(self, runtime):
        """(when its handler was loaded, when it was asked for, JobStarted)"""
        ready, _, _ = select.select([runtime, self._asker.stdout], [], [], _SECONDS)
        early = self._answer() if runtime not in ready else None
        loaded = runtime.wait_for_next()
        return (loaded, *(early or self._answer()))

    def _answer(self):
        answer = json.loads(self._asker.stdout.readline())
        if "error" in answer:
            raise RuntimeError(f"a copy could not be started: {answer['error']}")
        return answer["asked"], answer["started"]


class RuntimeSocket:
    """The Runtime API at a Unix socket, for one instance, with as little of its own as can be."""

    def __init__(self, path):
        self.path = path
        if os.path.exists(path):
            os.unlink(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(16)
        self._listener.settimeout(_SECONDS)
        self._connection, self._rest = None, b""
        self._number = 0

    def fileno(self):
        return (self._connection or self._listener).fileno()

    def wait_for_next(self):
        """When (time.monotonic) the instance asked for an invocation: its handler is loaded."""
        if self._connection is None:
            self._connection, _ = self._listener.accept()
            self._connection.settimeout(_SECONDS)
        while b"\r\n\r\n" not in self._rest:
            self._rest += self._receive()
        now = time.monotonic()
        if not self._rest.startswith(b"GET /2018-06-01/runtime/invocation/next "):
            raise RuntimeError(f"the instance said {self._rest[:2000]!r}")
        self._rest = b""
        return now

    def send_event(self, payload):
        self._number += 1
        head = (
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            f"Lambda-Runtime-Aws-Request-Id: {self._number}\r\n"
            f"Lambda-Runtime-Deadline-Ms: {int((time.time() + _SECONDS) * 1000)}\r\n"
            "Lambda-Runtime-Invoked-Function-Arn: arn:aws:lambda:us-east-1:000000000000:function:bench\r\n"
            f"Content-Length: {len(payload)}\r\n\r\n"
        )
        self._connection.sendall(head.encode() + payload)

    def wait_for_answer(self):
        """(when it was there, its body)"""
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._receive()
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        while len(body) < length:
            body += self._receive()
        now = time.monotonic()
        if b"/response HTTP" not in head:
            raise RuntimeError(f"the handler failed: {body[:2000]!r}")
        self._connection.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\n{}")
        return now, body

    def call(self, event):
        """The handler's answer; wait_for_next() comes before."""
        self.send_event(json.dumps(event).encode())
        return json.loads(self.wait_for_answer()[1])

    def close(self):
        for each in (self._connection, self._listener):
            if each is not None:
                each.close()
        if os.path.exists(self.path):
            os.unlink(self.path)

    def _receive(self):
        piece = self._connection.recv(65536)
        if not piece:
            raise RuntimeError(f"the instance closed its connection after {self._rest[:500]!r}")
        return piece


def wait_until_idle(seconds=30):
    """Until the processors have been idle for most of a moment: what the last step left to do in the background is
    done.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        before = _idle_ticks()
        time.sleep(0.25)
        if _idle_ticks() - before >= 25 * os.cpu_count() * 0.7:
            return


def _idle_ticks():
    with open("/proc/stat", encoding="ascii") as file:
        return int(file.readline().split()[4])
