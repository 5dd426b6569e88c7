#!/usr/bin/env python3
"""Many functions, called at random popularity: every answer is checked, and then everything that could be left behind is
counted.

    bench/function_soak.py [--functions 50] [--calls 10000] [--connections 8] [--seed 1] [--memory 256M] [--json FILE]

Prints a Markdown table and, last, a line of JSON. Ends with 1 when an answer was wrong or anything leaked. Needs root, and
the programs of build/release (--bin).
"""

import argparse
import collections
import http.client
import json
import os
import random
import shutil
import signal
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
for part in ("tests/integration", "bench"):
    sys.path.insert(0, os.path.join(ROOT, part))

from function_world import FunctionWorld  # noqa: E402
from harness import cli, jobs, procfs  # noqa: E402
from start_figures import leave  # noqa: E402
from start_report import table  # noqa: E402

MIB = 1 << 20
MEMORY = "256M"  # for instances and what is kept: less makes more starts
_NUMPY_EVERY = 10  # of the functions, one in so many uses numpy
_WARM_UP = 4  # one in so many of the calls
_SETTLED = 60  # seconds, for what is cleared away in the background
_PATIENCE = 60
# The allocator gives back whole regions only. One KiB of each call would be seen.
_MEMORY_SLACK = 8 * MIB
# Threads that come and go with load have a descriptor or two each.
_KINDS = ("socket", "pipe", "anon_inode:[pidfd]", "anon_inode:[userfaultfd]", "anon_inode:[eventfd]", "memfd", "other")

_PLAIN = """import os
import random

NUMBER, CALLS, SALT = {number}, 0, random.getrandbits(64)


def handler(event, context):
    global CALLS
    CALLS += 1
    total = sum(event["values"]) + NUMBER
    print(f"call {{event['call']}} of function {{NUMBER}}")
    return {{"function": NUMBER, "call": event["call"], "total": total, "calls": CALLS, "salt": SALT, "pid": os.getpid(),
            "request": context.aws_request_id}}
"""
_NUMPY = _PLAIN.replace("import os\n", "import os\n\nimport numpy\n", 1).replace(
    'sum(event["values"])', 'int(numpy.array(event["values"]).sum())'
)


# What the arenas of many threads keep is no leak, and hides one.
ENVIRONMENT = {"MALLOC_ARENA_MAX": "1"}


class Options:
    """Of one soak; the defaults are the published run's."""

    functions, calls, connections, seed, exponent = 50, 10000, 8, 1, 1.0


def popularity(count, exponent):
    """Weights after Zipf: the n-th function is called 1/n**exponent times as often as the first."""
    return [1 / rank**exponent for rank in range(1, count + 1)]


