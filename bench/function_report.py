"""The tables of function_figures.py."""

import function_soak
from function_ways import COLD, COLD_AGAIN, DEPENDENCY, DEPENDENCY_NEW, IMAGE, IMAGE_NEW, MADE_ANEW, OURS, PREBAKING
from function_ways import SHARED, SHARED_NEW, STOOD_BY, TEMPLATE, TEMPLATE_NEW
from start_report import median, p99, table
from start_world import MIB

# Those with more than 100 MiB resident once they are loaded: bench/functions/README.md.
LARGE = (
    "cnn_serving",
    "face_detection",
    "logistic_regression_serving",
    "logistic_regression_training",
    "rnn_serving",
    "video_processing",
)
_DEPENDENCY_AIM, _IMAGE_AIM = 10, 25
_AIMS = {
    DEPENDENCY: _DEPENDENCY_AIM,
    DEPENDENCY_NEW: _DEPENDENCY_AIM,
    SHARED: _DEPENDENCY_AIM,
    SHARED_NEW: _DEPENDENCY_AIM,
    IMAGE: _IMAGE_AIM,
    IMAGE_NEW: _IMAGE_AIM,
    TEMPLATE: _IMAGE_AIM,
    TEMPLATE_NEW: _IMAGE_AIM,
}
_SPACE_AIMS = {"10": 92, "100": 98}
_MOST_ADDED = {"p50": 1, "p99": 3}


def page(results, machine, note=""):
    lines = [f"{machine}. {note}".rstrip(), ""]
    for name, part in results.items():
        loads = part.get("loads", (0, 0))
        lines.append(
            f"- {name}: {part.get('when')}, commit {part.get('commit')}, load average {loads[0]:.2f} before and "
            f"{loads[1]:.2f} after. `{part.get('command')}`"
        )
    rows = _verdicts(results)
    lines += ["", "### What was promised", ""]
    lines += table(
        ("figure", "measured", "aim", ""), [(*row[:3], "held" if row[3] else "**not held**") for row in rows]
    )
    lines += [f"{sum(row[3] for row in rows)} of {len(rows)} held.", ""]
    left_out = [what for part in results.values() for what in part.get("left_out", [])]
    if left_out:
        lines += ["Left out:", "", *(f"- {what}" for what in left_out), ""]
    for name, make in (
        ("loading", _loading),
        ("space", _space),
        ("http", _http),
        ("soak", _soak),
        ("simulator", _simulator),
    ):
        if name in results:
            lines += make(results[name])
    return lines


def _verdicts(results):
    """[(figure, measured, aim, held)]"""
    rows = []
    for name, make in (
        ("loading", _loading_verdicts),
        ("space", _space_verdicts),
        ("http", _http_verdicts),
        ("simulator", _simulator_verdicts),
        ("soak", _soak_verdicts),
    ):
        if name in results:
            rows += make(results[name])
    return rows


def _times_cold(row):
    """{way: how many times the speed of the cold start}"""
    ways = row["ways"]
    beside = {way: COLD_AGAIN if way in MADE_ANEW else COLD for way in ways if way in OURS}
    return {way: median(ways[cold]) / median(ways[way]) for way, cold in beside.items() if cold in ways}


def _loading_verdicts(found):
    rows = []
    for name, row in found["functions"].items():
        times = _times_cold(row)
        for way in OURS if name in LARGE else ():
            if way in times:
                aim = _AIMS[way]
                figure = f"{name}, {way}: times the speed of a cold start"
                rows.append((figure, f"{times[way]:.1f}", f"at least {aim}", times[way] >= aim))
    for name, row in found["functions"].items():
        times = _times_cold(row)
        slowest = min(times, key=times.get)
        figure = f"{name}, the slowest of our ways ({slowest}): times the speed of a cold start"
        rows.append((figure, f"{times[slowest]:.1f}", "at least 1", times[slowest] >= 1))
    return rows


def _loading(found):
    lines = ["### From the request until the handler is loaded, median in ms", ""]
    head = ("function", "cold", "PreBaking", *("dependency image", "function image", "template", "dependency template"))
    pairs = ((DEPENDENCY, DEPENDENCY_NEW), (IMAGE, IMAGE_NEW), (TEMPLATE, TEMPLATE_NEW), (SHARED, SHARED_NEW))
    body, speeds, tails = [], [], []
    for name, row in found["functions"].items():
        ways = row["ways"]
        cold = (COLD, COLD_AGAIN)
        body.append((name, _pair(ways, cold, _ms), _ms(ways, PREBAKING), *(_pair(ways, pair, _ms) for pair in pairs)))
        tails.append((name, _pair(ways, cold, _tail), _tail(ways, PREBAKING), *(_pair(ways, pair, _tail) for pair in pairs)))
        times = _times_cold(row)
        if PREBAKING in ways:
            times[PREBAKING] = median(ways[COLD]) / median(ways[PREBAKING])
        speeds.append((name, "1", _speed(times, PREBAKING), *(_pair(times, pair, _speed) for pair in pairs)))
    lines += ["Daemon with copies that stand by / without; of the cold starts, those beside either.", "", *table(head, body)]
    lines += ["Times the speed of a cold start:", "", *table(head, speeds)]
    lines += ["The slowest of all rounds (p99, nearest rank), ms:", "", *table(head, tails)]
    kinds = [
        (name, row["image"], ", ".join(row["modules"]) or "none", row.get("criu", ""), len(row["ways"][COLD]), _ready(row))
        for name, row in found["functions"].items()
    ]
    lines += table(("function", "dependency image", "its modules", "PreBaking by", "rounds", "stood by"), kinds)
    lines += [f"Stood by: so many of the {', '.join(STOOD_BY)} were really ready when they were asked for.", ""]
    for name, row in found["functions"].items():
        for way, why in row["not_forkable"].items():
            lines += [f"{name}, {way}: not forkable: {why}", ""]
    lines += ["### By `fn invoke`, as the daemon decides", ""]
    rows = [
        (name, level, str(len(times)), f"{median(times) * 1e3:.1f}", f"{max(times) * 1e3:.1f}")
        for name, levels in found["end_to_end"].items()
        for level, times in sorted(levels.items())
    ]
    lines += ["Until the instance was there, as the daemon says, ms.", ""]
    return lines + table(("function", "level", "starts", "median", "slowest"), rows)


