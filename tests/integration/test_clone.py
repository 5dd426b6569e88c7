"""Clones of real jobs: what each sees and is told, how its end is reported, and that nothing of it stays."""

import json
import os
import shutil
import signal
import socket
import subprocess
import unittest

from harness import jobs, locks, procfs, waiting
from harness.cli import DONE, FAILED, NOT_FOUND, USAGE, binary
from harness.clones import CloneTest
from harness.juggler import Juggler


class ProbeTest(CloneTest):
    """clone_probe.py, parked."""

    def prepare(self, park="hook", modules=(), reference="probe:parked", **options):
        self.probes = self.path("probes")
        os.makedirs(os.path.join(self.probes, "bound"))
        argv = [jobs.PYTHON, jobs.workload("clone_probe.py"), self.probes, park, *modules]
        if park == "hook":
            job = self.start_held(argv, "probe", **options)
        else:
            job = self.start_job(argv, "probe")
            waiting.until(lambda: os.path.exists(self.probe_file("ready")), "the probe parked", 60)
        self.root = job.pid
        self.take_image(job, reference)
        if park != "hook":
            self.tell("go", "1")
        return reference

    def probe_file(self, name):
        return os.path.join(self.probes, name)

    def tell(self, name, text):
        with open(self.probe_file(name), "w", encoding="ascii") as file:
            file.write(text)

    def report(self, host):
        def read():
            try:
                with open(self.probe_file("report." + host), encoding="utf-8") as file:
                    return json.loads(file.read() or "null")
            except FileNotFoundError:
                return None

        return waiting.until(read, f"the report of {host}\n", 30)

    def end(self, pid, host, status=0):
        self.tell("exit." + host, str(status))
        self.wait_for_end(pid)

    def ps(self, name):
        shown = self.succeed("ps", "--all")["jobs"]
        return next((job for job in shown if job["name"] == name), None)


class HookTest(ProbeTest):
    def test_python(self):
        image = self.prepare()
        answer = self.clone(image, "--name", "one", "--env", "TAG=first", "--env", "OTHER=2")
        report = self.report("one")
        pid = answer["job"]["pid"]
        self.assertEqual(report["pid"], self.root)
        self.assertEqual(procfs.namespace_pid(pid), self.root)
        self.assertEqual((report["host"], report["name"], report["tag"]), ("one", "one", "first"))
        self.assertEqual(report["instance"], answer["instance"])
        self.assertEqual(report["digest"], sum(range(200_000)))
        self.assertGreater(answer["ready_seconds"], 0)
        self.assertGreater(answer["lazy_pages"], 0)
        self.assertEqual(self.ps("one")["state"], "running")
        for helper in (self.pager(), self.init_of(pid)):
            refused = self.cli.run("ckpt", helper, "-t", "helper:1")
            self.assert_refused(refused, USAGE, str(helper), "Rekindle's own rekindle-")
        self.end(pid, "one")
        self.wait_for_no_sandbox()

    def test_torch(self):
        image = self.prepare(modules=["torch"])
        values = []
        for name, fill in (("a", "idle"), ("b", "never"), ("c", "eager")):
            pid = self.clone(image, "--name", name, "--fill", fill)["job"]["pid"]
            values.append(self.report(name)["torch"])
            self.end(pid, name)
        self.assertEqual(values, [values[0]] * 3)

    def test_copies_are_told_apart(self):
        image = self.prepare()
        started = self.clones(image, 3, "--name", "copy")
        self.assertEqual(len(started), 3)
        reports = [self.report(answer["job"]["name"]) for answer in started]
        self.assertEqual({report["pid"] for report in reports}, {self.root})
        self.assertEqual(len({report["instance"] for report in reports}), 3)
        self.assertEqual(len({report["random"] for report in reports}), 3, "random numbers of their own")
        self.assertEqual(len({answer["job"]["pid"] for answer in started}), 3)
        for answer in started:
            self.end(answer["job"]["pid"], answer["job"]["name"])
        self.wait_for_no_sandbox()


