"""Writes files in the ways that programs do, a step at a time, and checks what it finds in them.

    file_writer.py FOLDER

Every step's number goes, as a line, to FOLDER/lines (appended), FOLDER/metrics (opened anew, written at its end) and
standard output; into FOLDER/state, in place, which also grows; into FOLDER/table through a mapping; and twice into
FOLDER/checkpoint, which is replaced as a whole. What it does not find as it left it goes to FOLDER/problems.

While there is FOLDER/hold-writing it stands still with the next checkpoint half written, and while there is
FOLDER/hold-written with none open; FOLDER/held says that it does.
"""

import mmap
import os
import sys
import time

SIZE = 1 << 20
PLACE = 300000  # of the number in the files that are rewritten


def make(path, size):
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
    os.pwrite(descriptor, bytes(range(256)) * (size // 256), 0)
    os.pwrite(descriptor, bytes(8), PLACE)
    return descriptor


def stand_still(folder, place):
    """Whether it did. It opens no file for it: an image would have that too."""
    hold, held = os.path.join(folder, "hold-" + place), os.path.join(folder, "held")
    if not os.path.exists(hold):
        return False
    if not os.path.exists(held):
        os.mknod(held)
    while os.path.exists(hold):
        time.sleep(0.001)
    if os.path.exists(held):
        os.unlink(held)
    return True


def main():
    folder = sys.argv[1]
    lines = os.open(os.path.join(folder, "lines"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    problems = os.open(os.path.join(folder, "problems"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    state = make(os.path.join(folder, "state"), SIZE)
    mapped = make(os.path.join(folder, "table"), SIZE)
    table = mmap.mmap(mapped, SIZE)
    os.close(mapped)
    checkpoint = os.path.join(folder, "checkpoint")
    in_state = in_table = step = 0
    with open(os.path.join(folder, "metrics"), "w", buffering=1, encoding="ascii") as metrics:
        while True:
            step += 1
            os.write(lines, b"%d\n" % step)
            metrics.write(f"{step}\n")
            print(step, flush=True)
            found = int.from_bytes(os.pread(state, 8, PLACE), "little")
            if found != in_state:
                os.write(problems, b"state has %d, not %d\n" % (found, in_state))
            os.pwrite(state, step.to_bytes(8, "little"), PLACE)
            in_state = step
            os.pwrite(state, b"x", SIZE + step)
            found = int.from_bytes(table[PLACE : PLACE + 8], "little")
            if found != in_table:
                os.write(problems, b"table has %d, not %d\n" % (found, in_table))
            table[PLACE : PLACE + 8] = step.to_bytes(8, "little")
            in_table = step
            with open(checkpoint + ".tmp", "w", encoding="ascii") as file:
                file.write(f"{step}\n")
                file.flush()
                stood = stand_still(folder, "writing")
                file.write(f"{step}\n")
            os.rename(checkpoint + ".tmp", checkpoint)
            if stood:
                with open(checkpoint, encoding="ascii") as file:
                    found = file.read()
                if found != f"{step}\n" * 2:
                    os.write(problems, f"checkpoint has {found!r} of step {step}\n".encode())
            stand_still(folder, "written")
            time.sleep(0.001)


if __name__ == "__main__":
    main()
