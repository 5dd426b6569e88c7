"""Knowing from outside in which phase a checkpoint or a restore is, so that a test can hit it there.

Nothing in Rekindle helps: a phase is seen in /proc. The jobs are large enough that every phase lasts.
"""

from harness import procfs, waiting

CHECKPOINT_PHASES = ("prepare", "freeze", "commit")
DUMP_GATE = "rekindle-dump-gate"
_RECVFROM = 45


def criu_processes(root, verb):
    """CRIU processes below `root` (the command or the daemon) that run `dump`, `restore` or `swrk`; the last
    calls itself `criu: restore` once it has its orders.
    """
    found = []
    for pid in procfs.descendants(root):
        words = procfs.command_line(pid).split()
        if verb in words and any(word.endswith("/criu") or word in ("criu", "criu:") for word in words):
            found.append(pid)
    return found


def main_criu(root, verb):
    """The one of them: CRIU has children for a moment, which look like it."""
    found = criu_processes(root, verb)
    below = {pid for one in found for pid in procfs.descendants(one)}
    (main,) = [pid for pid in found if pid not in below]
    return main


def frozen(pid):
    """CRIU has stopped it."""
    return procfs.state(pid) in ("t", "T") and procfs.traced_by(pid) != 0


def gate_is_held(root):
    """The dump that runs below `root` has everything that CRIU takes out of the job, which is still frozen."""
    return any(DUMP_GATE in " ".join(procfs.command_line(pid).split()[:2]) for pid in procfs.descendants(root))


def parasite_waits(tree):
    """CRIU's parasite is in one of the job's processes and waits for orders: CRIU may be killed, since it leaves by
    itself then. Who is killed while it goes in or out, or makes a call for another process, takes that one along.
    """
    ready = [pid for pid in tree if procfs.state(pid) == "S" and procfs.in_system_call(pid, _RECVFROM)]
    return len(ready) == 1 and all(procfs.state(pid) == "t" for pid in tree if pid not in ready)


def wait_for_checkpoint_phase(phase, host_pid, job_pid, ended):
    """Until the checkpoint that `host_pid` carries out is in `phase`. `ended()`: it is over (the test came
    too late).
    """

    def reached():
        if ended():
            raise AssertionError(f"the checkpoint ended before its phase {phase} was seen")
        if phase == "prepare":
            return procfs.state(host_pid) is not None
        if phase == "freeze":
            return frozen(job_pid)
        if phase == "gate":
            return frozen(job_pid) and gate_is_held(host_pid)  # it also runs before the freeze, for a moment
        # The commit follows once the dump has come and gone.
        if frozen(job_pid) or criu_processes(host_pid, "dump"):
            reached.dumped = True
            return False
        return reached.dumped

    reached.dumped = False
    waiting.until(reached, f"phase {phase}", 60, 0.0005)


def wait_for_restore_phase(phase, host_pid, job_pid, ended):
    """`criu`: CRIU is at work; `tasks`: the job's root exists again."""

    def reached():
        if ended():
            raise AssertionError(f"the restore ended before its phase {phase} was seen")
        if phase == "start":
            return True
        if phase == "tasks":
            return procfs.state(job_pid) is not None
        return bool(criu_processes(host_pid, "swrk") or criu_processes(host_pid, "restore"))

    waiting.until(reached, f"phase {phase}", 60, 0.0005)
