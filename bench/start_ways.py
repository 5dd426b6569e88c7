"""The ways in which start_figures.py starts a job, behind one shape: prepare(), start() and close()."""

import json
import os
import shlex
import shutil
import signal
import socket
import time

from harness import cli, jobs, procfs, waiting
from start_namespace import CriuStart
from start_world import end
from store_checks import pagemap_records

COLD, CLONE, TEMPLATE, EAGER, LAZY = "cold start", "clone", "template", "CRIU", "CRIU --lazy-pages"
STANDBY = "clone that stood by"
FORKED = "template that forks when asked"
_CHANNEL, _PEER = 1000, 1001  # where a held job has its control channel
_ANSWER_SECONDS = 60
_PE_LAZY = 2  # CRIU's pagemap flag


class Job:
    """A program and what it needs; `key` is its letter."""

    def __init__(self, key, title, argv, environment):
        self.key, self.title, self.argv, self.environment = key, title, argv, environment

    def hold(self, world):
        """Starts it, and waits until it is parked."""
        log = world.path(f"job-{self.key}.log")
        job = jobs.Started(self.argv, log, env={**self.environment, "REKINDLE_HOLD": "1"})

        def parked():
            if not procfs.alive(job.pid):
                with open(log, encoding="utf-8", errors="replace") as file:
                    raise RuntimeError(f"job {self.key} ended instead of parking:\n{file.read()}")
            try:
                return os.readlink(f"/proc/{job.pid}/fd/{_PEER}").startswith("socket:")
            except OSError:
                return False

        waiting.until(parked, f"job {self.key} parked", 300)
        return job


class Started:
    """What one start took: seconds from outside, until ready as the daemon has it, and its phases."""

    def __init__(self, seconds, answer=None, stop=lambda: None):
        self.seconds, self.stop = seconds, stop
        answer = answer or {}
        self.answer = answer
        self.ready = answer.get("ready_seconds")
        self.phases = {phase["name"]: phase["seconds"] for phase in answer.get("phases", [])}
        self.prefilled = int(answer.get("prefilled_pages", 0))
        self.pid = answer.get("job", {}).get("pid")


def run_timed(argv, environment):
    """(status, output, seconds from exec to exit). Without the detours of the subprocess module."""
    reader, writer = os.pipe()
    null = os.open("/dev/null", os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate((null, writer, writer))]
    began = time.monotonic()
    pid = os.posix_spawn(argv[0], argv, environment, file_actions=actions, setsid=True)
    os.close(writer)
    output = b""
    while more := os.read(reader, 1 << 16):
        output += more
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    seconds = time.monotonic() - began
    os.close(reader)
    os.close(null)
    return status, output.decode(errors="replace"), seconds


class Cold:
    """The program itself, until the same answer."""

    name = COLD

    def __init__(self, world, job):
        self.job = job

    def prepare(self):
        return [shlex.join(self.job.argv)]

    def start(self):
        channel, theirs = socket.socketpair()
        os.set_inheritable(theirs.fileno(), True)
        null = os.open("/dev/null", os.O_RDWR)
        environment = {**self.job.environment, "ANSWER_FD": str(theirs.fileno())}
        argv = self.job.argv
        actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in range(3)]
        began = time.monotonic()
        pid = os.posix_spawn(argv[0], argv, environment, file_actions=actions, setsid=True)
        theirs.close()
        channel.settimeout(_ANSWER_SECONDS)
        answer = channel.recv(4096)
        seconds = time.monotonic() - began
        os.close(null)

        def stop():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            channel.close()

        if b'"up"' not in answer:
            stop()
            raise RuntimeError(f"{argv} did not answer")
        return Started(seconds, stop=stop)

    def close(self):
        pass


