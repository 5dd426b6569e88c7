#!/usr/bin/env python3
"""How long a supervised job that calls checkpoint_here() at its step boundaries stands still for an image, against
one that does not call it, side by side on one machine.

    bench/boundary_pauses.py [--bin FOLDER]... [--megabytes N] [--seconds N]

For each folder of programs (more than one: versions, one after the other): medians of what interrupted the steps of the
two jobs, and their ratio. As root; nothing of it is left.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
STEP_SECONDS = 0.02
LONG_STEP = 0.1  # what is longer was interrupted


def step_for_ever(megabytes, calls):
    """The job: its memory is a random page again and again, a part of which it writes in each step."""
    sys.path.insert(0, os.path.join(ROOT, "hook", "python"))
    import rekindle  # pylint: disable=import-error,import-outside-toplevel

    memory = bytearray(os.urandom(1 << 20)) * megabytes
    for at in range(0, len(memory), 4096):
        memory[at:at + 8] = at.to_bytes(8, "little")
    last = time.monotonic()
    while True:
        while time.monotonic() - last < STEP_SECONDS:
            memory[::65536] = memory[::65536]
        if calls:
            rekindle.checkpoint_here()
        now = time.monotonic()
        if now - last > LONG_STEP:
            print(now - last, flush=True)
        last = now


def pauses(log):
    with open(log, encoding="ascii", errors="replace") as file:
        return [float(line) for line in file if line.replace(".", "").strip().isdigit()]


def measure(programs, megabytes, seconds):
    with tempfile.TemporaryDirectory(prefix="rekindle-bench-") as folder:
        socket = os.path.join(folder, "d.sock")
        environment = {**os.environ, "REKINDLE_RUNTIME_DIR": folder + "/run", "REKINDLE_LOG_DIR": folder + "/log",
                       "REKINDLE_HOST": "unix://" + socket,
                       "REKINDLE_HOOK_LIBRARY": os.path.join(programs, "../hook/librekindle_hook.so")}
        command = os.path.join(programs, "rekindle")
        with open(folder + "/daemon", "wb") as log:
            daemon = subprocess.Popen(
                [os.path.join(programs, "rekindled"), "--store", folder + "/store", "--socket", socket, "--standby", "0"],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            while not os.path.exists(socket):
                time.sleep(0.01)
            for name in ("with", "without"):
                subprocess.run(
                    [command, "run", "--detach", "--name", name, "--log", f"{folder}/{name}", "--every", "2s", "--restarts", "1",
                     "--", "/usr/bin/python3", os.path.realpath(__file__), "--job", name, "--megabytes", str(megabytes)],
                    env=environment, check=True, stdout=subprocess.DEVNULL)
            time.sleep(seconds)
            for name in ("with", "without"):
                subprocess.run([command, "stop", name, "--grace", "0s"], env=environment, check=True, stdout=subprocess.DEVNULL)
            return {name: pauses(f"{folder}/{name}") for name in ("with", "without")}
        finally:
            daemon.terminate()
            daemon.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", action="append")
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--job", choices=("with", "without"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        step_for_ever(arguments.megabytes, arguments.job == "with")
    for programs in arguments.bin or [os.path.join(ROOT, "build/release/bin")]:
        seen = measure(programs, arguments.megabytes, arguments.seconds)
        medians = {name: statistics.median(values) if values else float("nan") for name, values in seen.items()}
        print(f"{programs}: with {medians['with']:.3f} s ({len(seen['with'])} pauses), without {medians['without']:.3f} s "
              f"({len(seen['without'])}): {medians['with'] / medians['without']:.2f}")


if __name__ == "__main__":
    main()
