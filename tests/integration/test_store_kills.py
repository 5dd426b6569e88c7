"""kill -9 of the daemon at random moments, while it captures, restores, exports, removes and collects garbage:
the store keeps exactly what its users were told that it keeps, and the jobs run on.

REKINDLE_KILLS_SEED repeats a run (as far as the machine's own timing lets it), REKINDLE_KILLS_ROUNDS changes
its length.
"""

import collections
import os
import random
import shutil
import sys
import time
import unittest

from harness import jobs, procfs, waiting
from harness.case import MIB, RekindleTest
from harness.cli import DONE, NOT_FOUND
from harness.contents import Content, TakenImage
from harness.memory_job import MemoryJob

CAPTURED_MIB = (8, 8, 12, 16)
RESTORED_MIB = (8, 12)
MOST_IMAGES = 8  # rm keeps their number about here
LONGEST_LOAD_SECONDS = 0.6
WORK_FOLDERS = ("capture-", "rekindle-restore-")
DAEMON_IS_GONE = ("no answer from the daemon", "has ended in the middle of this call")


class Slot:
    """One user, who gives one command after the other."""

    def __init__(self, load):
        self.load = load
        self.random = load.random
        self.command = None

    def begin(self):
        """The arguments of the next command, or None when there is nothing to do."""
        raise NotImplementedError

    def end(self, result, interrupted):
        """`interrupted`: the daemon died under it, so it may have taken effect or not."""
        raise NotImplementedError


class CaptureSlot(Slot):
    def __init__(self, load, name, job, memory):
        super().__init__(load)
        self.name, self.job, self.memory = name, job, memory
        self.count = 0
        self.image = self.parent = None

    def begin(self):
        load = self.load
        self.memory.touch(self.random.choice((16, 64, 256, 1024)))
        own = [reference for reference in load.free_to_change() if reference.startswith(self.name + ":")]
        if own and self.random.random() < 0.3:
            reference = self.random.choice(own)
        else:
            self.count += 1
            reference = f"{self.name}:{self.count}"
        options = ["--replace"] if reference in load.images else []
        self.parent = None
        kind = self.random.choice(("auto", "auto", "none", "named"))
        others = [other for other in load.free_to_read() if other != reference]
        if kind == "none":
            options.append("--no-parent")
        elif kind == "named" and others:
            self.parent = self.random.choice(others)
            load.readers[self.parent] += 1
            options += ["--parent", self.parent]
        self.image = TakenImage(reference, Content(self.job.pid, self.memory))
        load.changing[reference] = self.image
        return ["ckpt", self.job.pid, "-t", reference, *options]

    def end(self, result, interrupted):
        if self.parent:
            self.load.readers[self.parent] -= 1
        if result.code == DONE:
            self.image.digest = result.data["image"]["digest"]
            self.load.images[self.image.reference] = self.image
        elif interrupted:
            self.load.undecided[self.image.reference] = self.image
        else:
            self.load.fail(result)
        del self.load.changing[self.image.reference]
        self.load.done["captures", interrupted] += 1


class RemoveSlot(Slot):
    def begin(self):
        free = self.load.free_to_change()
        if len(self.load.images) <= MOST_IMAGES or not free:
            return None
        self.references = self.random.sample(free, min(len(free), 2))
        for reference in self.references:
            self.load.changing[reference] = None
        return ["rm", *self.references]

    def end(self, result, interrupted):
        for reference in self.references:
            del self.load.changing[reference]
            if result.code == DONE:
                del self.load.images[reference]
            elif interrupted:
                self.load.undecided[reference] = None
        if result.code != DONE and not interrupted:
            self.load.fail(result)
        self.load.done["removals", interrupted] += 1


class CollectSlot(Slot):
    def begin(self):
        return ["gc"]

    def end(self, result, interrupted):
        if result.code != DONE and not interrupted:
            self.load.fail(result)
        self.load.done["collections", interrupted] += 1


