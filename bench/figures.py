"""Measures what the project promises, side by side with stock CRIU in one run, and prints a table.

Run it through bench/run-figures.sh, which makes everything that it needs. Conditions are the same for all:
every tool's images were written in this run, so caches are warm; nothing is dropped in between; rounds
alternate (A B C, A B C, …) and each figure is the median of the rounds.
"""

import argparse
import ctypes
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests/integration"))
sys.path.insert(0, os.path.join(ROOT, "bench"))

from contenders import Rekindle, StockCriu, criu_in, wait_gone  # noqa: E402
from harness import cli, jobs, procfs, waiting  # noqa: E402
from harness.memory_job import MemoryJob  # noqa: E402

MIB = 1 << 20
BEGIN, END = "<!-- figures: written by bench/run-figures.sh -->", "<!-- end of figures -->"


class Bench:
    def __init__(self, directory, rounds, large):
        self.directory, self.rounds, self.large = directory, rounds, large
        self.rows, self.details, self.notes = [], [], set()

    def path(self, name):
        return os.path.join(self.directory, name)

    def stock(self, pid):
        """Every mode of stock CRIU that can dump this job here; what can't is said once."""
        old, new, direct = (
            criu_in("/opt/rekindle/criu"),
            criu_in("/opt/rekindle/criu-4.3"),
            ["--image-io-mode", "direct"],
        )
        modes = [
            StockCriu("CRIU 4.2.1", old, self.directory),
            StockCriu("CRIU 4.3", new, self.directory),
            StockCriu("CRIU 4.3 direct", new, self.directory, direct),
        ]
        if not modes[-1].can_dump(pid):
            self.notes.add(
                "`criu dump --image-io-mode direct` of 4.3 fails on this machine's file system; "
                "its direct mode restores images that were dumped without it."
            )
            modes[-1] = StockCriu("CRIU 4.3 direct restore", new, self.directory, direct, dump_options=[])
        return modes

    def memory_job(self, size):
        status = self.path(f"status.{size}")
        if os.path.exists(status):
            os.unlink(status)  # an earlier job's would say that the memory is filled
        job = jobs.Started([jobs.program("memory_job"), str(size), status], self.path("memory.log"))
        return job, MemoryJob(status)

    def row(self, figure, ours, best, best_name, aim, unit="ms"):
        scale = {"ms": 1e3, "MiB": 1 / MIB, "%": 100}[unit]
        ratio = f"{ours / best:.2f}x" if best else ""
        self.rows.append(
            (
                figure,
                f"{ours * scale:.1f} {unit}",
                f"{best * scale:.1f} {unit} ({best_name})" if best else "",
                ratio,
                aim,
            )
        )
        print(f"  {figure}: {self.rows[-1][1]}; {self.rows[-1][2]} {ratio} (aim: {aim})", flush=True)

    def compare(self, figure, samples, aim):
        """`samples`: {name: [seconds]}; ours against the best of the others' medians."""
        medians = {name: statistics.median(values) for name, values in samples.items()}
        ours = medians.pop("rekindle")
        best = min(medians, key=medians.get)
        self.row(figure, ours, medians[best], best, aim)
        # Memory that the machine's host took back costs more on first touch, so the best rounds say
        # something too.
        least = {name: min(values) for name, values in samples.items()}
        mine, best = least.pop("rekindle"), min(least, key=least.get)
        self.row(f"{figure}, best rounds", mine, least[best], best, "")
        for name, values in samples.items():
            self.details.append((figure, name, values))

    # Freeze.

    def freeze(self, size, figure, aim, warm_up):
        job, memory = self.memory_job(size)
        ours = Rekindle(self.directory, f"freeze-{size}")
        tools = [ours, *self.stock(job.pid)]
        gaps = {tool.name: [] for tool in tools}
        stats = {tool.name: [] for tool in tools}
        try:
            for number in range(-warm_up, self.rounds):
                for tool in tools:
                    # Pages that an earlier dump left to be written would slow the next one down.
                    os.sync()
                    memory.reset_gap()
                    said = tool.dump(job.pid)
                    memory.wait_for_tick()
                    tool.forget()
                    if number >= 0:
                        gaps[tool.name].append(memory.largest_gap_seconds())
                        stats[tool.name].append(said)
        finally:
            memory.close()
            job.kill_tree()
        self.compare(f"{figure}, seen by the job", gaps, aim)
        self.compare(f"{figure}, said by the tool", stats, aim)
        self.clear(tools)

    def clear(self, tools):
        for tool in tools:
            shutil.rmtree(tool.store if isinstance(tool, Rekindle) else tool.images, ignore_errors=True)

    # Restore.

    def restore(self):
        size = self.large
        job, memory = self.memory_job(size)
        ours = Rekindle(self.directory, "restore")
        tools = [ours, *self.stock(job.pid)]
        times = {tool.name: [] for tool in tools}
        resident = {tool.name: [] for tool in tools}
        try:
            before = procfs.memory_bytes(job.pid)
            for tool in tools:
                tool.dump(job.pid)
            digest = memory.digest()
            for number in range(-1, self.rounds):
                for tool in tools:
                    job.kill_tree()
                    ticks = memory.read("ticks")
                    began = time.monotonic()
                    tool.restore()
                    waiting.until(lambda: memory.read("ticks") > ticks, "the job ticks again", 60, 0.0002)
                    # The job notes when it ticks; the first tick lies at most a few of its own periods back.
                    took = time.monotonic() - began
                    if number >= 0:
                        times[tool.name].append(took)
                        resident[tool.name].append(procfs.memory_bytes(job.pid))
                    if memory.digest() != digest:
                        raise RuntimeError(f"{tool.name} restored other memory")
        finally:
            memory.close()
            job.kill_tree()
        self.compare(f"Eager restore, {size // MIB} MiB", times, "at most 1.0x, better 0.5x")
        after = statistics.median(resident["rekindle"])
        self.row(
            "Resident memory after that restore, to before", after / before, None, "", "about 100 %", "%"
        )
        self.clear(tools)

    # Store.

    def one_percent(self):
        job, memory = self.memory_job(self.large)
        ours = Rekindle(self.directory, "percent")
        try:
            ours.dump(job.pid)
            first = ours.bytes_on_disk()
            memory.touch(self.large // 4096 // 100)
            ours.dump(job.pid)
            second = ours.bytes_on_disk()
        finally:
            memory.close()
            job.kill_tree()
        self.row(
            "Store grows by, 1 % of the pages touched",
            (second - first) / first,
            None,
            "",
            "at most 1.5 %",
            "%",
        )
        self.clear([ours])

    def torch(self):
        log = self.path("steps")
        job = jobs.Started([jobs.PYTHON, jobs.workload("torch_training.py"), log], self.path("torch.log"))
        ours = Rekindle(self.directory, "torch")
        try:
            waiting.until(
                lambda: os.path.exists(log) and os.path.getsize(log) > 200, "training steps", 90, 0.05
            )
            stock = self.stock(job.pid)
            for tool in [ours, *stock]:
                tool.dump(job.pid)
        finally:
            job.kill_tree()
        smallest = min(stock, key=lambda tool: tool.bytes_on_disk())
        self.row(
            "Stored bytes of a torch process",
            ours.bytes_on_disk(),
            smallest.bytes_on_disk(),
            smallest.name,
            "at most 0.5x",
            "MiB",
        )
        self.clear([ours, *stock])

    # The command.

    def command_start(self, images):
        ours = Rekindle(self.directory, "listing")
        status = self.path("tiny.status")
        job = jobs.Started([jobs.program("memory_job"), "4096", status], self.path("tiny.log"))
        MemoryJob(status).close()
        stock = self.stock(job.pid)[0]
        stock.dump(job.pid, after=None)
        wait_gone(job)
        for number in range(images):
            result = ours.cli.run("import", "--criu", stock.images, "-t", f"tiny:{number}")
            if result.code != 0:
                raise RuntimeError(str(result))
        self.row(
            f"`rekindle ls` with {images} images",
            time_command(ours.cli.argv("ls"), 20),
            None,
            "",
            "under 20 ms",
        )
        self.row("`rekindle version`", time_command(ours.cli.argv("version"), 20), None, "", "under 10 ms")
        self.row("`rekindle --help`", time_command(ours.cli.argv("--help"), 20), None, "", "under 10 ms")
        self.clear([ours, stock])


def time_command(argv, runs):
    """Median seconds from spawn to exit."""
    null = os.open("/dev/null", os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, null, target) for target in range(3)]
    samples = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        pid = os.posix_spawn(argv[0], argv, cli.environment(), file_actions=actions)
        status = os.waitpid(pid, 0)[1]
        samples.append(time.perf_counter() - began)
        if status != 0:
            raise RuntimeError(f"{argv}: wait status {status}")
    os.close(null)
    return statistics.median(samples[1:])


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "?")
    with open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="ascii") as file:
        huge = file.read().split("[")[1].split("]")[0]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB
    return (
        f"{os.cpu_count()} cores ({model}), {memory} MiB RAM, Linux {platform.release()}, "
        f"transparent huge pages: {huge}"
    )


