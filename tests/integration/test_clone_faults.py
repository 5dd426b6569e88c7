"""What clones lean on is killed, damaged or used up: each ends defined and with a record, or is not harmed at all; none
ever sees a wrong page.
"""

import contextlib
import json
import os
import resource
import signal
import unittest

from harness import jobs, procfs, waiting
from harness.cli import DONE
from harness.clones import CloneTest
from harness.juggler import Juggler

_PIDS_GROUPS = "/sys/fs/cgroup/pids"
_DESCRIPTORS = 128  # the daemon keeps some sandboxes ready


class FaultTest(CloneTest):
    def kill(self, pid):
        os.kill(pid, signal.SIGKILL)
        waiting.for_exit(pid)

    def sleeping(self, count=1, megabytes=24, record_ms=1, fill="never", **options):
        """Clones that have touched nothing yet, and will check all."""
        juggler = Juggler(self, mode="sleep", megabytes=megabytes, **options)
        juggler.go(0)
        names = [f"sleeper-{i + 1}" for i in range(count)]
        answers = [
            self.clone(juggler.reference, "--name", name, "--fill", fill, "--record-ms", record_ms)
            for name in names
        ]
        return juggler, answers

    def assert_all_ok(self, juggler, answers):
        juggler.end()
        for answer in answers:
            juggler.wait_for_ok(answer["job"]["name"], answer["job"]["pid"])

    def assert_ended_by(self, answers, *words):
        """All are gone, and the daemon's log says why."""
        for answer in answers:
            self.wait_for_end(answer["job"]["pid"])
        self.wait_for_no_sandbox()

        def told():
            lines = [line for line in self.daemon.log_text().splitlines() if "was ended:" in line]
            return all(
                any(answer["instance"] in line and all(word in line for word in words) for line in lines)
                for answer in answers
            )

        try:
            waiting.until(told, "the record", 10)
        except TimeoutError:
            self.fail(f"no record with {words} for {[a['instance'] for a in answers]}:\n{self.records()}")

    def assert_new_clones_work(self, juggler):
        juggler.forget()
        juggler.go(0)
        answer = self.clone(juggler.reference, "--name", "afterwards")
        self.assert_all_ok(juggler, [answer])


class PagerKilledTest(FaultTest):
    def test_reader(self):
        """Every line that it wrote up to its end is right."""
        juggler = Juggler(self, mode="spin", megabytes=512)
        juggler.go(0)
        answer = self.clone(juggler.reference, "--name", "spin", "--fill", "never", "--record-ms", "1")
        waiting.until(lambda: juggler.lines("spin") > 1000, "pages read")
        self.kill(self.pager())
        self.assert_ended_by([answer], "pager", "died")
        self.assertGreater(juggler.verify_lines("spin"), 30)

    def test_jugglers(self):
        juggler = Juggler(self, megabytes=48, seed=11)
        juggler.go(20000)
        for _ in range(3):
            juggler.forget()
            juggler.go(20000)
            answers = [
                self.clone(juggler.reference, "--name", name, "--fill", "never", "--record-ms", "1")
                for name in ("one", "two")
            ]
            waiting.until(
                lambda answers=answers: all(self.faults(answer["instance"]) > 200 for answer in answers), "faults"
            )
            self.kill(self.pager())
            self.assert_ended_by(answers, "pager", "died")
            self.assertEqual(juggler.complaints(), [])

    def faults(self, instance):
        return next((c["faults"] for c in self.pager_stats()["clones"] if c["clone"] == instance), 0)

    def test_sleepers_and_those_that_come_after(self):
        juggler, answers = self.sleeping(2)
        self.kill(self.pager())
        self.assert_ended_by(answers, "pager", "died")
        self.assert_new_clones_work(juggler)

    def test_while_a_clone_is_made(self):
        juggler = Juggler(self, mode="sleep", megabytes=96)
        juggler.go(0)
        juggler.end()
        self.assert_all_ok(juggler, [self.clone(juggler.reference, "--name", "first")])
        for phase in range(8):
            name = f"number-{phase}"
            command = self.cli.start("restore", juggler.reference, "--clone", "--name", name, "--fill", "eager")
            made = waiting.until(lambda: self.sandboxes() or command.poll() is not None, "the restore begun")
            pagers = self.pagers()
            if made and pagers:
                os.kill(pagers[0], signal.SIGKILL)
            result = self.cli.finish(command)
            if result.code == 1:
                self.assertRegex(result.message.lower(), "pager|criu", str(result))
            else:
                self.assertIn(result.code, (0, 128 + signal.SIGKILL), str(result))
            self.wait_for_no_sandbox()
        self.assertEqual(juggler.complaints(), [])
        self.assert_new_clones_work(juggler)


