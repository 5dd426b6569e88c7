"""Groups of jobs on three nodes, which pass on numbers to each other."""

import os

from harness import jobs, waiting
from harness.nodes import NodesTest

_PORT = 9099


class Exchange:
    """Jobs that pass on numbers: see workloads/exchange.py."""

    def __init__(self, test):
        self.test = test
        self.pids = {}

    def start(self, node, role, medium, name):
        status = self.test.path(name + ".status")
        job = node.start_job(self.test, [jobs.PYTHON, jobs.workload("exchange.py"), role, medium, status], name)
        self.pids[name] = job.pid
        return job

    def status(self, name):
        if not os.path.exists(self.test.path(name + ".status")):
            return ""
        with open(self.test.path(name + ".status"), encoding="ascii") as file:
            return file.read().strip()

    def number(self, name):
        text = self.status(name)
        if not text.isdigit():
            self.test.fail(f"{name}: {text}")
        return int(text)

    def wait_for_progress(self, *names, seconds=waiting.DEFAULT_SECONDS):
        """They run and are in order."""
        before = {name: self.number(name) for name in names}
        waiting.until(
            lambda: all(self.number(name) > before[name] + 5 for name in names), f"{names} go on", seconds
        )

    def pause(self, *names):
        for name in names:
            with open(self.test.path(name + ".status.pause"), "w", encoding="ascii"):
                pass

    def paused_at(self, name):
        """The number that it had in its memory when it came to the pause."""
        path = self.test.path(name + ".status.paused")
        waiting.until(lambda: os.path.exists(path), f"{name} paused")
        with open(path, encoding="ascii") as file:
            return int(file.read())

    def go_on(self, *names):
        for name in names:
            os.unlink(self.test.path(name + ".status.pause"))


class GroupTest(NodesTest):
    def attempt(self, members, node, point, *options):
        """A group checkpoint in which a daemon is killed, and comes back."""
        node.restart(f"{point}=KILL")
        result = self.a.cli.run(*self.group_arguments("x:1", members, *options))
        node.wait_until_dead()
        node.restart()
        return result

    def exchange_by_file(self):
        """A sender on b and a receiver on c."""
        exchange = Exchange(self)
        channel = self.path("channel")
        self.jobs = [
            exchange.start(self.b, "send", f"file:{channel}", "sender"),
            exchange.start(self.c, "receive", f"file:{channel}", "receiver"),
        ]
        for name in ("sender", "receiver"):
            waiting.until(lambda name=name: exchange.status(name).isdigit(), f"{name} begins")
        exchange.wait_for_progress("sender", "receiver")
        return exchange, [(self.b, self.jobs[0].pid), (self.c, self.jobs[1].pid)]

    def exchange_by_tcp(self):
        exchange = Exchange(self)
        self.jobs = [exchange.start(self.c, "receive", f"tcp:{_PORT}", "receiver")]
        waiting.until(lambda: exchange.status("receiver") == "listening", "receiver listens")
        self.jobs.append(exchange.start(self.b, "send", f"tcp:{self.c.address}:{_PORT}", "sender"))
        for name in ("sender", "receiver"):
            waiting.until(lambda name=name: exchange.status(name).isdigit(), f"{name} begins")
        exchange.wait_for_progress("sender", "receiver")
        return exchange, [(self.c, self.jobs[0].pid), (self.b, self.jobs[1].pid)]

    def kill_jobs(self):
        for job in self.jobs:
            job.kill_tree()

    def assert_nowhere(self, exchange):
        self.wait_until_settled()
        self.assertEqual([node.images() for node in self.nodes], [[], [], []])
        self.assertEqual(self.a.groups().get("groups", []), [])
        exchange.wait_for_progress("sender", "receiver")
        self.assert_stores_whole()

    def assert_complete(self, exchange, reference="x:1"):
        self.wait_until_settled()
        name, tag = reference.split(":")
        self.assertEqual(
            [node.images() for node in self.nodes], [[], [f"{name}/0:{tag}"], [f"{name}/1:{tag}"]], self.logs()
        )
        # The coordinator removes a replaced group once all members have what replaces it.
        waiting.until(
            lambda: [g["reference"] for g in self.a.groups()["groups"]] == [reference],
            f"{reference} is the only group",
        )
        exchange.wait_for_progress("sender", "receiver")
        self.assert_stores_whole()

    def assert_stores_whole(self):
        for node in self.nodes:
            report = self.succeed("fsck", "--read", cli=node.cli)
            self.assertEqual(report.get("problems", []), [], f"{node.name}: {report}")

    def logs(self):
        return "\n".join(f"--- {node.name}\n{node.daemon.log_text()}" for node in self.nodes)
