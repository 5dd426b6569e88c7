"""What start_figures.py measures, section by section: plain data, for the JSON and the tables."""

import os
import statistics
import subprocess
import threading
import time

from harness import cli, jobs, procfs, waiting
from start_ways import CLONE, TEMPLATE, Clone, Cold, CriuEager, CriuLazy, Forked, Standby, Template
from start_world import MIB, disk_read_bytes, drop_caches, end, meminfo, memory_of, read_bytes_of
from start_world import touch_free_memory

PAGE = 4096
_WARM_UP = 6  # a working set is known for good after four
_OWN_NAMES = ("rekindled", "rekindle-pager", "rekindle-sandbox")


class Bench:
    """What all sections use."""

    def __init__(self, world, arguments, made_jobs, criu_tools, has_templates):
        self.world, self.arguments, self.jobs, self.criu_tools = world, arguments, made_jobs, criu_tools
        self.has_templates, self.command_lines, self.left_out = has_templates, {}, []
        self.results = {}  # filled as the run goes on, so that a run that fails leaves what it had

    def say(self, text):
        print(f"  {time.strftime('%H:%M:%S')} {text}", flush=True)

    def settle(self):
        """Between two starts: pools fill up again, what was killed is gone."""
        time.sleep(self.arguments.pause)

    def prepared(self, kind, job):
        """The way, ready to be used, or None with the reason kept."""
        if kind is Template and not self.has_templates:
            return None
        way = kind(self.world, job, *([self.criu_tools] if kind in (CriuEager, CriuLazy) else []))
        self.say(f"{job.key}: preparing {way.name}")
        try:
            self.command_lines[f"({job.key}) {way.name}"] = way.prepare()
        except RuntimeError as error:
            if kind in (Clone, Standby):
                raise
            self.left_out.append(f"({job.key}) {way.name}: {str(error).strip().splitlines()[-1]}")
            self.say(self.left_out[-1])
            return None
        return way

    def prepare_all(self, kinds, job):
        return [way for way in (self.prepared(kind, job) for kind in kinds) if way is not None]


def latency(bench):
    found = bench.results["latency"] = {}
    for key in bench.arguments.latency_jobs:
        job = bench.jobs[key]
        ways = bench.prepare_all((Clone, Standby, Template, Forked, CriuEager, CriuLazy, Cold), job)
        if TEMPLATE not in [way.name for way in ways]:
            ways = [way for way in ways if not isinstance(way, Forked)]
        found[key] = {way.name: {"outside": [], "ready": [], "phases": {}, "prefilled": []} for way in ways}
        rounds = bench.arguments.heap_rounds if key == "e" else bench.arguments.rounds
        for number in range(-_WARM_UP, rounds):
            for way in ways:
                started = way.start()
                started.stop()
                if number >= 0:
                    _note(found[key][way.name], started)
                bench.settle()
        for way in ways:
            notes = getattr(way, "notes", None)
            if notes:
                found[key][way.name].update(tool=way.tool.name, chosen_from=notes)
            times = found[key][way.name]
            ready = f", ready {statistics.median(times['ready']) * 1e3:.1f} ms" if times["ready"] else ""
            bench.say(f"{key}: {way.name}: {statistics.median(times['outside']) * 1e3:.1f} ms{ready}")
            way.close()


def _note(times, started):
    times["outside"].append(started.seconds)
    if started.ready is not None:
        times["ready"].append(started.ready)
        times["prefilled"].append(started.prefilled)
        for name, seconds in started.phases.items():
            times["phases"].setdefault(name, []).append(seconds)