class DaemonKilledTest(FaultTest):
    def test_clones_go_on(self):
        juggler, answers = self.sleeping(2)
        self.daemon.kill()
        for answer in answers:
            self.assertTrue(procfs.alive(answer["job"]["pid"]))
        self.restart_daemon()
        answers.append(self.clone(juggler.reference, "--name", "new"))
        self.assert_all_ok(juggler, answers)

    def test_one_that_is_noted_nowhere_yet_ends(self):
        begun = self.path("begun")
        program = (
            "import rekindle, signal, sys\n"
            "rekindle.register_after_restore(lambda: (open(sys.argv[1], 'x').close(), signal.pause()))\n"
            "rekindle.ready()\n"
        )
        self.take_image(self.start_held([jobs.PYTHON, "-c", program, begun]), "held:1")
        command = self.cli.start("restore", "held:1", "--clone", "--detach", "--name", "copy")
        waiting.until(lambda: os.path.exists(begun), "it runs, and has not said that it is up")
        self.assertNotEqual(self.inits(), [])
        self.daemon.kill()
        self.assertNotEqual(self.cli.finish(command).code, DONE)
        waiting.until(lambda: not self.inits(), "it has ended")
        self.restart_daemon()
        self.assertEqual(self.succeed("ps", "--all").get("jobs", []), [])
        os.unlink(begun)
        self.wait_for_no_sandbox()

    def test_jugglers_go_on(self):
        juggler = Juggler(self, megabytes=64, seed=12)
        juggler.go(4000)
        answers = self.clones(juggler.reference, 2, "--name", "juggler", "--fill", "never", "--record-ms", "1")
        self.daemon.kill()
        self.restart_daemon()
        answers.append(self.clone(juggler.reference, "--name", "new"))
        for answer in answers:
            juggler.wait_for_ok(answer["job"]["name"], answer["job"]["pid"])

    def test_what_is_left_of_them_is_removed(self):
        juggler, answers = self.sleeping(1)
        self.daemon.kill()
        self.assert_all_ok(juggler, answers)
        waiting.until(lambda: not self.inits(), "the sandboxes ended")
        self.restart_daemon()
        self.assert_new_clones_work(juggler)
        self.wait_for_no_sandbox()

    def test_then_the_pager(self):
        """Nobody listens; the sandbox writes down what happened."""
        juggler, answers = self.sleeping(1)
        self.daemon.kill()
        folder = os.path.join(self.runtime, "s", answers[0]["instance"])
        self.kill(self.pager())
        self.wait_for_end(answers[0]["job"]["pid"])
        status = os.path.join(folder, "status.json")
        waiting.until(lambda: os.path.exists(status) and os.path.getsize(status), "the record")
        with open(status, encoding="utf-8") as file:
            record = json.load(file)
        self.assertIn("pager", record["why"])
        self.assertEqual(record["signal"], signal.SIGKILL)
        self.assertEqual(juggler.complaints(), [])
        # The next one removes what is left, and puts the record into its log.
        self.restart_daemon()
        self.assert_new_clones_work(juggler)
        self.wait_for_no_sandbox()
        self.assertIn(record["why"], self.daemon.log_text())


