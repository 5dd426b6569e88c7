"""Measures the store side by side with restic, borg, casync and `tar | zstd`, and prints tables.

Run it through bench/run-store-figures.sh, which makes everything that it needs. Each tool takes in the image
folders of a corpus one after the other and gives them back; rounds alternate (A B C, A B C, …) and each
figure is the median of the rounds.
"""

import argparse
import json
import mmap
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
for part in ("tests/integration", "bench"):
    sys.path.insert(0, os.path.join(ROOT, part))

import store_corpus  # noqa: E402
from figures import commit, machine, page_with, write_into  # noqa: E402
from harness import cli  # noqa: E402
from store_checks import differences  # noqa: E402
from store_contenders import CONTENDERS, Copy, disk_use  # noqa: E402

MIB = 1 << 20
BEGIN, END = "<!-- figures: written by bench/run-store-figures.sh -->", "<!-- end of figures -->"
OURS = "Rekindle"
FIO = {"fio, 1 in flight": ("psync", 1), "fio, 16 in flight": ("io_uring", 16)}


class Measured:
    """What was found of one tool on one corpus."""

    def __init__(self, deduplicates):
        self.deduplicates = deduplicates
        self.ingest, self.cold, self.warm = [], [], []
        self.allocated, self.apparent = [], []
        self.mended = set()


def median(values):
    return statistics.median(values)