class SandboxTest(ProbeTest):
    def test_without_the_hook(self):
        image = self.prepare(park="file")
        answers = [self.clone(image, "--name", name, *more) for name, more in (("one", ()), ("two", ("--env", "A=b")))]
        self.assertEqual(answers[0]["warnings"], [])
        self.assertRegex(" ".join(answers[1]["warnings"]), "not told its environment")
        for answer, name in zip(answers, ("one", "two")):
            report = self.report(name)
            self.assertEqual(report["pid"], self.root)
            self.assertEqual(report["parent"], 1)
            # The init, itself, and nobody else: CRIU may be about to go.
            self.assertEqual([pid for pid in report["processes"] if pid in (1, self.root)], sorted([1, self.root]))
            self.assertLessEqual(len(report["processes"]), 3)
            self.assertEqual(report["interfaces"], sorted(name for _, name in socket.if_nameindex()))
            self.end(answer["job"]["pid"], name)
        self.wait_for_no_sandbox()

    def test_networks(self):
        image = self.prepare()
        for network, loopback in (("none", False), ("own", True), ("host", True)):
            pid = self.clone(image, "--name", network, "--net", network)["job"]["pid"]
            report = self.report(network)
            self.assertEqual(report["loopback"], loopback, network)
            if network == "host":
                self.assertEqual(report["interfaces"], sorted(name for _, name in socket.if_nameindex()))
            else:
                self.assertEqual(report["interfaces"], ["lo"])
            self.end(pid, network)

    def test_bind(self):
        image = self.prepare()
        os.mkdir(self.path("given"))
        with open(self.path("given/word"), "w", encoding="ascii") as file:
            file.write("here")
        bind = f"{self.path('given')}:{self.probe_file('bound')}"
        bound = self.clone(image, "--name", "bound", "--bind", bind)["job"]["pid"]
        plain = self.clone(image, "--name", "plain")["job"]["pid"]
        self.assertEqual(self.report("bound")["bound"], "here")
        self.assertIsNone(self.report("plain")["bound"])
        self.assertEqual(os.listdir(self.probe_file("bound")), [], "seen in the clone alone")
        self.end(bound, "bound")
        self.end(plain, "plain")
        missing = self.cli.run("restore", image, "--clone", "-d", "--bind", f"{self.path('nothing')}:{self.probes}")
        self.assert_refused(missing, FAILED, self.path("nothing"), "bind")
        self.wait_for_no_sandbox()

    def test_log(self):
        ours, theirs = os.pipe()
        self.addCleanup(os.close, ours)
        self.addCleanup(os.close, theirs)
        image = self.prepare(output=theirs)
        log = self.path("clone.log")
        for name in ("first", "second"):
            pid = self.clone(image, "--name", name, "--log", log)["job"]["pid"]
            self.end(pid, name)
        with open(log, encoding="ascii") as file:
            self.assertEqual(file.read(), "hello from first\nhello from second\n")

    def test_log_in_place_of_a_file(self):
        path = self.path("output")
        with open(path, "ab") as output:
            image = self.prepare(output=output.fileno())
        log = self.path("clone.log")

        def copy(name, *options):
            self.end(self.clone(image, "--name", name, *options)["job"]["pid"], name)

        os.rename(path, path + ".away")
        refused = self.cli.run("restore", image, "--clone", "--detach")
        self.assert_refused(refused, FAILED, path, "--log")
        copy("logged", "--log", log)
        self.assertFalse(os.path.exists(path))
        os.rename(path + ".away", path)
        copy("plain")
        copy("again", "--log", log)
        for written, names in ((path, ("plain",)), (log, ("logged", "again"))):
            with open(written, encoding="ascii") as file:
                self.assertEqual(file.read(), "".join(f"hello from {name}\n" for name in names), written)

    def test_only_one_copy_has_a_lock(self):
        path = self.path("locked")
        image = self.take_image(locks.start_holder(self, "holder", f"{path}:flock:exclusive"), "holder:1")
        first = self.clone(image, "--name", "first")["job"]["pid"]
        self.assertFalse(locks.flock_is_free(path))
        refused = self.cli.run("restore", image, "--clone", "--detach", "--name", "second", seconds=20)
        self.assert_refused(refused, FAILED, "file locks", path, f"PID {first} (")
        self.assertEqual(len(self.sandboxes()), 1)
        os.kill(first, signal.SIGKILL)
        self.wait_for_end(first)
        second = self.clone(image, "--name", "second")["job"]["pid"]
        self.assertFalse(locks.flock_is_free(path))
        os.kill(second, signal.SIGKILL)
        self.wait_for_no_sandbox()

    def test_a_copy_has_the_lock_of_a_file_that_it_has_mapped(self):
        path = self.path("locked")
        image = self.take_image(locks.start_holder(self, "holder", f"{path}:mapped:exclusive"), "holder:1")
        self.assertTrue(locks.range_is_free(path, 0, 0))
        copy = self.clone(image, "--name", "copy")["job"]["pid"]
        self.assertFalse(locks.range_is_free(path, 0, 0))
        os.kill(copy, signal.SIGKILL)
        self.wait_for_no_sandbox()
        self.assertTrue(locks.range_is_free(path, 0, 0))

    def test_a_terminal_is_refused(self):
        ours, terminal = os.openpty()
        self.addCleanup(os.close, ours)
        self.addCleanup(os.close, terminal)
        refused = self.cli.run("restore", self.prepare(terminal=terminal), "--clone", "--detach")
        self.assert_refused(refused, FAILED, "terminal", "rekindle run")

    def test_refusals(self):
        image = self.prepare()
        refused = self.cli.run("restore", image, "--count", "2")
        self.assert_refused(refused, USAGE, "--count", "--clone")
        refused = self.cli.run("restore", image, "--clone", "--pidfile", self.path("pid"))
        self.assert_refused(refused, USAGE, "pidfile")
        refused = self.cli.run("restore", "nothing:here", "--clone")
        self.assert_refused(refused, NOT_FOUND, "nothing:here")
        self.assertEqual(self.sandboxes(), [])


