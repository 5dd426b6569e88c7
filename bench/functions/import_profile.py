#!/usr/bin/python3
"""Measures what each function imports, what that costs and what the process is like afterwards: tables in Markdown.

    import_profile.py [--inputs FOLDER] [--rounds N] [--json FILE] [FUNCTION...]

Modules, memory and threads are what functions/runtimes/python/discover_imports.py says, for a Python that has the
function loaded and has called nothing yet. Times are of `python3 -X importtime` with warm disk caches, of the
fastest round: each module's own time, summed by outermost package. The option itself makes imports slower.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
DISCOVER = os.path.join(HERE, "..", "..", "functions", "runtimes", "python", "discover_imports.py")
BARE = "(nothing)"
MIB = 1 << 20
# What imports less than this is no row of its own.
LEAST_MS = 1.0
_BEGIN = "the handler's import begins\n"


def environment(inputs):
    return {**os.environ, "FUNCTION_INPUTS": inputs, "PYTHONDONTWRITEBYTECODE": "1"}


def discovered(code, inputs):
    done = subprocess.run(
        [sys.executable, DISCOVER, "--code", code, "--handler", "app.handler"],
        capture_output=True, text=True, env=environment(inputs),
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{code}/app.py cannot be looked into: {done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def timed(code, inputs):
    """{outermost package: microseconds} of one import in a fresh process."""
    program = f"import os, sys; os.write(2, {_BEGIN.encode()!r}); import app; os._exit(0)"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", program], cwd=code, capture_output=True, text=True, check=True,
        env=environment(inputs),
    )  # fmt: skip
    own_times = collections.Counter()
    for line in done.stderr.partition(_BEGIN)[2].splitlines():
        heading, _, row = line.partition("import time:")
        if not heading and row.count("|") == 2:
            own, _, name = row.split("|")
            own_times[name.strip().partition(".")[0]] += int(own)
    return own_times


def profile(code, inputs, rounds):
    imports = discovered(code, inputs)
    fastest = min((timed(code, inputs) for _ in range(rounds)), key=lambda run: sum(run.values()))
    outermost = (entry["name"].partition(".")[0] for entry in imports["installed"])
    kinds = {name: name for name in outermost}
    kinds.update((entry["name"].partition(".")[0], "own code and models") for entry in imports["code"])
    milliseconds = collections.Counter()
    for name, microseconds in fastest.items():
        milliseconds[kinds.get(name, "standard library")] += microseconds / 1000
    return {
        "installed": {entry["name"]: entry["version"] for entry in imports["installed"]},
        "modules": sum(entry["modules"] for entry in imports["installed"]),
        "standard_modules": len(imports["standard_library"]),
        "resident_bytes": imports["resident_bytes"],
        "threads": imports["threads"],
        "milliseconds": dict(milliseconds),
    }


def bare_profile(inputs, rounds):
    """Of a function that imports nothing."""
    with tempfile.TemporaryDirectory() as code:
        with open(os.path.join(code, "app.py"), "w", encoding="ascii") as file:
            file.write("def handler(event, context):\n    return event\n")
        return profile(code, inputs, rounds)


def print_tables(profiles):
    print("| function | import, ms | resident, MiB | threads | installed modules | installed packages |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    for name, figures in profiles.items():
        packages = ", ".join(f"{package} {version or ''}".strip() for package, version in figures["installed"].items())
        total = sum(figures["milliseconds"].values())
        print(
            f"| {name} | {total:.0f} | {figures['resident_bytes'] / MIB:.0f} | {figures['threads']} "
            f"| {figures['modules']} | {packages} |"
        )
    print("\n| function | of its import, ms |\n| --- | --- |")
    for name, figures in profiles.items():
        parts = sorted(figures["milliseconds"].items(), key=lambda part: -part[1])
        print(f"| {name} | {', '.join(f'{part} {ms:.0f}' for part, ms in parts if ms >= LEAST_MS)} |")


def main():
    known = sorted(entry.name for entry in os.scandir(HERE) if os.path.exists(os.path.join(entry, "app.py")))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", metavar="FOLDER", help="what make_inputs.py has made; made anew if not given")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="imports that are timed (5)")
    parser.add_argument("--json", metavar="FILE", help="write the figures here, too")
    parser.add_argument("functions", nargs="*", metavar="FUNCTION", help="all if none is given")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.functions) - set(known))
    if unknown:
        parser.error(f"there is no function {', '.join(unknown)}; there are: {', '.join(known)}")
    if arguments.rounds < 1:
        parser.error(f"--rounds {arguments.rounds}: at least 1")
    with tempfile.TemporaryDirectory(prefix="rekindle-functions.", dir="/var/tmp") as made:
        inputs = os.path.abspath(arguments.inputs or made)
        if not arguments.inputs:
            subprocess.run([sys.executable, "-B", os.path.join(HERE, "make_inputs.py"), made], check=True)
        profiles = {BARE: bare_profile(inputs, arguments.rounds)}
        for name in arguments.functions or known:
            profiles[name] = profile(os.path.join(HERE, name), inputs, arguments.rounds)
    print_tables(profiles)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(profiles, file, indent=2)


if __name__ == "__main__":
    main()
