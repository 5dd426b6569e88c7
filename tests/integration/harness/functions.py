"""What the tests of functions share: a daemon that serves them, deploying, and calling them in every way."""

import glob
import http.client
import json
import os
import shutil
import socket

from harness import jobs, procfs, waiting
from harness.clones import CloneTest

FROM_OWN_IMAGE = ("template", "image-memory", "image-disk")
SECONDS = 30  # for what takes a daemon a moment


class Answer:
    """Of the HTTP front."""

    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()
        self.function_error = response.headers["X-Amz-Function-Error"]
        self.error_type = response.headers["x-amzn-ErrorType"]

    def json(self):
        return json.loads(self.body)

    def __str__(self):
        return f"{self.status}\n{self.headers}\n{self.body[:2000]}"


class FunctionsTest(CloneTest):
    """With a daemon that serves Lambda's Invoke path on `self.url`, and on the Unix socket `self.front`."""

    place = "/srv"  # an instance has a /tmp and a /var/tmp of its own
    standby = "0"  # copies; those that stand by would count among what a test leaves behind

    def setUp(self):
        self._daemons = []  # as the names of their cgroups begin
        self.port = jobs.free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        super().setUp()
        self.addCleanup(self._end_functions)

    def restart_daemon(self, *arguments, **extra):
        self.front = self.path("front.sock")
        self.daemon_arguments = ("--standby", self.standby, "--functions-http", f"127.0.0.1:{self.port}", "--functions-http",
                                 "unix:" + self.front, *arguments)
        super().restart_daemon(**extra)
        self._daemons.append(f"{self.daemon.pid}-{procfs.start_ticks(self.daemon.pid)}-")

    def _end_functions(self):
        """With the daemon everything of functions ends."""
        self.daemon.stop()
        self.wait_for_nothing()

    def wait_for_nothing(self):
        """No instance, and nothing that belongs to one."""
        def left():
            jobs.reap_orphans()
            return [procfs.command_line(pid) for pid in self.runtimes()] + self.sockets() + self.cgroups()

        try:
            waiting.until(lambda: not left(), "instances have left nothing", SECONDS)
        except TimeoutError:
            self.fail(f"left behind: {left()}\n{self.records()}")

    # What there is on the machine.

    def runtimes(self):
        """The processes of instances: they write to a function's log. What is parked, such as a template, does not."""
        logs = self.path("logs/functions/")
        found = []
        for pid in procfs.descendants(os.getpid()):
            try:
                if procfs.alive(pid) and os.readlink(f"/proc/{pid}/fd/1").startswith(logs):
                    found.append(pid)
            except OSError:
                continue
        return found

    def sockets(self):
        """Of instances."""
        return sorted(glob.glob(os.path.join(self.runtime, "f", "*", "*")))

    def cgroups(self):
        """That the daemons of this test have made. A running one keeps some ready: only those count that have a limit."""
        found = []
        for hierarchy in ("memory", "cpu", "pids", ""):
            folder = os.path.join("/sys/fs/cgroup", hierarchy, "rekindle")
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                path = os.path.join(folder, name)
                if name.startswith(tuple(self._daemons)) and (not self.daemon.running() or _has_limit(path)):
                    found.append(path)
        return found

    def log_files(self, name):
        folder = os.path.join(self.path("logs"), "functions", name)
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []

    def process_of(self, about):
        """The PID, seen from here, of a function that has told about itself."""
        return next(
            pid for pid in self.runtimes()
            if os.readlink(f"/proc/{pid}/ns/pid") == about["space"] and procfs.namespace_pid(pid) == about["pid"])

    # Deploying.

    def code(self, name, files=None):
        """A new code folder: `files` by name, or the function of the workloads."""
        folder = self.path(name + ".code")
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)
        if files is None:
            shutil.copy(jobs.workload("function_app.py"), os.path.join(folder, "app.py"))
        for file, text in (files or {}).items():
            path = os.path.join(folder, file)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as out:
                out.write(text)
        return folder

    def deploy(self, name, *options, files=None, runtime="python", handler="app.handler", code=None, cli=None):
        return self.succeed(
            "fn", "deploy", name, "--runtime", runtime, "--handler", handler, "--code", code or self.code(name, files),
            *options, cli=cli)

    def function(self, name):
        """As `fn ls` has it; None when it is not there."""
        for function in self.succeed("fn", "ls").get("functions", []):
            if function["spec"]["name"] == name:
                return function
        return None

    def wait_for_image(self, name):
        try:
            return waiting.until(lambda: self.function(name)["function_image"], f"the image of {name}", SECONDS)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {self.function(name)}{self.records()}") from error

    def wait_for_no_instance(self, name):
        def none():
            function = self.function(name)
            return not (function["instances_busy"] or function["instances_idle"])

        waiting.until(none, f"no instance of {name}", SECONDS)

    def stats(self, name):
        return self.succeed("fn", "stats", name)["functions"][0]

    # Calling, by the command.

    def invoke(self, name, event=None, *options, cli=None, seconds=180):
        """Must work: what it returned, and how it was served (`start_level`, `instance`, …)."""
        result = (cli or self.cli).run("fn", "invoke", name, "--payload", json.dumps(event or {}), *options,
                                       seconds=seconds)
        self.assertEqual(result.code, 0, str(result) + self.records())
        self.assertEqual(result.data["function_error"], "", str(result))
        return json.loads(result.data["payload"] or "null"), result.data

    def about(self, name):
        return self.invoke(name, {"do": "self"})[0]

    def begin_invoke(self, name, event, cli=None):
        return (cli or self.cli).start("fn", "invoke", name, "--payload", json.dumps(event))

    def end_invoke(self, child):
        result = self.cli.finish(child)
        self.assertEqual(result.code, 0, str(result) + self.records())
        return json.loads(result.data["payload"])

    def failed(self, name, event=None):
        """Must fail in the function: its error."""
        result = self.cli.run("fn", "invoke", name, "--payload", json.dumps(event or {}))
        self.assertEqual(result.code, 1, str(result))
        self.assertEqual(result.data.get("function_error"), "Unhandled", str(result))
        return json.loads(result.data["payload"])

    # A call that goes on until it is told to end.

    def begin_waiting(self, name, label="call"):
        """In work when this returns."""
        fifo, began = self.path(label + ".fifo"), self.path(label + ".began")
        os.mkfifo(fifo)
        child = self.begin_invoke(name, {"do": "wait", "fifo": fifo, "began": began})
        waiting.until(lambda: os.path.exists(began) or child.poll() is not None, f"{label} is in work", SECONDS)
        return child, fifo

    def end_waiting(self, waiting_call, told="go"):
        child, fifo = waiting_call
        with open(fifo, "w", encoding="ascii") as file:
            file.write(told)
        return self.end_invoke(child)

    # Calling, over HTTP.

    def http(self, method, path, body=None, headers=None, connection=None):
        own = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            own.request(method, path, body, headers or {})
            return Answer(own.getresponse())
        finally:
            if connection is None:
                own.close()

    def post(self, name, event, headers=None, connection=None):
        body = event if isinstance(event, (str, bytes)) else json.dumps(event)
        return self.http("POST", f"/2015-03-31/functions/{name}/invocations", body, headers, connection)


def _has_limit(group):
    for file in ("memory.max", "memory.limit_in_bytes"):
        try:
            with open(os.path.join(group, file), encoding="ascii") as opened:
                text = opened.read().strip()
                return text != "max" and int(text) < 1 << 60
        except FileNotFoundError:
            continue
    return False


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=SECONDS)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SECONDS)
        self.sock.connect(self._path)

