"""The training that training_figures.py measures, and the ways to keep it safe meanwhile, behind one shape."""

import os
import shutil
import statistics
import threading
import time

from contenders import StockCriu
from harness import jobs, procfs, waiting
from harness.training import read_step_log

NAME = "training"
_SECONDS = 600  # for whatever a training has to come to
_ENDLESS = 10**9


class Training:
    """One run of examples/training/char_gpt.py, and its step log."""

    def __init__(self, world, script, size, threads, name=NAME):
        self.out, self.step_log, self.log = (world.path(name + end) for end in (".out", ".steps", ".log"))
        for path in (self.out, self.step_log, self.log):
            shutil.rmtree(path, ignore_errors=True)
            if os.path.exists(path):
                os.unlink(path)
        self.argv = [jobs.PYTHON, script, "--size", size, "--threads", str(threads), "--steps", str(_ENDLESS)]
        self.argv += ["--out", self.out, "--step-log", self.step_log]

    def lines(self):
        return read_step_log(self.step_log)

    def wait_for_lines(self, count, pid=None):
        def there():
            if pid and not procfs.alive(pid):
                with open(self.log, encoding="utf-8", errors="replace") as file:
                    raise RuntimeError(f"the training ended:\n{file.read()}")
            lines = self.lines()
            return lines if len(lines) >= count else None

        return waiting.until(there, f"{count} steps", _SECONDS, 0.002)

    def steps_a_second(self, begin, end):
        """Between the first and the last step that ended in this time."""
        times = [time for _, time in self.lines() if begin <= time <= end]
        return (len(times) - 1) / (times[-1] - times[0])

    def share_beyond_median(self, begin, end):
        """Of the time between these two steps, what is beyond the window's own median step, for every step."""
        times = [time for _, time in self.lines() if begin <= time <= end]
        steps = [after - before for before, after in zip(times, times[1:])]
        return 1 - len(steps) * statistics.median(steps) / sum(steps)

    def start(self, *more, env=None):
        return jobs.Started([*self.argv, *more], self.log, env=env)


class _Way:
    """begin() returns when the training runs and what keeps it safe has done so once; end() leaves nothing."""

    def __init__(self, world, training, every):
        self.world, self.training, self.every = world, training, every
        self.job = None

    def begin(self):
        self.job = self.training.start()
        self.training.wait_for_lines(3, self.job.pid)

    def end(self):
        self.job.kill_tree()

    def command_line(self):
        return " ".join(self.training.argv)


class Undisturbed(_Way):
    name = "nothing"


class Saving(_Way):
    """By the program itself, model and optimizer."""

    name = "torch.save"

    def begin(self):
        self.job = self.training.start("--save-every", str(self.every))
        saved = os.path.join(self.training.out, "checkpoint.pt")
        waiting.until(lambda: os.path.exists(saved) or not procfs.alive(self.job.pid), "a torch.save", _SECONDS, 0.05)
        self.training.wait_for_lines(len(self.training.lines()) + 1, self.job.pid)

    def command_line(self):
        return f"{super().command_line()} --save-every {self.every:g}"


class CriuLoop(_Way):
    """`criu dump --leave-running` again and again, as a script would."""

    name = "criu dump -R"

    def __init__(self, world, training, every, tool):
        super().__init__(world, training, every)
        self.tool = tool
        self.frozen, self._end, self._thread, self._error = [], threading.Event(), None, None

    def begin(self):
        super().begin()
        began = time.monotonic()
        self.frozen.append(self.tool.dump(self.job.pid))
        self._thread = threading.Thread(target=self._loop, args=(began,))
        self._thread.start()

    def _loop(self, began):
        """From the beginning of one to the beginning of the next, as all ways have it."""
        try:
            while not self._end.wait(max(0.0, began + self.every - time.monotonic())):
                began = time.monotonic()
                self.frozen.append(self.tool.dump(self.job.pid))
        except Exception as error:  # pylint: disable=broad-exception-caught
            self._error = error

    def end(self):
        self._end.set()
        self._thread.join()
        super().end()
        self.tool.forget()
        if self._error:
            raise self._error

    def command_line(self):
        return f"criu dump -t PID -D DIR --leave-running --manage-cgroups=ignore --network-lock skip, every {self.every:g} s"


class Supervised(_Way):
    name = "rekindle run --every"

    def arguments(self):
        return (
            "run", "--detach", "--name", NAME, "--log", self.training.log, "--every", f"{self.every:g}s", "--restarts", "1000",
            "--backoff", "100ms", "--ignore-path", self.training.step_log, "--", *self.training.argv,
        )  # fmt: skip

    def begin(self):
        self.world.run(*self.arguments())
        self.wait_for(lambda state: state["checkpoints"] >= 1, "the first image")

    def job_now(self):
        """As `ps` has it."""
        jobs.reap_orphans()
        named = [job for job in self.world.run("ps", "--all")["jobs"] if job["name"] == NAME]
        job = max(named, key=lambda job: int(job["started_unix_ns"]))
        if job["supervised"]["phase"] == "failed":
            raise RuntimeError(f"the training was given up: {job['supervised']}{self.world.records()}")
        return job

    def wait_for(self, condition, what):
        return waiting.until(lambda: condition(self.job_now()["supervised"]), what, _SECONDS, 0.1)

    def end(self):
        self.world.run("stop", NAME, "--grace", "1s")
        images = [image["reference"] for image in self.world.run("ls").get("images", [])]
        if images:
            self.world.run("rm", *images)
        self.world.run("gc")

    def command_line(self):
        return "rekindle " + " ".join(self.arguments())


def stock_tools(world, tools):
    """`tools`: of start_figures.criu_tools(); those that dump into the page cache."""
    return [StockCriu(tool.name, tool.command, world.directory) for tool in tools if not tool.options]
