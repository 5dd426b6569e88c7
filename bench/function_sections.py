"""What function_figures.py measures, part by part: plain data, for the JSON and the tables."""

import json
import os
import shutil
import statistics
import subprocess
import time

import function_soak
from function_ways import BOOTSTRAP, MADE_ANEW, PREBAKING, PYTHON, STOOD_BY, Cold, ColdAgain, Copy, Function
from function_ways import PreBaking, base_environment, folder_bytes
from function_world import RuntimeSocket, wait_until_idle
from harness import cli

_WARM_UP = 2
_PAUSE = 0.15
_LEARNING = 3  # deployments, before any is noted
_VARIANTS_OF = ("logistic_regression_training", "logistic_regression_serving")
_TRIVIAL = "def handler(event, context):\n    return {}\n"


class Bench:
    """What all parts use."""

    def __init__(self, world, arguments, criu_tools, hook, functions, inputs):
        self.world, self.arguments, self.criu_tools, self.hook = world, arguments, criu_tools, hook
        self.functions, self.inputs = functions, inputs
        self.results, self.left_out = {}, []

    def say(self, text):
        print(f"  {time.strftime('%H:%M:%S')} {text}", flush=True)


def loading(bench):
    """The functions are deployed and learned first, so that images and working sets are the daemon's own."""
    world = bench.world
    world.new_store("loading")
    found = bench.results["loading"] = {"functions": {}, "end_to_end": {}}
    for function in bench.functions:
        _learn(bench, function)
    for function in bench.functions:
        found["functions"][function.name] = {
            "modules": function.modules,
            "image": function.dependency_image,
            "not_forkable": {},
            "ways": {},
            "phases": {},
        }
    _start_all(bench, (Cold, PreBaking), STOOD_BY)
    world.end_rekindle()
    world.start_daemon("--standby", "0")
    _start_all(bench, (ColdAgain,), MADE_ANEW)


def _start_all(bench, others, copies):
    for function in bench.functions:
        row = bench.results["loading"]["functions"][function.name]
        ways = _prepared(bench, function, row, others, copies)
        for number in range(-_WARM_UP, bench.arguments.rounds):
            for way in ways:
                time.sleep(_PAUSE)  # pools fill up again, what was killed is gone
                started = way.start()
                if number < 0:  # each way's copies answer as the others' do
                    answer = started.runtime.call(function.event)["digest"]
                    if row.setdefault("digest", answer) != answer:
                        raise RuntimeError(f"{function.name}: {way.name} answered otherwise")
                else:
                    row["ways"].setdefault(way.name, []).append(started.seconds)
                    phases = row["phases"].setdefault(way.name, {})
                    for phase in started.answer.get("phases", []):
                        phases.setdefault(phase["name"], []).append(phase.get("seconds", 0))
                started.stop()
        for way in ways:
            bench.say(f"{function.name}: {way.name}: {statistics.median(row['ways'][way.name]) * 1e3:.1f} ms")
            way.close()
            if way.name == PREBAKING:
                row["criu"], row["criu_notes"] = way.mode(), way.notes


def _learn(bench, function):
    """Deploys it a few times: first starts from the dependency image, until what they touch is known."""
    world, event = bench.world, function.event
    dependencies, row = "auto", bench.results["loading"]["end_to_end"].setdefault(function.name, {})
    for number in range(_LEARNING + bench.arguments.deployments):
        environment = {**function.own_environment, "REVISION": str(number)}
        deployed = world.deploy(function.name, function.code, environment, dependencies, "--replace")
        function.modules = deployed.get("dependencies", [])
        dependencies = ",".join(function.modules) or "none"
        first = world.invoke(function.name, event)
        _wait_for_image(bench, function)
        function.dependency_image = deployed["dependency_image"]
        if number >= _LEARNING:
            _note(row, first)
        for _ in range(2 if number >= _LEARNING else 1):
            world.end_instances()
            wait_until_idle(1)
            again = world.invoke(function.name, event)
            if number >= _LEARNING:
                _note(row, again)
    world.end_instances()
    bench.say(f"{function.name}: {function.dependency_image}, {sorted(row)}")


