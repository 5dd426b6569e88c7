"""Starting the workloads as an administrator would: a session of their own and only the descriptors they
need.
"""

import fcntl
import json
import os
import signal
import socket
import subprocess
import termios
import time
import urllib.request

from harness import procfs, waiting

PYTHON = "/usr/bin/python3"
# Its vfork() child waits for somebody who writes to the pipe that is its argument, before it begins its program: until then
# the parent can't be stopped.
WAITS_IN_VFORK = """
import os, signal, sys
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])
signal.pause()
"""
WORKLOADS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "workloads")
PROGRAMS = os.environ.get("REKINDLE_WORKLOAD_PROGRAMS", "")


def workload(name):
    return os.path.join(WORKLOADS, name)


def program(name):
    """One of the C programs."""
    path = os.path.join(PROGRAMS, name)
    if not os.access(path, os.X_OK):
        raise RuntimeError(f"{path} is not built: set REKINDLE_WORKLOAD_PROGRAMS to the build's bin folder")
    return path


def noon_zone():
    """A TZ for Rekindle in which it is about noon: no new day begins while a test runs."""
    hours = 12 - time.gmtime().tm_hour
    return f"Fixed/UTC{'-' if hours < 0 else '+'}{abs(hours):02}:00:00"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Started:
    """A job that this process started. Its PID stays the same when Rekindle brings it back, its parent does
    not.
    """

    def __init__(self, argv, log, cwd="/", env=None, uid=0, terminal=None, output=None):
        """Output goes to `log`, or to the descriptor `output`; with `terminal` (a descriptor) that is all three of
        its streams and it controls it.
        """
        environment = {
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": "/",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        environment.update(env or {})
        self.log = log
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _become(argv, log, cwd, environment, uid, terminal, output)
            finally:
                os._exit(127)

    def reap(self, seconds=waiting.DEFAULT_SECONDS):
        """Waits for the death of the root (`ckpt --stop`, kill) and collects the tree: a zombie keeps its
        PID taken, and its session's too.
        """
        waiting.for_exit(self.pid, seconds)
        status = reap(self.pid)

        def left():
            reap_orphans()
            fields = {pid: procfs.stat_fields(pid) for pid in procfs.all_pids()}
            return [pid for pid, of_it in fields.items() if of_it and int(of_it[3]) == self.pid]

        try:
            waiting.until(lambda: not left(), "the job's session collected", seconds)
        except TimeoutError as error:
            raise TimeoutError("\n".join([str(error), *map(procfs.whereabouts, left())])) from None
        return status

    def kill_tree(self):
        kill_tree(self.pid)


def _become(argv, log, cwd, environment, uid, terminal, output):
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    if terminal is None:
        stdin = os.open("/dev/null", os.O_RDONLY)
        if output is None:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    else:
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        stdin = output = terminal
    for target, source in enumerate((stdin, output, output)):
        os.dup2(source, target)
    os.closerange(3, 4096)
    os.chdir(cwd)
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.execvpe(argv[0], argv, environment)


def reap(pid):
    """Collects a child that has ended; returns its wait status, None when it is no child of ours."""
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:
        return None


def reap_orphans():
    """Collects what this process, as sub-reaper, inherited and has ended; `waited_elsewhere` it leaves
    alone.
    """
    for pid in procfs.children_by_parent().get(os.getpid(), []):
        if procfs.state(pid) == "Z" and pid not in waited_elsewhere:
            reap(pid)


waited_elsewhere = set()  # children that subprocess.Popen waits for


def kill_tree(root):
    """SIGKILL to the tree, parents first so that nothing is started again, and to its session."""
    pids = [root] + procfs.descendants(root)
    for pid in procfs.all_pids():
        fields = procfs.stat_fields(pid)
        if fields and int(fields[3]) == root and pid not in pids:
            pids.append(pid)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for pid in pids:
        waiting.for_exit(pid)

    # A parent other than this process (the daemon, a container's init) collects in its own time. A shell may have
    # started one more child between the look at its session and its end.
    def collected():
        for pid in procfs.all_pids():
            fields = procfs.stat_fields(pid)
            if fields and int(fields[3]) == root and pid not in pids:
                pids.append(pid)
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        reap_orphans()
        return all(procfs.stat_fields(pid) is None for pid in pids)

    waiting.until(collected, "the killed tree collected")


def http_json(port, path="/", seconds=waiting.DEFAULT_SECONDS):
    """GET with curl, as a user would check."""
    done = subprocess.run(
        [
            "curl",
            "--silent",
            "--show-error",
            "--fail",
            "--max-time",
            str(int(seconds)),
            f"http://127.0.0.1:{port}{path}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        check=False,
    )
    if done.returncode != 0:
        raise ConnectionError(done.stderr.decode())
    return json.loads(done.stdout)


def wait_for_http(port, path="/", seconds=waiting.DEFAULT_SECONDS):
    def answers():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=seconds) as response:
                return response.read()
        except OSError:
            return None

    return waiting.until(answers, f"answer on port {port}", seconds, 0.02)