def cold(bench):
    """Nothing cached, once for each round and way; then, in the same daemon, the same once more when warm."""
    job = bench.jobs[bench.arguments.cold_job]
    kinds = (Clone, CriuEager, CriuLazy, Cold)
    ways = bench.prepare_all([kind for kind in kinds if kind.name in bench.arguments.cold_ways], job)
    kept = ("cold", "warm", "disk_bytes", "pager_bytes", "store_bytes")
    found = {way.name: {name: [] for name in kept} for way in ways}
    bench.results["cold"] = found
    found["dropped"] = not bench.arguments.quick
    for way in ways:
        if way.name == CLONE:  # the working set is learned before
            for _ in range(_WARM_UP):
                way.start().stop()
                bench.settle()
            _wait_until_kept(bench.world)
    for number in range(bench.arguments.cold_rounds):
        for way in ways:
            bench.world.end_rekindle()
            if found["dropped"]:
                drop_caches()
            bench.world.start_daemon()
            before = disk_read_bytes()
            # What comes after the answer is not what the start has read.
            more = ("--fill", "never") if way.name == CLONE else ()
            traced = ()
            if way.name == CLONE and bench.arguments.cold_traces:
                traced = ("--trace", os.path.join(bench.arguments.cold_traces, f"cold-{number + 1}.json"))
            started = way.start(*more, *traced)
            values = found[way.name]
            values["disk_bytes"].append(disk_read_bytes() - before)
            unit = "ready" if started.ready is not None else "seconds"
            values["cold"].append(getattr(started, unit))
            if way.name == CLONE:
                pagers = bench.world.pagers()
                values["pager_bytes"].append(read_bytes_of(pagers))
                values["store_bytes"].append(read_bytes_of(pagers, "rchar"))
                values.setdefault("working_set_bytes", []).append(started.prefilled * PAGE)
                values.setdefault("phases", []).append(started.phases)
            started.stop()
            for _ in range(2):
                bench.settle()
                started = way.start(*more)
                started.stop()
            values["warm"].append(getattr(started, unit))
            bench.say(
                f"cold, round {number + 1}: {way.name}: {values['cold'][-1] * 1e3:.1f} ms, then "
                f"{values['warm'][-1] * 1e3:.1f} ms; {values['disk_bytes'][-1] / MIB:.1f} MiB read"
            )
    for way in ways:
        way.close()


def _wait_until_kept(world):
    """The pager writes a working set's pages into the store when it is known for good and nobody waits."""

    def kept():
        return any(answer["prefill"]["kept"] for answer in world.pager_stats())

    waiting.until(kept, "the working set's pages kept", 60)


def density(bench):
    """So many copies of one image at once."""
    job, count = bench.jobs[bench.arguments.density_job], bench.arguments.copies
    found = bench.results["density"] = {}
    for way in bench.prepare_all((Clone, Template), job):
        more = ("--fill", "never") if way.name == CLONE else ()
        for _ in range(_WARM_UP):
            way.start(*more).stop()
            bench.settle()
        touch_free_memory(4096 * MIB)
        available, shared = meminfo("MemAvailable", "Shmem")
        if way.name == CLONE:
            answers, seconds = way.answers(*way.arguments("--count", count, *more))
        else:
            answers, seconds = [], 0
            for _ in range(count):
                started = way.start()
                seconds += started.seconds
                answers.append(started.answer)
        bench.settle()
        now_available, now_shared = meminfo("MemAvailable", "Shmem")
        memory = [memory_of(answer["job"]["pid"]) for answer in answers]
        found[way.name] = {
            "started": len(answers),
            "answered": sum(1 for answer in answers if answer.get("ready_seconds", 0) > 0),
            "seconds": seconds,
            "ready": [answer.get("ready_seconds", 0) for answer in answers],
            "extra_bytes_each": (available - now_available) / count,
            "shmem_bytes_each": (now_shared - shared) / count,
            "private_dirty": statistics.median(each["Private_Dirty"] for each in memory),
            "pss": statistics.median(each["Pss"] for each in memory),
            "rss": statistics.median(each["Rss"] for each in memory),
        }
        for answer in answers:
            end(answer["job"]["pid"])
        way.close()
        bench.say(
            f"density: {found[way.name]['answered']} of {count} {way.name}s answered, "
            f"{found[way.name]['extra_bytes_each'] / MIB:.2f} MiB more each, "
            f"{found[way.name]['private_dirty'] / MIB:.2f} MiB of it private and dirty"
        )


