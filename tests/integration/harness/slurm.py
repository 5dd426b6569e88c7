"""A Slurm of one node, for one test: munged, slurmctld and slurmd on ports and folders of their own."""

import os
import shutil
import signal
import socket
import subprocess

from harness import jobs, procfs, waiting

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel")
_FREEZER = "/sys/fs/cgroup/freezer"
NODE = "node1"


def missing():
    """Why no Slurm can be started here; empty: it can."""
    absent = [name for name in _PROGRAMS if not shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin")]
    return "not installed: " + ", ".join(absent) + " (scripts/setup.sh --slurm)" if absent else ""


def cgroups_missing():
    """Why Slurm can't track jobs by control groups here, as this harness sets it up."""
    return "" if os.path.isdir(_FREEZER) else f"no cgroup hierarchy at {_FREEZER}"


class Slurm:
    """Jobs of the partition `high` preempt those of `low`, which are started again."""

    def __init__(self, test, cpus=1, proctrack="linuxproc"):
        self.folder = test.path("slurm")
        os.mkdir(self.folder)
        os.mkdir(self._path("state"))
        os.mkdir(self._path("spool"))
        self.conf = self._path("slurm.conf")
        self.environment = {"SLURM_CONF": self.conf}
        self._proctrack = proctrack
        self._daemons = []
        with open(self.conf, "w", encoding="ascii") as file:
            file.write(self._configuration(cpus))
        with open(self._path("cgroup.conf"), "w", encoding="ascii") as file:
            file.write("CgroupAutomount=no\nCgroupMountpoint=/sys/fs/cgroup\nCgroupPlugin=cgroup/v1\n")
        with open(self._path("munge.key"), "wb") as file:
            os.fchmod(file.fileno(), 0o400)
            file.write(os.urandom(1024))
        test.addCleanup(self.stop)
        self._start(
            ["munged", "--foreground", "--force", "--num-threads=1"]
            + [f"--{what}-file={self._path('munge.' + what)}" for what in ("key", "pid", "log", "seed")]
            + ["--socket=" + self._path("munge.socket")]
        )
        waiting.until(lambda: os.path.exists(self._path("munge.socket")), "munged listens", 30, 0.02)
        self._start(["slurmctld", "-D", "-i", "-f", self.conf])
        self._start(["slurmd", "-D", "-N", NODE, "-f", self.conf])
        try:
            waiting.until(self._is_idle, "the node is idle", 60, 0.1)
        except TimeoutError as error:
            raise RuntimeError(f"Slurm does not start: {error}\n{self.logs()}") from None

    def _path(self, name):
        return os.path.join(self.folder, name)

    def _configuration(self, cpus):
        host = socket.gethostname().split(".")[0]
        # A job that is started again waits for cred_expire, and then for the scheduler.
        return f"""
ClusterName=rekindle
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={self._path("munge.socket")},cred_expire=5
SlurmctldPort={jobs.free_port()}
SlurmdPort={jobs.free_port()}
StateSaveLocation={self._path("state")}
SlurmdSpoolDir={self._path("spool")}
SlurmctldPidFile={self._path("slurmctld.pid")}
SlurmdPidFile={self._path("slurmd.pid")}
SlurmctldDebug=verbose
SlurmdDebug=verbose
ProctrackType=proctrack/{self._proctrack}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=30
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={NODE} NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""

    def _start(self, argv):
        with open(self._path(argv[0] + ".out"), "wb") as log:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **self.environment},
                start_new_session=True,
            )
        self._daemons.append(child)
        jobs.waited_elsewhere.add(child.pid)

    def logs(self):
        text = ""
        for name in ("munged", "slurmctld", "slurmd"):
            if os.path.exists(self._path(name + ".out")):
                with open(self._path(name + ".out"), encoding="utf-8", errors="replace") as file:
                    text += f"{name}:\n" + "".join(file.readlines()[-60:])
        return text

    def run(self, *argv, environment=None, uid=0, check=True):
        """One of Slurm's commands; returns its standard output."""
        done = subprocess.run(
            [str(a) for a in argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={"PATH": "/usr/bin:/bin", **(environment or {}), **self.environment},
            cwd=self.folder,
            **({"user": uid, "group": uid, "extra_groups": []} if uid else {}),
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, argv))}: {done.stderr}{done.stdout}\n{self.logs()}")
        return done.stdout

    def _is_idle(self):
        return self.run("sinfo", "-h", "-o", "%T", "-p", "high", check=False).strip() == "idle"

    def submit(self, script, *options, **run_options):
        """Returns the job's number."""
        return int(self.run("sbatch", "--parsable", *options, script, **run_options))

    def job(self, number):
        """What `scontrol show job` says of it; of an array: of its first task."""
        text = self.run("scontrol", "show", "job", "-o", number).splitlines()[0]
        return dict(field.split("=", 1) for field in text.split() if "=" in field)

    def wait_for_state(self, number, *states, seconds=90):
        def reached():
            return self.job(number)["JobState"] in states

        try:
            waiting.until(reached, f"job {number} is {' or '.join(states)}", seconds, 0.1)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {self.job(number)}\n{self.logs()}") from None

    def stop(self):
        """Ends all jobs and then the daemons."""
        if self._daemons and procfs.alive(self._daemons[-1].pid) and len(self._daemons) == 3:
            for number in self.run("squeue", "-h", "-o", "%A", check=False).split():
                self.run("scancel", "-f", number, check=False)
            waiting.until(lambda: not self._steps(), "all steps of jobs ended", 60, 0.1)
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
            jobs.waited_elsewhere.discard(daemon.pid)
        self._daemons = []
        if self._proctrack == "cgroup":
            self._remove_cgroups()

    def _steps(self):
        return [pid for pid in procfs.all_pids() if procfs.command_line(pid).startswith("slurmstepd: [")]

    def _remove_cgroups(self):
        """Slurm leaves those of the node and its users. Whoever is still in one came from the root, and goes
        back.
        """
        top = os.path.join(_FREEZER, "slurm_" + NODE)
        for folder, _, _ in os.walk(top, topdown=False):
            with open(os.path.join(folder, "cgroup.procs"), encoding="ascii") as file:
                left = file.read().split()
            for pid in left:
                with open(os.path.join(_FREEZER, "cgroup.procs"), "w", encoding="ascii") as file:
                    file.write(pid)
            os.rmdir(folder)