_LIBRARY = "/usr/lib/x86_64-linux-gnu/libm.so.6"


def _maps(pid):
    with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        return file.read()


_MAPS = """import mmap, sys, time
with open(sys.argv[1], "rb") as file:
    area = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print("ready", flush=True)
time.sleep(1000)
"""


class EditedFileTest(CloneTest):
    def test_it_is_taken_by_a_restore_whose_image_copies_are_made_of(self):
        mapped = self.path("mapped")
        with open(mapped, "w", encoding="ascii") as file:
            file.write("x" * 8192)
        job = self.start_job([jobs.PYTHON, "-c", _MAPS, mapped], "maps")
        waiting.until(lambda: os.path.exists(job.log) and os.path.getsize(job.log) > 0, "it is mapped")
        self.checkpoint(job.pid, "maps:1", "--stop")
        job.reap()
        with open(mapped, "r+", encoding="ascii") as file:
            file.write("y")
        refused = self.cli.run("restore", "maps:1", "--clone", "--detach")
        self.assert_refused(refused, FAILED, f"{mapped}, which it has mapped, was edited",
                            "not as a copy, with --ignore-path")  # fmt: skip
        pid = self.restore("maps:1", "--ignore-path", mapped)
        self.checkpoint(pid, "maps:2", "--stop")
        self.assertTrue(procfs.alive(self.clone("maps:2")["job"]["pid"]))


# Writes into its working folder, under names that begin there.
_WRITES = """import os, sys, time
os.chdir(sys.argv[1])
out = open("out", "a", buffering=1)
number = 0
while True:
    out.write(f"{number}\\n")
    with open("last", "w") as last:
        last.write(str(number))
    number += 1
    time.sleep(0.02)
"""