def commit():
    done = subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty"], stdout=subprocess.PIPE, text=True, check=False
    )
    return done.stdout.strip()


def report(bench, command):
    lines = [
        BEGIN,
        "",
        f"`{command}`, {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, commit {commit()}. "
        f"{machine()}.",
        "",
        f"Median of {bench.rounds} rounds; the best mode of stock CRIU is the one with the smallest median.",
        *sorted(bench.notes),
        "",
        "| figure | Rekindle | best stock CRIU | ratio | aim |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += ["| " + " | ".join(row) + " |" for row in bench.rows]
    lines += [
        "",
        "Every round, in milliseconds, in the order in which they ran:",
        "",
        "| figure | tool | median | rounds |",
        "| --- | --- | --- | --- |",
    ]
    for figure, name, values in bench.details:
        rounds = " ".join(f"{value * 1e3:.0f}" if value > 0.1 else f"{value * 1e3:.1f}" for value in values)
        lines.append(f"| {figure} | {name} | {statistics.median(values) * 1e3:.1f} | {rounds} |")
    return "\n".join([*lines, "", END])


def kept(path):
    """What an earlier run has written there; nothing where there is no such file."""
    if not path or not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def _section(path, begin, end):
    """The page, and where its section between the markers begins and ends, both of them included."""
    with open(path, encoding="utf-8") as file:
        page = file.read()
    at = page.find(begin)
    until = page.find(end, at)
    if at < 0 or until < 0:
        raise RuntimeError(f"{path} has no section between the markers {begin!r} and {end!r}")
    return page, at, until + len(end)


def page_with(begin, end):
    """A type for argparse: a page into which `write_into` can write. What is wrong with it is said before
    anything is measured."""

    def page(path):
        try:
            _section(path, begin, end)
        except (OSError, RuntimeError) as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return path

    return page


def write_into(path, text, begin, end):
    """Puts `text`, which has both markers, where the page has what lies between them."""
    page, at, until = _section(path, begin, end)
    page = page[:at] + text + page[until:]
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large-mib", type=int, default=2048)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument(
        "--only", nargs="*", choices=["freeze", "freeze16", "restore", "percent", "torch", "command"]
    )
    parser.add_argument(
        "--write",
        metavar="PAGE",
        type=page_with(BEGIN, END),
        help="put the table between the markers of this page",
    )
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: restored jobs come to us

    directory = tempfile.mkdtemp(prefix="rekindle-bench.", dir="/var/tmp")
    bench = Bench(directory, arguments.rounds, arguments.large_mib * MIB)
    figures = {
        "freeze": lambda: bench.freeze(bench.large, f"Freeze, {arguments.large_mib} MiB", "at most 0.5x", 1),
        "freeze16": lambda: bench.freeze(16 * MIB, "Freeze, 16 MiB", "at most 1.0x", 1),
        "restore": bench.restore,
        "percent": bench.one_percent,
        "torch": bench.torch,
        "command": lambda: bench.command_start(arguments.images),
    }
    try:
        for name, measure in figures.items():
            if not arguments.only or name in arguments.only:
                measure()
    finally:
        shutil.rmtree(directory)
    text = report(
        bench,
        "bench/run-figures.sh " + " ".join(sys.argv[1:]) if len(sys.argv) > 3 else "bench/run-figures.sh",
    )
    print(text)
    if arguments.write:
        write_into(arguments.write, text, BEGIN, END)


if __name__ == "__main__":
    main()
