"""--trace and --explain: what a restore tells about where its time went."""

import json
import os

from harness import jobs, procfs, waiting
from harness.cli import DONE, USAGE
from harness.clones import CloneTest

ROUNDING_US = 0.01


class Trace:
    """A file in Chrome's trace event format."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.events = json.load(file)["traceEvents"]
        self.processes, self.threads = {}, {}
        for event in self.events:
            if event["ph"] == "M" and event["name"] == "process_name":
                self.processes[event["pid"]] = event["args"]["name"]
            if event["ph"] == "M" and event["name"] == "thread_name":
                self.threads[event["pid"], event["tid"]] = event["args"]["name"]
        self.spans = [event for event in self.events if event["ph"] == "X"]

    def of(self, process, thread=None):
        return [
            span
            for span in self.spans
            if self.processes[span["pid"]] == process
            and thread in (None, self.threads[span["pid"], span["tid"]])
        ]

    def names(self, process, thread=None):
        return [span["name"] for span in self.of(process, thread)]

    def one(self, process, name):
        found = [span for span in self.of(process) if span["name"] == name]
        assert len(found) == 1, (process, name, found)
        return found[0]


def end(span):
    return span["ts"] + span["dur"]


class TraceTest(CloneTest):
    def prepare(self, name="traced", modules=("json",)):
        self.probes = self.path("probes")
        os.makedirs(self.probes)
        argv = [jobs.PYTHON, jobs.workload("clone_probe.py"), self.probes, "hook", *modules]
        return self.take_image(self.start_held(argv, name), f"{name}:parked")

    def end_probe(self, pid, host):
        with open(os.path.join(self.probes, "exit." + host), "w", encoding="ascii") as file:
            file.write("0")
        self.wait_for_end(pid)

    def traced_clone(self, image, name, *options):
        path = self.path(name + ".json")
        answer = self.clone(image, "--name", name, "--trace", path, *options)
        self.assertGreater(answer["ready_seconds"], 0)
        self.end_probe(answer["job"]["pid"], name)
        return answer, Trace(path)

    def check_shape(self, trace):
        """What viewers rely on."""
        self.assertEqual(min(span["ts"] for span in trace.spans), 0)
        lanes = {}
        for span in trace.spans:
            self.assertGreaterEqual(span["dur"], 0, span)
            lanes.setdefault((span["pid"], span["tid"]), []).append(span)
        self.assertEqual(set(lanes), set(trace.threads))
        for spans in lanes.values():
            open_ends = []
            for span in sorted(spans, key=lambda span: (span["ts"], -span["dur"])):
                while open_ends and open_ends[-1] <= span["ts"] + ROUNDING_US:
                    open_ends.pop()
                if open_ends:
                    self.assertLessEqual(end(span), open_ends[-1] + ROUNDING_US, span)
                open_ends.append(end(span))

    def check_within(self, trace, inner, outer):
        self.assertGreaterEqual(inner["ts"], outer["ts"] - ROUNDING_US, (inner, outer))
        self.assertLessEqual(end(inner), end(outer) + ROUNDING_US, (inner, outer))

    def check_criu(self, trace):
        whole = trace.one("rekindle", "criu")
        stages = trace.names("criu", "restore")
        for stage in ("kernel features", "image tree", "tasks", "post-restore call", "letting go"):
            self.assertIn(stage, stages)
        tasks = trace.one("criu", "tasks")
        self.assertLess(trace.one("criu", "kernel features")["ts"], tasks["ts"])
        for span in trace.of("criu"):
            self.assertGreaterEqual(span["ts"], whole["ts"] - ROUNDING_US, span)
            self.assertLessEqual(span["ts"], end(whole), span)
        placing = [span for span in trace.of("criu") if span["name"] == "placing memory"]
        self.assertTrue(placing)
        for span in placing:
            self.check_within(trace, span, tasks)
        mappings = [span for span in trace.of("criu") if span["name"] == "mappings"]
        self.assertGreater(mappings[0]["args"]["mappings"], 10)


class CloneTraceTest(TraceTest):
    def pages_asked_for(self, trace):
        """Until it was ready: those of the program's end may be in the trace, or not."""
        ready = end(trace.one("rekindle", "restore"))
        faults = [span for span in trace.of("pager") if span["name"] == "fault" and span["ts"] < ready]
        return {span["args"]["address"] for span in faults}

    def test_the_first_and_the_next(self):
        image = self.prepare()
        first, trace = self.traced_clone(image, "first")
        self.check_shape(trace)
        whole = trace.one("rekindle", "restore")
        phases = [span for span in trace.of("rekindle", "restore") if span is not whole]
        for span in phases:
            self.check_within(trace, span, whole)
        expected = {"prepare", "sandbox", "attach", "criu", "working set", "watch", "answer"}
        self.assertLessEqual(expected, {span["name"] for span in phases})
        self.check_criu(trace)
        self.check_within(trace, trace.one("rekindle", "working set"), trace.one("rekindle", "criu"))
        attach = trace.one("pager", "attach")
        self.assertEqual(attach["args"]["lazy_pages"], first["lazy_pages"])
        self.assertEqual(attach["args"]["working_set_pages"], 0)
        self.check_within(trace, attach, trace.one("rekindle", "attach"))
        for name in ("prefetch", "pages that must be there", "working set"):
            self.assertEqual(len([span for span in trace.of("pager") if span["name"] == name]), 1, name)
        serving = trace.one("pager", "serving")
        self.assertGreater(serving["args"]["faults"], 0)
        self.assertEqual(serving["args"]["prefilled_pages"], 0)
        faults = [span for span in trace.of("pager") if span["name"] == "fault"]
        self.assertGreater(len(faults), 0)
        self.assertGreater(sum(span["args"]["pages"] for span in faults), 0)
        asked_for = self.pages_asked_for(trace)
        self.assertGreater(len(asked_for), 0)

        second, trace = self.traced_clone(image, "second")
        self.check_shape(trace)
        working_set = trace.one("pager", "working set")
        self.assertGreater(working_set["args"]["pages"], 0)
        self.assertEqual(working_set["args"]["pages"], second["prefilled_pages"])
        again = trace.one("pager", "serving")["args"]
        self.assertEqual(again["prefilled_pages"], second["prefilled_pages"])
        # What it only came to need while it said that it was ready is not in the working set.
        again = self.pages_asked_for(trace) & asked_for
        self.assertLess(len(again), len(asked_for) / 2, "what is there is not asked for")
        self.wait_for_no_sandbox()

    def test_a_daemon_opens_no_program_that_another_has_checked(self):
        image = self.prepare()
        checked = "programs and files"
        _, trace = self.traced_clone(image, "first")
        self.assertGreater(trace.one("rekindle", checked)["args"]["opened"], 5)
        _, trace = self.traced_clone(image, "second")
        self.assertNotIn(checked, trace.names("rekindle"))
        self.daemon.stop()
        self.restart_daemon()
        _, trace = self.traced_clone(image, "third")
        self.assertEqual(trace.one("rekindle", checked)["args"]["opened"], 0)
        for part in ("pager up", "sandbox pool up", "CRIU's images", "image's records"):
            self.check_within(trace, trace.one("rekindle", part), trace.one("rekindle", "prepare"))

    def test_with_all_of_its_memory(self):
        # The pager lets go of it as soon as it runs, and tells all the same.
        image = self.prepare()
        answer, trace = self.traced_clone(image, "eager", "--fill", "eager")
        self.check_shape(trace)
        filled = trace.one("pager", "all of its memory")
        self.assertGreaterEqual(filled["args"]["pages"], answer["lazy_pages"])
        self.assertGreater(filled["args"]["loaded_bytes"], 0)
        serving = trace.one("pager", "serving")
        self.assertEqual(serving["args"]["missing_pages"], 0)
        # CRIU's own, while it made the processes.
        late = [span for span in trace.of("pager") if span["name"] == "fault" and end(span) > serving["ts"]]
        self.assertEqual(late, [])

    def test_several(self):
        image = self.prepare()
        path = self.path("several.json")
        result = self.cli.run(
            "restore", image, "--clone", "--detach", "--count", 3, "--name", "copy", "--trace", path, "--explain"
        )
        self.assertEqual(result.code, DONE, str(result))
        answers = [json.loads(line) for line in result.out.splitlines()]
        trace = Trace(path)
        self.check_shape(trace)
        for answer in answers:
            process = f"rekindle for PID {answer['job']['pid']}"
            self.assertEqual(trace.names(process).count("restore"), 1, trace.processes)
            self.end_probe(answer["job"]["pid"], answer["job"]["name"])
        self.assertIn("The slowest of 3, PID ", result.err)
        self.wait_for_no_sandbox()

    def test_explanation(self):
        image = self.prepare()
        result = self.cli.run("restore", image, "--clone", "--detach", "--name", "told", "--explain")
        self.assertEqual(result.code, DONE, str(result))
        answer = json.loads(result.out)
        lines = result.err.splitlines()
        self.assertEqual(lines[0].split(), ["WHAT", "BY", "AFTER", "TOOK", "SHARE"])
        rows = [line.split("  ")[0] for line in lines[1:-1]]
        for phase in ("restore", "prepare", "sandbox", "attach", "criu", "watch", "answer"):
            self.assertIn(phase, rows)
        self.assertRegex(lines[-1], r"^Largest: .+ \((rekindle|criu|pager)\), [0-9.]+ (us|ms|s), [0-9]+ %\.")
        named = lines[-1].removeprefix("Largest: ").split(" (")[0]
        self.assertIn(named, [line.strip().split("  ")[0] for line in lines[1:-1]])
        self.end_probe(answer["job"]["pid"], "told")

    def test_a_copy_nobody_asks_about(self):
        image = self.prepare()
        result = self.cli.run("restore", image, "--clone", "--detach", "--name", "plain")
        self.assertEqual((result.code, result.err), (DONE, ""))
        self.assertEqual(len(result.out.splitlines()), 1)
        self.end_probe(json.loads(result.out)["job"]["pid"], "plain")

    def test_a_file_that_cannot_be_written(self):
        image = self.prepare()
        for path in (self.path("none/trace.json"), self.probes, "/dev/null"):
            result = self.cli.run("restore", image, "--clone", "--detach", "--name", "refused", "--trace", path)
            self.assertNotEqual(result.code, DONE, str(result))
            self.assertIn(path, result.message)
            self.assertFalse([job for job in self.succeed("ps", "--all")["jobs"] if job["name"] == "refused"])
        self.assertEqual(self.sandboxes(), [])
        # One that fails leaves what was there before.
        path = self.path("kept.json")
        with open(path, "w", encoding="ascii") as file:
            file.write("before")
        result = self.cli.run("restore", "none:such", "--clone", "--detach", "--trace", path)
        self.assertNotEqual(result.code, DONE)
        with open(path, encoding="ascii") as file:
            self.assertEqual(file.read(), "before")
        beside = [name for name in os.listdir(os.path.dirname(path)) if name.startswith("kept.json")]
        self.assertEqual(beside, ["kept.json"])