class CorpusBench:
    """One corpus: all tools, all rounds."""

    def __init__(self, name, corpus, work, arguments, contenders):
        self.name, self.corpus = name, corpus
        self.memory, self.rounds, self.once = arguments.memory, arguments.rounds, arguments.once
        self.images = sorted(os.listdir(corpus))
        self.successors = name == "b"
        self.tools = [kind(work) for kind in contenders if kind is not Copy or name == "c"]
        self.measured = {tool.name: Measured(tool.deduplicates) for tool in self.tools}
        self.logical = disk_use(corpus)[1]
        self.fio_file = os.path.join(work, "fio.data")
        self.fio = {name: [] for name in FIO}

    def folder(self, image):
        return os.path.join(self.corpus, image)

    def say(self, text):
        print(f"  {time.strftime('%H:%M:%S')} {self.name}: {text}", flush=True)

    def measure(self):
        for number in range(self.rounds):
            for tool in self.tools_of_round(number):
                self.take_in(tool, number)
        make_fio_file(self.fio_file)
        try:
            for number in range(self.rounds):
                for name, (engine, depth) in FIO.items():
                    drop_caches()
                    self.fio[name].append(fio_read(self.fio_file, engine, depth))
                    self.say(f"round {number + 1}, {name}: {self.fio[name][-1] / 1e6:.0f} MB/s")
                for tool in self.tools_of_round(number):
                    self.give_back(tool, number)
        finally:
            os.unlink(self.fio_file)
            for tool in self.tools:
                tool.remove()

    def tools_of_round(self, number):
        return [tool for tool in self.tools if number == 0 or tool.name not in self.once]

    def take_in(self, tool, number):
        tool.fresh()
        read_all(self.corpus)
        # What others left to be written is not this tool's.
        os.sync()
        touch_free_memory(2 * self.logical + 1024 * MIB)
        began, previous = time.monotonic(), None
        for image in self.images:
            tool.take_in(image, self.folder(image), previous)
            previous = image if self.successors else None
        subprocess.run(["sync", "-f", tool.repository], check=True)
        found = self.measured[tool.name]
        found.ingest.append(time.monotonic() - began)
        for values, bytes_now in zip((found.allocated, found.apparent), disk_use(tool.repository)):
            values.append(bytes_now)
        self.say(
            f"round {number + 1}, {tool.name}: taken in within {found.ingest[-1]:.2f} s, "
            f"{found.allocated[-1] / MIB:.1f} MiB"
        )

    def give_back(self, tool, number):
        found = self.measured[tool.name]
        for values, cold in ((found.cold, True), (found.warm, False)):
            target = tempfile.mkdtemp(prefix="rekindle-bench.", dir=self.memory)
            try:
                if cold:
                    drop_caches()
                touch_free_memory(2 * self.logical + 1024 * MIB)
                began = time.monotonic()
                for image in self.images:
                    tool.give_back(image, os.path.join(target, image))
                values.append(time.monotonic() - began)
                if number == 0 and not cold:
                    self.check(tool, target)
            finally:
                shutil.rmtree(target)
        self.say(
            f"round {number + 1}, {tool.name}: given back within {found.cold[-1]:.2f} s cold, "
            f"{found.warm[-1]:.2f} s warm"
        )

    def check(self, tool, target):
        for image in self.images:
            got = os.path.join(target, image)
            wrong, mended = differences(self.folder(image), got, ours=tool.name == OURS)
            if wrong:
                raise RuntimeError(f"{tool.name} gave other files back than it took in, {got}: {wrong}")
            self.measured[tool.name].mended.update(mended)

    # What it comes to.

    def peer(self, what):
        """(name, median) of the deduplicating peer with the smallest one."""
        medians = {
            name: median(getattr(found, what))
            for name, found in self.measured.items()
            if found.deduplicates and name != OURS
        }
        best = min(medians, key=medians.get, default=None)
        return best, medians.get(best)

    def verdicts(self):
        """[(figure, measured, aim, held)]"""
        rows = []
        ours = self.measured.get(OURS)
        if ours is None or self.peer("ingest")[0] is None:
            return rows
        for what, title in (
            ("ingest", "ingest"),
            ("cold", "read everything back, cold"),
            ("warm", "read everything back, warm"),
        ):
            peer, seconds = self.peer(what)
            ratio = seconds / median(getattr(ours, what))
            rows.append(at_least(f"{title}: times the speed of {peer}", ratio, 3))
        if Copy.name in self.measured:
            copied = median(self.measured[Copy.name].ingest)
            rows.append(at_least("ingest: times the speed of cp + sync", copied / median(ours.ingest), 0.5))
        speed = self.logical / median(ours.cold)
        for name, values in self.fio.items():
            figure = f"read everything back, cold: times the speed of {name}"
            rows.append(at_least(figure, speed / median(values), 0.8))
        peer, size = self.peer("allocated")
        ratio = median(ours.allocated) / size
        rows.append((f"stored bytes: times those of {peer}", f"{ratio:.3f}", "at most 1", ratio <= 1))
        if self.name.startswith("a"):
            less = 1 - median(ours.allocated) / self.logical
            figure = "stored bytes: less than the CRIU folders by"
            rows.append((figure, f"{less:.1%}", "at least 92 %", less >= 0.92))
        return [(f"({self.name}) {figure}", *rest) for figure, *rest in rows]

    def table(self):
        fastest = {what: self.peer(what)[1] for what in ("ingest", "cold", "warm")}
        lines = [
            f"### ({self.name}) {store_corpus.TITLES[self.name]}",
            "",
            f"CRIU folders: {len(self.images)}, {self.logical:,} bytes ({self.logical / MIB:.1f} MiB). "
            + " ".join(f"{name}: {median(values) / 1e6:.0f} MB/s." for name, values in self.fio.items()),
            "",
            "| tool | ingest | read back, cold | read back, warm | stored (allocated) | stored (apparent) "
            "| of the CRIU folders |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for name, found in self.measured.items():
            cells = [name.replace("|", "\\|")]
            for what, peer in fastest.items():
                seconds = median(getattr(found, what))
                speed = f", {peer / seconds:.2f}x" if peer else ""
                cells.append(f"{seconds:.2f} s, {self.logical / seconds / 1e6:.0f} MB/s{speed}")
            stored = median(found.allocated)
            cells += [f"{stored:,.0f} ({stored / MIB:.1f} MiB)", f"{median(found.apparent):,.0f}"]
            cells.append(f"{stored / self.logical:.2%}")
            lines.append("| " + " | ".join(cells) + " |")
        lines += ["", *self.notes(), "", "Every round, in seconds, in the order in which they ran:", ""]
        lines += ["| tool | ingest | cold | warm |", "| --- | --- | --- | --- |"]
        for name, found in self.measured.items():
            rounds = [
                " ".join(f"{value:.2f}" for value in values)
                for values in (found.ingest, found.cold, found.warm)
            ]
            lines.append("| " + " | ".join([name.replace("|", "\\|"), *rounds]) + " |")
        return [*lines, ""]

    def notes(self):
        text = "Every tool gave back what it took in, byte for byte"
        mended = set().union(*(found.mended for found in self.measured.values()))
        if mended:
            text += f", but for {', '.join(sorted(mended))}, which `rekindle export` mends on purpose"
        return [text + "."]


def at_least(figure, ratio, aim):
    return (figure, f"{ratio:.2f}", f"at least {aim}", ratio >= aim)


def drop_caches():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
        file.write("3\n")


def touch_free_memory(size):
    """A virtual machine's host takes free memory back, and the first touch of it then costs several times
    what the page costs that was used a moment ago. Whoever happened to run first would pay for it.
    """
    with open("/proc/meminfo", encoding="ascii") as file:
        free = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemFree:"))
    size = min(size, free - 512 * MIB)  # more would take the page cache away
    if size > 0:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        mmap.mmap(-1, size, flags=flags).close()


def read_all(folder):
    buffer = bytearray(4 * MIB)
    for directory, _, files in os.walk(folder):
        for name in files:
            with open(os.path.join(directory, name), "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def fio(path, engine, depth, mode):
    argv = ["fio", "--name=sequential", f"--filename={path}", f"--rw={mode}", "--bs=1M", "--size=2G"]
    argv += ["--direct=1", f"--ioengine={engine}", f"--iodepth={depth}", "--output-format=json"]
    done = subprocess.run([*argv, "--refill_buffers"], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]


def make_fio_file(path):
    fio(path, "psync", 1, "write")
    os.sync()


def fio_read(path, engine, depth):
    return fio(path, engine, depth, "read")["read"]["bw_bytes"]


def gc_figure(work, rounds):
    """(verdict row, lines of the program)"""
    argv = [cli.binary("store_gc_speed"), work, str(rounds)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, flush=True)
    ratio = float(re.search(r"^ratio ([0-9.]+)$", done.stdout, re.MULTILINE).group(1))
    row = at_least("reading kept images while gc runs: times the speed without gc", ratio, 0.7)
    return row, done.stdout.strip().split("\n")


def report(arguments, command, benches, verdicts, gc_lines, versions):
    lines = [
        BEGIN,
        "",
        f"`{command}`, {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, commit {commit()}. {machine()}. "
        f"{', '.join(versions)}. Rounds: {arguments.rounds}; medians."
        + (f" In the first round only: {', '.join(arguments.once)}." if arguments.once else ""),
        "",
        "### What was promised",
        "",
        "| figure | measured | aim | |",
        "| --- | --- | --- | --- |",
    ]
    for figure, measured, aim, held in verdicts:
        cells = (figure.replace("|", "\\|"), measured, aim, "held" if held else "**not held**")
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", f"{sum(row[3] for row in verdicts)} of {len(verdicts)} held.", ""]
    for bench in benches:
        lines += bench.table()
    if gc_lines:
        lines += ["### gc of 500 images, half removed", "", *(f"    {line}" for line in gc_lines), ""]
    return "\n".join([*lines, END])


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    figures = [*store_corpus.TITLES, "gc"]
    tools = [kind.name for kind in CONTENDERS]
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=figures, default=figures, help="corpora, and gc")
    parser.add_argument("--tools", nargs="*", choices=tools, default=tools)
    parser.add_argument(
        "--once", nargs="*", choices=tools, default=[], help="tools to measure in the first round only"
    )
    parser.add_argument("--corpus", metavar="DIR", help="make the images there, and use those that are there")
    parser.add_argument("--work", metavar="DIR", default="/var/tmp", help="where the repositories go")
    parser.add_argument("--memory", metavar="DIR", default="/dev/shm", help="where images are given back to")
    parser.add_argument("--large-mib", type=int, default=2048, help="size of corpus c")
    parser.add_argument(
        "--write",
        metavar="PAGE",
        type=page_with(BEGIN, END),
        help="put the tables between the markers of this page",
    )
    return parser.parse_args(arguments)


def main():
    arguments = parse(sys.argv[1:])
    store_corpus.be_subreaper()
    # Whoever ends the run by a signal gets the repositories and jobs removed, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.makedirs(arguments.work, exist_ok=True)
    work = tempfile.mkdtemp(prefix="rekindle-bench.", dir=arguments.work)
    contenders = [kind for kind in CONTENDERS if kind.name in arguments.tools]
    corpora = os.path.abspath(arguments.corpus or os.path.join(work, "corpus"))
    os.makedirs(corpora, exist_ok=True)
    benches, verdicts, gc_lines = [], [], []
    try:
        for name in arguments.only:
            if name == "gc":
                row, gc_lines = gc_figure(work, arguments.rounds)
                verdicts.append(row)
                continue
            corpus = os.path.join(corpora, name)
            store_corpus.make(name, corpus, arguments.large_mib * MIB)
            benches.append(CorpusBench(name, corpus, work, arguments, contenders))
            benches[-1].measure()
            verdicts += benches[-1].verdicts()
        versions = list(dict.fromkeys(kind(work).version() for kind in contenders))
    finally:
        shutil.rmtree(work)
    command = " ".join(["bench/run-store-figures.sh", *sys.argv[1:]])
    text = report(arguments, command, benches, verdicts, gc_lines, versions)
    print(text)
    if arguments.write:
        write_into(arguments.write, text, BEGIN, END)


if __name__ == "__main__":
    main()
