"""The hook in Node.js: a parked job, its image, copies that differ where they should."""

import json
import os
import shutil
import unittest

from harness import jobs, waiting
from harness.clones import HOOK_NODE, CloneTest, hook_addon

# CRIU can't dump an io_uring.
ENVIRONMENT = {"UV_USE_IO_URING": "0", "NODE_PATH": HOOK_NODE}


class NodeHookTest(CloneTest):
    def setUp(self):
        super().setUp()
        self.reports = self.path("reports")
        os.mkdir(self.reports)

    def take(self, reference="node:parked"):
        job = self.start_held(
            ["/usr/bin/node", jobs.workload("hook_probe.js"), self.reports],
            "node",
            env={**ENVIRONMENT, "REKINDLE_HOOK_ADDON": hook_addon()},
        )
        self.root = job.pid
        return self.take_image(job, reference)

    def report(self, name):
        path = os.path.join(self.reports, "report." + name)
        waiting.until(lambda: os.path.exists(path), f"the report of {name}\n{self.records()}", 30)
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def end(self, pid, name):
        with open(os.path.join(self.reports, "exit." + name), "w", encoding="ascii") as file:
            file.write("0")
        self.wait_for_end(pid)

    def test_two_copies(self):
        image = self.take()
        reports = []
        for name, zone in (("one", "UTC"), ("two", "Asia/Tokyo")):
            answer = self.clone(image, "--name", name, "--env", "TAG=of " + name, "--env", "TZ=" + zone)
            report = self.report(name)
            self.assertEqual(report["event"], "restored")
            self.assertEqual(report["self"], {
                "id": answer["instance"], "name": name, "environment": {"TAG": "of " + name, "TZ": zone},
            })
            self.assertEqual(report["tag"], "of " + name)
            self.assertEqual(report["pid"], self.root)
            self.assertEqual(report["order"], ["before-2", "before-1", "after-1", "after-2"])
            self.assertIn("threads", report["refusal"])
            reports.append(report)
            self.end(answer["job"]["pid"], name)
        self.assertEqual([report["zone"] for report in reports], [0, 9])
        for what in ("uuid", "integer", "bytes", "pool", "web", "math"):
            self.assertNotEqual(reports[0][what], reports[1][what], what)
        self.wait_for_no_sandbox()

    def test_pools_are_filled_anew_and_keys_stay(self):
        library = os.path.join(self.reports, "node_modules")
        os.mkdir(library)
        shutil.copy(jobs.workload("id_pools.js"), library)
        job = self.start_held(
            ["/usr/bin/node", jobs.workload("draws_ahead.js"), self.reports], "pools",
            env={**ENVIRONMENT, "REKINDLE_HOOK_ADDON": hook_addon()},
        )
        image = self.take_image(job, "node:pools")
        reports = []
        for name in ("one", "two"):
            answer = self.clone(image, "--name", name)
            reports.append(self.report(name))
            self.wait_for_end(answer["job"]["pid"])
        one, two = reports
        self.assertEqual(one["before"], two["before"])
        self.assertEqual(one["keys"], two["keys"])
        for report in reports:
            self.assertEqual(report["keys"], report["before"]["keys"], "no key changes under a program's feet")
        for pool, ids in one["ids"].items():
            self.assertNotEqual(ids, two["ids"][pool], pool)
            self.assertNotIn(ids, one["before"]["ids"].values(), pool)
        program = os.path.relpath(jobs.workload("draws_ahead.js"), "/")  # where jobs of tests stand
        self.assertEqual(one["unrenewed"][1:], [f"{program}: {draw}" for draw in (
            "getRandomValues", "getRandomValues by id_pools.js", "randomBytes", "randomFill by id_pools.js",
            "randomFillSync", "randomFillSync by id_pools.js")])

    def test_not_held(self):
        job = self.start_job(
            ["/usr/bin/node", jobs.workload("hook_probe.js"), self.reports], "free", env=ENVIRONMENT)
        self.assertEqual(self.report("not held")["order"], [], "no callback runs")
        self.end(job.pid, "not held")
        self.assertEqual(job.reap(), 0)

    def test_what_it_starts_is_not_held(self):
        job = self.start_held(
            ["/usr/bin/node", jobs.workload("hook_children.js"), self.reports], "parent",
            env={**ENVIRONMENT, "REKINDLE_HOOK_ADDON": hook_addon()},
        )
        self.checkpoint(job.pid, "node:parent")
        self.assertEqual(self.report("child"), {"own": "continued", "child": "not held"})
        self.assertEqual(job.reap(), 0)

    def test_a_template_is_refused(self):
        image = self.take()
        refused = self.cli.run("template", "up", image, "--name", "tpl")
        said = refused.message or refused.data.get("refusal", "")
        self.assertIn("thread", said, str(refused))


if __name__ == "__main__":
    unittest.main()
