"""Tests with jobs in containers."""

import os

from harness import procfs, waiting
from harness.case import RekindleTest
from harness.containers import Container

SERVICE = "/programs/container_service.py"
PLACEHOLDER = ["/bin-of-rekindle/rekindle-init"]
BELOW_INIT = [*PLACEHOLDER, "/usr/bin/python3", "-B", SERVICE]


class ContainersCase(RekindleTest):
    def setUp(self):
        super().setUp()
        self.data = self.path("data")
        os.mkdir(self.data)

    def make(self, name, argv, output=None, memory=None, bare=False, pids=None):
        os.mkdir(self.path(name))
        if output is None:
            output = open(self.path(name + ".out"), "ab")  # pylint: disable=consider-using-with
            self.addCleanup(output.close)
        container = Container(self.path(name), self.data, argv, output, memory, bare, pids)
        self.addCleanup(container.end)
        return container

    def start(self, name, argv, output=None, memory=None, bare=False, pids=None):
        container = self.make(name, argv, output, memory, bare, pids)
        container.start()
        return container

    def output(self, name):
        """Its steps. When it is ended one of its processes is first, and the other one says what it died of."""
        with open(self.path(name + ".out"), encoding="ascii") as file:
            return [line.split(maxsplit=4) for line in file.read().splitlines() if line[:1].isdigit()]

    def steps(self, path=None):
        path = path or os.path.join(self.data, "steps")
        if not os.path.exists(path):
            return []
        with open(path, encoding="ascii") as file:
            return [line.split(maxsplit=4) for line in file.read().splitlines()]

    def wait_for_steps(self, more=5):
        target = len(self.steps()) + more
        waiting.until(lambda: len(self.steps()) >= target, "steps of the job")

    def start_service(self, name="one"):
        container = self.start(name, BELOW_INIT)
        self.wait_for_steps()
        return container, self.find_job(container)

    def find_job(self, container):
        """Of its two processes the older is the root."""
        pids = [pid for pid in container.pids() if procfs.command_line(pid).startswith("/usr/bin/python3")]
        return min(pids, key=procfs.namespace_pid)

    def assert_went_on(self, lines, pid):
        """From the image's step, with its numbers, memory and connection."""
        self.assertEqual({line[1] for line in lines}, {str(pid)})
        self.assertEqual(len({line[2] for line in lines}), 1, lines)
        self.assertEqual({line[3] for line in lines}, {"True"})
        self.assertEqual({line[4] for line in lines}, {"['rekindle-it-container']"})
