#!/usr/bin/env python3
"""How long a supervised job that calls checkpoint_here() at its step boundaries stands there for an image, against the
freeze itself.

    bench/boundary_pauses.py [--bin FOLDER]... [--megabytes N] [--seconds N]

For each folder of programs (more than one: versions, one after the other; name each more than once on a machine with
other work): the mean of the calls in which an image was taken, the mean of the freezes as the daemon has them, and their
ratio. As root; nothing of it is left.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), ".."))
STEP_SECONDS = 0.02
LONG_CALL = 0.005  # what is longer stood for an image


def step_for_ever(megabytes):
    """The job: its memory is a random page again and again, a part of which it writes in each step."""
    sys.path.insert(0, os.path.join(ROOT, "hook", "python"))
    import rekindle  # pylint: disable=import-error,import-outside-toplevel

    memory = bytearray(os.urandom(1 << 20)) * megabytes
    for at in range(0, len(memory), 4096):
        memory[at:at + 8] = at.to_bytes(8, "little")
    while True:
        began = time.monotonic()
        while time.monotonic() - began < STEP_SECONDS:
            memory[::65536] = memory[::65536]
        stands = time.monotonic()
        rekindle.checkpoint_here()
        stood = time.monotonic() - stands
        if stood > LONG_CALL:
            print(stood, flush=True)


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
            subprocess.run(
                [command, "run", "--detach", "--name", "steps", "--log", folder + "/steps", "--every", "500ms", "--restarts", "1",
                 "--", "/usr/bin/python3", os.path.realpath(__file__), "--job", "--megabytes", str(megabytes)],
                env=environment, check=True, stdout=subprocess.DEVNULL)
            time.sleep(seconds)
            listed = subprocess.run([command, "ps", "--json"], env=environment, check=True, stdout=subprocess.PIPE).stdout
            supervised = json.loads(listed)["jobs"][0]["supervised"]
            subprocess.run([command, "stop", "steps", "--grace", "0s"], env=environment, check=True, stdout=subprocess.DEVNULL)
            return pauses(folder + "/steps"), supervised["total_freeze_seconds"] / int(supervised["checkpoints"])
        finally:
            daemon.terminate()
            daemon.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", action="append")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--job", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        step_for_ever(arguments.megabytes)
    for programs in arguments.bin or [os.path.join(ROOT, "build/release/bin")]:
        stood, freeze = measure(programs, arguments.megabytes, arguments.seconds)
        mean = statistics.fmean(stood)
        print(f"{programs}: stood {1000 * mean:.1f} ms ({len(stood)} times), frozen {1000 * freeze:.1f} ms: "
              f"{mean / freeze:.2f}x", flush=True)


if __name__ == "__main__":
    main()
