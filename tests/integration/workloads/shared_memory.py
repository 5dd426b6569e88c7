"""Two processes that share memory by its name (/dev/shm/NAME), under a semaphore that has a name too.

    shared_memory.py NAME LOG [unlink]

"unlink": the memory loses its name as soon as both have it.
Each step adds one to a number in the shared memory and to one in each process's own. LOG gets a line a step: host, who,
and the number, or "torn" where the two are not the same.
"""

import multiprocessing
import os
import sys
import time
from multiprocessing import shared_memory


def count(who, memory, own, file):
    shared = int.from_bytes(memory.buf[:8], "little")
    file.write(f"{os.uname().nodename} {who} {'torn' if shared != own else own}\n")
    memory.buf[:8] = (shared + 1).to_bytes(8, "little")


def work(name, turns, log):
    memory = shared_memory.SharedMemory(name=name)
    own = 0
    with open(log, "a", encoding="ascii", buffering=1) as file:
        while True:
            turns[1].acquire()
            count("child", memory, own + 1, file)
            own += 2
            turns[0].release()


def main():
    name, log = sys.argv[1:3]
    multiprocessing.set_start_method("spawn")  # whose semaphores keep their names
    memory = shared_memory.SharedMemory(name=name, create=True, size=1 << 16)
    turns = [multiprocessing.Semaphore(1), multiprocessing.Semaphore(0)]
    multiprocessing.Process(target=work, args=(name, turns, log), daemon=True).start()
    own = 0
    with open(log, "a", encoding="ascii", buffering=1) as file:
        while True:
            turns[0].acquire()
            if own == 2 and sys.argv[3:] == ["unlink"]:
                memory.unlink()
            count("parent", memory, own, file)
            own += 2
            turns[1].release()
            time.sleep(0.002)


if __name__ == "__main__":
    main()
