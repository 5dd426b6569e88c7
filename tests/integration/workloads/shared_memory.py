"""Two processes that share memory by its name (/dev/shm/NAME), under a semaphore that has a name too.

    shared_memory.py NAME LOG

Each step adds one to a number in the shared memory and to one in each process's own. LOG gets a line a step, with
"torn" where the two are not the same.
"""

import multiprocessing
import sys
import time
from multiprocessing import shared_memory


def count(memory, own, write):
    shared = int.from_bytes(memory.buf[:8], "little")
    write("torn" if shared != own else str(own))
    memory.buf[:8] = (shared + 1).to_bytes(8, "little")


def work(name, turns, log):
    memory = shared_memory.SharedMemory(name=name)
    own = 0
    with open(log, "a", encoding="ascii", buffering=1) as file:
        while True:
            turns[1].acquire()
            count(memory, own + 1, lambda line: file.write(f"child {line}\n"))
            own += 2
            turns[0].release()


def main():
    name, log = sys.argv[1:]
    multiprocessing.set_start_method("spawn")  # whose semaphores keep their names
    memory = shared_memory.SharedMemory(name=name, create=True, size=1 << 16)
    turns = [multiprocessing.Semaphore(1), multiprocessing.Semaphore(0)]
    multiprocessing.Process(target=work, args=(name, turns, log), daemon=True).start()
    own = 0
    with open(log, "a", encoding="ascii", buffering=1) as file:
        while True:
            turns[0].acquire()
            count(memory, own, lambda line: file.write(f"parent {line}\n"))
            own += 2
            turns[1].release()
            time.sleep(0.002)


if __name__ == "__main__":
    main()
