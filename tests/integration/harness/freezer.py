"""Control groups that are frozen, as `docker pause` and `systemctl freeze` do it."""

import os
from contextlib import contextmanager

from harness import waiting

# The folder of a hierarchy, the file that freezes, what freezes and thaws, and what says when it is done.
_UNIFIED = ("cgroup.freeze", "1", "0", "cgroup.events", "frozen 1")
_OLD = ("freezer.state", "FROZEN", "THAWED", "freezer.state", "FROZEN")


def hierarchies():
    """Those in which groups can be frozen here: (folder, how)."""
    found = []
    for folder in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        if os.access(os.path.join(folder, "cgroup.subtree_control"), os.W_OK):
            found.append((folder, _UNIFIED))
    if os.access("/sys/fs/cgroup/freezer/cgroup.procs", os.W_OK):
        found.append(("/sys/fs/cgroup/freezer", _OLD))
    return found


@contextmanager
def frozen(pid, hierarchy):
    """The process is in a frozen group, below another that is the frozen one, until the end."""
    root, (switch, freeze, thaw, shown, when) = hierarchy
    outer = os.path.join(root, f"rekindle-frozen-{os.getpid()}")
    inner = os.path.join(outer, "inner")
    os.makedirs(inner)
    try:
        _write(os.path.join(inner, "cgroup.procs"), pid)
        try:
            _write(os.path.join(outer, switch), freeze)
            waiting.until(lambda: when in _read(os.path.join(outer, shown)), "the group frozen")
            yield
        finally:
            _write(os.path.join(outer, switch), thaw)
            _write(os.path.join(root, "cgroup.procs"), pid)
    finally:
        os.rmdir(inner)
        os.rmdir(outer)


def _write(path, value):
    with open(path, "w", encoding="ascii") as file:
        file.write(str(value))


def _read(path):
    with open(path, encoding="ascii") as file:
        return file.read()