class SandboxKilledTest(FaultTest):
    def test_init(self):
        juggler, answers = self.sleeping(2)
        self.kill(self.init_of(answers[0]["job"]["pid"]))
        self.wait_for_end(answers[0]["job"]["pid"])
        waiting.until(lambda: answers[0]["instance"] not in self.sandboxes(), "its folder removed")
        self.assertIn("was killed", self.daemon.log_text())
        waiting.until(
            lambda: answers[0]["instance"] not in [c["clone"] for c in self.pager_stats()["clones"]],
            "the pager let go of it",
        )
        self.assert_all_ok(juggler, answers[1:])

    def test_those_that_are_kept_ready(self):
        """As the kernel may do when memory is short. Nobody's clone fails for that."""
        juggler, answers = self.sleeping(1)
        used = {self.init_of(answers[0]["job"]["pid"])}

        def ready():
            found = [pid for pid in self.inits() if pid not in used]
            return len(found) > 1 and found  # the last one may still be in the making

        # One that was just being made may be taken first.
        for attempt in range(5):
            for pid in waiting.until(ready, "some are ready"):
                with contextlib.suppress(ProcessLookupError):
                    self.kill(pid)
            name = f"another-{attempt}"
            answers.append(self.clone(juggler.reference, "--name", name, "--fill", "never", "--record-ms", "1"))
            used.add(self.init_of(answers[-1]["job"]["pid"]))
            if "made ahead of time had ended" in self.daemon.log_text():
                break
        self.assertIn("made ahead of time had ended", self.daemon.log_text())
        self.assert_all_ok(juggler, answers)

    def test_maker_of_sandboxes(self):
        juggler, answers = self.sleeping(1)
        init = self.init_of(answers[0]["job"]["pid"])
        self.kill(int(procfs.stat_fields(init)[1]))
        self.assertTrue(procfs.alive(answers[0]["job"]["pid"]))
        # Those that were made before may be used up first.
        answers += [self.clone(juggler.reference, "--name", f"more-{i}") for i in range(8)]
        self.assert_all_ok(juggler, answers)

    def test_criu(self):
        juggler = Juggler(self, mode="sleep", megabytes=256)
        juggler.go(0)
        killed = False
        for attempt in range(10):
            command = self.cli.start(
                "restore", juggler.reference, "--clone", "-d", "--fill", "eager", "--name", f"number-{attempt}"
            )
            criu = waiting.until(lambda: self.working_criu() or command.poll() is not None, "CRIU at work", 60, 0.0005)
            if isinstance(criu, list):
                for pid in criu:
                    os.kill(pid, signal.SIGKILL)
            result = self.cli.finish(command)
            if result.code != 0:
                self.assertEqual(result.code, 1, str(result))
                self.assertIn("criu", result.message.lower())
                killed = True
                break
        self.assertTrue(killed, "CRIU was not caught at work")
        juggler.end()
        self.wait_for_no_sandbox()
        self.assertEqual(juggler.complaints(), [])
        self.assert_new_clones_work(juggler)

    def working_criu(self):
        """What has the log of a restore open, CRIU's children among them."""
        found = []
        for pid in procfs.all_pids():
            try:
                if "criu" not in procfs.command_line(pid):  # the loader's, where it is run from a folder of its own
                    continue
                targets = procfs.descriptor_targets(pid).values()
            except OSError:
                continue
            if any(target.startswith(self.runtime) and target.endswith("/restore.log") for target in targets):
                found.append(pid)
        return found