def _wait_for_image(bench, function):
    """It is made in the background, and tried again at a later start where that fails."""
    for attempt in range(4):
        try:
            function.image = bench.world.wait_for_image(function.name)
            return
        except RuntimeError as error:
            if attempt == 3:
                raise
            bench.left_out.append(f"{function.name}: an image at once: {str(error).splitlines()[0]}")
            bench.say(str(error))
        bench.world.end_instances()
        bench.world.invoke(function.name, function.event)


def _note(row, answer):
    level = answer.get("start_level", "running")
    row.setdefault(level, []).append(answer.get("start_seconds", 0))


def _prepared(bench, function, row, others, copies):
    more = {PreBaking: (bench.criu_tools, bench.hook)}
    ways = [way(bench.world, function, *more.get(way, ())) for way in others]
    ways += [Copy(bench.world, function, name) for name in copies]
    ready = []
    for way in ways:
        if isinstance(way, PreBaking):
            try:
                way.prepare()
            except RuntimeError as error:
                bench.left_out.append(f"{function.name}, {way.name}: {str(error).strip().splitlines()[-1]}")
                bench.say(bench.left_out[-1])
                continue
        elif isinstance(way, Copy):
            refusal = way.put_up()
            if refusal:
                row["not_forkable"][way.name] = refusal
                continue
        ready.append(way)
    return ready


def space(bench):
    """Functions on one dependency image against as many PreBaking snapshots."""
    world, most = bench.world, bench.arguments.variants
    world.new_store("space")
    found = bench.results["space"] = {"ours": {}, "theirs": {}, "of": _VARIANTS_OF, "variants": most}
    variants = [_variant(bench, number) for number in range(most)]
    first = variants[0]
    world.deploy(first.name, first.code, first.own_environment)
    dependencies = world.function(first.name)["dependencies"]
    found["modules"] = dependencies
    found["ours"]["0"] = folder_bytes(world.store)
    theirs = [0, 0]
    for number, variant in enumerate(variants, 1):
        world.deploy(variant.name, variant.code, variant.own_environment, ",".join(dependencies), "--replace")
        world.invoke(variant.name, variant.event)
        _wait_for_image(bench, variant)
        world.end_instances()
        prebaking = PreBaking(world, variant, bench.criu_tools, bench.hook)
        theirs = [total + more for total, more in zip(theirs, prebaking.snapshot())]
        prebaking.close()
        if number in (1, 10, most):
            os.sync()
            found["ours"][str(number)], found["theirs"][str(number)] = folder_bytes(world.store), list(theirs)
            bench.say(f"{number}: ours {found['ours'][str(number)]}, PreBaking {theirs}")
    found["dependency_images"] = sorted({each["dependency_image"] for each in world.run("fn", "ls")["functions"]})


def _variant(bench, number):
    """Other code for the same libraries: one of the real functions, with a table of its own."""
    source = os.path.join(bench.world.path("functions"), _VARIANTS_OF[number % 2])
    code = bench.world.path("variants", f"variant{number}")
    shutil.copytree(source, code)
    with open(os.path.join(code, "app.py"), "a", encoding="utf-8") as file:
        file.write(f"\nVARIANT = {number}\nTABLE = {[number * 1000003 + each * each for each in range(2000)]}\n")
    return Function(f"variant{number}", code, bench.inputs)


