"""Runs an AWS Lambda handler that is written in Python; docs/functions.md is the users' page."""

import os
import sys


def _main():
    here = os.path.dirname(os.path.abspath(__file__))
    # The function's own modules must not meet ours under the same names, so this folder leaves the path again.
    sys.path[0:1] = [here]
    from rekindle_lambda import hook, life

    sys.path.remove(here)
    hook.add()
    life.run()


# A process that multiprocessing spawns imports this file again, under another name, with the function's path.
if __name__ == "__main__":
    _main()
