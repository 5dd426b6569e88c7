"""The tables of training_figures.py."""

from start_report import at_least, at_most, median, ms, table
from start_world import MIB
from training_jobs import CriuLoop, Saving, Supervised, Undisturbed
from training_sections import OURS


def page(results, machine):
    lines = [machine, ""]
    for name, part in results.items():
        lines.append(
            f"- {name}: {part['when']}, commit {part['commit']}, load average {part['loads'][0]:.2f} before and "
            f"{part['loads'][1]:.2f} after. `{part['command']}`"
        )
    rows = verdicts(results)
    lines += ["", "### What was promised", ""]
    verdict_rows = [(*row[:3], "held" if row[3] else "**not held**") for row in rows]
    lines += table(("figure", "measured", "aim", ""), verdict_rows)
    lines += [f"{sum(row[3] for row in rows)} of {len(rows)} held.", ""]
    for name, make in (
        ("overhead", _overhead_table),
        ("freeze", _freeze_table),
        ("pages", _pages_table),
        ("restart", _restart_table),
        ("stored", _stored_table),
        ("lost", _lost_table),
    ):
        if name in results:
            lines += make(results[name]["measured"], results[name])
    lines += ["### Command lines", ""]
    for part in results.values():
        for name, command in part["command_lines"].items():
            lines += [f"{name}:", "", f"    {command}", ""]
    return lines


def verdicts(results):
    """[(figure, measured, aim, held)]"""
    rows = []
    found = {name: part["measured"] for name, part in results.items()}
    if "overhead" in found:
        every = results["overhead"]["every"]
        figure = f"images every {every:g} s: cost of the step throughput, median"
        rows.append(at_most(figure, costs(found["overhead"])[Supervised.name] * 100, 1.5, " %"))
    if "freeze" in found:
        medians = {name: median(values) for name, values in found["freeze"]["seconds"].items()}
        ours = medians.pop(OURS)
        best = min(medians, key=medians.get)
        rows.append(at_most(f"freeze of one image, median: times that of {best}", ours / medians[best], 0.4))
    if "restart" in found:
        ours, other = median(found["restart"][OURS]), median(found["restart"]["torch.load"])
        rows.append(at_most("SIGKILL to the end of the first new step, median", ours, 1.5, " s"))
        rows.append(at_least("the same: times the speed of a restart with torch.load", other / ours, 3))
    if "stored" in found:
        ours, other = found["stored"][OURS], found["stored"]["restic"]
        rows.append(at_most(f"stored bytes of {len(ours)} images: times those of restic", ours[-1] / other[-1], 1))
    if "lost" in found:
        rows.append(at_most("work lost, the worst failure", max(found["lost"]["seconds"]), found["lost"]["every"], " s"))
    return rows


def costs(found):
    """{way: share of the throughput that it costs}: by the steps that were longer than the median one of their window"""
    alone = median(found[Undisturbed.name]["beyond"])
    return {name: median(way["beyond"]) - alone for name, way in found.items()}


def _overhead_table(found, part):
    lines = [f"### Cost of a checkpoint every {part['every']:g} s", ""]
    rows = []
    share = costs(found)
    for name in (Undisturbed.name, Supervised.name, CriuLoop.name, Saving.name):
        way = found[name]
        rates = " ".join(f"{rate:.3f}" for rate in way["steps_a_second"])
        cost = "" if name == Undisturbed.name else f"{share[name]:.2%}"
        rounds = " ".join(f"{value:.2%}" for value in way["beyond"])
        frozen = f"{ms(median(way['frozen']))} ms" if way["frozen"] else ""
        rows.append((name, f"{median(way['steps_a_second']):.3f}", cost, rounds, frozen, rates))
    header = ("checkpoints by", "steps a second", "cost", "beyond the median step", "frozen, median", "steps a second")
    lines += table(header, rows)
    resident = found[Supervised.name]["resident"]
    return [*lines, f"Resident memory of the training: {median(resident) / MIB:.0f} MiB.", ""]


def _freeze_table(found, _part):
    ours = median(found["seconds"][OURS])
    rows = [
        (name, ms(median(values)), f"{ours / median(values):.2f}x", " ".join(ms(value) for value in values))
        for name, values in found["seconds"].items()
    ]
    lines = ["### Freeze", "", *table(("tool", "median, ms", "Rekindle to it", "every one, ms"), rows)]
    return [*lines, f"Memory in the image: {found['resident'] / MIB:.0f} MiB.", ""]


def _pages_table(found, _part):
    rows = []
    plain = median(found["4 KiB pages"]["seconds"]), median(found["4 KiB pages"]["steps_a_second"])
    for name, way in found.items():
        frozen, rate = median(way["seconds"]), median(way["steps_a_second"])
        each = " ".join(ms(value) for value in way["seconds"])
        to_plain = f"{frozen / plain[0]:.2f}x", f"{rate / plain[1]:.2f}x"
        huge = f"{median(way['huge']) / MIB:.0f}"
        rows.append((name, huge, ms(frozen), to_plain[0], f"{rate:.3f}", to_plain[1], each))
    header = ("the training in", "huge, MiB", "freeze, median, ms", "to 4 KiB", "steps a second", "to 4 KiB", "every freeze, ms")
    return ["### Freeze and page size", "", *table(header, rows)]


def _restart_table(found, _part):
    rows = [
        (name, f"{median(values):.2f}", " ".join(f"{value:.2f}" for value in values)) for name, values in found.items()
    ]
    return ["### From SIGKILL to the next step", "", *table(("way", "median, s", "every one, s"), rows)]


def _stored_table(found, _part):
    rows = []
    for name, values in found.items():
        last = sum(values) if name == "criu" else values[-1]
        title = "CRIU's folders, all together" if name == "criu" else name
        rows.append((title, f"{last / MIB:.0f}", f"{last / found['restic'][-1]:.3f}x"))
    title = f"### {len(found[OURS])} images of one training"
    return [title, "", *table(("kept by", "MiB (allocated)", "to restic"), rows)]


def _lost_table(found, _part):
    values = found["seconds"]
    each = " ".join(f"{value:.1f}" for value in values)
    rows = [(len(values), f"{median(values):.1f}", f"{max(values):.1f}", each)]
    header = ("failures", "median, s", "worst, s", "every one, s")
    return [f"### Work lost, an image every {found['every']:g} s", "", *table(header, rows)]
