"""What the kernel says about processes."""

import os


def stat_fields(pid):
    """The fields of /proc/PID/stat from `state` on (index 0), or None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()


def state(pid):
    """One letter such as R, S, T, Z; None when there is no such process."""
    fields = stat_fields(pid)
    return fields[0] if fields else None


def stands(pid):
    """Each of its threads is stopped, by a signal or for a tracer."""
    threads_of_it = [stat_fields(f"{pid}/task/{thread}") for thread in os.listdir(f"/proc/{pid}/task")]
    return all(fields and fields[0] in "tT" for fields in threads_of_it)


def alive(pid):
    """Neither gone nor a zombie."""
    return state(pid) not in (None, "Z", "X")


def start_ticks(pid):
    """With the PID it names one process; None when there is no such process."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields else None


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def whereabouts(pid):
    """In which call each thread is, its parent and its tracer, for a failure that is to tell why it hangs."""
    told = []
    for name in ("wchan", "stack", "syscall"):
        try:
            threads_of_it = os.listdir(f"/proc/{pid}/task")
            for thread in threads_of_it:
                with open(f"/proc/{pid}/task/{thread}/{name}", encoding="ascii", errors="replace") as file:
                    told.append(f"{thread} {name}: " + " < ".join(file.read().split("\n")[:8]).strip(" <"))
        except OSError:
            pass
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            told += [line.strip().replace("\t", " ") for line in file if line.startswith(("State", "PPid", "TracerPid"))]
        descriptors = sorted(os.listdir(f"/proc/{pid}/fd"), key=int)
        told.append("open: " + " ".join(f"{number}={os.readlink(f'/proc/{pid}/fd/{number}')}" for number in descriptors))
    except OSError:
        pass
    return "; ".join(told)


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def children_by_parent():
    children = {}
    for pid in all_pids():
        fields = stat_fields(pid)
        if fields:
            children.setdefault(int(fields[1]), []).append(pid)
    return children


def descendants(root):
    """All below `root`, zombies included, parents before children."""
    children = children_by_parent()
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def in_system_call(pid, number):
    """It sleeps in that one."""
    try:
        with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
            return file.read().split()[0] == str(number)
    except (FileNotFoundError, ProcessLookupError):
        return False


def threads(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def descriptor_targets(pid):
    targets = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        targets[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
    return targets


def maps_file(pid, name):
    """Whether one whose path has `name` in it."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        return any(name in line for line in file)


def memory_bytes(pid, field="Rss"):
    """From smaps_rollup, so that copies of shared pages count as the kernel counts them."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return 0


def huge_page_advised_bytes(pid):
    """In memory, of areas that are to be of huge pages."""
    total = resident = 0
    with open(f"/proc/{pid}/smaps", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("Rss:"):
                resident = int(line.split()[1]) * 1024
            elif line.startswith("VmFlags:") and "hg" in line.split():
                total += resident
    return total


def traced_by(pid):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("TracerPid:"):
                return int(line.split()[1])
    return 0


def pending_signals(pid):
    """That wait for whoever takes signals of the process; a number with a bit for each."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        return next(int(line.split()[1], 16) for line in file if line.startswith("ShdPnd:"))


def has_capability(number, pid="self"):
    """Is it in effect?"""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> number & 1)
    return False


def namespace_pid(pid):
    """The PID that the process has in its own namespace."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return pid
