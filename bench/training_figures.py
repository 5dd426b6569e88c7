"""Measures what keeping a training safe costs it: Rekindle side by side with a loop of stock CRIU and torch.save.

Run it through bench/run-training-figures.sh, which makes everything that it needs. docs/training-benchmarks.md says
what is measured and how.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
for part in ("tests/integration", "bench"):
    sys.path.insert(0, os.path.join(ROOT, part))

import training_report  # noqa: E402
import training_sections  # noqa: E402
from figures import commit, kept, machine, page_with, write_into  # noqa: E402
from harness import cli  # noqa: E402
from start_figures import criu_tools, leave  # noqa: E402
from start_world import World  # noqa: E402

SECTIONS = ("overhead", "freeze", "pages", "restart", "stored", "lost")
BEGIN, END = "<!-- figures: written by bench/run-training-figures.sh -->", "<!-- end of figures -->"


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--size", default="large", help="of char_gpt.py; large is 1 GiB [large]")
    parser.add_argument("--threads", type=int, default=2, help="of the training [2]")
    parser.add_argument("--every", type=float, default=30, metavar="SECONDS", help="between two checkpoints [30]")
    parser.add_argument("--rounds", type=int, default=5, help="windows of each way, overhead and pages sections [5]")
    parser.add_argument("--intervals", type=int, default=3, help="in each window [3]")
    parser.add_argument("--freezes", type=int, default=10, help="of each tool [10]")
    parser.add_argument("--restarts", type=int, default=5, help="by each way [5]")
    parser.add_argument("--checkpoints", type=int, default=20, help="of the stored section [20]")
    parser.add_argument("--steps-between", type=int, default=3, help="two of these [3]")
    parser.add_argument("--failures", type=int, default=10, help="of the lost section [10]")
    parser.add_argument("--seed", type=int, default=7, help="of the moments of these [7]")
    parser.add_argument("--quick", action="store_true", help="everything, small: does it work at all?")
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/release/bin"), metavar="DIR", help="our programs")
    parser.add_argument("--work", metavar="DIR", default="/var/tmp", help="where store and images go")
    parser.add_argument("--json", metavar="OUT", help="all that was measured; sections that it has and that this run does "
                        "not measure stay")  # fmt: skip
    parser.add_argument(
        "--write",
        metavar="PAGE",
        type=page_with(BEGIN, END),
        help="put the tables between the markers of this page",
    )
    given = parser.parse_args(arguments)
    given.bin = os.path.abspath(given.bin)
    if given.quick:
        given.size, given.threads, given.every, given.rounds, given.intervals = "tiny", 1, 3, 1, 2
        given.freezes, given.restarts, given.checkpoints, given.failures = 2, 1, 3, 2
    return given


def main():
    arguments = parse(sys.argv[1:])
    cli.BINARIES = arguments.bin
    # Whoever ends the run by a signal gets everything removed, too.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, leave)
    os.makedirs(arguments.work, exist_ok=True)
    results = kept(arguments.json)
    command = " ".join(["bench/run-training-figures.sh", *sys.argv[1:]])
    world = World(arguments.work)
    try:
        world.start_daemon()
        script = os.path.join(shutil.copytree(os.path.join(ROOT, "examples/training"), world.path("examples")), "char_gpt.py")
        bench = training_sections.Bench(world, arguments, criu_tools(), script)
        for name in arguments.only:
            print(f"{name}:", flush=True)
            load = os.getloadavg()[0]
            measured = getattr(training_sections, name)(bench)
            results[name] = {
                "command": command,
                "commit": commit(),
                "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
                "loads": [load, os.getloadavg()[0]],
                "every": arguments.every,
                "command_lines": bench.command_lines,
                "measured": measured,
            }
            bench.command_lines = {}
            if arguments.json:
                with open(arguments.json, "w", encoding="utf-8") as file:
                    json.dump(results, file, indent=1)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        world.remove()
    tools = ", ".join(tool.name for tool in bench.tools)
    lines = [BEGIN, "", *training_report.page(results, f"{machine()}. {tools}."), END]
    text = "\n".join(lines)
    print(text)
    if arguments.write:
        write_into(arguments.write, text, BEGIN, END)


if __name__ == "__main__":
    main()
