"""Four workers of multiprocessing on one shared array, fed through a queue.

    multiprocess.py LOG

Every round each worker adds to its quarter of the array; the parent then appends "ROUND DIGEST" to LOG. The
digest depends on the round alone, so any run can be checked against expected_digest().
"""

import hashlib
import multiprocessing
import os
import sys

WORKERS, WORDS = 4, 512 * 1024  # the array: 4 MiB


def expected_digest(round_number):
    import array

    quarter = WORDS // WORKERS
    words = array.array("q")
    for number in range(WORKERS):
        words.extend([sum((r * 7 + number) for r in range(1, round_number + 1))] * quarter)
    return hashlib.sha256(words.tobytes()).hexdigest()


def worker(number, shared, todo, done):
    quarter = WORDS // WORKERS
    first = number * quarter
    while True:
        round_number = todo.get()
        value = shared[first] + round_number * 7 + number
        with shared.get_lock():
            shared.get_obj()[first : first + quarter] = [value] * quarter
        done.put(number)


def main():
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    shared = multiprocessing.Array("q", WORDS)
    queues = [multiprocessing.Queue() for _ in range(WORKERS)]
    done = multiprocessing.Queue()
    for number in range(WORKERS):
        multiprocessing.Process(
            target=worker, args=(number, shared, queues[number], done), daemon=True
        ).start()
    round_number = 0
    while True:
        round_number += 1
        for queue in queues:
            queue.put(round_number)
        for _ in range(WORKERS):
            done.get()
        digest = hashlib.sha256(bytes(shared.get_obj())).hexdigest()
        os.write(log, f"{round_number} {digest}\n".encode())


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    main()