class StoreTest(FaultTest):
    def packs(self):
        found = []
        for folder, _, names in os.walk(self.store):
            found += [os.path.join(folder, name) for name in names if name.endswith(".pack") or "pack" in folder]
        self.assertTrue(found, os.listdir(self.store))
        return found

    def damage(self):
        for path in self.packs():
            with open(path, "r+b") as file:
                size = file.seek(0, 2)
                for offset in range(4096 + 1024, size, 2048):
                    file.seek(offset)
                    byte = file.read(1)
                    file.seek(offset)
                    file.write(bytes([byte[0] ^ 0x5A]))

    def test_damaged(self):
        juggler, answers = self.sleeping(2)
        self.damage()
        juggler.end()
        self.assert_ended_by(answers)
        self.assertEqual(juggler.complaints(), [])
        self.assertEqual([juggler.result(answer["job"]["name"]) for answer in answers], [None, None])
        # And no further clone of it gets as far as wrong pages.
        juggler.forget()
        juggler.go(0)
        juggler.end()
        result = self.cli.run("restore", juggler.reference, "--clone", "--name", "third", "--fill", "eager")
        self.assertNotEqual(result.code, 0, str(result))
        self.assertEqual(juggler.complaints(), [])
        self.wait_for_no_sandbox()

    def test_damaged_while_read(self):
        juggler = Juggler(self, mode="spin", megabytes=512)
        juggler.go(0)
        answer = self.clone(juggler.reference, "--name", "spin", "--fill", "never", "--record-ms", "1")
        waiting.until(lambda: juggler.lines("spin") > 1000, "pages read")
        self.damage()
        self.assert_ended_by([answer])
        self.assertGreater(juggler.verify_lines("spin"), 30)

    def test_packs_removed(self):
        juggler, answers = self.sleeping(1)
        for path in self.packs():
            os.unlink(path)
        juggler.end()
        self.wait_for_end(answers[0]["job"]["pid"])
        result = juggler.result(answers[0]["job"]["name"])
        # What was open can still be read; what was not is told.
        if result is None:
            self.assert_ended_by(answers)
        else:
            self.assertTrue(result.startswith("ok "), result)

    def test_the_pager_is_in_nobodys_group(self):
        """It serves others too: what is sent to the group of whoever started it is not for it."""
        self.sleeping(1)
        self.assertEqual(os.getsid(self.pager()), self.pager())

    def test_image_removed(self):
        juggler, answers = self.sleeping(2)
        self.succeed("rm", juggler.reference)
        self.succeed("gc")
        juggler.end()
        for answer in answers:
            self.wait_for_end(answer["job"]["pid"])
        self.assertEqual(juggler.complaints(), [])
        for answer in answers:
            if juggler.result(answer["job"]["name"]) is None:
                self.assert_ended_by([answer])
        gone = self.cli.run("restore", juggler.reference, "--clone", "-d")
        self.assertEqual(gone.code, 3, str(gone))


