"""Containers as container engines make them: an OCI bundle that runc runs, with a root file system, PIDs, network and
cgroups of its own and few capabilities.
"""

import json
import os
import subprocess

from harness import jobs, procfs, waiting
from harness.cli import binary

_FOLDERS = ("usr", "proc", "sys", "dev", "tmp", "run", "etc", "root", "var/tmp", "data", "programs", "bin-of-rekindle")
_LINKS = ("bin", "lib", "lib64", "sbin")


class Container:
    """`folder` keeps the bundle; `data` (a folder) is /data in it, the tests' workloads are /programs. Its first
    process is `argv`; `output` is its standard output and error, `memory` its limit in bytes. A `bare` one can be
    written to in /data and memory alone, and has no /tmp. `pids` is the process whose PIDs it shares, or `MACHINE`.
    """

    MACHINE = 0

    def __init__(self, folder, data, argv, output, memory=None, bare=False, pids=None):
        self.name = f"rekindle-it-{os.getpid()}-{os.path.basename(folder)}"
        self.root = os.path.join(folder, "rootfs")
        self._folder, self._state = folder, os.path.join(folder, "state")
        for name in _FOLDERS:
            if not bare or not name.endswith("tmp"):
                os.makedirs(os.path.join(self.root, name))
        for name in _LINKS:
            os.symlink("usr/" + name, os.path.join(self.root, name))
        self._runc("spec", cwd=folder)
        with open(self._config, encoding="ascii") as file:
            config = json.load(file)
        config["process"].update({"terminal": False, "args": argv})
        config["root"] = {"path": "rootfs", "readonly": bare}
        config["linux"]["cgroupsPath"] = "/" + self.name
        for source, destination, mode in (
            ("/usr", "/usr", "ro"),
            (jobs.WORKLOADS, "/programs", "ro"),
            (os.path.dirname(binary("rekindle-init")), "/bin-of-rekindle", "ro"),
            (data, "/data", "rw"),
        ):
            mount = {"destination": destination, "type": "bind", "source": source, "options": ["rbind", mode]}
            config["mounts"].append(mount)
        if pids is not None:
            namespaces = config["linux"]["namespaces"]
            namespaces[:] = [namespace for namespace in namespaces if namespace["type"] != "pid"]
            if pids != self.MACHINE:
                namespaces.append({"type": "pid", "path": f"/proc/{pids}/ns/pid"})
        if memory is not None:
            config["linux"]["resources"]["memory"] = {"limit": memory}
        with open(self._config, "w", encoding="ascii") as file:
            json.dump(config, file)
        self._output = output

    @property
    def _config(self):
        return os.path.join(self._folder, "config.json")

    def _runc(self, *arguments, **options):
        return subprocess.run(
            ["runc", "--root", self._state, *arguments],
            check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, **options
        ).stdout

    def start(self):
        subprocess.run(
            ["runc", "--root", self._state, "run", "--bundle", self._folder, "--detach", self.name],
            check=True, stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output
        )

    def execute(self, argv):
        """Beside its first process."""
        subprocess.run(
            ["runc", "--root", self._state, "exec", "--detach", self.name, *argv],
            check=True, stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output
        )

    def pause(self):
        self._runc("pause", self.name)

    def resume(self):
        self._runc("resume", self.name)

    def pids(self):
        """Of all its processes, in our numbers, its first one first."""
        return json.loads(self._runc("ps", "--format", "json", self.name)) or []

    def first(self):
        return json.loads(self._runc("state", self.name))["pid"]

    def find(self, words):
        """The process whose command line has them, once it is there."""

        def found():
            pids = [pid for pid in self.pids() if words in (procfs.command_line(pid) or "")]
            return pids[-1] if pids else None

        return waiting.until(found, f"{words} in a container")

    def end(self):
        """With all processes."""
        if os.path.isdir(os.path.join(self._state, self.name)):
            # What was restored is a child of who did it, or of ours: a namespace ends when all are reaped.
            jobs.reap_orphans()
            for pid in sorted(self.pids(), key=procfs.namespace_pid, reverse=True):
                jobs.kill_tree(pid)
            self._runc("delete", "--force", self.name)
