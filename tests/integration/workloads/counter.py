"""Prints 1, 2, 3, … until the file that it is given exists, and ends with the status that this contains."""

import sys
import time

number = 0
while True:
    number += 1
    print(number, flush=True)
    try:
        with open(sys.argv[1], encoding="ascii") as file:
            sys.exit(int(file.read()))
    except FileNotFoundError:
        time.sleep(0.05)
