"""The simulated NVIDIA driver of tests/gpu_sim, and the test jobs that use it."""

import json
import os
import subprocess

from harness import jobs, procfs, waiting
from harness.cli import binary

MIB = 1 << 20
GIB = 1 << 30
# Two of one model and one of another.
FIRST = "GPU-11111111-1111-4111-8111-111111111111"
SECOND = "GPU-22222222-2222-4222-8222-222222222222"
OTHER_MODEL = "GPU-33333333-3333-4333-8333-333333333333"
TWO_ALIKE = ((FIRST, "NVIDIA H200", 4 * GIB), (SECOND, "NVIDIA H200", 4 * GIB))


class GpuSim:
    """One machine's GPUs. `environment` is for everything that is to see them."""

    def __init__(self, directory, gpus=TWO_ALIKE, name="gpus", **options):
        folder = os.path.dirname(binary("gpu_sim/gpu_sim_server"))
        self.socket = os.path.join(directory, name + ".sock")
        self.environment = {
            "REKINDLE_GPU_SIM": self.socket,
            "REKINDLE_GPU_CONTEXT_MEMORY": "0",  # it takes none, unless it is told to
            "LD_LIBRARY_PATH": folder,
            "PATH": folder + ":/usr/sbin:/usr/bin:/sbin:/bin",
        }
        argv = [binary("gpu_sim/gpu_sim_server"), "--socket", self.socket]
        for gpu in gpus:
            argv += ["--gpu", ",".join(str(part) for part in gpu)]
        for option, value in options.items():
            argv += ["--" + option.replace("_", "-"), str(value)]
        self._server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
        jobs.waited_elsewhere.add(self._server.pid)
        if self._server.stdout.readline().strip() != b"ready":
            raise RuntimeError(f"{' '.join(argv)} did not become ready")

    def stop(self):
        self._server.terminate()
        self._server.wait(30)
        self._server.stdout.close()
        jobs.waited_elsewhere.discard(self._server.pid)
        if os.path.exists(self.socket):
            os.unlink(self.socket)

    def control(self, *words):
        done = subprocess.run(
            [binary("gpu_sim/gpu_sim_ctl"), "--socket", self.socket, *(str(word) for word in words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"gpu_sim_ctl {words}: {done.stderr}")
        return done.stdout

    def inject(self, call, *fault, pid=None, nth=None):
        words = ["inject", call]
        if pid is not None:
            words += ["--pid", pid]
        if nth is not None:
            words += ["--nth", nth]
        self.control(*words, *fault)

    def clear(self):
        self.control("clear")

    def stats(self):
        return json.loads(self.control("stats"))

    def calls(self):
        """The calls of the checkpoint API, in order."""
        return json.loads(self.control("calls"))


def step_in(state_file):
    """What a test job tells there: GpuJob.step()."""
    try:
        with open(state_file, encoding="ascii") as file:
            return int(file.read().split()[0])
    except (FileNotFoundError, IndexError):
        return -1


class GpuJob:
    """A test job that checks its device memory after every step, and tells in a file how far it is."""

    def __init__(self, test, sim, name, program, options):
        self.state_file = test.path(name + ".state")
        argv = [jobs.program(program), "--state-file", self.state_file, *_words(options)]
        self.job = test.start_job(argv, name, env=sim.environment)
        self.pid = self.job.pid
        self.wait_for_steps()

    def step(self):
        """How many steps all of its processes have made and found right; -1 before the first."""
        return step_in(self.state_file)

    def wait_for_steps(self, more=3):
        """Until it has made so many steps from now on."""
        wanted = self.step() + more

        def there():
            if not procfs.alive(self.pid):
                raise AssertionError(f"the GPU job {self.pid} has ended: {self.log_text()}")
            return self.step() >= wanted

        waiting.until(there, f"{more} more steps of the GPU job")

    def log_text(self):
        with open(self.job.log, encoding="utf-8", errors="replace") as log:
            return log.read()


def start_vector_job(test, sim, name="vector", **options):
    return GpuJob(test, sim, name, "gpu_vector_job", options)


def start_tree_job(test, sim, children, name="tree", **options):
    """A process that uses no GPU, with children that do."""
    return GpuJob(test, sim, name, "gpu_tree_job", {"children": children, **options})


def _words(options):
    words = []
    # A step is some milliseconds of work: without a rest the jobs would take from the tests what these wait for.
    for option, value in {"bytes": 16 * MIB, "step_ms": 20, **options}.items():
        words.append("--" + option.replace("_", "-"))
        if value is not True:
            words.append(str(value))
    return words