class ExportSlot(Slot):
    """Takes any image, also one that is removed or replaced meanwhile."""

    def begin(self):
        load = self.load
        if not load.images:
            return None
        self.reference = self.random.choice(sorted(load.images))
        self.image = load.images[self.reference]
        self.folder = load.new_folder()
        return ["export", self.reference, "--criu", self.folder]

    def end(self, result, interrupted):
        load = self.load
        steady = load.images.get(self.reference) is self.image
        steady = steady and self.reference not in load.changing and self.reference not in load.undecided
        if result.code != DONE:
            if not interrupted and (steady or result.code != NOT_FOUND):
                load.fail(result)
            load.remove(self.folder)
        else:
            digest = result.data["image"]["digest"]
            if digest == self.image.digest:
                load.check(self.image.problem_of(self.folder))
            elif steady:
                load.check(f"{self.reference} was exported as {digest}, it is {self.image.digest}")
            load.remove(self.folder)
        load.done["exports", interrupted] += 1


class RestoreSlot(Slot):
    """Brings one stopped job back, looks at its memory, and kills it."""

    def __init__(self, load, image, job):
        super().__init__(load)
        self.reference, self.job = image.reference, job

    def begin(self):
        return ["restore", self.reference, "--detach"]

    def end(self, result, interrupted):
        if result.code == DONE or interrupted:
            self.load.returning.append((self, result))
            if not interrupted:
                self.load.settle_returned()
        elif self.job.is_here() or not ("in use" in result.message or "is taken" in result.message):
            # While the job is away the machine may give its number to somebody else.
            self.load.fail(result)
        self.load.done["restores", interrupted] += 1


class Load:
    """What the users of one daemon do at the same time, and what they have been told."""

    def __init__(self, test, seed):
        self.test = test
        self.random = random.Random(seed)
        self.slots = []
        self.images = {}  # reference: what the store has said that it has
        self.changing = {}  # reference: what it becomes (None: removed) when the command in work ends well
        self.undecided = {}  # the same, of commands that the kill cut off
        self.readers = collections.Counter()  # captures in work that name this parent
        self.returning = []
        self.problems = []
        self.done = collections.Counter()
        self._folders = 0

    def free_to_read(self):
        return [reference for reference in sorted(self.images) if reference not in self.changing]

    def free_to_change(self):
        return [
            reference
            for reference in self.free_to_read()
            if not self.readers[reference] and not reference.startswith("away")
        ]

    def new_folder(self):
        self._folders += 1
        return self.test.path(f"export.{self._folders}")

    def remove(self, folder):
        shutil.rmtree(folder, ignore_errors=True)

    def fail(self, result):
        self.problems.append(str(result))

    def check(self, problem):
        if problem:
            self.problems.append(problem)

    def run_and_kill(self, daemon, cli):
        """All slots at work until a random moment, then kill -9; returns once every command has ended.

        The moment comes a random time after so many captures: else none would end on a slow machine.
        """
        captures = self.done["captures", False] + self.random.choice((0, 0, 0, 0, 1, 2))
        seconds = self.random.uniform(0, LONGEST_LOAD_SECONDS)
        deadline = None
        while deadline is None or time.monotonic() < deadline:
            if deadline is None and self.done["captures", False] >= captures:
                deadline = time.monotonic() + seconds
            for slot in self.slots:
                if slot.command is None:
                    arguments = slot.begin()
                    slot.command = arguments and cli.start(*arguments)
                elif slot.command.poll() is not None:
                    self._finish(slot, cli, False)
            time.sleep(0.001)
        daemon.kill()
        for slot in self.slots:
            if slot.command is not None:
                self._finish(slot, cli, True)

    def _finish(self, slot, cli, killed):
        result = cli.finish(slot.command, 60)
        slot.command = None
        slot.end(result, killed and any(text in result.message for text in DAEMON_IS_GONE))

    def settle_returned(self):
        """A job whose restore succeeded runs and holds what it held. Of one cut off, that or nothing is there."""
        for slot, result in self.returning:
            job = slot.job
            before = job.memory.read("ticks")
            waiting.until(
                lambda: not job.is_here() or job.memory.read("ticks") > before + 2,
                f"{slot.reference} either runs or is gone",
            )
            if job.is_here():
                if job.memory.digest() != job.digest:
                    self.problems.append(f"{slot.reference} runs with memory that is not its own")
            elif result.code == DONE:
                self.problems.append(f"{slot.reference} died after its restore had succeeded")
            job.kill()
        self.returning.clear()

    def settle_undecided(self, listed):
        """What was cut off has taken effect or not; from now on it stays as it is."""
        for reference, image in self.undecided.items():
            digest = listed.get(reference)
            before = self.images.get(reference)
            if image is None and digest is None:
                del self.images[reference]
            elif image is not None and digest and not (before and before.digest == digest):
                image.digest = digest
                self.images[reference] = image
        self.undecided.clear()


