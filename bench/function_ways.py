"""The ways in which function_figures.py brings a function to where its handler is loaded."""

import json
import os
import signal
import time

from function_world import RuntimeSocket
from start_ways import Job, _Criu
from start_world import end

PYTHON = "/usr/bin/python3"
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BOOTSTRAP = os.path.join(ROOT, "functions/runtimes/python/bootstrap.py")
PREBAKED_RUNTIME = os.path.join(ROOT, "bench/prebaked_runtime.py")
COLD, PREBAKING = "cold start", "PreBaking (stock CRIU)"
COLD_AGAIN = "cold start, beside those made anew"
DEPENDENCY, DEPENDENCY_NEW = "dependency image", "dependency image, made anew"
IMAGE, IMAGE_NEW = "function image", "function image, made anew"
TEMPLATE, TEMPLATE_NEW = "template", "template, forked when asked"
SHARED, SHARED_NEW = "dependency template", "dependency template, forked when asked"
STOOD_BY = (DEPENDENCY, IMAGE, TEMPLATE, SHARED)
MADE_ANEW = (DEPENDENCY_NEW, IMAGE_NEW, TEMPLATE_NEW, SHARED_NEW)  # of a daemon that keeps none ready
OURS = tuple(way for pair in zip(STOOD_BY, MADE_ANEW) for way in pair)
_MEMORY = 2 << 30


class Function:
    """`code` is the folder, `event` what it is invoked with."""

    def __init__(self, name, code, inputs):
        self.name, self.code = name, code
        with open(os.path.join(code, "event.json"), encoding="utf-8") as file:
            self.event = json.load(file)
        self.own_environment = {"FUNCTION_INPUTS": inputs}
        self.dependency_image = self.image = None  # references

    def environment(self, socket_path):
        """What an instance gets from the daemon."""
        return {
            **self.own_environment,
            "AWS_LAMBDA_FUNCTION_NAME": self.name,
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(_MEMORY >> 20),
            "_HANDLER": "app.handler",
            "LAMBDA_TASK_ROOT": self.code,
            "REKINDLE_RUNTIME_SOCKET": socket_path,
        }


def base_environment():
    """What the daemon starts a runtime with."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {"PATH": path, "LANG": "C.UTF-8", "TZ": ":UTC", "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}


class Started:
    """`seconds` from the request until the instance asked for an invocation."""

    def __init__(self, seconds, runtime, stop, answer=None):
        self.seconds, self.runtime, self._stop, self.answer = seconds, runtime, stop, answer or {}

    def stop(self):
        self._stop()
        self.runtime.close()


class Cold:
    """A plain process, as the daemon starts a function that has no image."""

    name = COLD

    def __init__(self, world, function):
        self.world, self.function = world, function

    def start(self):
        runtime = RuntimeSocket(self.world.path("cold.sock"))
        environment = {**base_environment(), **self.function.environment(runtime.path)}
        log = os.open(self.world.path("cold.log"), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        actions = [(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate((null, log, log))]
        began = time.monotonic()
        pid = os.posix_spawn(PYTHON, [PYTHON, BOOTSTRAP], environment, file_actions=actions, setsid=True)

        def stop():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

        os.close(log)
        os.close(null)
        try:
            return Started(runtime.wait_for_next() - began, runtime, stop)
        except BaseException:
            stop()
            raise

    def close(self):
        pass


class ColdAgain(Cold):
    """In the turns of the daemon that keeps no copies ready: what is compared is measured at the same time."""

    name = COLD_AGAIN


class PreBaking(_Criu):
    """`criu restore` of a snapshot of the function, taken once its handler was loaded, by the release and in the mode
    that were fastest in a few starts before.
    """

    name = PREBAKING

    def __init__(self, world, function, tools, hook):
        self._socket = world.path(f"prebaking-{function.name}.sock")
        environment = {**base_environment(), **function.environment(self._socket), "REKINDLE_HOOK_LIBRARY": hook}
        environment["OPENBLAS_NUM_THREADS"] = environment["OMP_NUM_THREADS"] = "1"
        job = Job(f"prebaking-{function.name}", function.name, [PYTHON, PREBAKED_RUNTIME], environment)
        super().__init__(world, job, tools)
        self._runtime = None

    def snapshot(self):
        """Bytes of the folder: (apparent, allocated)."""
        if not os.path.isdir(self.images):
            self._dump()
        return folder_bytes(self.images)

    def _check_images(self):
        self._lazy_is_worth_it = self._lazy_share() >= 0.5

    def _choose(self):
        eager, self.notes = self.tools, []
        best = None
        for self.lazy in (False, True) if self._lazy_is_worth_it else (False,):
            self.tools = eager
            before = len(self.notes)
            try:
                super()._choose()
            except RuntimeError:
                continue
            mode = " --lazy-pages" if self.lazy else ""
            self.notes[before:] = [note.replace(":", mode + ":", 1) for note in self.notes[before:]]
            least = min(float(note.split()[-2]) for note in self.notes[before:] if note.endswith(" ms"))
            if best is None or least < best[0]:
                best = (least, self.tool, self.lazy)
        if best is None:
            raise RuntimeError("no CRIU restores it: " + "; ".join(self.notes))
        _, self.tool, self.lazy = best

    def mode(self):
        return self.tool.name + (" --lazy-pages" if self.lazy else "")

    def _more(self):
        return {"last": self._runtime.wait_for_next}

    def start(self):
        self._runtime = RuntimeSocket(self._socket)
        started = super().start()
        return Started(started.seconds, self._runtime, started.stop)


class Copy:
    """Of the daemon: a clone or a fork, of the function's own image or of its dependencies'."""

    def __init__(self, world, function, name):
        self.world, self.function, self.name = world, function, name
        self.forks = name in (TEMPLATE, TEMPLATE_NEW, SHARED, SHARED_NEW)
        own = name in (IMAGE, IMAGE_NEW, TEMPLATE, TEMPLATE_NEW)
        self.image = function.image if own else function.dependency_image
        self.template = f"{function.name.replace('_', '-')}-{'own' if own else 'shared'}"

    def put_up(self):
        """Why there is no template of it, or ""."""
        if not self.forks:
            return ""
        try:
            up = self.world.run("template", "up", self.image, "--name", self.template)
        except RuntimeError as error:
            return str(error)
        if up.get("refusal"):
            self.world.run("template", "down", self.template)
        return up.get("refusal", "")

    def start(self):
        runtime = RuntimeSocket(self.world.path("copy.sock"))
        environment = self.function.environment(runtime.path)
        copy = {"memoryBytes": str(_MEMORY), "maxProcesses": 1024, "environment": environment}
        if self.forks:
            asked = self.world.ask("template", template=self.template, clone=copy)
        else:
            asked = self.world.ask("clone", image=self.image, clone=copy)
        loaded, began, answer = asked.wait(runtime)
        return Started(loaded - began, runtime, lambda: end(answer["job"]["pid"]), answer)

    def close(self):
        if self.forks:
            self.world.run("template", "down", self.template)


def folder_bytes(*folders):
    """(apparent, allocated)"""
    apparent = allocated = 0
    for folder in folders:
        for place, _, names in os.walk(folder):
            for name in names:
                found = os.lstat(os.path.join(place, name))
                apparent += found.st_size
                allocated += found.st_blocks * 512
    return apparent, allocated