class TemplateTraceTest(TraceTest):
    def test_fork(self):
        image = self.prepare()
        self.assertEqual(self.succeed("template", "up", image, "--name", "kept")["refusal"], "")
        path = self.path("fork.json")
        result = self.cli.run("template", "start", "kept", "--detach", "--name", "fork", "--trace", path, "--explain")
        self.assertEqual(result.code, DONE, str(result))
        answer = json.loads(result.out)
        self.assertTrue(answer["forked"])
        trace = Trace(path)
        self.check_shape(trace)
        whole = trace.one("rekindle", "restore")
        for name in ("sandbox", "fork", "watch", "answer"):
            self.check_within(trace, trace.one("rekindle", name), whole)
        self.assertFalse(trace.of("criu"))
        self.assertIn("Largest: ", result.err)
        self.end_probe(answer["job"]["pid"], "fork")


class PlainTraceTest(TraceTest):
    embedded = True

    def test_plain_restore(self):
        job = self.start_job([jobs.PYTHON, jobs.workload("ticker.py"), self.path("ticks")], "plain")
        waiting.until(lambda: os.path.exists(self.path("ticks")), "the job ticks")
        self.take_image(job, "plain:1")
        path = self.path("plain.json")
        result = self.cli.run("restore", "plain:1", "--detach", "--trace", path, "--explain")
        self.assertEqual(result.code, DONE, str(result))
        trace = Trace(path)
        self.check_shape(trace)
        whole = trace.one("rekindle", "restore")
        for name in ("plan", "metadata", "criu", "pages"):
            self.check_within(trace, trace.one("rekindle", name), whole)
        self.assertGreater(trace.one("rekindle", "pages")["args"]["bytes"], 0)
        self.check_within(trace, trace.one("rekindle", "pages"), trace.one("rekindle", "criu"))
        self.check_criu(trace)
        self.assertFalse(trace.of("pager"))
        self.assertIn("Largest: ", result.err)
        pid = json.loads(result.out)["job"]["pid"]
        self.kill_job_at_end(pid)
        self.assertTrue(procfs.alive(pid))

    def test_the_file_needs_a_name(self):
        result = self.cli.run("restore", "plain:1", "--trace")
        self.assertEqual(result.code, USAGE, str(result))
