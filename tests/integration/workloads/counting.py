"""Appends the numbers from 0 on to a file, one a line, and says each; at some of them it does something else.

counting.py FILE COUNT [exit-at=N] [limit=PATH] [hang-at=N [spins]] [until=PATH] [status=N] [pause=SECONDS]
            [memory=MIB] [child]

limit=PATH: where that file is there, it exits at the number that it holds, and at later ones.
until=PATH: it neither ends by itself nor hangs before that file is there.
"""

import os
import signal
import sys
import time


def wait_for_file(path, pause):
    while path and not os.path.exists(path):
        time.sleep(pause)


def limit_of(path):
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except FileNotFoundError:
        return sys.maxsize


def main():
    path, count = sys.argv[1], int(sys.argv[2])
    options = dict(word.partition("=")[::2] for word in sys.argv[3:])
    pause = float(options.get("pause", "0.02"))
    if "child" in options and os.fork() == 0:
        # One that outlives its parent, unless somebody ends it.
        while True:
            time.sleep(3600)
    memory = os.urandom(int(options.get("memory", "0")) << 20)
    with open(path, "a", encoding="ascii", buffering=1) as file:
        for number in range(count):
            if number == int(options.get("exit-at", "-1")):
                wait_for_file(options.get("until"), pause)
                sys.exit(7)
            if number >= limit_of(options.get("limit", "")):
                sys.exit(7)
            hangs = number == int(options.get("hang-at", "-1"))
            if hangs:
                wait_for_file(options.get("until"), pause)
            if hangs and not os.path.exists(path + ".hung"):
                with open(path + ".hung", "w", encoding="ascii"):
                    pass
                while "spins" in options:  # as who waits for a peer that has gone
                    pass
                signal.pause()
            file.write(f"{number}\n")
            print(number, flush=True)
            time.sleep(pause)  # the work that a step stands for
    wait_for_file(options.get("until"), pause)
    del memory  # until here it is in each image
    sys.exit(int(options.get("status", "0")))


main()
