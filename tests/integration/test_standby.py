"""Copies that stand by: who gets one, that it is like any other, and that none outlives its use."""

import json
import os
import signal

from harness import locks, procfs, waiting
from harness.cli import FAILED, NOT_FOUND
from harness.held_copies import STANDBY_COPIES, HeldCopiesTest

# Python has no function for it before 3.13.
TIMER_DESCRIPTOR = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
timer = libc.timerfd_create(1, 0)
assert timer >= 0
assert libc.timerfd_settime(timer, 0, (ctypes.c_long * 4)(0, 0, {seconds}, 0), None) == 0
"""

_MOST_STARTS = 12
_RECORDINGS = 4  # after which a working set is learned


class StandbyTest(HeldCopiesTest):
    """With a daemon that keeps copies."""

    daemon_arguments = ()

    def start(self, image, *options):
        """A clone that has said what it found, and goes on."""
        started = self.clone(image, *options)
        self.running.append(started)
        self.answer_of(started)
        return started

    def learn(self, image, *options):
        """Starts until copies stand by; they are ended again."""
        for number in range(_MOST_STARTS):
            started = self.start(image, *options)
            if number < _RECORDINGS:
                self.assertFalse(self.stood_by(started), started)
                continue
            if started["prefilled_pages"] == 0:
                continue
            try:
                copies = self.wait_for_standbys(seconds=10)
            except TimeoutError:
                continue  # that start came before the last recording had been learned from
            self.end_all()
            return copies
        self.fail(f"no working set after {_MOST_STARTS} starts: {self.running[-1]}\n{self.records()}")

    def start_one_that_stood_by(self, image, *options):
        """Within a few starts; what the others found is checked as well."""
        for _ in range(_MOST_STARTS):
            self.wait_for_standbys()
            started = self.start(image, *options)
            self.assertTrue(self.answer_of(started)["kept"])
            if self.stood_by(started):
                return started
            self.end(started)
        self.fail(f"none of {_MOST_STARTS} starts had a copy that stood by\n{self.records()}")


class TakenTest(StandbyTest):
    def test_one_is_taken(self):
        image = self.prepare()
        self.learn(image)
        started = [
            self.start_one_that_stood_by(image, "--name", f"copy-{i}", "--env", f"WHO={i}", "--env", "MORE=1")
            for i in range(3)
        ]
        answers = [self.answer_of(one) for one in started]
        for number, (one, answer) in enumerate(zip(started, answers)):
            name = f"copy-{number}"
            self.assertEqual((answer["pid"], answer["parent"]), (self.root, 1))
            self.assertEqual(procfs.namespace_pid(one["job"]["pid"]), self.root)
            self.assertEqual((answer["name"], answer["host"], answer["who"]), (name, name, str(number)))
            self.assertTrue(answer["kept"])
            self.assertEqual(one["job"]["name"], name)
        self.assertEqual(len({answer["random"] for answer in answers}), len(answers))
        self.assertEqual(len({self.space(one["job"]["pid"]) for one in started}), len(started))
        states = {job["name"]: job["state"] for job in self.succeed("ps", "--all")["jobs"]}
        self.assertEqual([states[f"copy-{number}"] for number in range(3)], ["running"] * 3)
        # No more of them than the daemon is to keep, and the ones that were not asked for have not run.
        self.assertEqual(len(self.wait_for_standbys()), STANDBY_COPIES)
        self.assertEqual(len(os.listdir(self.answers)), len(self.succeed("ps", "--all")["jobs"]))

    def test_its_exit_status_is_told(self):
        image = self.prepare()
        self.learn(image)
        self.wait_for_standbys()
        started = self.clone(image, "--name", "leaves", "--env", "LEAVE=7")
        self.assertTrue(self.stood_by(started), started)
        self.assertEqual(self.exit_of("leaves"), (7, 0))
        waiting.until(lambda: started["instance"] not in self.sandboxes(), "its folder removed")

    def test_limits_hold(self):
        image = self.prepare()
        limits = ("--memory", "64M", "--processes", "6")
        self.learn(image)
        # Those without limits are of another kind.
        first = self.start(image, *limits)
        self.assertFalse(self.stood_by(first), first)
        self.end(first)
        waiting.until(lambda: len(self.restored_copies()) == 2 * STANDBY_COPIES, "copies of both kinds")
        started = self.clone(image, *limits, "--env", "CHILDREN=20")
        self.running.append(started)
        self.assertTrue(self.stood_by(started), started)
        answer = self.answer_of(started)
        self.assertTrue(answer["kept"])
        self.assertGreater(answer["children"], 0)
        self.assertLess(answer["children"], 6)
        self.assertEqual(self.limit_of(started["job"]["pid"], "pids", "pids.max", "pids.max"), 6)
        memory = self.limit_of(started["job"]["pid"], "memory", "memory.limit_in_bytes", "memory.max")
        self.assertEqual(memory, 64 << 20)
        self.end(started)
        # With other numbers it is of the same kind.
        waiting.until(lambda: len(self.restored_copies()) == 2 * STANDBY_COPIES, "copies of both kinds again")
        eater = self.clone(image, "--memory", "48M", "--name", "eater", "--env", "EAT=256")
        self.running.append(eater)
        self.assertTrue(self.stood_by(eater), eater)
        self.assertEqual(self.exit_of("eater")[1], signal.SIGKILL)

    def test_memory_that_it_has_no_room_in(self):
        image = self.prepare()
        self.learn(image)
        self.end(self.start(image, "--memory", "64M"))
        waiting.until(lambda: len(self.restored_copies()) == 2 * STANDBY_COPIES, "copies of both kinds")
        result = self.cli.run("restore", image, "--clone", "--detach", "--memory", "1M")
        self.assert_refused(result, FAILED, image, "limit of 1.0 MiB", "--memory")
        # What stood by was tried first, and said the same.
        self.assertRegex(self.daemon.log_text(), r"stood by could not be started.*limit of 1\.0 MiB.*--memory")
        self.assertTrue(self.answer_of(self.start(image, "--memory", "64M"))["kept"])

    def exit_of(self, name):
        """Exit code and signal, as the daemon wrote them down."""
        folder = os.path.join(self.runtime, "jobs")

        def ended():
            for file_name in os.listdir(folder):
                if not file_name.endswith(".json"):
                    continue
                with open(os.path.join(folder, file_name), encoding="utf-8") as file:
                    record = json.load(file)
                if record.get("name") == name and "exit_code" in record:
                    return record["exit_code"], record["signal"]
            return None

        return waiting.until(ended, f"the end of {name} told")

    def limit_of(self, pid, controller, old, unified):
        with open(f"/proc/{pid}/cgroup", encoding="ascii") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
        for _, controllers, path in groups:
            if controller in controllers.split(","):
                return self.number_in(f"/sys/fs/cgroup/{controllers}{path}/{old}")
        path = next(path for number, _, path in groups if number == "0")
        return self.number_in(f"/sys/fs/cgroup{path}/{unified}")

    @staticmethod
    def number_in(path):
        with open(path, encoding="ascii") as file:
            return int(file.read())


class MadeTest(StandbyTest):
    """Who does not get one."""

    def wait_for_standbys_at_least(self):
        """Some options make a kind of its own, of which copies are to stand by from then on."""
        waiting.until(lambda: len(self.restored_copies()) >= STANDBY_COPIES, "copies stand by", 60)

    def test_options_that_are_settled_earlier(self):
        image = self.prepare()
        self.learn(image)
        os.mkdir(self.path("given"))
        trace = self.path("trace.json")
        for options in (
            ("--bind", f"{self.path('given')}:/mnt"),
            ("--log", self.path("clone.log")),
            ("--record-ms", "500"),
            ("--fill", "eager"),
            ("--trace", trace),
            ("--net", "none"),
        ):
            self.wait_for_standbys()
            started = self.start(image, *options)
            self.assertFalse(self.stood_by(started), options)
            self.assertTrue(self.answer_of(started)["kept"], options)
            self.end(started)
        # They were there all the time.
        self.wait_for_standbys_at_least()
        self.assertTrue(self.stood_by(self.start(image)))

    def recordings_of(self, image):
        return (self.succeed("inspect", image)["working_set"] or {"recordings": 0})["recordings"]

    def starts(self, image, expected):
        """Whether each of some starts, enough for the working set to be known, had a copy that stood by."""
        stood_by = []

        def start_one():
            started = self.start(image)
            stood_by.append(self.stood_by(started))
            return started

        # One that was ended while it was still being recorded has told nothing.
        for _ in range(_MOST_STARTS):
            self.end(start_one())
            if self.recordings_of(image) >= _RECORDINGS:
                break
        for _ in range(4):
            started = start_one()
            self.assertGreater(started["prefilled_pages"], 0, started)
            if expected:
                self.wait_for_standbys()
            self.end(started)
        if not expected:
            # None is being made either.
            self.wait_for_no_sandbox()
            self.assertEqual(self.restored_copies(), [])
        return stood_by

    def check_timer(self, extra, armed):
        """One that stood by would have its timer run before it does, or not at all."""
        stood_by = self.starts(self.prepare(extra=extra), expected=not armed)
        self.assertEqual(any(stood_by), not armed, stood_by)

    def test_an_interval_timer(self):
        self.check_timer("signal.setitimer(signal.ITIMER_REAL, 3600)", True)

    def test_an_interval_timer_of_cpu_time(self):
        self.check_timer("signal.setitimer(signal.ITIMER_VIRTUAL, 0.9e3)", True)

    def test_a_timer_that_was_stopped(self):
        stopped = "signal.setitimer(signal.ITIMER_REAL, 3600); signal.setitimer(signal.ITIMER_REAL, 0)"
        self.check_timer(stopped, False)

    def test_a_timer_with_a_descriptor(self):
        self.check_timer(TIMER_DESCRIPTOR.format(seconds=3600), True)

    def test_a_timer_with_a_descriptor_that_is_not_armed(self):
        self.check_timer(TIMER_DESCRIPTOR.format(seconds=0), False)

    def test_a_file_lock(self):
        """One that stood by would keep everybody else from the file."""
        path = self.path("file")
        extra = f"import fcntl; lock = open({path!r}, 'w'); fcntl.flock(lock, fcntl.LOCK_SH)"
        self.assertFalse(any(self.starts(self.prepare("locked", extra), expected=False)))
        # Its turn would have come when there are all of an image that was asked for later.
        image = self.prepare("plain")
        self.learn(image)
        self.end(self.start_one_that_stood_by(image))
        self.wait_for_standbys()
        self.assertTrue(locks.flock_is_free(path))

    def test_none_with_0(self):
        self.daemon.stop()
        self.daemon_arguments = ("--standby", "0")
        self.restart_daemon()
        self.assertEqual(any(self.starts(self.prepare(), expected=False)), False)


class FaultTest(StandbyTest):
    def criu_processes(self):
        """CRIU's, of this test: they have its runtime folder open."""
        found = []
        for pid in procfs.all_pids():
            try:
                if "criu" not in procfs.command_line(pid):
                    continue
                targets = list(procfs.descriptor_targets(pid).values()) + [os.readlink(f"/proc/{pid}/cwd")]
            except OSError:
                continue
            if any(target.startswith(self.runtime) for target in targets):
                found.append(pid)
        return found

    def test_init_killed(self):
        image = self.prepare()
        # The older one: the other may still be in the making, and after a failure none is made for a while.
        oldest = min(self.learn(image), key=lambda copy: procfs.start_ticks(copy[1]))
        os.kill(oldest[0], signal.SIGKILL)
        self.wait_until_gone([oldest])
        # Who would have had it gets another one.
        started = self.start(image, "--name", "after")
        answer = self.answer_of(started)
        self.assertTrue(answer["kept"])
        self.assertEqual((answer["name"], answer["host"]), ("after", "after"))
        self.start_one_that_stood_by(image)
        self.end_all()

    def test_pager_killed(self):
        image = self.prepare()
        # With its memory complete it would need no pager.
        self.learn(image, "--fill", "never")
        running = self.start_one_that_stood_by(image, "--fill", "never", "--name", "running")
        copies = self.wait_for_standbys()
        pager = self.pager()
        os.kill(pager, signal.SIGKILL)
        self.running.remove(running)
        self.wait_until_gone(copies)
        self.wait_for_end(running["job"]["pid"])

        def told():
            lines = [line for line in self.daemon.log_text().splitlines() if running["instance"] in line]
            return any("was ended:" in line and "pager" in line for line in lines)

        waiting.until(told, "the record of its end")
        started = self.start(image, "--fill", "never", "--name", "next")
        self.assertTrue(self.answer_of(started)["kept"])
        self.assertNotEqual(self.pager(), pager)

    def test_daemon_killed(self):
        image = self.prepare()
        self.learn(image)
        running = self.start_one_that_stood_by(image, "--env", "WHO=me")
        copies = self.wait_for_standbys()
        self.assertTrue(self.criu_processes())
        self.daemon.kill()
        self.wait_until_gone(copies)
        waiting.until(lambda: not self.criu_processes(), "CRIU of what stood by ended")
        self.assertTrue(procfs.alive(running["job"]["pid"]))
        left = [self.init_of(running["job"]["pid"])]
        waiting.until(lambda: self.inits() == left, "the sandboxes of what stood by ended")
        self.restart_daemon()
        started = self.start(image)
        self.assertTrue(self.answer_of(started)["kept"])
        self.assertTrue(procfs.alive(running["job"]["pid"]))
        self.end_all()

    def test_daemon_stopped(self):
        image = self.prepare()
        self.learn(image)
        copies = self.wait_for_standbys()
        waiting.until(self.criu_processes, "CRIU of what stands by")
        self.daemon.stop()
        self.assertEqual([pid for copy in copies for pid in copy if procfs.alive(pid)], [])
        self.assertEqual(self.inits(), [])
        self.assertEqual(self.criu_processes(), [])
        left = [entry.name for entry in os.scandir(os.path.join(self.runtime, "s")) if entry.is_dir()]
        self.assertEqual(left, [])
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            self.assertEqual([line for line in file if self.directory in line], [])
        self.assertNotRegex(self.daemon.log_text(), "stands by|stood by")

    def test_image_removed(self):
        image = self.prepare()
        self.learn(image)
        running = self.start(image)
        self.wait_for_standbys()
        self.succeed("rm", image)
        gone = self.cli.run("restore", image, "--clone", "--detach")
        self.assert_refused(gone, NOT_FOUND, image)
        self.succeed("gc")
        gone = self.cli.run("restore", image, "--clone", "--detach")
        self.assert_refused(gone, NOT_FOUND, image)
        self.assertTrue(procfs.alive(running["job"]["pid"]))
        self.assert_store_whole([])
        self.end_all()
