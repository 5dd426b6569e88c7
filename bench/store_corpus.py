"""Makes the images that the store is measured with: real processes, dumped by stock CRIU.

Each corpus is a folder of CRIU image directories, in the order in which they are taken in. A corpus that is
there already is left alone.
"""

import argparse
import base64
import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
for part in ("tests/integration", "bench"):
    sys.path.insert(0, os.path.join(ROOT, part))

from contenders import StockCriu, criu_in  # noqa: E402
from corpus import functions  # noqa: E402
from harness import jobs, waiting  # noqa: E402
from harness.memory_job import MemoryJob  # noqa: E402

MIB = 1 << 20
WORKLOADS = os.path.join(ROOT, "bench/corpus")
# Threads that a library starts for itself would differ from machine to machine, and none survives a fork.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# No part of a job's state: Rekindle does not take them in, so the others need not either.
NO_STATE = ("dump.log", "stats-dump")


class Corpus:
    """One being made: in a folder under another name until it is whole."""

    def __init__(self, folder):
        self.folder = folder
        self._criu = criu_in("/opt/rekindle/criu")
        if self._criu is None:
            raise RuntimeError("/opt/rekindle/criu has no CRIU: run scripts/setup.sh --criu")
        self._scratch = folder + ".scratch"
        self._jobs = []

    def __enter__(self):
        for folder in (self.folder, self._scratch):
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder)
        return self

    def __exit__(self, *_):
        for job in self._jobs:
            job.kill_tree()
        shutil.rmtree(self._scratch)

    def scratch(self, name):
        return os.path.join(self._scratch, name)

    def start(self, argv, env=None):
        self._jobs.append(jobs.Started(argv, self.scratch("log"), env={**ONE_THREAD, **(env or {})}))
        return self._jobs[-1]

    def end(self, job):
        self._jobs.remove(job)
        job.kill_tree()

    def wait_for_file(self, path, content=None, seconds=300):
        """Until it is there (with that content); returns what is in it."""

        def look():
            try:
                with open(path, encoding="ascii") as file:
                    found = file.read()
            except FileNotFoundError:
                return None
            return found if content is None or found == content else None

        try:
            return waiting.until(look, f"{path} made by the job", seconds)
        except TimeoutError as error:
            with open(self.scratch("log"), encoding="utf-8", errors="replace") as log:
                raise RuntimeError(f"{error}; its output:\n{log.read()}") from None

    def dump(self, pid, name, options=()):
        images = StockCriu(name, self._criu, self.folder, options)
        images.dump(pid)
        for unwanted in NO_STATE:
            os.unlink(os.path.join(images.images, unwanted))
        print(f"  {name}: {images.bytes_on_disk() / MIB:.1f} MiB", flush=True)


def separate_functions(corpus, prefix=(), env=None):
    for number in range(len(functions.SETS)):
        ready = corpus.scratch(f"ready.{number}")
        script = os.path.join(WORKLOADS, "functions.py")
        job = corpus.start([*prefix, jobs.PYTHON, script, "one", ready, str(number)], env)
        corpus.wait_for_file(ready)
        corpus.dump(job.pid, f"f{number}")
        corpus.end(job)


def unrandomized_functions(corpus):
    separate_functions(corpus, ["/usr/bin/setarch", "-R"], {"PYTHONHASHSEED": "0"})


def forked_functions(corpus):
    corpus.start([jobs.PYTHON, os.path.join(WORKLOADS, "functions.py"), "forked", corpus.scratch("")])
    pids = [int(corpus.wait_for_file(corpus.scratch(f"ready.{n}"))) for n in range(len(functions.SETS))]
    for number, pid in enumerate(pids):
        corpus.dump(pid, f"f{number}")


def training(corpus):
    status = corpus.scratch("status")
    job = corpus.start([jobs.PYTHON, os.path.join(WORKLOADS, "training.py"), status])
    for number in range(8):
        corpus.wait_for_file(status, content=str(3 * (number + 1)))
        corpus.dump(job.pid, f"c{number}")
        os.kill(job.pid, signal.SIGUSR1)


def incompressible(corpus, size):
    status = corpus.scratch("status")
    job = corpus.start([jobs.program("memory_job"), str(size), status])
    MemoryJob(status).close()
    corpus.dump(job.pid, "c0")


def servers(corpus):
    port = jobs.free_port()
    node = corpus.start(["/usr/bin/node", os.path.join(WORKLOADS, "user_server.js"), str(port)])
    jobs.wait_for_http(port)
    corpus.dump(node.pid, "node", ["--tcp-established"])
    corpus.end(node)

    port = str(jobs.free_port())
    argv = ["/usr/bin/redis-server", "--port", port, "--save", "", "--appendonly", "no"]
    redis = corpus.start([*argv, "--dir", corpus.scratch("")])
    ask = ["/usr/bin/redis-cli", "-p", port]
    waiting.until(lambda: _said(ask, "ping") == "PONG", "Redis answers")
    noise = random.Random(1)
    commands = [
        f"SET session:{i} {base64.b64encode(noise.randbytes(60)).decode()}-{i % 1000}-active\n"
        for i in range(300_000)
    ]
    subprocess.run(
        [*ask, "--pipe"], input="".join(commands).encode(), stdout=subprocess.DEVNULL, check=True, timeout=120
    )
    if _said(ask, "dbsize") != str(len(commands)):
        raise RuntimeError(f"Redis holds {_said(ask, 'dbsize')} keys instead of {len(commands)}")
    corpus.dump(redis.pid, "redis", ["--tcp-established"])


def _said(ask, *command):
    done = subprocess.run([*ask, *command], capture_output=True, text=True, check=False, timeout=30)
    return done.stdout.strip()


TITLES = {
    "a": "ten Python functions, each started as any process is",
    "a2": "the same ten, started without address and hash randomization",
    "a3": "the same ten, forked from one process that has loaded all libraries",
    "b": "eight successive checkpoints of one torch training job",
    "c": "one process with incompressible memory",
    "d": "a Node.js and a Redis process",
}


def make(name, folder, large=2048 * MIB):
    """Makes corpus `name` at `folder` unless it is there."""
    if os.path.isdir(folder):
        return
    makers = {
        "a": separate_functions,
        "a2": unrandomized_functions,
        "a3": forked_functions,
        "b": training,
        "c": lambda corpus: incompressible(corpus, large),
        "d": servers,
    }
    print(f"Making corpus {name}: {TITLES[name]}", flush=True)
    with Corpus(folder + ".new") as corpus:
        makers[name](corpus)
    os.rename(folder + ".new", folder)


def be_subreaper():
    """Orphans of the jobs come to this process, which can then collect them."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", metavar="DIR", help="where the corpora go, one folder each")
    parser.add_argument("--only", nargs="*", choices=TITLES, default=list(TITLES))
    parser.add_argument("--large-mib", type=int, default=2048, help="size of corpus c")
    arguments = parser.parse_args()
    be_subreaper()
    os.makedirs(arguments.directory, exist_ok=True)
    for name in arguments.only:
        make(name, os.path.join(os.path.abspath(arguments.directory), name), arguments.large_mib * MIB)


if __name__ == "__main__":
    main()
