"""The tables of start_figures.py."""

import math
import statistics

from start_sections import grown
from start_ways import CLONE, COLD, EAGER, FORKED, LAZY, STANDBY, TEMPLATE
from start_world import MIB

_READY_AIMS = {
    (TEMPLATE, "b"): 10,
    (TEMPLATE, "c"): 10,
    (TEMPLATE, "d"): 15,
    (FORKED, "b"): 10,
    (FORKED, "c"): 10,
    (FORKED, "d"): 15,
    (CLONE, "b"): 15,
    (CLONE, "d"): 40,
    (CLONE, "e"): 60,
    (STANDBY, "b"): 15,
    (STANDBY, "d"): 40,
    (STANDBY, "e"): 60,
}
# Aims that have nothing to do with time.
WORKS = ("all", "nothing")
_CRIU_AIMS, _COLD_AIMS = {"d": 3, "e": 20}, {"c": 10, "d": 25}


def median(values):
    return statistics.median(values) if values else 0


def p99(values):
    """Nearest rank: of 50 the largest."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1] if values else 0


def ms(seconds):
    return f"{seconds * 1e3:.1f}"


def at_most(figure, value, aim, unit=""):
    return (figure, f"{value:.2f}{unit}", f"at most {aim}{unit}", value <= aim)


def at_least(figure, value, aim, unit=""):
    return (figure, f"{value:.2f}{unit}", f"at least {aim}{unit}", value >= aim)


def verdicts(results):
    """[(figure, measured, aim, held)]"""
    rows = []
    for section, make in (
        ("latency", _latency_verdicts),
        ("cold", _cold_verdicts),
        ("density", _density_verdicts),
        ("throughput", _throughput_verdicts),
        ("fill", _fill_verdicts),
    ):
        if section in results:
            rows += make(results[section])
    return rows


def _latency_verdicts(found):
    rows = []
    for key, ways in found.items():
        for way in (TEMPLATE, FORKED, STANDBY, CLONE):
            if way in ways and (way, key) in _READY_AIMS:
                ready = median(ways[way]["ready"]) * 1e3
                rows.append(at_most(f"({key}) {way}: ready, median", ready, _READY_AIMS[way, key], " ms"))
        for way in (STANDBY, CLONE):
            if way not in ways or EAGER not in ways or key not in _CRIU_AIMS:
                continue
            theirs = median(ways[EAGER]["outside"])
            for what, title in (("ready", "ready"), ("outside", "exec to exit")):
                figure = f"({key}) {way}, {title}: times the speed of `criu restore`"
                rows.append(at_least(figure, theirs / median(ways[way][what]), _CRIU_AIMS[key]))
        if COLD in ways and key in _COLD_AIMS:
            for way in (STANDBY, CLONE, TEMPLATE, FORKED):
                if way in ways:
                    ratio = median(ways[COLD]["outside"]) / median(ways[way]["outside"])
                    figure = f"({key}) {way}, exec to exit: times the speed of a cold start"
                    rows.append(at_least(figure, ratio, _COLD_AIMS[key]))
    return rows


def _cold_verdicts(found):
    ours = found.get(CLONE)
    if not ours or not found["dropped"]:
        return []
    ratio = median(ours["cold"]) / median(ours["warm"])
    rows = [at_most("clone, nothing cached: times the cached one", ratio, 2.0)]
    working_set = median(ours["working_set_bytes"])
    if working_set:
        figure = "clone, nothing cached: bytes that the pager read of the store, to the working set"
        rows.append(at_most(figure, median(ours["store_bytes"]) / working_set, 1.3))
    return rows


def _density_verdicts(found):
    rows = []
    for way, values in found.items():
        answered = f"{values['answered']} of {values['started']}"
        rows.append((f"{way}s at once: answered", answered, "all", values["answered"] == values["started"]))
    if CLONE in found and found[CLONE]["private_dirty"]:
        ratio = found[CLONE]["extra_bytes_each"] / found[CLONE]["private_dirty"]
        figure = "clones at once: extra memory each, to its private dirty memory"
        rows.append(at_most(figure, ratio, 1.5))
    if TEMPLATE in found:
        extra = found[TEMPLATE]["extra_bytes_each"] / 1e6
        rows.append(at_most("template copies: extra memory each", extra, 15, " MB"))
    return rows


def _throughput_verdicts(found):
    rows = []
    for way, aim in ((CLONE, 50), (TEMPLATE, 150)):
        if way in found:
            best = max(found[way]["rates"].values(), key=lambda rate: rate["a_second"])
            rows.append(at_least(f"(b) {way}s a second", best["a_second"], aim))
            left = grown(found[way]["before"], found[way]["after"])
            figure = f"left behind by {found[way]['starts']} {way}s"
            rows.append((figure, ", ".join(left) or "nothing", "nothing", not left))
    return rows


def _fill_verdicts(found):
    rows = []
    if found["speed"]:
        rows.append(at_least("background fill", median(found["speed"]) / 1e9, 2, " GB/s"))
    costs = [1 - each["during"] / each["without"] for each in found["serving"] if each["without"]]
    if costs and median(costs) < -0.1:
        # Something else slowed it down when there was no fill.
        rows.append(("background fill: costs a serving job", "no figure: it answered more during the fill", "at most 10 %", False))
    elif costs:
        rows.append(at_most("background fill: costs a serving job", median(costs) * 100, 10, " %"))
    return rows


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows] + [""]


def sections(results, made_jobs):
    lines = []
    for key, ways in results.get("latency", {}).items():
        lines += _latency_table(key, made_jobs[key].title, ways)
    for name, make in (
        ("cold", _cold_table),
        ("density", _density_table),
        ("throughput", _throughput_tables),
        ("fill", _fill_table),
    ):
        if name in results:
            lines += make(results[name])
    return lines


def _latency_table(key, title, ways):
    rows = []
    reference = median(ways[CLONE]["outside"])
    for way, times in ways.items():
        outside = times["outside"]
        name = way if "tool" not in times else f"{way} ({times['tool']})"
        ready = f"{ms(median(times['ready']))} / {ms(p99(times['ready']))}" if times["ready"] else ""
        rows.append(
            (name, len(outside), ready, f"{ms(median(outside))} / {ms(p99(outside))}", ms(min(outside)),
             f"{median(outside) / reference:.2f}x")
        )
    lines = [f"### ({key}) {title}", ""]
    header = ("way", "starts", "ready, ms (median / p99)", "from outside, ms (median / p99)", "best")
    lines += table((*header, "to the clone"), rows)
    for way in (CLONE, STANDBY, TEMPLATE, FORKED):
        if way in ways and ways[way]["phases"]:
            phases = ", ".join(f"{name} {ms(median(values))}" for name, values in ways[way]["phases"].items())
            pages = median(ways[way]["prefilled"])
            lines.append(f"The {way}'s phases, medians in ms: {phases}.")
            if pages:
                lines[-1] += f" Pages of its working set: {pages:.0f}."
    for way in (EAGER, LAZY):
        if way in ways:
            lines.append(f"{way}, the best of three starts each: {'; '.join(ways[way]['chosen_from'])}.")
    return [*lines, ""]


def _cold_table(found):
    lines = ["### Nothing cached" if found["dropped"] else "### After a restart, caches kept", ""]
    rows = []
    for way, values in found.items():
        if way == "dropped":
            continue
        pager = f"{median(values['pager_bytes']) / MIB:.1f} MiB" if values["pager_bytes"] else ""
        rounds = " ".join(ms(value) for value in values["cold"])
        disks = f"{median(values['disk_bytes']) / MIB:.1f} MiB"
        rows.append((way, ms(median(values["cold"])), rounds, ms(median(values["warm"])), disks, pager))
    header = ("way", "cold, ms", "every round", "warm again, ms", "read from disks", "of it by the pager")
    lines += table(header, rows)
    ours = found.get(CLONE)
    if ours:
        set_size, store = median(ours["working_set_bytes"]) / MIB, median(ours["store_bytes"]) / MIB
        lines += [f"The clone's working set: {set_size:.1f} MiB. Of the store the pager read {store:.1f} MiB.", ""]
    return lines


def _density_table(found):
    memory = {
        "extra_bytes_each": "extra memory each, MiB",
        "shmem_bytes_each": "of it shared memory",
        "private_dirty": "private dirty",
        "pss": "Pss",
        "rss": "Rss",
    }
    rows = []
    for way, each in found.items():
        row = [way, f"{each['answered']} of {each['started']}", f"{each['seconds']:.2f} s"]
        row += [ms(median(each["ready"])), *(f"{each[name] / MIB:.2f}" for name in memory)]
        rows.append(row)
    header = ("way", "answered", "all started within", "ready, ms (median)", *memory.values())
    return ["### Many at once", "", *table(header, rows)]


def _throughput_tables(found):
    lines = ["### Starts a second", ""]
    rows = []
    for way, each in found.items():
        for batch, rate in each["rates"].items():
            numbers = (f"{rate['seconds']:.1f} s", f"{rate['a_second']:.1f}", f"{rate['busy_cpus']:.2f}")
            rows.append((way, batch, rate["starts"], *numbers))
    lines += table(("way", "with each command", "starts", "within", "a second", "busy CPUs"), rows)
    for way, each in found.items():
        after = each["after"]
        rows = []
        for name, value in each["before"].items():
            rows.append((name, _amount(name, value), _amount(name, after[name])))
        lines += table(("what there is", f"before {each['starts']} {way}s", "after"), rows)
    return lines


def _amount(name, value):
    memory = name.startswith(("memory", "kernel", "Mem", "Shmem"))
    return f"{value / MIB:.1f} MiB" if memory else str(value)


def _fill_table(found):
    rows = [
        (f"{size / MIB:.0f} MiB", f"{speed / 1e9:.2f}", f"{resident / MIB:.0f} MiB")
        for size, speed, resident in zip(found["bytes"], found["speed"], found["resident"])
    ]
    lines = ["### Background fill", "", *table(("missing when ready", "GB/s", "resident afterwards"), rows)]
    rows = [
        (f"{each['without']:.0f}", f"{each['during']:.0f}", f"{1 - each['during'] / each['without']:.1%}",
         f"{each['fill_bytes'] / each['fill_seconds'] / 1e9:.2f}")
        for each in found["serving"] if each["without"]
    ]
    return lines + table(("answers a second, alone", "during the fill", "cost", "GB/s meanwhile"), rows)
