"""Measures functions: loading from every level side by side with a cold start and PreBaking, space, HTTP.

Run it through bench/run-function-figures.sh, which makes everything that it needs. docs/function-benchmarks.md says
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

import function_report  # noqa: E402
from figures import commit, kept, machine, page_with, write_into  # noqa: E402
from function_sections import PARTS, Bench  # noqa: E402
from function_ways import Function  # noqa: E402
from function_world import FunctionWorld  # noqa: E402
from harness import cli  # noqa: E402
from start_figures import criu_tools, leave  # noqa: E402
from start_world import hook_library  # noqa: E402

FUNCTIONS = os.path.join(ROOT, "bench/functions")
NAMES = sorted(name for name in os.listdir(FUNCTIONS) if os.path.isdir(os.path.join(FUNCTIONS, name)))
BEGIN, END = "<!-- figures: written by bench/run-function-figures.sh -->", "<!-- end of figures -->"


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), help="of the parts")
    parser.add_argument("--functions", nargs="*", choices=NAMES, default=NAMES, help="of the loading part [all]")
    parser.add_argument("--rounds", type=int, default=20, help="starts of each way [20]")
    parser.add_argument("--deployments", type=int, default=2, help="of each function, for the default path [2]")
    parser.add_argument("--variants", type=int, default=100, help="functions of the space part [100]")
    parser.add_argument("--http-rounds", type=int, default=3)
    parser.add_argument("--http-seconds", type=float, default=10)
    parser.add_argument("--soak-calls", type=int, default=10000, help="of 50 functions at random popularity [10000]")
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/release/bin"), metavar="DIR", help="our programs")
    parser.add_argument("--hook", metavar="FILE", help="librekindle_hook.so [beside the programs]")
    parser.add_argument("--work", metavar="DIR", default="/srv",
                        help="where stores and snapshots go; functions have a /tmp and a /var/tmp of their own")
    parser.add_argument("--json", metavar="FILE", help="all that was measured; parts that it has and that this run does "
                        "not measure stay")  # fmt: skip
    parser.add_argument("--note", default="", metavar="TEXT", help="what readers of these figures must know")
    parser.add_argument(
        "--write",
        metavar="PAGE",
        type=page_with(BEGIN, END),
        help="put the tables between the markers of this page",
    )
    given = parser.parse_args(arguments)
    given.bin = os.path.abspath(given.bin)
    return given


def make_functions(world, names):
    """Their code and inputs are copied: nothing of this run touches the source."""
    shutil.copytree(FUNCTIONS, world.path("functions"), ignore=shutil.ignore_patterns("__pycache__"))
    inputs = world.path("inputs")
    subprocess.run([os.path.join(FUNCTIONS, "make_inputs.py"), inputs], check=True, stdout=subprocess.DEVNULL)
    return [Function(name, world.path("functions", name), inputs) for name in names], inputs


def main():
    arguments = parse(sys.argv[1:])
    cli.BINARIES = arguments.bin
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, leave)
    os.makedirs(arguments.work, exist_ok=True)
    hook = hook_library(arguments.hook, arguments.bin, ROOT)
    results = kept(arguments.json)
    world = FunctionWorld(arguments.work)
    try:
        functions, inputs = make_functions(world, arguments.functions)
        bench = Bench(world, arguments, criu_tools(), hook, functions, inputs)
        for name in arguments.only:
            print(f"{name}:", flush=True)
            before = os.getloadavg()[0]
            bench.left_out = []
            PARTS[name](bench)
            if name in bench.results:
                results[name] = {
                    **bench.results[name],
                    "command": " ".join(["bench/run-function-figures.sh", *sys.argv[1:]]),
                    "commit": commit(),
                    "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
                    "loads": [before, os.getloadavg()[0]],
                    "left_out": bench.left_out,
                }
            if arguments.json:
                with open(arguments.json, "w", encoding="utf-8") as file:
                    json.dump(results, file, indent=1)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        world.remove()
    text = "\n".join([BEGIN, "", *function_report.page(results, machine(), arguments.note), "", END])
    print(text)
    if arguments.write:
        write_into(arguments.write, text, BEGIN, END)
    return 0


if __name__ == "__main__":
    sys.exit(main())