def throughput(bench):
    """Starts a second: one command for each, then many with each; then what is left of them all."""
    job, arguments = bench.jobs["b"], bench.arguments
    found = bench.results["throughput"] = {}
    for way in bench.prepare_all((Clone, Template), job):
        # Pools, caches and threads have their size then.
        batches = (1, 25) if way.name == CLONE else (1,)
        for batch in batches:
            _keep_starting(way, batch, arguments.clients, arguments.throughput_seconds / 10)
        before = _settled_state(bench, None)
        total = 0
        rates = {}
        for batch in batches:
            count, seconds, cpu = _keep_starting(way, batch, arguments.clients, arguments.throughput_seconds)
            total += count
            rate = {"starts": count, "seconds": seconds, "a_second": count / seconds, "busy_cpus": cpu}
            rates[str(batch)] = rate
            bench.say(f"throughput: {count / seconds:.1f} {way.name}s a second, {batch} with each command")
        while total < arguments.starts:
            total += _keep_starting(way, 25 if way.name == CLONE else 1, arguments.clients, 2)[0]
        after = _settled_state(bench, before)
        found[way.name] = {"rates": rates, "starts": total, "before": before, "after": after}
        way.close()


def _keep_starting(way, batch, clients, seconds):
    """(answered starts, seconds, CPUs that were busy). Each copy is killed once it has answered."""
    totals, errors = [0] * clients, []
    began = time.monotonic()
    busy = _busy_seconds()

    def client(number):
        more = ("--count", str(batch)) if batch > 1 else ()
        try:
            while time.monotonic() - began < seconds and not errors:
                answers, _ = way.answers(*way.arguments(*more))
                for answer in answers:
                    os.kill(answer["job"]["pid"], 9)
                    totals[number] += 1 if answer.get("ready_seconds", 0) > 0 else 0
        except (RuntimeError, OSError) as error:
            errors.append(error)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    took = time.monotonic() - began
    return sum(totals), took, (_busy_seconds() - busy) / took


