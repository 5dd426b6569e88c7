"""Jobs that the hook holds, whose copies write down what they found: for the tests of copies of all kinds."""

import json
import os
import signal

from harness import procfs, waiting
from harness.clones import CloneTest

PROGRAM = """
import hashlib, json, os, random, signal, sys
import rekindle
ballast = bytearray(os.urandom(4 << 20))
digest = hashlib.sha256(ballast).hexdigest()
{extra}
rekindle.ready()
instance = rekindle.instance
answer = {{"pid": os.getpid(), "parent": os.getppid(), "random": random.random(),
          "who": os.environ.get("WHO"), "name": instance.name, "host": os.uname().nodename,
          "seen": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
          "kept": hashlib.sha256(ballast).hexdigest() == digest}}
if os.environ.get("CHILDREN"):
    answer["children"] = 0
    try:
        for _ in range(int(os.environ["CHILDREN"])):
            if os.fork() == 0:
                signal.pause()
            answer["children"] += 1
    except BlockingIOError:
        pass
path = os.path.join(os.environ["ANSWERS"], str(instance.id))
with open(path + ".part", "w") as file:
    json.dump(answer, file)
os.rename(path + ".part", path)
if os.environ.get("EAT"):
    eaten = os.urandom(1 << 20) * int(os.environ["EAT"])
if os.environ.get("LEAVE"):
    sys.exit(int(os.environ["LEAVE"]))
signal.pause()
"""

STANDBY_COPIES = 2  # of a kind, unless the daemon is told otherwise


class HeldCopiesTest(CloneTest):
    """A held job's image, and copies of it."""

    def setUp(self):
        super().setUp()
        self.answers = self.path("answers")
        os.mkdir(self.answers)
        self.running = []  # what the starts answered

    def prepare(self, name="held", extra=""):
        """Its image. `extra` runs before it is held."""
        program = self.path(name + ".py")
        with open(program, "w", encoding="utf-8") as file:
            file.write(PROGRAM.format(extra=extra))
        job = self.start_held(["/usr/bin/python3", "-B", program], name, env={"ANSWERS": self.answers})
        self.root = job.pid
        return self.take_image(job, name + ":1")

    def answer_of(self, started):
        path = os.path.join(self.answers, started["instance"])
        waiting.until(lambda: os.path.exists(path), f"the answer of {started['instance']}")
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def end(self, started):
        """It, and its sandbox's processes."""
        pid = started["job"]["pid"]
        init = self.init_of(pid)
        os.kill(pid, signal.SIGTERM)
        self.wait_for_end(pid)
        self.wait_for_end(init)
        self.running.remove(started)

    def end_all(self):
        for started in list(self.running):
            self.end(started)

    @staticmethod
    def stood_by(started):
        names = [phase["name"] for phase in started["phases"]]
        assert [made in names for made in ("standby", "criu", "fork")].count(True) == 1, started
        return "standby" in names

    # What stands by.

    def restored_copies(self, others=()):
        """Init and root process of each copy that nobody was given; one that is being made is among them. `others`:
        spaces of processes that are none."""
        given = {self.space(started["job"]["pid"]) for started in self.running} | set(others)
        roots = {}
        for pid in procfs.all_pids():
            try:
                if procfs.namespace_pid(pid) == self.root:
                    roots[self.space(pid)] = pid
            except OSError:
                continue
        copies = []
        for init in self.inits():
            space = self.space(init)
            if space is not None and space not in given and space in roots:
                copies.append((init, roots[space]))
        return copies

    @staticmethod
    def space(pid):
        try:
            return os.readlink(f"/proc/{pid}/ns/pid")
        except OSError:
            return None

    def wait_until_gone(self, copies):
        for init, root in copies:
            waiting.until(lambda pid=init: not procfs.alive(pid), f"init {init} ended")
            waiting.until(lambda pid=root: not procfs.alive(pid), f"copy {root} ended")

    def wait_for_standbys(self, others=(), seconds=60):
        """All that there are to be. They are made one after the other: all but one surely stand by."""

        def there():
            copies = self.restored_copies(others)
            return copies if len(copies) == STANDBY_COPIES else None

        return waiting.until(there, f"{STANDBY_COPIES} copies stand by", seconds)