class AwayJob:
    """A memory_job that lives in its image and now and then comes back. Its PID may be another's meanwhile."""

    def __init__(self, test, name, size):
        self._status = test.path(name + ".status")
        argv = [jobs.program("memory_job"), str(size), self._status]
        self._started = jobs.Started(argv, test.path(name + ".log"))
        self.pid = self._started.pid
        test.addCleanup(self.kill)
        self.memory = MemoryJob(self._status)
        test.addCleanup(self.memory.close)
        self.digest = self.memory.digest()

    def is_here(self):
        return procfs.alive(self.pid) and self._status in procfs.command_line(self.pid)

    def kill(self):
        if self.is_here():
            jobs.kill_tree(self.pid)

    def reap(self):
        self._started.reap()


class StoreKillsTest(RekindleTest):
    ROUNDS = 0
    EXPORT_ALL_EVERY = 1  # in the rounds between, only what is new and two others

    def setUp(self):
        super().setUp()
        self.seed = int(os.environ.get("REKINDLE_KILLS_SEED", "0")) or random.randrange(1, 1 << 32)
        print(f"REKINDLE_KILLS_SEED={self.seed}", file=sys.stderr, flush=True)

    def kill_often(self, rounds):
        load = Load(self, self.seed)
        daemon = self.start_daemon()
        cli = self.make_cli(host=daemon.host)
        self.prepare(load, cli)
        for number in range(1, rounds + 1):
            known = set(load.images.values())
            load.run_and_kill(daemon, cli)
            daemon = self.start_daemon()
            everything = number == rounds or number % self.EXPORT_ALL_EVERY == 0
            try:
                load.settle_returned()
                self.check_store(load, cli, daemon, known, everything)
                self.assertEqual(load.problems, [])
            except (AssertionError, TimeoutError) as error:
                raise self.failureException(f"seed {self.seed}, round {number}: {error}") from error
        self.check_jobs(load)
        # What was stopped before all that still comes back.
        for slot in load.slots:
            if isinstance(slot, RestoreSlot):
                self.succeed("restore", slot.reference, "--detach", cli=cli)
                self.assertEqual(slot.job.memory.digest(), slot.job.digest, slot.reference)
                slot.job.kill()
        daemon.stop()
        self.assert_store_whole(load.images)
        print(f"{rounds} kills: {self.counts(load)}", file=sys.stderr, flush=True)
        # Otherwise nothing was tested.
        for kind in ("captures", "restores", "exports", "collections"):
            self.assertGreater(load.done[kind, True], rounds // 10, self.counts(load))
            self.assertGreater(load.done[kind, False], rounds // 10, self.counts(load))

    @staticmethod
    def counts(load):
        kinds = sorted({kind for kind, _ in load.done})
        return ", ".join(f"{load.done[k, False]} {k} (and {load.done[k, True]} cut off)" for k in kinds)

    def prepare(self, load, cli):
        for number, size in enumerate(RESTORED_MIB):
            job = AwayJob(self, f"away{number}", size * MIB)
            image = TakenImage(f"away{number}:1", Content(job.pid, job.memory))
            image.digest = self.checkpoint(job.pid, image.reference, "--stop", cli=cli)["image"]["digest"]
            job.reap()
            load.images[image.reference] = image
            load.slots.append(RestoreSlot(load, image, job))
        for number, size in enumerate(CAPTURED_MIB):
            job, memory = self.start_memory_job(size * MIB, f"job{number}")
            load.slots.append(CaptureSlot(load, f"job{number}", job, memory))
        load.slots += [ExportSlot(load), ExportSlot(load), CollectSlot(load), RemoveSlot(load)]

    def check_jobs(self, load):
        for slot in load.slots:
            if isinstance(slot, CaptureSlot):
                slot.memory.wait_for_tick()
                self.assertEqual(procfs.traced_by(slot.job.pid), 0, slot.name)

    def check_store(self, load, cli, daemon, known, everything):
        self.check_jobs(load)
        listed = {image["reference"]: image["digest"] for image in self.succeed("ls", cli=cli)["images"]}
        load.settle_undecided(listed)
        self.assertEqual(listed, {reference: image.digest for reference, image in load.images.items()})
        self.succeed("gc", cli=cli)
        self.assert_nothing_half_made(load, daemon)
        report = self.succeed("fsck", "--read", cli=cli)
        self.assertEqual(report.get("problems", []), [], report)
        self.assertEqual(report["images_checked"], len(listed), report)
        wanted = [image for image in load.images.values() if everything or image not in known]
        others = [image for image in load.images.values() if image not in wanted]
        wanted += load.random.sample(others, min(len(others), 2))
        self.check_exports(load, cli, wanted)

    def check_exports(self, load, cli, images):
        for first in range(0, len(images), 2):
            running = []
            for image in images[first : first + 2]:
                folder = load.new_folder()
                running.append((image, folder, cli.start("export", image.reference, "--criu", folder)))
            for image, folder, command in running:
                result = cli.finish(command)
                self.assertEqual(result.code, DONE, str(result))
                self.assertIsNone(image.problem_of(folder))

    def assert_nothing_half_made(self, load, daemon):
        self.assertEqual(os.listdir(os.path.join(self.store, "tmp")), [])
        packs = len(os.listdir(os.path.join(self.store, "packs")))
        self.assertEqual(self.succeed("stats", cli=self.make_cli(host=daemon.host))["packs"], packs)
        allowed = {daemon.pid} | {slot.job.pid for slot in load.slots if isinstance(slot, CaptureSlot)}

        def others():
            jobs.reap_orphans()
            return set(procfs.descendants(os.getpid())) - allowed

        try:
            waiting.until(lambda: not others(), "nothing else runs", 10)
        except TimeoutError:
            self.fail("left by the killed daemon: " + "; ".join(map(procfs.command_line, others())))
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            mounts = [line.split()[4] for line in file]
        mounts = [mount for mount in mounts if self.directory in mount or "rekindle-" in mount]
        self.assertEqual(mounts, [])
        for parent in (self.runtime, "/dev/shm"):
            folders = [name for name in os.listdir(parent) if name.startswith(WORK_FOLDERS)]
            self.assertEqual({os.path.join(parent, name) for name in folders} - self._before[1], set())


class KillsTest(StoreKillsTest):
    def test_fifteen_kills(self):
        self.kill_often(int(os.environ.get("REKINDLE_KILLS_ROUNDS", "15")))


class ManyKillsTest(StoreKillsTest):
    EXPORT_ALL_EVERY = 20

    def test_three_hundred_kills(self):
        self.kill_often(int(os.environ.get("REKINDLE_KILLS_ROUNDS", "300")))


if __name__ == "__main__":
    unittest.main()
