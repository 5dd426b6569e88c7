"""Counts lines from its terminal: for each line it reads it prints the number so far. LOG gets "ready"
first.
"""

import os
import sys


def main():
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(log, b"ready\n" if sys.stdin.isatty() else b"no terminal\n")
    count = 0
    for line in sys.stdin:
        count += 1
        print(f"line {count}: {line.strip()}", flush=True)
        os.write(log, f"{count} {line.strip()}\n".encode())


if __name__ == "__main__":
    main()
