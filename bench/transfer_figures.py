"""Measures what it takes to have a job's image elsewhere, side by side with what is glued together by hand today: a folder
of CRIU's through tar and zstd. Run it through bench/run-transfer-figures.sh; docs/image-stream.md has the tables.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
for part in ("tests/integration", "bench"):
    sys.path.insert(0, os.path.join(ROOT, part))

from contenders import StockCriu, criu_in  # noqa: E402
from figures import commit, machine, page_with, write_into  # noqa: E402
from harness import cli, jobs, waiting  # noqa: E402
from harness.cli import Cli  # noqa: E402
from harness.memory_job import MemoryJob  # noqa: E402

MIB = 1 << 20
BEGIN, END = "<!-- figures: written by bench/run-transfer-figures.sh -->", "<!-- end of figures -->"
OURS, TAR = "rekindle", "tar and zstd -1 -T0"


class Bench:
    def __init__(self, directory, rounds):
        self.directory, self.rounds = directory, rounds
        self.environment = {"REKINDLE_RUNTIME_DIR": self.path("run")}
        self.cli = self.command_on("store")
        self.rows = []

    def path(self, name):
        return os.path.join(self.directory, name)

    def command_on(self, store):
        return Cli(store=self.path(store), env=self.environment)

    def run(self, *arguments, on=None):
        result = (on or self.cli).run(*arguments)
        if result.code != 0:
            raise RuntimeError(str(result))
        return result.data

    def shell(self, line):
        subprocess.run(["bash", "-o", "pipefail", "-c", line], stdin=subprocess.DEVNULL, check=True)

    def gone(self, *names):
        for name in names:
            path = self.path(name)
            if os.path.isdir(path):
                shutil.rmtree(path)
            elif os.path.exists(path):
                os.unlink(path)

    def timed(self, work):
        """What earlier work has left to be written is not this one's."""
        os.sync()
        began = time.monotonic()
        work()
        return time.monotonic() - began

    def measure(self, what, job, change):
        """Two images of `job`, between which `change` is called."""
        criu = StockCriu("CRIU 4.2.1", criu_in("/opt/rekindle/criu"), self.directory)
        folders = []
        for number in (1, 2):
            if number == 2:
                change()
            self.run("ckpt", job.pid, "-t", f"job:{number}")
            criu.dump(job.pid)
            folders.append(self.path(f"criu.{number}"))
            os.rename(criu.images, folders[-1])
        first, second = folders

        ways = {
            "whole image, into a file": {
                OURS: lambda: self.run("export", "job:1", "--file", self.path("one.image")),
                TAR: lambda: self.shell(f"tar -C {first} -cf - . | zstd -q -1 -T0 -o {self.path('one.tar')} && sync {self.path('one.tar')}"),
            },
            "from it": {
                OURS: lambda: self.run("import", "--file", self.path("one.image"), on=self.command_on("there")),
                TAR: lambda: self.shell(
                    f"mkdir {self.path('out')} && zstd -q -d -c {self.path('one.tar')} | tar -C {self.path('out')} -xf - && sync {self.path('out')}/*"
                ),
            },
            "the next image, into a file": {
                OURS: lambda: self.run("export", "job:2", "--since", "job:1", "--file", self.path("two.image")),
                TAR: lambda: self.shell(f"tar -C {second} -cf - . | zstd -q -1 -T0 -o {self.path('two.tar')} && sync {self.path('two.tar')}"),
            },
            "from it, where the first one is": {
                OURS: lambda: self.run("import", "--file", self.path("two.image"), on=self.command_on("there")),
                TAR: lambda: self.shell(
                    f"mkdir {self.path('out2')} && zstd -q -d -c {self.path('two.tar')} | tar -C {self.path('out2')} -xf - && sync {self.path('out2')}/*"
                ),
            },
        }
        times = {figure: {OURS: [], TAR: []} for figure in ways}
        for number in range(-1, self.rounds):
            self.gone("one.image", "two.image", "one.tar", "two.tar", "there", "out", "out2")
            for figure, by_tool in ways.items():
                for tool, work in by_tool.items():
                    took = self.timed(work)
                    if number >= 0:
                        times[figure][tool].append(took)
        for figure, found in times.items():
            ours, theirs = (statistics.median(found[tool]) for tool in (OURS, TAR))
            rounds = " ".join(f"{value:.2f}" for value in found[OURS])
            other = " ".join(f"{value:.2f}" for value in found[TAR])
            self.rows.append((what, figure, f"{ours:.2f} s", f"{theirs:.2f} s", f"{ours / theirs:.2f}x", rounds, other))
            print("  " + " | ".join(self.rows[-1]), flush=True)
        for figure, ours, theirs in (("whole image, bytes", "one.image", "one.tar"),
                                     ("the next image, bytes", "two.image", "two.tar")):
            sizes = [os.path.getsize(self.path(name)) / MIB for name in (ours, theirs)]
            self.rows.append((what, figure, f"{sizes[0]:.1f} MiB", f"{sizes[1]:.1f} MiB", f"{sizes[0] / sizes[1]:.3f}x", "", ""))
            print("  " + " | ".join(self.rows[-1]), flush=True)
        self.gone("one.image", "two.image", "one.tar", "two.tar", "there", "out", "out2", "store", "criu.1", "criu.2")

    def heap(self, size):
        """Noise, as weights are to a compressor; a hundredth of the pages is written between the images."""
        status = self.path("status")
        job = jobs.Started([jobs.program("memory_job"), str(size), status], self.path("memory.log"))
        memory = MemoryJob(status)
        try:
            self.measure(f"{size // MIB} MiB of noise, 1 % written", job, lambda: memory.touch(size // 4096 // 100))
        finally:
            memory.close()
            job.kill_tree()

    def torch(self):
        log = self.path("steps")
        job = jobs.Started([jobs.PYTHON, jobs.workload("torch_training.py"), log], self.path("torch.log"))

        def steps(more):
            size = os.path.getsize(log) if os.path.exists(log) else 0
            waiting.until(lambda: os.path.exists(log) and os.path.getsize(log) > size + more, "steps", 90, 0.05)

        try:
            steps(200)
            self.measure("a small training with torch, some steps", job, lambda: steps(200))
        finally:
            job.kill_tree()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024, help="of noise [1024]")
    parser.add_argument("--work", default="/var/tmp", metavar="DIR", help="where stores, folders and files go")
    parser.add_argument(
        "--write",
        metavar="PAGE",
        type=page_with(BEGIN, END),
        help="put the table between the markers of this page",
    )
    given = parser.parse_args()
    cli.BINARIES = os.environ["REKINDLE_BIN_DIR"]
    directory = tempfile.mkdtemp(prefix="rekindle-bench.", dir=given.work)
    try:
        bench = Bench(directory, given.rounds)
        bench.heap(given.mib * MIB)
        bench.torch()
    finally:
        shutil.rmtree(directory)
    command = " ".join(["bench/run-transfer-figures.sh", *sys.argv[1:]])
    lines = [
        BEGIN,
        "",
        f"`{command}`, {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, commit {commit()}. {machine()}. Median of "
        f"{given.rounds} rounds, in seconds; what is read lies in the page cache.",
        "",
        f"| job | | {OURS} | {TAR} | ratio | rounds | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *("| " + " | ".join(row) + " |" for row in bench.rows),
        "",
        END,
    ]
    if given.write:
        write_into(given.write, "\n".join(lines), BEGIN, END)


if __name__ == "__main__":
    main()
