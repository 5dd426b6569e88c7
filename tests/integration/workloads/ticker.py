"""A small process with threads that counts.

    ticker.py LOG

Appends a number to LOG, one line at a time, while two threads count in memory of their own.
"""

import os
import sys
import threading
import time

counts = [0, 0]


def count(number):
    while True:
        counts[number] += 1
        time.sleep(0.001)


def main():
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in range(len(counts)):
        threading.Thread(target=count, args=(number,), daemon=True).start()
    line = 0
    while True:
        line += 1
        os.write(log, b"%d\n" % line)
        time.sleep(0.001)


if __name__ == "__main__":
    main()
