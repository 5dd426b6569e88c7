"""Where layers have modules. It loads nothing that an interpreter has not loaded when it starts: the program that finds
out what a function imports uses it, too.
"""

import os
import site
import sys

# What a layer that was made of a virtual environment has beside its folder `python`.
_OF_AN_ENVIRONMENT = "pyvenv.cfg"
_additions = {}  # by site-packages folder of an environment: the folders that it puts into the path, in their order


def folders_of(layer):
    """Of one layer, the first to be searched first. The files .pth of a virtual environment count, once in a process;
    those of other layers do not, as on Lambda.
    """
    python = os.path.join(layer, "python")
    packages = "%s/lib/python%d.%d/site-packages" % (python, *sys.version_info[:2])
    if os.path.isfile(os.path.join(layer, _OF_AN_ENVIRONMENT)):
        return _added_by(packages) + [python]
    return [packages, python]


def _added_by(packages):
    if packages not in _additions:
        path, sys.path = sys.path, list(sys.path)
        try:
            before = len(sys.path)
            if os.path.isdir(packages):
                site.addsitedir(packages)
            added = [folder for folder in sys.path[before:] if folder not in path]
            # What a line with `import` has put elsewhere stays where it is.
            rest = [folder for folder in sys.path[:before] if folder not in path]
        finally:
            sys.path = path
        sys.path[0:0] = rest
        _additions[packages] = [packages] + [folder for folder in added if folder != packages]
    return list(_additions[packages])