class BoundFolderTest(CloneTest):
    """A copy with another folder in the place of the one that the job works in."""

    def setUp(self):
        super().setUp()
        self.first, self.second = self.path("first"), self.path("second")
        os.mkdir(self.first)
        job = self.start_job([jobs.PYTHON, "-c", _WRITES, self.first], "writer")
        waiting.until(lambda: self.lines(self.first) > 3, "that it writes")
        self.checkpoint(job.pid, "writer:1", "--stop")
        job.reap()
        shutil.copytree(self.first, self.second)

    def lines(self, folder):
        try:
            with open(os.path.join(folder, "out"), encoding="ascii") as file:
                return len(file.readlines())
        except FileNotFoundError:
            return 0

    def refused(self, *options, words):
        self.assert_refused(self.cli.run("restore", "writer:1", "--clone", "-d", *options), FAILED, *words)

    def test_it_works_there(self):
        before = self.lines(self.first)
        pid = self.clone("writer:1", "--bind", f"{self.second}:{self.first}")["job"]["pid"]
        waiting.until(lambda: self.lines(self.second) > before + 3, "that it writes there")
        os.remove(os.path.join(self.second, "last"))
        waiting.until(lambda: os.path.exists(os.path.join(self.second, "last")), "a file named from its folder")
        self.assertEqual(self.lines(self.first), before)
        self.assertEqual(os.path.realpath(f"/proc/{pid}/root{self.first}"), os.path.realpath(f"/proc/{pid}/cwd"))
        # Others have the machine's.
        self.clone("writer:1")
        waiting.until(lambda: self.lines(self.first) > before + 3, "that another writes here")

    def test_what_it_needs_is_looked_for_there(self):
        third = self.path("third")
        os.mkdir(third)
        self.refused("--bind", f"{third}:{self.first}", words=["--bind", os.path.join(third, "out")])
        self.refused("--bind", f"{self.path('none')}:{self.first}", words=["--bind", self.path("none")])
        os.remove(os.path.join(self.first, "out"))
        self.refused(words=[os.path.join(self.first, "out")])
        before = self.lines(self.second)
        for _ in range(2):  # the second finds what was prepared for the first
            self.clone("writer:1", "--bind", f"{self.second}:{self.first}")
        waiting.until(lambda: self.lines(self.second) > before + 6, "that they write there")
        self.refused(words=[os.path.join(self.first, "out")])
        shutil.copy(os.path.join(self.second, "out"), self.first)
        before = self.lines(self.first)
        self.clone("writer:1")
        waiting.until(lambda: self.lines(self.first) > before, "that it writes here again")

    def test_as_many_folders_as_one_likes(self):
        """What is found of the image alone stays, and is there once."""
        self.clone("writer:1")
        directories = self.image_directories()
        self.assertEqual(len(directories), 1, directories)
        for number in range(70):
            folder = self.path(f"folder-{number}")
            shutil.copytree(self.second, folder)
            pid = self.clone("writer:1", "--bind", f"{folder}:{self.first}")["job"]["pid"]
            os.kill(pid, signal.SIGKILL)
            self.wait_for_end(pid)
        self.assertEqual(self.image_directories(), directories)
        trace = self.path("trace.json")
        self.clone("writer:1", "--trace", trace)
        with open(trace, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        kept = [event["args"]["kept"] for event in events if event["name"] == "prepare" and "kept" in event["args"]]
        self.assertEqual(kept, [1], events)

    def image_directories(self):
        """In which CRIU's images lie, for all copies of one."""
        return sorted(
            os.path.join(place, name)
            for place in (self.runtime, "/dev/shm")
            for name in os.listdir(place)
            if os.path.exists(os.path.join(place, name, "pstree.img"))
        )

    def test_another_build_of_a_library(self):
        """It may have the same size: nothing else would tell."""
        library = self.path("lib")
        os.mkdir(library)
        shutil.copy(_LIBRARY, os.path.join(library, "own.so"))
        shutil.copytree(library, self.path("other"))
        with open(_LIBRARY, "rb") as file:
            content = bytearray(file.read())
        note = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0"  # and then its build ID
        content[content.index(note) + len(note)] ^= 1
        with open(os.path.join(self.path("other"), "own.so"), "wb") as file:
            file.write(content)
        loads = f"import ctypes, time; ctypes.CDLL({os.path.join(library, 'own.so')!r}); time.sleep(1000)"
        job = self.start_job([jobs.PYTHON, "-c", loads], "loader")
        waiting.until(lambda: "own.so" in _maps(job.pid), "that it has the library")
        self.checkpoint(job.pid, "loader:1", "--stop")
        job.reap()
        self.clone("loader:1")
        refused = self.cli.run("restore", "loader:1", "--clone", "-d", "--bind", f"{self.path('other')}:{library}")
        self.assert_refused(refused, FAILED, "--bind", os.path.join(self.path("other"), "own.so"), "another build")


class EndTest(ProbeTest):
    def test_exit_status_of_an_attached_clone(self):
        image = self.prepare()
        self.tell("exit.seven", "7")
        result = self.cli.run("restore", image, "--clone", "--name", "seven")
        self.assertEqual(result.code, 7, str(result))
        started = json.loads(result.out.splitlines()[0])
        self.assertEqual(
            result.data,
            {
                "exit_code": 7,
                "signal": 0,
                "report": "",
                "pid": started["job"]["pid"],
                "instance": started["instance"],
                "name": "",
                "unknown": False,
            },
        )
        self.wait_for_no_sandbox()

    def test_sigterm_to_an_attached_command(self):
        image = self.prepare()
        command = self.cli.start("restore", image, "--clone", "--name", "ended")
        self.report("ended")
        os.kill(command.pid, signal.SIGTERM)
        result = self.cli.finish(command)
        self.assertEqual(result.code, 7, str(result))
        self.wait_for_no_sandbox()

    def attached_copies(self, count, reports, **options):
        """So many copies of one attached command, when these have reported."""
        image = self.prepare()
        command = self.cli.start("restore", image, "--clone", "--count", count, "--name", "copy", **options)
        for number in range(1, reports + 1):
            self.report(f"copy-{number}")
        return command

    def end_of(self, command):
        """Of the command: its result, and what it told of the ends of its copies."""
        result = self.cli.finish(command, 60)
        told = [json.loads(line) for line in result.out.splitlines()]
        self.wait_for_no_sandbox()
        return result, [event["exit_code"] for event in told if "exit_code" in event]

    def test_ends_of_attached_copies(self):
        """Each is told when it ends, and whose it is; the first copy's status counts, whichever ends first."""
        output = self.path("told")
        command = self.attached_copies(3, 3, prefix=("/bin/sh", "-c", f'exec "$@" > {output}', "sh"))

        def told(count):
            with open(output, encoding="utf-8") as file:
                lines = file.read().splitlines(keepends=True)
            return [json.loads(line) for line in lines] if len(lines) == count and lines[-1][-1] == "\n" else None

        started = waiting.until(lambda: told(3), "three copies told of")
        self.assertEqual({one["number"]: one["job"]["name"] for one in started}, {n: f"copy-{n}" for n in (1, 2, 3)})
        copies = {one["number"]: one for one in started}
        for ended, (number, status) in enumerate(((3, 6), (2, 5), (1, 0)), 1):
            self.tell(f"exit.copy-{number}", str(status))
            end = waiting.until(lambda ended=ended: told(3 + ended), f"the end of copy {number} told")[-1]
            self.assertEqual((end["pid"], end["exit_code"]), (copies[number]["job"]["pid"], status))
            self.assertEqual(end["instance"], copies[number]["instance"])
        result = self.cli.finish(command, 60)
        self.assertEqual(result.code, 5, str(result))
        self.wait_for_no_sandbox()

    def test_sigterm_to_attached_copies(self):
        command = self.attached_copies(3, 3)
        os.kill(command.pid, signal.SIGTERM)
        result, ends = self.end_of(command)
        self.assertEqual(ends, [7, 7, 7], str(result))
        self.assertEqual(result.code, 7, str(result))

    def test_a_signal_ends_it(self):
        image = self.prepare()
        command = self.cli.start("restore", image, "--clone", "--name", "killed")
        self.report("killed")
        pid = self.ps("killed")["pid"]
        os.kill(pid, signal.SIGKILL)
        result = self.cli.finish(command)
        self.assertEqual(result.code, 128 + signal.SIGKILL, str(result))
        self.assertEqual(result.data["signal"], signal.SIGKILL)
        self.wait_for_no_sandbox()

    def test_detached(self):
        image = self.prepare()
        pid = self.clone(image, "--name", "detached")["job"]["pid"]
        self.end(pid, "detached", 5)
        waiting.until(lambda: self.ps("detached")["state"] == "exited", "its end told")
        self.wait_for_no_sandbox()

    def test_the_command_killed(self):
        """The daemon's clones go on without it."""
        image = self.prepare()
        command = self.cli.start("restore", image, "--clone", "--name", "left")
        self.report("left")
        command.kill()
        self.cli.finish(command)
        job = self.ps("left")
        self.assertEqual(job["state"], "running")
        self.end(job["pid"], "left")
        self.wait_for_no_sandbox()


class LeftoversTest(ProbeTest):
    def descriptors(self):
        return procfs.descriptors(self.daemon.pid), procfs.descriptors(self.pager())

    def descriptors_at_rest(self):
        """When no sandbox is being made ahead of time any more. The first ones begin a moment after the first start."""
        looks, seen = 200, []

        def settled():
            seen.append(self.descriptors())
            return len(seen) > looks and len(set(seen[-looks:])) == 1

        waiting.until(settled, "as many descriptors open as before, for a while")
        return seen[-1]

    def mounts(self):
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            return file.read()

    def run_clones(self, image, count):
        for answer in self.clones(image, count, "--name", "many"):
            self.report(answer["job"]["name"])
            self.end(answer["job"]["pid"], answer["job"]["name"])
            os.unlink(self.probe_file("report." + answer["job"]["name"]))
            os.unlink(self.probe_file("exit." + answer["job"]["name"]))
        self.wait_for_no_sandbox()

    def test_nothing_stays_of_twenty_clones(self):
        image = self.prepare()
        self.run_clones(image, 4)
        waiting.until(lambda: not self.pager_stats()["clones"], "the pager has none left")
        mounts, before = self.mounts(), self.descriptors_at_rest()
        for _ in range(4):
            self.run_clones(image, 5)
        waiting.until(
            # What a connection held of its process goes when the next one comes.
            lambda: all(now <= then + 4 for now, then in zip(self.descriptors(), before)),
            f"descriptors as before ({before}): {self.descriptors()}",
        )
        waiting.until(lambda: not self.pager_stats()["clones"], "the pager has none left")
        self.assertEqual(self.mounts(), mounts)
        self.assertEqual(self.sandboxes(), [])
        zombies = [pid for pid in procfs.descendants(self.daemon.pid) if procfs.state(pid) == "Z"]
        self.assertEqual([procfs.stat_fields(pid) for pid in zombies], [])

    def test_a_pager_that_died_is_no_zombie(self):
        image = self.prepare()
        self.end(self.clone(image, "--name", "one")["job"]["pid"], "one")
        pager = self.pager()
        os.kill(pager, signal.SIGKILL)
        waiting.until(lambda: procfs.state(pager) is None, "the pager collected")
        self.end(self.clone(image, "--name", "two")["job"]["pid"], "two")


class TreeTest(CloneTest):
    def test_several_processes(self):
        log = self.path("rounds")
        job = self.start_job([jobs.PYTHON, jobs.workload("multiprocess.py"), log], "workers")
        waiting.until(lambda: len(self.rounds(log)) >= 3, "rounds", 60)
        self.take_image(job, "workers:1")
        for fill in ("idle", "never", "eager"):
            before = len(self.rounds(log))
            pid = self.clone("workers:1", "--name", fill, "--fill", fill)["job"]["pid"]
            after = waiting.until(lambda: self.rounds(log)[before + 4 :], "rounds of the clone", 60)
            self.assertTrue(after)
            self.assertGreaterEqual(len(procfs.descendants(pid)), 4)
            os.kill(pid, signal.SIGKILL)
            self.wait_for_end(pid)
            self.wait_for_no_sandbox()
        workload = _load_multiprocess()
        for line in self.rounds(log):
            number, digest = line.split()
            self.assertEqual(digest, workload.expected_digest(int(number)), line)

    def test_more_processes_than_a_packet_has_room_for(self):
        """Their descriptors go to the pager in packets, each of which takes 250."""
        crowd = 300
        juggler = Juggler(self, mode="sleep", megabytes=1, threads=1, crowd=crowd)
        juggler.go(0)
        answer = self.clone(juggler.reference, "--name", "crowd", "--record-ms", "1")
        self.assertEqual(len(procfs.descendants(answer["job"]["pid"])), crowd)
        juggler.end()
        juggler.wait_for_ok("crowd", answer["job"]["pid"])

    @staticmethod
    def rounds(log):
        try:
            with open(log, encoding="ascii") as file:
                return file.read().split("\n")[:-1]
        except FileNotFoundError:
            return []


class UpgradeTest(ProbeTest):
    """The machine's Rekindle is another one now: copies from before have the pager that they began with."""

    def test_a_copy_from_before_can_be_checkpointed(self):
        image = self.prepare(park="file")
        answer = self.clone(image, "--name", "one", "--fill", "never")
        self.report("one")
        old = self.pager()
        self.upgrade_pager()
        self.succeed("ckpt", answer["job"]["pid"], "-t", "probe:later")
        self.assertEqual(self.pager(), old)
        # The new one is there beside it, and is told as well.
        later = self.clone(image, "--name", "two", "--fill", "never")
        self.report("two")
        self.assertEqual(len(self.pagers()), 2)
        for pid, name in ((answer["job"]["pid"], "one"), (later["job"]["pid"], "two")):
            self.end(pid, name)
        self.assertTrue(self.succeed("working-set", "drop", image).get("dropped"))
        self.assertFalse(self.succeed("working-set", "drop", image).get("dropped"))

    def upgrade_pager(self):
        """By a copy in its place, which is another file."""
        program = binary("rekindle-pager")
        shutil.copyfile(program, self.path("another-pager"))
        os.chmod(self.path("another-pager"), 0o755)
        subprocess.run(["mount", "--bind", self.path("another-pager"), program], check=True)

        def undo():
            self.end_everything()  # what runs from the copy can't be told by its path afterwards
            subprocess.run(["umount", program], check=True)

        self.addCleanup(undo)


class EmbeddedTest(ProbeTest):
    """Without a daemon: the command itself does it."""

    embedded = True

    def test_what_the_first_needed_of_its_files_is_kept_without_a_word(self):
        image = self.prepare()
        for name in ("first", "second"):
            result = self.cli.run("restore", image, "--clone", "--detach", "--name", name)
            self.assertEqual((result.code, result.err), (DONE, ""), str(result))
            notes = sorted(note for _, _, notes in os.walk(self.store) for note in notes if "touched-files" in note)
            self.assertEqual(len(notes), 1, notes)
            self.report(name)
            self.end(result.data["job"]["pid"], name)

    def test_attached(self):
        image = self.prepare()
        self.tell("exit.three", "3")
        result = self.cli.run("restore", image, "--clone", "--name", "three")
        self.assertEqual(result.code, 3, str(result))
        self.assertEqual(self.sandboxes(), [])

    def test_detached(self):
        image = self.prepare()
        answers = self.clones(image, 2, "--name", "loose")
        for answer in answers:
            name = answer["job"]["name"]
            self.assertEqual(self.report(name)["pid"], self.root)
        # Another command knows of them and starts more.
        self.assertEqual(self.ps(answers[0]["job"]["name"])["state"], "running")
        more = self.clone(image, "--name", "more")
        self.report("more")
        for answer in [*answers, more]:
            self.end(answer["job"]["pid"], answer["job"]["name"])
        waiting.until(lambda: not self.inits(), "the sandboxes ended")
        # Nobody was there to clean up: the next one does.
        self.tell("exit.last", "0")
        self.assertEqual(self.cli.run("restore", image, "--clone", "--name", "last").code, DONE)
        self.wait_for_no_sandbox()


def _load_multiprocess():
    import importlib.util

    spec = importlib.util.spec_from_file_location("multiprocess_workload", jobs.workload("multiprocess.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    unittest.main()