def _busy_seconds():
    """Of all CPUs, in user and kernel mode."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system = (int(value) for value in file.readline().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def _state(world):
    """What could leak."""
    jobs.reap_orphans()  # pagers and sandboxes that have ended are left to whoever runs this
    pids = {name: world.processes(name) for name in _OWN_NAMES}
    state = {f"processes of {name}": len(found) for name, found in pids.items()}
    state["zombies"] = sum(1 for pid in procfs.all_pids() if procfs.state(pid) == "Z" and _ours(pid, world))
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        state["mounts"] = sum(1 for _ in file)
    state["cgroups"] = sum(1 for _ in os.walk("/sys/fs/cgroup"))
    files = [os.path.join(folder, name) for folder, a, b in os.walk(world.runtime) for name in a + b]
    records = [path for path in files if "/jobs/" in path]
    state["files in the runtime folder"] = len(files) - len(records)
    state["records of ended jobs (the last hundred stay)"] = len(records)
    for name in ("rekindled", "rekindle-pager"):
        state[f"descriptors of {name}"] = sum(procfs.descriptors(pid) for pid in pids[name])
        state[f"memory of {name}"] = sum(memory_of(pid)["Pss"] for pid in pids[name])
        state[f"threads of {name}"] = sum(procfs.threads(pid) for pid in pids[name])
    available, shared, slab = meminfo("MemAvailable", "Shmem", "SUnreclaim")
    state.update({"MemAvailable": available, "Shmem": shared, "kernel memory (SUnreclaim)": slab})
    return state


def _ours(pid, world):
    fields = procfs.stat_fields(pid)
    return bool(fields) and int(fields[1]) in (os.getpid(), world.daemon.pid)


# How many more there may be: of descriptors, those of connections that have not closed yet.
COUNTED = {"processes": 0, "zombies": 0, "mounts": 0, "cgroups": 0, "files": 0, "records": 8, "descriptors": 8}


def grown(before, after):
    """What there is more of than before, of what is counted."""
    slack = {name: COUNTED[name.split()[0]] for name in before if name.split()[0] in COUNTED}
    return [name for name, more in slack.items() if after[name] > before[name] + more]


def _settled_state(bench, before):
    """Once what was killed is gone. Without `before`: once it no longer changes."""
    states = [_state(bench.world)]

    def settled():
        time.sleep(0.3)
        states.append(_state(bench.world))
        if before is not None and not grown(before, states[-1]):
            return True
        return before is None and not grown(states[-2], states[-1]) and not grown(states[-1], states[-2])

    try:
        waiting.until(settled, "the machine at rest", 15)
    except TimeoutError:
        pass  # the tables say what there is more of
    return states[-1]


def fill(bench):
    """The background fill of a large heap: its speed, and what it costs a job that serves."""
    job = bench.jobs["e"]
    way = bench.prepared(Clone, job)
    for _ in range(_WARM_UP):
        way.start("--fill", "never").stop()
    touch_free_memory(8192 * MIB)
    found = bench.results["fill"] = {"speed": [], "resident": [], "bytes": [], "serving": []}
    for _ in range(bench.arguments.fill_rounds):
        started, size, seconds = _one_fill(bench, way)
        found["bytes"].append(size)
        found["speed"].append(size / seconds if size else 0)
        found["resident"].append(memory_of(started.pid)["Rss"])
        started.stop()
        bench.say(f"fill: {size / MIB:.0f} MiB in {seconds:.3f} s")
        bench.settle()
    for _ in range(bench.arguments.fill_rounds):
        found["serving"].append(_served(bench, way))
        bench.settle()
        bench.say("fill: while a job serves: {during:.0f} answers a second, without: {without:.0f}".format(
            **found["serving"][-1]))
    way.close()


def _one_fill(bench, way):
    """(start, bytes that were missing when it was ready, seconds until none was)"""
    started = way.start("--fill", "idle")
    began = time.monotonic()
    missing = bench.world.missing_pages(started.answer["instance"]) * PAGE
    while bench.world.missing_pages(started.answer["instance"]) > 0:
        if time.monotonic() - began > 120:
            raise RuntimeError(f"a clone's fill does not end{bench.world.records()}")
        time.sleep(0.01)
    return started, missing, time.monotonic() - began


def _served(bench, way):
    """Answers a second of a serving job, before, during and after the fill of another one."""
    argv = [cli.binary("start_job"), "serve", "64"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as server:
        samples, offset = [], []

        def listen():
            for line in server.stdout:
                now = time.monotonic()
                answers, at = line.split()
                offset.append(now - float(at))
                samples.append((int(answers), float(at)))

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            length = 0.5 if bench.arguments.quick else 2.0
            waiting.until(lambda: len(samples) > 3, "the serving job", 30)
            began = time.monotonic()
            time.sleep(length)
            ready_at = time.monotonic()
            before = (began, ready_at)
            started, size, seconds = _one_fill(bench, way)
            finished = time.monotonic()
            started.stop()
            bench.settle()
            after_began = time.monotonic()
            time.sleep(length)
            windows = (before, (finished - seconds, finished), (after_began, time.monotonic()))
        finally:
            server.kill()
            server.wait()
            listener.join()
    zero = min(offset)
    rates = [_rate(samples, first - zero, last - zero) for first, last in windows]
    return {
        "without": (rates[0] + rates[2]) / 2,
        "during": rates[1],
        "fill_bytes": size,
        "fill_seconds": seconds,
    }


def _rate(samples, first, last):
    """Answers a second between two moments; the counts between two samples are interpolated."""

    def count_at(moment):
        for (count, at), (next_count, next_at) in zip(samples, samples[1:]):
            if at <= moment <= next_at:
                return count + (next_count - count) * (moment - at) / (next_at - at)
        return samples[0][0] if moment < samples[0][1] else samples[-1][0]

    return (count_at(last) - count_at(first)) / (last - first)