def http(bench):
    """A warm trivial function at a fixed rate, and the same runtime without anything of ours around it."""
    world, arguments = bench.world, bench.arguments
    world.new_store("http")
    code = world.path("trivial")
    os.mkdir(code)
    for name, text in (("app.py", _TRIVIAL), ("event.json", "{}")):
        with open(os.path.join(code, name), "w", encoding="utf-8") as file:
            file.write(text)
    function = Function("trivial", code, bench.inputs)
    world.deploy(function.name, code, {})
    world.deploy("capped", code, {}, "auto", "--max-instances", "8")
    found = bench.results["http"] = {"front": [], "direct": [], "capped": [], "rate": 500, "connections": 8}
    for name in (function.name, "capped"):
        world.invoke(name, {})
        _load(world, name, 3)
    wait_until_idle(10)
    for _ in range(arguments.http_rounds):
        found["front"].append(_load(world, function.name, arguments.http_seconds))
        found["capped"].append(_load(world, "capped", arguments.http_seconds))
        found["direct"].append(_direct(world, function, arguments.http_seconds))
    stats = world.run("fn", "stats", function.name)["functions"][0]
    found["runtime_p50_ms"] = stats.get("duration_median_seconds", 0) * 1e3
    found["runtime_p99_ms"] = stats.get("duration_p99_seconds", 0) * 1e3
    found["instances"] = stats.get("instances_idle", 0) + stats.get("instances_busy", 0)
    bench.say(f"front {found['front'][-1]}, direct {found['direct'][-1]}, instances {found['instances']}")


def _load(world, name, seconds):
    argv = [cli.binary("http_load"), f"127.0.0.1:{world.port}", "--function", name, "--rate", "500"]
    argv += ["--connections", "8", "--seconds", str(seconds)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def _direct(world, function, seconds, rate=500):
    """From an event on the runtime's socket to its answer there, at the same rate. Microseconds."""
    runtime = RuntimeSocket(world.path("direct.sock"))
    environment = {**base_environment(), **function.environment(runtime.path)}
    process = subprocess.Popen([PYTHON, BOOTSTRAP], env=environment, stdin=subprocess.DEVNULL)
    took = []
    try:
        runtime.wait_for_next()
        start = time.monotonic()
        for number in range(int(seconds * rate)):
            due = start + number / rate
            time.sleep(max(0.0, due - time.monotonic()))
            sent = time.monotonic()
            runtime.send_event(b"{}")
            took.append((runtime.wait_for_answer()[0] - sent) * 1e6)
            runtime.wait_for_next()
    finally:
        process.kill()
        process.wait()
        runtime.close()
    took.sort()
    return {"requests": len(took), "p50_us": took[len(took) // 2], "p99_us": took[int(0.99 * (len(took) - 1))]}


def soak(bench):
    """Many functions at random popularity, every answer checked, and what is left counted."""
    world, before = bench.world, bench.world.environment
    world.environment = {**before, **function_soak.ENVIRONMENT}
    try:
        world.new_store("soak", "--functions-memory", function_soak.MEMORY)
    finally:
        world.environment = before
    options = function_soak.Options()
    options.calls = bench.arguments.soak_calls
    bench.results["soak"] = function_soak.Soak(world, options, bench.say).run()


def simulator(bench):
    """The generated trace of docs/simulator.md, all policies with the same memory."""
    folder = bench.world.path("trace")
    run = [cli.binary("rekindle")]
    size = ("--functions", "2000", "--days", "1", "--seed", "1")
    subprocess.run([*run, "sim", "--generate", folder, *size], check=True, stdout=subprocess.DEVNULL)
    files = sorted(os.path.join(folder, name) for name in os.listdir(folder))
    found = bench.results["simulator"] = {}
    for memory in ("64G", "128G"):
        argv = [*run, "--json", "sim", "--trace", *files, "--memory", memory]
        done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
        policies = json.loads(done.stdout)["policies"]
        found[memory] = {
            each["policy"]: {key: each[key] for key in ("slow_starts", "mean_ms", "p99_ms")} for each in policies
        }
        bench.say(f"{memory}: " + ", ".join(f"{name} {each['slow_starts']}" for name, each in found[memory].items()))


PARTS = {"loading": loading, "space": space, "http": http, "soak": soak, "simulator": simulator}