class _Rekindle:
    def __init__(self, world, job):
        self.world, self.job, self.reference = world, job, f"bench-{job.key}:1"
        self.environment = cli.environment(world.environment)

    def take_image(self):
        """Once for each job; the job ends with it."""
        if self.reference in (image["reference"] for image in self.world.run("ls").get("images", [])):
            return
        job = self.job.hold(self.world)
        self.world.run("ckpt", job.pid, "-t", self.reference, "--stop", seconds=600)
        job.reap()

    def answers(self, *arguments):
        """(answers, seconds) of a detached start."""
        argv = self.world.cli.argv("--json", *arguments)
        status, output, seconds = run_timed(argv, self.environment)
        if status != 0:
            raise RuntimeError(f"{shlex.join(argv)} failed ({status}):\n{output}{self.world.records()}")
        answers = [json.loads(line) for line in output.splitlines()]
        return [answer for answer in answers if "job" in answer], seconds

    def one(self, *arguments):
        answers, seconds = self.answers(*arguments)
        started = Started(seconds, answers[0], stop=lambda: end(answers[0]["job"]["pid"]))
        if not started.ready:
            started.stop()
            command = shlex.join(map(str, arguments))
            raise RuntimeError(f"{command}: the copy did not answer{self.world.records()}")
        return started

    def close(self):
        pass


class Clone(_Rekindle):
    name = CLONE

    def prepare(self):
        self.take_image()
        return [shlex.join(self.world.cli.argv("--json", *self.arguments()))]

    def arguments(self, *more):
        # Any time but the default one is settled when the making begins, so that none of these has stood by.
        return ("restore", self.reference, "--clone", "--detach", "--record-ms", "1001", *more)

    def start(self, *more):
        return self.one(*self.arguments(*more))


class Standby(Clone):
    name = STANDBY

    def arguments(self, *more):
        return ("restore", self.reference, "--clone", "--detach", *more)


class Template(_Rekindle):
    name = TEMPLATE

    def __init__(self, world, job):
        super().__init__(world, job)
        self.template = f"bench-{job.key}"

    def prepare(self):
        """Refused for a program that fork can't copy: RuntimeError with the reason."""
        self.take_image()
        up = ("template", "up", self.reference, "--name", self.template)
        self.world.run(*up)
        return [shlex.join(self.world.cli.argv("--json", *each)) for each in (up, self.arguments())]

    def arguments(self, *more):
        return ("template", "start", self.template, "--detach", *more)

    def start(self, *more):
        return self.one(*self.arguments(*more))

    def close(self):
        self.world.run("template", "down", self.template)


class Forked(Template):
    """Of the template that Template has put up, copies that none stood by for."""

    name = FORKED

    def prepare(self):
        return [shlex.join(self.world.cli.argv("--json", *self.arguments()))]

    def arguments(self, *more):
        # Who looks at it being made has it made.
        return super().arguments("--trace", self.world.path("trace.json"), *more)

    def close(self):
        """The template is the other one's."""


class CriuTool:
    """One CRIU release in one mode."""

    def __init__(self, name, command, options=()):
        self.name, self.command, self.options = name, command, list(options)


# What CRIU knows of the kernel. Each release would throw away what another has kept there.
_PROBE = "/run/criu.kdat"


