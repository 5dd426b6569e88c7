"""What training_figures.py measures, one function a section. Each returns what JSON can hold."""

import os
import random
import signal
import time

from harness import jobs, waiting
from start_world import MIB, touch_free_memory
from store_contenders import Restic, disk_use
from training_jobs import NAME, CriuLoop, Saving, Supervised, Training, Undisturbed, stock_tools

OURS = "rekindle"
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
_SECONDS = 600
_PAGES_WINDOW = 15  # seconds


class Bench:
    def __init__(self, world, arguments, tools, script):
        self.world, self.arguments, self.script = world, arguments, script
        self.tools = stock_tools(world, tools)
        self.command_lines = {}

    def training(self, name=NAME):
        return Training(self.world, self.script, self.arguments.size, self.arguments.threads, name)

    def say(self, text):
        print(f"  {time.strftime('%H:%M:%S')} {text}", flush=True)


def overhead(bench):
    """Steps a second in windows of whole intervals; the ways take turns, and each window has a training of its own."""
    given, found = bench.arguments, {}
    for number in range(given.rounds):
        for kind in (Undisturbed, Supervised, CriuLoop, Saving):
            training = bench.training()
            more = (bench.tools[0],) if kind is CriuLoop else ()
            way = kind(bench.world, training, given.every, *more)
            os.sync()
            touch_free_memory(4096 * MIB)
            way.begin()
            began = time.time()
            window_ends = began + given.intervals * given.every
            waiting.until(lambda: time.time() >= window_ends, "the end of the window", _SECONDS, 0.05)  # noqa: B023
            rate = training.steps_a_second(began, window_ends)
            entry = found.setdefault(way.name, {"steps_a_second": [], "beyond": [], "frozen": [], "resident": []})
            entry["steps_a_second"].append(rate)
            entry["beyond"].append(training.share_beyond_median(began, window_ends))
            if kind is Supervised:
                job = way.job_now()
                entry["frozen"].append(float(job["supervised"]["last_freeze_seconds"]))
                entry["resident"].append(int(job["resident_bytes"]))
            if kind is CriuLoop:
                entry["frozen"] += way.frozen[1:]
            way.end()
            bench.command_lines[way.name] = way.command_line()
            bench.say(f"round {number + 1}, {way.name}: {rate:.3f} steps/s")
    return found


def freeze(bench):
    """Of one training that runs on; everybody in turn."""
    found = {name: [] for name in [OURS, *(tool.name for tool in bench.tools)]}
    training = bench.training()
    job = training.start()
    try:
        training.wait_for_lines(3, job.pid)
        for number in range(-1, bench.arguments.freezes):
            for name in found:
                os.sync()
                training.wait_for_lines(len(training.lines()) + 1, job.pid)
                if name == OURS:
                    frozen = float(bench.world.run("ckpt", job.pid, "-t", f"freeze:{number + 1}")["freeze_seconds"])
                else:
                    tool = next(tool for tool in bench.tools if tool.name == name)
                    frozen = tool.dump(job.pid)
                    tool.forget()
                if number >= 0:
                    found[name].append(frozen)
            bench.say(f"round {number + 1}: " + ", ".join(f"{name} {each[-1]:.3f} s" for name, each in found.items() if each))
    finally:
        job.kill_tree()
    return {"seconds": found, "resident": _forget_images(bench)}


def pages(bench):
    """The same training in 4 KiB pages and in transparent huge pages, in turn: its speed, and the freeze."""
    given, found = bench.arguments, {}
    for number in range(given.rounds):
        for name, environment in (("4 KiB pages", {}), ("huge pages", HUGE_PAGES)):
            training = bench.training()
            job = training.start(env=environment)
            try:
                training.wait_for_lines(3, job.pid)
                begin = time.time()
                end = begin + _PAGES_WINDOW
                waiting.until(lambda: time.time() >= end, "the end of the window", _SECONDS, 0.05)  # noqa: B023
                entry = found.setdefault(name, {"steps_a_second": [], "seconds": [], "huge": []})
                entry["steps_a_second"].append(training.steps_a_second(begin, end))
                entry["huge"].append(_huge_bytes(job.pid))
                for image in range(3):
                    os.sync()
                    training.wait_for_lines(len(training.lines()) + 2, job.pid)
                    taken = bench.world.run("ckpt", job.pid, "-t", f"pages:{number}-{image}-{len(environment)}")
                    entry["seconds"].append(float(taken["freeze_seconds"]))
            finally:
                job.kill_tree()
            freezes = " ".join(f"{value:.3f}" for value in entry["seconds"][-3:])
            bench.say(f"round {number + 1}, {name}: {entry['steps_a_second'][-1]:.3f} steps/s, freezes {freezes} s")
    _forget_images(bench)
    setting = " ".join(f"{key}={value}" for key, value in HUGE_PAGES.items())
    bench.command_lines["huge pages"] = f"{setting} {' '.join(training.argv)}"
    return found