class Soak:
    """On a world whose daemon runs."""

    def __init__(self, world, options, say=print):
        self.world, self.options, self.say = world, options, say
        self.random = random.Random(options.seed)
        self.errors, self.took = [], []
        self._lock = threading.Lock()

    def run(self):
        """Plain data: `errors` and `leaks` in words, and the numbers behind them."""
        options = self.options
        # What is made once, at first use, is no leak.
        self._round("warm", options.functions, max(options.calls // _WARM_UP, 1))
        before = self._settled(lambda now: not now["left"])
        self.took.clear()
        self.say(f"before: {before['counts']}")
        began = time.monotonic()
        levels = self._round("soak", options.functions, options.calls)
        seconds = time.monotonic() - began
        after = self._settled(lambda now: not _leaks(before["counts"], now["counts"]) and not now["left"])
        leaks = _leaks(before["counts"], after["counts"]) + after["left"]
        self.took.sort()
        return {
            **{name: getattr(options, name) for name in ("functions", "calls", "connections", "seed", "exponent")},
            "answered": len(self.took),
            "errors": self.errors,
            "leaks": leaks,
            "before": before["counts"],
            "after": after["counts"],
            "levels": levels,
            "seconds": seconds,
            **{f"p{share}_ms": self.took[int(share / 100 * (len(self.took) - 1))] * 1e3 for share in (50, 99) if self.took},
        }

    def _round(self, prefix, functions, calls):
        """Deploys, calls, removes. How instances were started, and how often."""
        names = [f"{prefix}{number}" for number in range(functions)]
        for number, name in enumerate(names):
            self._deploy(name, number)
        self.say(f"{functions} functions are deployed")
        # Which of them are the popular ones has nothing to do with their numbers.
        order = self.random.sample(range(functions), functions)
        drawn = self.random.choices(order, popularity(functions, self.options.exponent), k=calls)
        values = [[self.random.randrange(1000) for _ in range(self.random.randrange(20))] for _ in drawn]
        todo = collections.deque(enumerate(zip(drawn, values)))
        callers = [threading.Thread(target=self._call_all, args=(names, todo)) for _ in range(self.options.connections)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        levels = collections.Counter()
        invocations = 0
        for stats in self.world.run("fn", "stats")["functions"]:
            invocations += int(stats.get("invocations", 0))
            for starts in stats.get("starts", []):
                levels[starts["level"]] += int(starts["count"])
        if invocations != calls:
            self.errors.append(f"the daemon counts {invocations} invocations of {calls}")
        self.say(f"{calls} calls; started: {dict(levels)}; {len(self.errors)} errors")
        self.world.run("fn", "rm", *names)
        # Their templates are kept as long as the images are.
        for image in self.world.run("deps", "ls")["images"]:
            self.world.run("deps", "rm", image["reference"])
        return dict(levels)

    def _deploy(self, name, number):
        code = self.world.path("code", name)
        os.makedirs(code)
        uses_numpy = number % _NUMPY_EVERY == 0
        with open(os.path.join(code, "app.py"), "w", encoding="utf-8") as file:
            file.write((_NUMPY if uses_numpy else _PLAIN).format(number=number))
        self.world.deploy(name, code, {}, "numpy" if uses_numpy else "none")
        shutil.rmtree(code)

    def _call_all(self, names, todo):
        connection = http.client.HTTPConnection("127.0.0.1", self.world.port, timeout=_PATIENCE)
        while True:
            try:
                call, (number, values) = todo.popleft()
            except IndexError:
                break
            problem = None
            began = time.monotonic()
            try:
                body = json.dumps({"call": call, "values": values})
                connection.request("POST", f"/2015-03-31/functions/{names[number]}/invocations", body)
                answer = connection.getresponse()
                text = answer.read()
                took = time.monotonic() - began
                problem = _problem(answer, text, number, call, values)
            except (OSError, http.client.HTTPException) as error:
                problem = repr(error)
                connection.close()
            with self._lock:
                if problem is None:
                    self.took.append(took)
                else:
                    self.errors.append(f"call {call} of {names[number]}: {problem}")
        connection.close()

    # What there is.

    def _settled(self, settled):
        """The counts when `settled` holds of them, or as they are after a while."""
        deadline = time.monotonic() + _SETTLED
        while True:
            jobs.reap_orphans()
            now = self._count()
            if settled(now) or time.monotonic() > deadline:
                return now
            time.sleep(1)

    def _count(self):
        world = self.world
        daemon, pagers = world.daemon.pid, world.pagers()
        counts = collections.Counter()
        commands = collections.Counter()
        for pid in procfs.descendants(os.getpid()):
            if pid in (daemon, *pagers) or not procfs.alive(pid):
                continue
            commands[_command(pid)] += 1
        for command, count in commands.items():
            counts[f"processes: {command}"] = count
        counts["zombies"] = sum(procfs.state(pid) == "Z" for pid in procfs.descendants(daemon))
        counts["mounts"] = _lines("/proc/self/mountinfo")
        counts["mounts of the daemon"] = _lines(f"/proc/{daemon}/mountinfo")
        groups = _cgroups(daemon)
        counts["cgroups"] = len(groups)
        for name, pids in (("daemon", [daemon]), ("pager", pagers)):
            counts[f"processes of the {name}"] = len(pids)
            for pid in pids:
                for kind, count in _descriptors(pid).items():
                    counts[f"{name}: descriptors: {kind}"] += count
                counts[f"{name}: memory of its own, bytes"] += procfs.memory_bytes(pid, "Anonymous")
                counts[f"{name}: threads"] += procfs.threads(pid)
        for stats in world.pager_stats():  # its cache has a bound of its own
            counts["pager: memory of its own, bytes"] -= stats["cache"]["memory_bytes"]
            counts["pager: copies served"] += stats["serving"]
        folders = {
            "STORE/functions": os.path.join(world.store, "functions"),
            "runtime folder": world.runtime,
            "logs of functions": world.path("logs", "functions"),
            "/dev/shm": "/dev/shm",
        }
        for name, folder in folders.items():
            counts[f"files: {name}"] = len(_files(folder))
        images = [each["reference"] for each in world.run("ls")["images"]]
        counts["images"] = len(images)
        # Of functions that are not there any more.
        left = _left(world, images)
        if counts["pager: copies served"]:
            left.append("copies that stand by")  # of images that there are no more
        return {"counts": dict(counts), "left": left}


def _problem(answer, text, number, call, values):
    """None: it is the answer to this call."""
    if answer.status != 200 or answer.headers["X-Amz-Function-Error"]:
        return f"{answer.status} {answer.headers['x-amzn-ErrorType']} {text[:500]!r}"
    told = json.loads(text)
    want = {"function": number, "call": call, "total": sum(values) + number,
            "request": answer.headers["x-amzn-RequestId"]}  # fmt: skip
    wrong = {key: (told.get(key), value) for key, value in want.items() if told.get(key) != value}
    return f"(told, wanted): {wrong}" if wrong else None


def _left(world, images):
    found = [f"image {name}" for name in images]
    found += [f"socket or record {path}" for path in _files(os.path.join(world.runtime, "f"))]
    found += [f"code {path}" for path in _files(os.path.join(world.store, "functions")) if not path.endswith(".lock")]
    found += [f"log {path}" for path in _files(world.path("logs", "functions"))]
    found += [f"instance: process {pid}" for pid in world.instances()]
    return found


def _leaks(before, after):
    """In words."""
    found = []
    for name in sorted(after):
        more = after[name] - before.get(name, 0)
        if more > (_MEMORY_SLACK if name.endswith("bytes") else 0):
            found.append(f"{name}: {before.get(name, 0)} before, {after[name]} after")
    return found


def _command(pid):
    words = procfs.command_line(pid).split()
    return os.path.basename(words[0]) if words else "?"


def _lines(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return sum(1 for _ in file)


def _descriptors(pid):
    kinds = collections.Counter()
    try:
        targets = procfs.descriptor_targets(pid).values()
    except FileNotFoundError:  # one was closed meanwhile
        return _descriptors(pid)
    for target in targets:
        kinds[next((kind for kind in _KINDS if target.lstrip("/").startswith(kind)), "other")] += 1
    return kinds


def _cgroups(daemon):
    """Those that this daemon has made."""
    found = []
    for hierarchy in ("memory", "cpu", "pids", ""):
        folder = os.path.join("/sys/fs/cgroup", hierarchy, "rekindle")
        if os.path.isdir(folder):
            found += [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith(f"{daemon}-")]
    return found


def _files(folder):
    return [os.path.join(path, name) for path, _, names in os.walk(folder) for name in names]


def report(found):
    """Lines of Markdown."""
    lines = [
        f"{found['functions']} functions, {found['calls']:,} calls over {found['connections']} connections, popularity as "
        f"1/rank^{found['exponent']}, seed {found['seed']}: {found['answered']:,} right answers, {len(found['errors'])} "
        f"errors, {len(found['leaks'])} leaks, in {found['seconds']:.0f} s with deploying and removing (p50 "
        f"{found.get('p50_ms', 0):.2f} ms, p99 {found.get('p99_ms', 0):.1f} ms).",
        "",
    ]
    lines += table(("started from", "instances"), sorted(found["levels"].items()))
    rows = [(name, f"{found['before'].get(name, 0):,}", f"{found['after'].get(name, 0):,}")
            for name in sorted({*found["before"], *found["after"]})]  # fmt: skip
    lines += table(("", "before", "after"), rows)
    return lines + [f"- {what}" for what in [*found["errors"][:20], *found["leaks"]]]


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", type=int, default=Options.functions)
    parser.add_argument("--calls", type=int, default=Options.calls)
    parser.add_argument("--connections", type=int, default=Options.connections)
    parser.add_argument("--seed", type=int, default=Options.seed)
    parser.add_argument("--exponent", type=float, default=Options.exponent, help="of Zipf's law [1]")
    parser.add_argument("--memory", default=MEMORY, metavar="SIZE", help=f"what instances may take [{MEMORY}]")
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/release/bin"), metavar="DIR", help="our programs")
    parser.add_argument("--work", metavar="DIR", default="/var/tmp", help="where the store goes")
    parser.add_argument("--json", metavar="FILE", help="the numbers")
    return parser.parse_args(arguments)


def main():
    options = parse(sys.argv[1:])
    cli.BINARIES = os.path.abspath(options.bin)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, leave)
    world = FunctionWorld(options.work)
    try:
        world.environment.update(ENVIRONMENT)
        world.start_daemon("--functions-memory", options.memory)
        found = Soak(world, options, lambda text: print(f"  {time.strftime('%H:%M:%S')} {text}", file=sys.stderr)).run()
        if found["errors"] or found["leaks"]:
            print(world.records(), file=sys.stderr)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        world.remove()
    print("\n".join(report(found)))
    text = json.dumps(found)
    print(text)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    return 1 if found["errors"] or found["leaks"] else 0


if __name__ == "__main__":
    sys.exit(main())
