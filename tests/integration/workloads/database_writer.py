"""Inserts the numbers from 0 on into an SQLite database that has a log beside it (WAL), one a transaction.

database_writer.py DATABASE COUNT LINES: a line in LINES for each
"""

import sqlite3
import sys
import time


def main():
    path, count = sys.argv[1], int(sys.argv[2])
    database = sqlite3.connect(path, isolation_level=None)
    # The log is copied into the database between any image and the next.
    for setting in ("journal_mode=wal", "wal_autocheckpoint=20", "synchronous=off"):
        database.execute("pragma " + setting).fetchall()
    database.execute("create table numbers (number integer, filling text)")
    with open(sys.argv[3], "a", encoding="ascii", buffering=1) as lines:
        for number in range(count):
            database.execute("insert into numbers values (?, ?)", (number, "x" * 1000))
            lines.write(f"{number}\n")
            time.sleep(0.005)  # the work that a step stands for


main()