def _huge_bytes(pid):
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("AnonHugePages:"))


def _forget_images(bench):
    """Resident memory that the last image's processes had; the images go."""
    images = [image["reference"] for image in bench.world.run("ls").get("images", [])]
    processes = bench.world.run("inspect", images[0])["processes"]
    bench.world.run("rm", *images)
    bench.world.run("gc")
    return sum(int(process["memory_bytes"]) for process in processes)


def _first_new_line(training, before):
    return waiting.until(lambda: training.lines()[before:], "a step after the kill", _SECONDS, 0.001)[0]


def restart(bench):
    """From SIGKILL to the end of the first step after it, as the step log has it."""
    given = bench.arguments
    found = {OURS: [], "torch.load": []}
    for number in range(given.restarts):
        # They would take each other's processors, so one is there at a time.
        way = Supervised(bench.world, bench.training("ours"), given.every)
        way.begin()
        pid, lines = way.job_now()["pid"], len(way.training.lines())
        way.training.wait_for_lines(lines + 2, pid)
        os.sync()
        found[OURS].append(_kill_and_wait(way.training, pid))
        way.end()

        other = bench.training("other")
        job = other.start("--save-every", str(given.every / 2))
        saved = os.path.join(other.out, "checkpoint.pt")
        waiting.until(lambda: os.path.exists(saved), "a torch.save", _SECONDS, 0.05)  # noqa: B023
        other.wait_for_lines(len(other.lines()) + 2, job.pid)
        os.sync()
        killed = time.time()
        os.kill(job.pid, signal.SIGKILL)
        job.reap()
        lines = len(other.lines())
        again = other.start("--resume")
        found["torch.load"].append(_first_new_line(other, lines)[1] - killed)
        again.kill_tree()
        bench.say(f"round {number + 1}: " + ", ".join(f"{name} {each[-1]:.2f} s" for name, each in found.items()))
    bench.command_lines["torch.load"] = " ".join(other.argv) + " --resume"
    return found


def _kill_and_wait(training, pid):
    lines = training.lines()
    killed = time.time()
    os.kill(pid, signal.SIGKILL)
    waiting.for_exit(pid)
    # A line that the life before has still written is no step of the new one.
    after = len(training.lines())
    jobs.reap_orphans()
    return _first_new_line(training, max(after, len(lines)))[1] - killed


def stored(bench):
    """The same moments of one training, which stands still meanwhile: by `rekindle ckpt`, and by restic what CRIU dumps."""
    given, tool = bench.arguments, bench.tools[0]
    restic = Restic(bench.world.directory)
    restic.fresh()
    training = bench.training()
    job = training.start()
    store_before = disk_use(bench.world.store)[0]
    found = {OURS: [], "restic": [], "criu": []}
    try:
        for number in range(given.checkpoints):
            training.wait_for_lines(len(training.lines()) + given.steps_between, job.pid)
            os.kill(job.pid, signal.SIGSTOP)
            bench.world.run("ckpt", job.pid, "-t", f"stored:{number}")
            tool.dump(job.pid, after="--leave-stopped")
            os.kill(job.pid, signal.SIGCONT)
            restic.take_in(str(number), tool.images, None)
            found["criu"].append(disk_use(tool.images)[0])
            found[OURS].append(disk_use(bench.world.store)[0] - store_before)
            found["restic"].append(disk_use(restic.repository)[0])
            bench.say(f"{number + 1}: " + ", ".join(f"{name} {each[-1] / MIB:.0f} MiB" for name, each in found.items()))
    finally:
        job.kill_tree()
        tool.forget()
        restic.remove()
    _forget_images(bench)
    return found


def lost(bench):
    """Seconds of work that each of some failures at random moments has cost, by the step log."""
    given, chosen = bench.arguments, random.Random(bench.arguments.seed)
    way = Supervised(bench.world, bench.training(), given.every)
    way.begin()
    found = []
    for number in range(given.failures):
        state = way.job_now()["supervised"]
        way.wait_for(lambda now: now["checkpoints"] > state["checkpoints"], "an image in this life")  # noqa: B023
        moment = time.monotonic() + chosen.uniform(0, given.every)
        waiting.until(lambda: time.monotonic() >= moment, "a random moment", _SECONDS, 0.01)  # noqa: B023
        pid = way.job_now()["pid"]
        _kill_and_wait(way.training, pid)
        lines = way.training.lines()
        last = max(at for at in range(1, len(lines)) if lines[at][0] <= lines[at - 1][0])
        resumed, killed_after = lines[last][0], lines[last - 1]
        in_image = [time for step, time in lines[:last] if step == resumed - 1]
        found.append(killed_after[1] - in_image[-1])
        bench.say(f"{number + 1}: killed after step {killed_after[0]}, went on with {resumed}: {found[-1]:.1f} s lost")
    way.end()
    return {"seconds": found, "every": given.every}
