"""Measures how fast copies start: clones and templates side by side with stock CRIU and a cold start.

Run it through bench/run-start-figures.sh, which makes everything that it needs. docs/start-benchmarks.md says
what is measured and how.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
for part in ("tests/integration", "bench"):
    sys.path.insert(0, os.path.join(ROOT, part))

import start_report  # noqa: E402
import start_sections  # noqa: E402
from figures import commit, machine, page_with, write_into  # noqa: E402
from harness import cli  # noqa: E402
from start_ways import CLONE, COLD, EAGER, LAZY, CriuTool, Job  # noqa: E402
from start_world import World, hook_library  # noqa: E402

SECTIONS = ("latency", "cold", "density", "throughput", "fill")
BEGIN, END = "<!-- figures: written by bench/run-start-figures.sh -->", "<!-- end of figures -->"
PYTHON = "/usr/bin/python3"  # Debian's, which has torch


def criu_tools():
    """The releases that there are, in the modes that may be the fastest. The first one dumps."""
    tools = []
    for prefix in ("/opt/rekindle/criu", "/opt/rekindle/criu-4.3"):
        loader = os.path.join(prefix, "lib64/ld-linux-x86-64.so.2")
        if not os.path.exists(loader):
            continue
        libraries = ":".join(os.path.join(prefix, part, "x86_64-linux-gnu") for part in ("usr/lib", "lib"))
        command = [loader, "--library-path", libraries, os.path.join(prefix, "usr/sbin/criu")]
        done = subprocess.run([*command, "--version"], stdout=subprocess.PIPE, text=True, check=True)
        release = done.stdout.split("\n")[0].split()[-1]
        tools.append(CriuTool(f"CRIU {release}", command))
        if prefix.endswith("4.3"):
            tools.append(CriuTool(f"CRIU {release} direct", command, ["--image-io-mode", "direct"]))
    if not tools:
        raise RuntimeError("there is no CRIU in /opt/rekindle: run scripts/setup.sh --criu")
    return tools


def make_jobs(world, arguments):
    """Their code is copied, so that Python may keep it compiled beside it."""
    code, package = world.path("jobs"), world.path("hook")
    shutil.copytree(os.path.join(ROOT, "bench/start_jobs"), code)
    shutil.copytree(os.path.join(ROOT, "hook/python"), package)
    base = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/"}
    # One thread, so that a template is possible.
    python = {
        **base,
        "PYTHONPATH": package,
        "REKINDLE_HOOK_LIBRARY": hook_library(arguments.hook, arguments.bin, ROOT),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    python["PYTHONDONTWRITEBYTECODE"] = ""  # modules are compiled once, and not at each cold start
    c_job = cli.binary("start_job")

    def script(name):
        return [PYTHON, os.path.join(code, name)]

    mib = arguments.heap_mib
    return {
        job.key: job
        for job in (
            Job("a", "C, bare", [c_job, "bare"], base),
            Job("b", "Python, bare", script("bare.py"), python),
            Job("c", "Python with numpy, pandas and scikit-learn", script("science.py"), python),
            Job("d", "Python with torch and a model, about 350 MB", script("torch_model.py"), python),
            Job("e", f"C, {mib} MiB heap, 1 % of its pages touched first", [c_job, "heap", str(mib)], base),
        )
    }


def report(arguments, rows, bench, command, loads):
    lines = [
        BEGIN,
        "",
        f"`{command}`, {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, commit {commit()}. {machine()}. "
        f"{', '.join(tool.name for tool in bench.criu_tools)}. Starts: {arguments.rounds} of each, of job e "
        f"{arguments.heap_rounds}. "
        f"Load average when it began: {loads[0]:.2f}, when it ended: {loads[1]:.2f}.",
        "",
        "### What was promised",
        "",
    ]
    verdict_rows = [(*row[:3], "held" if row[3] else "**not held**") for row in rows]
    lines += start_report.table(("figure", "measured", "aim", ""), verdict_rows)
    lines += [f"{sum(row[3] for row in rows)} of {len(rows)} held.", ""]
    if bench.left_out:
        lines += ["Left out:", "", *(f"- {what}" for what in dict.fromkeys(bench.left_out)), ""]
    lines += start_report.sections(bench.results, bench.jobs)
    lines += ["### Command lines", ""]
    for name, commands in bench.command_lines.items():
        lines += [f"{name}:", "", *(f"    {each}" for each in commands), ""]
    return "\n".join([*lines, END])


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--jobs", nargs="*", choices=list("abcde"), help="of the latency section [b c d e a]")
    parser.add_argument("--rounds", type=int, default=50, help="starts of each way [50]")
    parser.add_argument("--heap-rounds", type=int, default=16, help="of job e, for which CRIU takes seconds [16]")
    parser.add_argument("--cold-rounds", type=int, default=5)
    ways = (CLONE, EAGER, LAZY, COLD)
    parser.add_argument("--cold-ways", nargs="*", choices=ways, default=ways, help="of the cold section [all]")
    parser.add_argument("--cold-traces", metavar="DIR", help="a timeline of each of its clones goes there")
    parser.add_argument("--fill-rounds", type=int, default=5)
    parser.add_argument("--copies", type=int, default=100, help="of the density section [100]")
    parser.add_argument("--clients", type=int, default=4, help="commands at once, throughput section [4]")
    parser.add_argument("--starts", type=int, default=2000, help="before it looks for what is left [2000]")
    parser.add_argument("--throughput-seconds", type=float, default=20)
    parser.add_argument("--heap-mib", type=int, default=4096, help="heap of job e [4096]")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two starts [0.1]")
    parser.add_argument("--quick", action="store_true", help="everything once, small: does it work at all?")
    binaries = os.path.join(ROOT, "build/release/bin")
    parser.add_argument("--bin", default=binaries, metavar="DIR", help="our programs")
    parser.add_argument("--hook", metavar="FILE", help="librekindle_hook.so [beside the programs]")
    parser.add_argument("--work", metavar="DIR", default="/var/tmp", help="where store and images go")
    parser.add_argument("--json", metavar="OUT", help="all that was measured")
    parser.add_argument(
        "--write",
        metavar="PAGE",
        type=page_with(BEGIN, END),
        help="put the tables between the markers of this page",
    )
    given = parser.parse_args(arguments)
    given.bin = os.path.abspath(given.bin)
    given.latency_jobs = given.jobs or list("bcdea")
    given.cold_job = given.density_job = "d"
    if given.quick:
        given.latency_jobs, given.cold_job, given.density_job = given.jobs or list("bea"), "b", "b"
        given.rounds, given.heap_rounds, given.cold_rounds, given.fill_rounds, given.copies = 2, 2, 1, 1, 4
        given.starts, given.throughput_seconds, given.heap_mib = 60, 1, 128
    return given


def leave(number, _frame):
    sys.exit(128 + number)


def main():
    arguments = parse(sys.argv[1:])
    cli.BINARIES = arguments.bin
    # Whoever ends the run by a signal gets everything removed, too.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, leave)
    os.makedirs(arguments.work, exist_ok=True)
    if arguments.cold_traces:
        os.makedirs(arguments.cold_traces, exist_ok=True)
    loads = [os.getloadavg()[0]]
    command = " ".join(["bench/run-start-figures.sh", *sys.argv[1:]])
    world = World(arguments.work)
    bench = None
    try:
        world.start_daemon()
        has_templates, why_not = world.has_templates()
        made_jobs = make_jobs(world, arguments)
        bench = start_sections.Bench(world, arguments, made_jobs, criu_tools(), has_templates)
        if why_not:
            bench.left_out.append(f"templates: {why_not}")
        for name in arguments.only:
            print(f"{name}:", flush=True)
            getattr(start_sections, name)(bench)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        world.remove()
        loads.append(os.getloadavg()[0])
        if arguments.json and bench is not None:
            with open(arguments.json, "w", encoding="utf-8") as file:
                head = {"command": command, "commit": commit(), "loads": loads}
                json.dump({**head, **bench.results}, file, indent=1)
    rows = start_report.verdicts(bench.results)
    text = report(arguments, rows, bench, command, loads)
    print(text)
    if arguments.write:
        write_into(arguments.write, text, BEGIN, END)
    if arguments.quick and not all(row[3] for row in rows if row[2] in start_report.WORKS):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
