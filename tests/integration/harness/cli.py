"""Runs the command and the daemon as users do, and reads what they print."""

import json
import os
import signal
import subprocess

from harness import jobs, procfs, waiting

BINARIES = os.environ.get("REKINDLE_BIN_DIR", "")
DONE, FAILED, USAGE, NOT_FOUND, NOT_PERMITTED, UNSUPPORTED, NO_STORE = range(7)


def binary(name):
    path = os.path.join(BINARIES, name)
    if not os.access(path, os.X_OK):
        raise RuntimeError(f"{path} is not built: set REKINDLE_BIN_DIR to the build's bin folder")
    return path


def environment(extra=None):
    """Nothing of the caller's REKINDLE_* leaks into a test, nor what has jobs in Python write a line in two parts, which a
    kill may tear.
    """
    leaks = ("REKINDLE_", "PYTHONUNBUFFERED")
    env = {name: value for name, value in os.environ.items() if not name.startswith(leaks)}
    for name in ("REKINDLE_CRIU",):
        if name in os.environ:
            env[name] = os.environ[name]
    env.update(extra or {})
    return env


class Result:
    """How a command ended."""

    def __init__(self, argv, code, out, err):
        self.argv, self.code, self.out, self.err = argv, code, out, err

    @property
    def data(self):
        """The last JSON document of the output: the result, or {"error": ...}."""
        return json.loads(self.out.strip().splitlines()[-1]) if self.out.strip() else {}

    @property
    def message(self):
        """What the user is told when it fails."""
        try:
            return self.data.get("error", {}).get("message", "") or self.err
        except (ValueError, AttributeError):
            return self.err

    def __str__(self):
        return f"{' '.join(self.argv)}\n  exit {self.code}\n  stdout: {self.out}\n  stderr: {self.err}"


class Cli:
    """The command on one store (`--store`), or against one daemon (`--host`)."""

    def __init__(self, store=None, host=None, env=None, uid=0):
        self._globals = ["--store", store] if store else ["--host", host]
        self._env = env or {}
        self._uid = uid

    def argv(self, *arguments):
        return [binary("rekindle"), *self._globals, *(str(a) for a in arguments)]

    def start(self, *arguments, json_output=True, prefix=(), env=None):
        """Begins a command; `finish` waits for it."""
        argv = [*prefix, *self.argv(*(["--json"] if json_output else []), *arguments)]
        extra = {} if not self._uid else {"user": self._uid, "group": self._uid, "extra_groups": []}
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment({**self._env, **(env or {})}),
            start_new_session=True,
            **extra,
        )
        jobs.waited_elsewhere.add(child.pid)
        return child

    def finish(self, child, seconds=180):
        seconds *= waiting.PATIENCE
        try:
            out, err = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            out, err = child.communicate()
            raise TimeoutError(f"{' '.join(child.args)} ran past {seconds} s\n{out}\n{err}") from None
        finally:
            jobs.waited_elsewhere.discard(child.pid)
        return Result(child.args, child.returncode, out, err)

    def finish_as_parent(self, child):
        """Of a job whose own parent, a daemon, has gone: this process is its parent."""

        def ended():
            jobs.reap_orphans()
            return child.poll() is not None

        waiting.until(ended, "the command ends", 60, 0.05)
        return self.finish(child)

    def run(self, *arguments, json_output=True, prefix=(), env=None, seconds=180):
        return self.finish(self.start(*arguments, json_output=json_output, prefix=prefix, env=env), seconds)


class Daemon:
    """rekindled on a private socket and store."""

    def __init__(self, directory, store, env, arguments=(), prefix=()):
        self.socket = os.path.join(directory, "d.sock")
        self.host = "unix://" + self.socket
        self.log = os.path.join(directory, "rekindled.log")
        with open(self.log, "ab") as log:
            self._child = subprocess.Popen(
                [*prefix, binary("rekindled"), "--store", store, "--socket", self.socket, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(env),
                start_new_session=True,
            )
        self.pid = self._child.pid
        jobs.waited_elsewhere.add(self.pid)
        probe = Cli(host=self.host, env=env)
        try:
            waiting.until(
                lambda: self._child.poll() is not None or probe.run("version").code == 0,
                "daemon answers",
                60,
                0.05,
            )
        except TimeoutError as error:
            raise TimeoutError(f"{error}:\n{self.log_text()}") from error
        if self._child.returncode is not None:
            raise RuntimeError(f"rekindled ended at once ({self._child.returncode}):\n{self.log_text()}")

    def log_text(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read()

    def kill(self):
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self):
        self._end(signal.SIGTERM)

    def _end(self, number):
        if self._child.poll() is None:
            self._child.send_signal(number)
            try:
                self._child.wait(60)
            finally:
                if self._child.poll() is None:
                    self._child.kill()
                    self._child.wait()
        jobs.waited_elsewhere.discard(self.pid)

    def running(self):
        return procfs.alive(self.pid)