def _ready(row):
    return ", ".join(str(len(row["phases"].get(way, {}).get("standby", ()))) for way in STOOD_BY)


def _ms(ways, way):
    return f"{median(ways[way]) * 1e3:.1f}" if way in ways else "-"


def _tail(ways, way):
    return f"{p99(ways[way]) * 1e3:.1f}" if way in ways else "-"


def _speed(times, way):
    return f"{times[way]:.1f}" if way in times else "-"


def _pair(values, pair, text):
    return " / ".join(text(values, way) for way in pair)


def _space_verdicts(found):
    rows = []
    for number, aim in _SPACE_AIMS.items():
        if number not in found["ours"]:
            continue
        for which, kind in enumerate(("apparent", "allocated")):
            ours, theirs = found["ours"][number][which], found["theirs"][number][which]
            less = 100 * (1 - ours / theirs)
            figure = f"space of {number} functions on one dependency image, {kind}: less than PreBaking"
            rows.append((figure, f"{less:.1f} %", f"at least {aim} %", less >= aim))
    return rows


def _space(found):
    rows = []
    for number in sorted(found["theirs"], key=int):
        ours, theirs = found["ours"][number], found["theirs"][number]
        each = (ours[1] - found["ours"]["0"][1]) / int(number) / MIB
        cells = [f"{value / MIB:.1f}" for value in (*ours, *theirs)]
        rows.append((number, *cells, f"{100 * (1 - ours[1] / theirs[1]):.1f} %", f"{each:.2f}"))
    head = ("functions", "ours, MiB", "allocated", "PreBaking, MiB", "allocated", "less", "ours each, MiB")
    images = ", ".join(found["dependency_images"])
    lines = ["### Space", "", f"On {images}; before the first function: {found['ours']['0'][1] / MIB:.1f} MiB.", ""]
    return [*lines, *table(head, rows)]


def _added(found):
    """{quantile: ms}, of the medians of the rounds."""
    front = {key: median([each[f"{key}_us"] for each in found["front"]]) / 1e3 for key in _MOST_ADDED}
    direct = {key: median([each[f"{key}_us"] for each in found["direct"]]) / 1e3 for key in _MOST_ADDED}
    return {key: (front[key], direct[key], front[key] - direct[key]) for key in _MOST_ADDED}


def _http_verdicts(found):
    errors = sum(each["errors"] for each in found["front"])
    rows = [
        (f"HTTP, 500 requests a second, 8 connections: added at {key}", f"{added:.2f} ms", f"at most {most} ms",
         added <= most)
        for (key, (_, _, added)), most in zip(_added(found).items(), _MOST_ADDED.values())
    ]  # fmt: skip
    return [*rows, ("HTTP: requests that failed", str(errors), "none", errors == 0)]


def _http(found):
    rows = [(key, *(f"{value:.3f}" for value in values)) for key, values in _added(found).items()]
    lines = ["### HTTP", ""]
    lines += table(("", "through the front, ms", "the runtime alone, ms", "added, ms"), rows)
    each = [
        (name, str(one["requests"]), *(f"{one[key] / 1e3:.2f}" for key in ("p50_us", "p99_us", "max_us")))
        for name, rounds in (("as deployed", "front"), ("--max-instances 8", "capped"))
        for one in found.get(rounds, ())
    ]
    lines += table(("each round", "requests", "p50, ms", "p99, ms", "slowest, ms"), each)
    instances = found["instances"]
    return [*lines, f"Instances as deployed, at the end: {instances}. The daemon's own durations of the handler: p50 "
            f"{found['runtime_p50_ms']:.3f} ms, p99 {found['runtime_p99_ms']:.3f} ms.", ""]  # fmt: skip


def _simulator_verdicts(found):
    rows = []
    for memory, policies in found.items():
        if not memory.endswith("G"):
            continue
        ours = max(policies["rekindle"]["slow_starts"], 1)
        for policy, title, aim in (("snapshot", "per-function snapshots", 3), ("fixed", "fixed keep-alive", 10)):
            times = policies[policy]["slow_starts"] / ours
            figure = f"simulation with {memory}: {title} have so many times our slow starts"
            rows.append((figure, f"{times:.0f}", f"at least {aim}", times >= aim))
    return rows


def _simulator(found):
    rows = [
        (memory, name, f"{each['slow_starts']:,}", f"{each['mean_ms']:.2f}", f"{each['p99_ms']:.1f}")
        for memory, policies in found.items()
        if memory.endswith("G")
        for name, each in policies.items()
    ]
    head = ("memory", "policy", "starts over 100 ms", "mean start, ms", "p99, ms")
    return ["### Simulator", "", "[docs/simulator.md](simulator.md) has the model.", "", *table(head, rows)]


def _soak_verdicts(found):
    what = f"{found['functions']} functions at random popularity, {found['calls']:,} calls"
    return [(f"{what}: {key}", str(len(found[key])), "none", not found[key]) for key in ("errors", "leaks")]


def _soak(found):
    return ["### Random popularity", "", *function_soak.report(found), ""]