class _Criu:
    """Stock CRIU in the mode that was fastest in a few starts before."""

    lazy = False

    def __init__(self, world, job, tools):
        self.world, self.job, self.tools = world, job, tools
        self.images = world.path(f"criu-{job.key}")
        self.tool, self.notes = tools[0], []

    def prepare(self):
        if not os.path.isdir(self.images):
            self._dump()
        self._choose()
        restore, pages = self._command_lines("IMAGES", "WORK")
        return [shlex.join(line) for line in (pages, restore) if line]

    def _dump(self):
        """By the first release, which all later ones can read."""
        job = self.job.hold(self.world)
        sockets = [os.readlink(f"/proc/{job.pid}/fd/{number}") for number in (_CHANNEL, _PEER)]
        os.mkdir(self.images)
        argv = [*self.tools[0].command, "dump", "-t", str(job.pid), "-D", self.images, "-v2"]
        argv += ["-o", "dump.log", "--manage-cgroups=ignore", "--network-lock", "skip"]
        status, output, _ = run_timed(argv, dict(os.environ))
        if status != 0:
            with open(os.path.join(self.images, "dump.log"), encoding="utf-8", errors="replace") as log:
                raise RuntimeError(f"{shlex.join(argv)} failed:\n{output}{log.read()[-2000:]}")
        job.reap()
        with open(os.path.join(self.images, "bench-sockets"), "w", encoding="ascii") as file:
            json.dump(sockets, file)
        self._check_images()

    def _check_images(self):
        lazy = self._lazy_share()
        if lazy < 0.5:
            raise RuntimeError(f"CRIU marked only {lazy:.0%} of the pages as ones that can come later")

    def _lazy_share(self):
        """Of the pages that were dumped: the others `restore --lazy-pages` reads at once."""
        lazy = total = 0
        for name in os.listdir(self.images):
            if name.startswith("pagemap-"):
                for record in pagemap_records(os.path.join(self.images, name))[1:]:
                    pages = record.get(5) or record[2]
                    total += pages
                    lazy += pages if record.get(4, 0) & _PE_LAZY else 0
        return lazy / max(total, 1)

    def _choose(self):
        best = None
        for tool in self.tools:
            self.tool = tool
            try:
                took = []
                for _ in range(3):
                    started = self.start()
                    started.stop()
                    took.append(started.seconds)
            except (RuntimeError, OSError) as error:
                self.notes.append(f"{tool.name}: left out, {error}")
                continue
            self.notes.append(f"{tool.name}: {min(took) * 1e3:.1f} ms")
            if best is None or min(took) < best[0]:
                best = (min(took), tool)
        if best is None:
            raise RuntimeError("no CRIU restores it: " + "; ".join(self.notes))
        self.tool = best[1]

    def _command_lines(self, images, work):
        common = ["-D", images, "-W", work, "-v1", *self.tool.options]
        restore = [*self.tool.command, "restore", *common, "-o", "restore.log", "-d"]
        restore += ["--manage-cgroups=ignore", "--network-lock", "skip"]
        if not self.lazy:
            return restore, None
        return [*restore, "--lazy-pages"], [*self.tool.command, "lazy-pages", *common, "-o", "pages.log"]

    def start(self):
        with open(os.path.join(self.images, "bench-sockets"), encoding="ascii") as file:
            sockets = json.load(file)
        work = f"{self.world.runtime}-criu"
        os.makedirs(work, exist_ok=True)
        own_probe = self.world.path(f"kdat-{hash(tuple(self.tool.command))}")
        if os.path.exists(own_probe):
            shutil.copyfile(own_probe, _PROBE)
        restore, pages = self._command_lines(self.images, work)
        try:
            started = CriuStart(restore, pages, sockets, _ANSWER_SECONDS, **self._more())
        except RuntimeError as error:
            raise RuntimeError(f"{error}; {_log_of(work)}") from error
        finally:
            shutil.rmtree(work)
        if not os.path.exists(own_probe):
            shutil.copyfile(_PROBE, own_probe)
        return Started(started.seconds, stop=started.stop)

    def _more(self):
        """Arguments of CriuStart."""
        return {}

    def close(self):
        shutil.rmtree(self.images, ignore_errors=True)


def _log_of(work):
    texts = []
    for name in sorted(os.listdir(work)):
        if name.endswith(".log"):
            with open(os.path.join(work, name), encoding="utf-8", errors="replace") as file:
                texts.append(f"{name}: {file.read()[-500:].strip()}")
    return "; ".join(texts)


class CriuEager(_Criu):
    name = EAGER


class CriuLazy(_Criu):
    name, lazy = LAZY, True

    def close(self):
        """The images are the other one's, too."""
