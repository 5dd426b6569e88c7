"""Where the hook's packages, rekindle and snapshot_restore_py, are found. It loads nothing that an interpreter has not
loaded when it starts: the program that finds out what a function imports uses it, too.
"""

import os
import sys

# Where it is installed and where it is built, from the folder of the runtime.
_PLACES = ("../../python", "../../../hook/python")


def folder():
    """None: it is in neither."""
    runtime = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for place in _PLACES:
        path = os.path.normpath(os.path.join(runtime, place))
        if os.path.isdir(os.path.join(path, "rekindle")):
            return path
    return None


def add():
    """Last, so that a package of the function's own comes first."""
    path = folder()
    if path is not None and path not in sys.path:
        sys.path.append(path)
