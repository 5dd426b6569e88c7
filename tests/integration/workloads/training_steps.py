"""Steps of a training that reports through the hook.

    training_steps.py LOG

Appends a line to LOG for each step ("step N") and for what checkpoint_here() returned when it held it ("continued at
N"). Asks for an image itself once there is a file LOG.ask.
"""

import os
import sys
import time

import rekindle

TOTAL = 1000000


def main():
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for step in range(1, TOTAL + 1):
        time.sleep(0.002)
        os.write(log, b"step %d\n" % step)
        rekindle.progress(step, TOTAL)
        asks = os.path.exists(sys.argv[1] + ".ask")
        if asks:
            os.unlink(sys.argv[1] + ".ask")
        event = rekindle.checkpoint_here(force=asks)
        if event != rekindle.NOT_HELD:
            os.write(log, b"%s at %d\n" % (event.encode(), step))


if __name__ == "__main__":
    main()