class ForkerTest(FaultTest):
    def forker(self, mode, name, *options, megabytes=8, **more):
        """A clone that forks once it is told to go."""
        juggler = Juggler(
            self, mode=mode, threads=1, megabytes=megabytes, name=name, reference=f"{name}:1", **more
        )
        return juggler, self.clone(juggler.reference, "--name", name, *options)

    def limit_pager(self, limit):
        pager = self.pager()
        hard = resource.prlimit(pager, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(pager, resource.RLIMIT_NOFILE, (min(limit, hard), hard))

    def wait_for_record(self, answer, *words):
        def told():
            lines = self.daemon.log_text().splitlines()
            return any("was ended:" in line and all(w in line for w in (answer["instance"], *words)) for line in lines)

        waiting.until(told, f"a record with {words}")


class ForksTest(ForkerTest):
    """Each fork while memory is missing takes one of the descriptors of the pager, which all clones share."""

    @staticmethod
    def waits_in_fork(pid):
        with open(f"/proc/{pid}/wchan", encoding="ascii") as file:
            return "userfaultfd_event_wait" in file.read()

    def test_who_forks_without_end_is_ended_and_nobody_else(self):
        other, neighbour = self.forker("forks", "neighbour", "--fill", "never", "--record-ms", "1")
        bomb, answer = self.forker("hoard", "bomb", "--fill", "never", "--record-ms", "1", hoard=100000)
        self.limit_pager(procfs.descriptors(self.pager()) + 400)
        other.go(5000)
        bomb.go(0)
        self.wait_for_end(answer["job"]["pid"])
        self.wait_for_record(answer, "processes whose memory is missing", "--fill idle", "LimitNOFILE")
        self.assertIsNone(bomb.result("bomb"))
        other.wait_for_ok("neighbour", neighbour["job"]["pid"])

    def test_who_forks_much_gets_its_memory(self):
        """Recording its working set comes second. Its children then are nothing to the pager."""
        # A busy machine may bring in its memory after some hundred forks.
        juggler, answer = self.forker("hoard", "many", "--record-ms", "600000", megabytes=2, hoard=1500)
        self.limit_pager(procfs.descriptors(self.pager()) + 1600)
        juggler.go(0)
        juggler.wait_for_ok("many", answer["job"]["pid"])

    def test_who_is_filled_for_its_forks_sees_right_pages(self):
        juggler = Juggler(self, threads=4, megabytes=48)
        answer = self.clone(juggler.reference, "--name", "clone", "--record-ms", "600000")
        self.limit_pager(procfs.descriptors(self.pager()) + 80)
        juggler.go(4000)
        juggler.wait_for_ok("clone", answer["job"]["pid"])

    def test_forks_wait_for_descriptors(self):
        juggler, answer = self.forker("forks", "forker", "--fill", "never", "--record-ms", "1")
        self.limit_pager(3)
        juggler.go(2000)
        waiting.until(lambda: self.waits_in_fork(answer["job"]["pid"]), "a fork that waits")
        self.limit_pager(1 << 20)
        result = juggler.wait_for_ok("forker", answer["job"]["pid"])
        self.assertGreater(int(result.split()[-1]), 0, result)

    def test_forks_do_not_wait_for_ever(self):
        juggler, answer = self.forker("forks", "forker", "--fill", "never", "--record-ms", "1")
        self.limit_pager(3)
        juggler.go(600000)
        self.wait_for_end(answer["job"]["pid"])
        self.wait_for_record(answer, "no descriptors left", "LimitNOFILE")


class StoppedInitTest(ForkerTest):
    """What the pager tells the init of a sandbox stays unread, and then does not fit any more."""

    def stopped(self, hoard):
        """A clone that forks so often while its init is stopped, and the init."""
        juggler, answer = self.forker("hoard", "many", "--fill", "never", "--record-ms", "1", hoard=hoard)
        init = self.init_of(answer["job"]["pid"])
        os.kill(init, signal.SIGSTOP)
        juggler.go(0)
        return juggler, answer, init

    def test_the_others_are_served_and_it_is_ended(self):
        other, neighbour = self.forker("forks", "neighbour", "--fill", "never", "--record-ms", "1")
        many, answer, init = self.stopped(2000)

        def given_up():
            with open(os.path.join(self.runtime, "pager.log"), encoding="utf-8") as file:
                return any(answer["instance"] in line and "takes nothing" in line for line in file)

        waiting.until(given_up, "a record of the pager's", 60)
        other.go(500)
        other.wait_for_ok("neighbour", neighbour["job"]["pid"])
        self.succeed("stats")
        os.kill(init, signal.SIGCONT)
        self.wait_for_end(answer["job"]["pid"])
        self.wait_for_record(answer, "takes nothing")
        self.assertIsNone(many.result("many"))

    def test_it_is_told_later(self):
        many, answer, init = self.stopped(400)
        # What it is told of 279 processes fits.
        waiting.until(
            lambda: any(
                clone["clone"] == answer["instance"] and clone["processes"] > 285 for clone in self.pager_stats()["clones"]
            ),
            "processes that the init was not told of",
        )
        os.kill(init, signal.SIGCONT)
        many.wait_for_ok("many", answer["job"]["pid"])


class LimitsTest(FaultTest):
    """Whoever can't be started is told so, those that run do not notice, and later ones start again."""

    def neighbour(self):
        """A clone of another image, whose memory is missing: it goes on needing the pager."""
        other = Juggler(self, mode="sleep", megabytes=24, name="neighbour", reference="neighbour:parked", seed=3)
        other.go(0)
        answer = self.clone(other.reference, "--name", "neighbour", "--fill", "never", "--record-ms", "1")
        return other, answer

    def assert_refused_until_lifted(self, juggler, most, pattern):
        """Some clones start, or none, then one does not, for this reason; those that did are well. Returns how many."""
        juggler.forget()
        juggler.go(0)
        answers, refused = self.clones_until_refused(juggler, most)
        self.assertIsNotNone(refused, f"{len(answers)} clones were started")
        self.assertEqual(refused.code, 1, str(refused))
        self.assertRegex(refused.message, pattern)
        self.assert_all_ok(juggler, answers)
        waiting.until(lambda: len(self.sandboxes()) == 1, "nothing but the neighbour's sandbox")
        return len(answers)

    def test_descriptors(self):
        juggler = Juggler(self, mode="sleep", megabytes=16)
        other, answer = self.neighbour()
        hard = resource.prlimit(self.daemon.pid, resource.RLIMIT_NOFILE)[1]
        started = []
        for limit in (_DESCRIPTORS, *range(procfs.descriptors(self.daemon.pid) + 4, _DESCRIPTORS, 8)):
            resource.prlimit(self.daemon.pid, resource.RLIMIT_NOFILE, (limit, hard))
            started.append(self.assert_refused_until_lifted(juggler, 80, "descriptors|[Tt]oo many open files"))
        self.assertGreater(started[0], 0)
        resource.prlimit(self.daemon.pid, resource.RLIMIT_NOFILE, (hard, hard))
        self.assert_new_clones_work(juggler)
        self.assert_all_ok(other, [answer])

    def test_descriptors_of_the_pager(self):
        juggler = Juggler(self, mode="sleep", megabytes=16)
        other, answer = self.neighbour()
        pager = self.pager()
        hard = resource.prlimit(pager, resource.RLIMIT_NOFILE)[1]
        # Each time something else is the one too many: connection, sockets, userfaultfd, memory.
        for more in (*range(12), 40):
            resource.prlimit(pager, resource.RLIMIT_NOFILE, (procfs.descriptors(pager) + more, hard))
            self.assert_refused_until_lifted(juggler, 40, "pager.*descriptors.*LimitNOFILE")
            resource.prlimit(pager, resource.RLIMIT_NOFILE, (hard, hard))
        self.assert_new_clones_work(juggler)
        self.assertEqual(self.pager(), pager)
        self.assert_all_ok(other, [answer])

    def test_processes(self):
        if not os.path.isdir(_PIDS_GROUPS):
            self.skipTest("this machine has no cgroup v1 for the number of processes")
        juggler = Juggler(self, mode="sleep", megabytes=16)
        group = os.path.join(_PIDS_GROUPS, os.path.basename(self.directory))
        os.mkdir(group)
        self.addCleanup(self.remove_group, group)
        self.write(group, "cgroup.procs", self.daemon.pid)
        # The pager's threads are in it before the limit is.
        other, answer = self.neighbour()
        pager = self.pager()
        pattern = r"(?i)processes.*limit|limit.*processes|a sandbox.*: Resource temporarily unavailable"
        for more in (*range(7), 9, 12, 16):
            with open(os.path.join(group, "pids.current"), encoding="ascii") as file:
                self.write(group, "pids.max", int(file.read()) + more)
            self.assert_refused_until_lifted(juggler, 40, pattern)
            self.write(group, "pids.max", "max")
        self.assert_new_clones_work(juggler)
        self.assertEqual(self.pager(), pager)
        self.assert_all_ok(other, [answer])

    def remove_group(self, group):
        self.end_everything()
        waiting.until(lambda: not self.processes_in(group), "the group empty")
        os.rmdir(group)

    @staticmethod
    def processes_in(group):
        with open(os.path.join(group, "cgroup.procs"), encoding="ascii") as file:
            return file.read().split()

    @staticmethod
    def write(group, name, value):
        with open(os.path.join(group, name), "w", encoding="ascii") as file:
            file.write(f"{value}\n")

    def clones_until_refused(self, juggler, most):
        answers = []
        for number in range(most):
            options = ["--clone", "--detach", "--name", f"number-{number}"]
            result = self.cli.run("restore", juggler.reference, *options, "--fill", "never", seconds=30)
            if result.code != 0:
                return answers, result
            answers.append(result.data)
        return answers, None


if __name__ == "__main__":
    unittest.main()
