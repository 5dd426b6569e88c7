"""Group checkpoints of jobs on three nodes: one set of images, complete or not there, whatever is killed or cut; and what
the images say of each other fits.
"""

import json
import os
import shutil
import signal
import subprocess
import unittest

from harness import jobs, phases, procfs, waiting
from harness.case import MIB
from harness.cli import DONE, FAILED, NOT_FOUND
from harness.nodes import NodesTest

_PORT = 9099
_SENDTO = 44  # the system call


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


class ConsistencyTest(GroupTest):
    def restored_numbers(self, exchange, restore):
        """What sender and receiver have in their memory when they come back."""
        self.kill_jobs()
        exchange.pause("sender", "receiver")
        with open(self.path("channel"), "r+b") as channel:
            channel.write(bytes(8))  # what is there now tells nothing of then
        restore()
        return exchange.paused_at("sender"), exchange.paused_at("receiver")

    def test_by_file(self):
        exchange, members = self.exchange_by_file()
        for round_number in range(3):
            reference = f"x:{round_number}"
            result = self.checkpoint_group(reference, members)
            self.assertTrue(result["group"]["complete"], result)
            exchange.wait_for_progress("sender", "receiver")
        pids = []
        sent, received = self.restored_numbers(exchange, lambda: pids.extend(self.restore_group("x:1")))
        self.assertEqual(pids, [pid for _, pid in members])
        self.assertGreater(received, 0)
        self.assertLessEqual(received, sent, "it has a number that was never sent")
        exchange.go_on("sender", "receiver")
        exchange.wait_for_progress("sender", "receiver")
        self.assert_stores_whole()

    def test_images_that_are_no_group_do_not_fit(self):
        """The same question, asked of two checkpoints one after the other, has the other answer."""
        exchange, members = self.exchange_by_file()
        for (node, pid), reference in zip(members, ("sender:1", "receiver:1")):
            self.succeed("ckpt", pid, "-t", reference, cli=node.cli)
            exchange.wait_for_progress("sender", "receiver")

        def restore():
            for (node, pid), reference in zip(members, ("sender:1", "receiver:1")):
                self.succeed("restore", reference, "--detach", cli=node.cli)
                self.kill_job_at_end(pid)

        sent, received = self.restored_numbers(exchange, restore)
        self.assertGreater(received, sent)

    def test_connections_between_members_are_carried(self):
        """Both ends come back at the addresses that they had; no number is missing and none comes twice."""
        exchange, members = self.exchange_by_tcp()
        for round_number in range(2):
            self.checkpoint_group(f"x:{round_number}", members)
            exchange.wait_for_progress("sender", "receiver")
        taken_at = exchange.number("receiver")
        self.kill_jobs()
        self.restore_group("x:1")
        exchange.wait_for_progress("sender", "receiver")
        waiting.until(lambda: exchange.number("receiver") > taken_at, "further than before")
        self.assert_stores_whole()

    def test_what_was_not_sent_yet_waits_for_the_other_end(self):
        """The receiver's buffer is full, so the sender's holds what never left; it comes back first."""
        exchange, members = self.exchange_by_tcp()
        exchange.pause("receiver")
        exchange.paused_at("receiver")
        waiting.until(lambda: procfs.in_system_call(exchange.pids["sender"], _SENDTO), "the sender held up")
        self.checkpoint_group("x:1", list(reversed(members)))
        taken_at = exchange.number("sender")
        for job in reversed(self.jobs):  # the sender first, before it could tell of a reset
            job.kill_tree()
        self.restore_group("x:1")
        self.assertEqual(exchange.number("sender"), taken_at)
        exchange.go_on("receiver")
        exchange.wait_for_progress("sender", "receiver")
        waiting.until(lambda: exchange.number("receiver") > taken_at, "further than before")

    def test_connections_can_be_left_out(self):
        exchange, members = self.exchange_by_tcp()
        self.checkpoint_group("x:1", members, "--tcp-close")
        exchange.wait_for_progress("sender", "receiver")
        self.kill_jobs()
        self.restore_group("x:1")
        for name in ("sender", "receiver"):
            waiting.until(lambda name=name: exchange.status(name).startswith("error"), f"{name} lost its connection")


class LifeTest(GroupTest):
    """What users do with groups."""

    def test_life(self):
        exchange, members = self.exchange_by_file()
        self.checkpoint_group("x:1", members, "--label", "step=7")
        self.assert_complete(exchange)
        again = self.a.cli.run(*self.group_arguments("x:1", members))
        self.assert_refused(again, FAILED, "x:1", "exists", "--replace")
        first = self.a.groups()["groups"][0]
        self.checkpoint_group("x:1", members, "--replace")
        self.assert_complete(exchange)
        self.assertNotEqual(self.a.groups()["groups"][0]["id"], first["id"])

        # It says what it is, and is no more than the sum of its parts.
        image = self.succeed("inspect", "x/0:1", cli=self.b.cli)["image"]
        self.assertEqual(image["labels"]["rekindle.group"], "x:1")
        unknown = self.a.cli.run("group", "restore", "y:1")
        self.assert_refused(unknown, NOT_FOUND, "y:1", "x:1")
        self.succeed("rm", "x/1:1", cli=self.c.cli)
        self.kill_jobs()
        refused = self.a.cli.run("group", "restore", "x:1")
        self.assert_refused(refused, FAILED, "member 1", "not complete")
        self.assertFalse(any(procfs.alive(pid) for _, pid in members))

        self.succeed("group", "rm", "x:1", cli=self.a.cli)
        self.assertEqual(self.a.groups().get("groups", []), [])
        self.assertEqual(self.b.images(), [])

    def test_two_of_one_name_at_the_same_time(self):
        """The second one is refused, whatever its members, and the first one's images stay."""
        exchange, members = self.exchange_by_file()
        for options in ([], ["--replace"]):
            with self.subTest(options=options):
                self.b.restart("member-prepared=STOP")
                command = self.a.cli.start(*self.group_arguments("x:1", members, *options))
                self.b.wait_until_stopped()
                second = self.a.cli.run(*self.group_arguments("x:1", [members[1]], *options))
                self.b.go_on()
                first = self.a.cli.finish(command)
                self.assert_refused(second, FAILED, "x:1", "is being captured")
                self.assertTrue(first.data["group"]["complete"], first)
                self.assert_complete(exchange)

    def test_a_member_that_can_not_be_captured_spares_the_others(self):
        exchange, members = self.exchange_by_file()
        result = self.a.cli.run(*self.group_arguments("x:1", [*members, (self.a, 999999)]))
        self.assert_refused(result, NOT_FOUND, "999999", "member 2")
        self.assert_nowhere(exchange)
        taken = self.checkpoint_group("x:1", members)
        self.assertTrue(taken["group"]["complete"])

    def test_a_member_that_can_not_be_reached(self):
        """It is that daemon that is said to be away, not the one that was asked."""
        exchange, members = self.exchange_by_file()
        self.checkpoint_group("x:1", members)
        self.b.stop()
        for command in (self.group_arguments("x:2", members), ["group", "restore", "x:1"]):
            message = self.assert_refused(
                self.a.cli.run(*command), FAILED, "member 0", self.b.host, "can't be reached"
            )
            self.assertNotIn(self.a.daemon.host, message)
        self.b.start()
        self.assert_complete(exchange)

    def test_all_are_restored_or_none(self):
        exchange, members = self.exchange_by_file()
        self.checkpoint_group("x:1", members)
        # The second one's PID is taken: by itself.
        self.jobs[0].kill_tree()
        refused = self.a.cli.run("group", "restore", "x:1")
        self.assert_refused(refused, FAILED, "member 1", str(members[1][1]))
        self.assertFalse(procfs.alive(members[0][1]))
        self.jobs[1].kill_tree()
        self.restore_group("x:1")
        exchange.wait_for_progress("sender", "receiver")

    def test_files_are_rolled_back(self):
        """What the jobs wrote after the images is not there twice."""
        folders, members = self.start_writers()
        files = [os.path.join(folder, "lines") for folder in folders]
        self.checkpoint_then_death(folders, members)
        sizes = [os.path.getsize(path) for path in files]
        bad = self.a.cli.run("group", "restore", "x:1", "--rollback", "perhaps")
        self.assert_refused(bad, 2, "--rollback")
        told = self.roll_back("append")
        for size, path in zip(sizes, files):
            self.assertEqual(told[path]["action"], "truncated", told)
            self.assertLess(told[path]["size"], size)
        self.wait_for_lines(files)
        self.kill_restored()
        for path in files:
            with open(path, encoding="ascii") as file:
                numbers = [int(line) for line in file]
            self.assertEqual(numbers, list(range(1, len(numbers) + 1)), path)

    def test_files_are_put_back(self):
        """Also those that the jobs rewrote, except where the image was told to keep nothing of them."""
        folders, members = self.start_writers()
        self.checkpoint_then_death(folders, members, "--file-contents", "--ignore-path",
                                   os.path.join(folders[1], "table"))  # fmt: skip
        told = self.roll_back("all")
        for folder in folders:
            self.assertEqual(told[os.path.join(folder, "state")]["action"], "put_back", told)
        self.assertEqual(told[os.path.join(folders[0], "table")]["action"], "put_back", told)
        self.assertEqual(told[os.path.join(folders[1], "table")]["action"], "left", told)
        self.wait_for_lines([os.path.join(folder, "lines") for folder in folders])
        self.kill_restored()
        # Each job notices what is not as it left it.
        self.assertEqual(os.path.getsize(os.path.join(folders[0], "problems")), 0)
        self.assertGreater(os.path.getsize(os.path.join(folders[1], "problems")), 0)

    def start_writers(self):
        folders, members, self.jobs = [], [], []
        for node in (self.b, self.c):
            folders.append(self.path("work-" + node.name))
            os.mkdir(folders[-1])
            writer = [jobs.PYTHON, jobs.workload("file_writer.py"), folders[-1]]
            self.jobs.append(node.start_job(self, writer, "writer"))
            members.append((node, self.jobs[-1].pid))
        self.wait_for_lines([os.path.join(folder, "lines") for folder in folders])
        return folders, members

    def checkpoint_then_death(self, folders, members, *options):
        # Where none of them is just writing a file that it will rename.
        holds = [os.path.join(folder, "hold-written") for folder in folders]
        for hold in holds:
            os.mknod(hold)
            held = os.path.join(os.path.dirname(hold), "held")
            waiting.until(lambda held=held: os.path.exists(held), f"{held} says that it stands still")
        self.checkpoint_group("x:1", members, *options)
        for hold in holds:
            os.unlink(hold)
        self.wait_for_lines([os.path.join(folder, "lines") for folder in folders])
        self.kill_jobs()

    def roll_back(self, mode):
        """What became of each file."""
        data = self.succeed("group", "restore", "x:1", "--rollback", mode, cli=self.a.cli)
        self.restored = [member["job"]["pid"] for member in data["members"]]
        for pid in self.restored:
            self.kill_job_at_end(pid)
        return {file["path"]: file for group in data["files"] for file in group["files"]}

    def kill_restored(self):
        for pid in self.restored:
            jobs.kill_tree(pid)

    def wait_for_lines(self, files):
        before = [os.path.getsize(path) if os.path.exists(path) else 0 for path in files]
        for path, size in zip(files, before):
            waiting.until(lambda p=path, s=size: os.path.exists(p) and os.path.getsize(p) > s + 40, f"lines in {path}")

    def test_who_may(self):
        _, members = self.exchange_by_file()
        for node in self.nodes:
            os.chmod(node.directory, 0o755)
        other = self.make_cli(host=self.a.daemon.host, uid=65534)
        self.assert_refused(other.run(*self.group_arguments("x:1", members)), 4, "group")
        self.assert_refused(other.run("group", "ls"), 4, "group")

    def test_without_a_daemon(self):
        self.assert_refused(self.cli.run("group", "ls"), FAILED, "rekindled")


    def test_another_daemon_with_the_coordinators_store(self):
        """It does not decide for one that lives, and does for one that has died."""
        exchange = Exchange(self)
        jobs_of_a = [
            exchange.start(self.a, role, f"file:{self.path('channel')}", name)
            for role, name in (("send", "sender"), ("receive", "receiver"))
        ]
        for name in ("sender", "receiver"):
            waiting.until(lambda name=name: exchange.status(name).isdigit(), f"{name} begins")
        members = [(self.a, job.pid) for job in jobs_of_a]
        self.a.restart("coordinator-deciding=STOP")
        command = self.a.cli.start(*self.group_arguments("x:1", members))
        self.a.wait_until_stopped()
        second, cli = self.a.start_second(self)
        waiting.until(
            lambda: "has not decided yet" in second.log_text() or "says abort" in second.log_text(),
            "the second daemon asks",
        )
        in_doubt = self.succeed("group", "ls", cli=cli)["in_doubt"]
        self.assertEqual([part["image"] for part in in_doubt], ["x/0:1", "x/1:1"], second.log_text())
        self.assert_refused(cli.run("group", "resolve", in_doubt[0]["id"], "abort"), FAILED, "at work")
        self.a.go_on()
        result = self.a.cli.finish(command)
        self.assertEqual(result.code, DONE, str(result))
        self.assertTrue(result.data["group"]["complete"], result)
        self.assertEqual(self.a.images(), ["x/0:1", "x/1:1"])

        self.a.restart("coordinator-deciding=KILL")
        self.a.cli.run(*self.group_arguments("x:2", members))
        self.a.wait_until_dead()
        waiting.until(lambda: not self.succeed("group", "ls", cli=cli).get("in_doubt"), "the second daemon decides")
        self.assertEqual(
            sorted(image["reference"] for image in self.succeed("ls", cli=cli)["images"]), ["x/0:1", "x/1:1"]
        )
        exchange.wait_for_progress("sender", "receiver")


class StopTest(GroupTest):
    """The jobs end with `--stop` if all images are there, and only then."""

    def wait_for_end(self, members):
        waiting.until(lambda: not any(procfs.alive(pid) for _, pid in members), "the jobs end")

    def come_back(self, exchange):
        self.kill_jobs()  # they are reaped, and their PIDs are free
        jobs.reap_orphans()
        self.restore_group("x:1")
        exchange.wait_for_progress("sender", "receiver")

    def test_all_end_and_come_back(self):
        exchange, members = self.exchange_by_file()
        result = self.checkpoint_group("x:1", members, "--stop")
        self.assertTrue(result["group"]["complete"])
        self.assertFalse(any(procfs.alive(pid) for _, pid in members))
        # Nothing was passed on that their images do not know.
        last = exchange.number("sender"), exchange.number("receiver")
        exchange.pause("sender", "receiver")
        self.kill_jobs()
        self.restore_group("x:1")
        self.assertIn(exchange.paused_at("sender") - last[0], (0, 1))
        self.assertLessEqual(exchange.paused_at("receiver"), exchange.paused_at("sender"))
        exchange.go_on("sender", "receiver")
        exchange.wait_for_progress("sender", "receiver")

    def test_connections_are_carried_whether_they_end_or_not(self):
        exchange, members = self.exchange_by_tcp()
        # A sender that was given up after its freeze has its connection as before.
        self.attempt(members, self.c, "member-storing", "--stop")
        self.wait_until_settled()
        # TCP sends again after twice the time of before, so after up to the time that the network was locked.
        exchange.wait_for_progress("sender", "receiver", seconds=120)
        self.checkpoint_group("x:1", members, "--stop")
        self.assertFalse(any(procfs.alive(pid) for _, pid in members))
        self.come_back(exchange)

    def test_one_that_fails_spares_all(self):
        exchange, members = self.exchange_by_file()
        result = self.a.cli.run(*self.group_arguments("x:1", [*members, (self.a, 999999)], "--stop"))
        self.assert_refused(result, NOT_FOUND, "999999", "member 2")
        self.assert_nowhere(exchange)

    def test_a_member_whose_image_is_gone_spares_its_job(self):
        exchange, members = self.exchange_by_file()
        self.b.restart("member-committing=STOP")
        command = self.a.cli.start(*self.group_arguments("x:1", members, "--stop"))
        self.b.wait_until_stopped()
        _, cli = self.b.start_second(self)
        (part,) = self.succeed("group", "ls", cli=cli)["in_doubt"]
        self.succeed("group", "resolve", part["id"], "abort", cli=cli)
        self.b.go_on()
        result = self.a.cli.finish(command)
        self.assertFalse(result.data["group"].get("complete", False), result)
        exchange.wait_for_progress("sender")

        def lost():
            (group,) = self.a.groups()["groups"]
            return [part.get("lost", False) for part in group["parts"]] == [True, False]

        waiting.until(lost, "the coordinator knows that the part is lost")

    def test_a_coordinator_that_hangs(self):
        """Its kernel keeps the connections, but nobody says what becomes of the jobs."""
        exchange, members = self.exchange_by_file()
        self.a.restart("coordinator-deciding=STOP")
        command = self.a.cli.start(*self.group_arguments("x:1", members, "--stop"))
        self.a.wait_until_stopped()
        exchange.wait_for_progress("sender", "receiver", seconds=120)
        self.a.go_on()
        result = self.a.cli.finish(command)
        self.assertEqual(result.code, DONE, str(result))
        self.wait_for_end(members)
        self.wait_until_settled()
        self.come_back(exchange)

    def test_whoever_is_killed(self):
        exchange, members = self.exchange_by_file()
        for node, point, committed in (
            (self.b, "member-storing", False),
            (self.a, "coordinator-deciding", False),
            (self.b, "member-committing", True),
            (self.a, "coordinator-decided", True),
        ):
            with self.subTest(point=point):
                self.attempt(members, node, point, "--stop")
                self.wait_until_settled()
                if not committed:
                    self.assert_nowhere(exchange)
                    continue
                self.wait_for_end(members)
                self.come_back(exchange)
                self.succeed("group", "rm", "x:1", cli=self.a.cli)


class KilledTest(GroupTest):
    """A daemon is killed at each step of the protocol."""

    def remove(self, expected):
        if expected:
            self.succeed("group", "rm", "x:1", cli=self.a.cli)
        self.wait_until_settled()

    def kill_at(self, node, points):
        exchange, members = self.exchange_by_file()
        for point, complete, code in points:
            with self.subTest(point=point):
                result = self.attempt(members, node, point)
                if code is not None:
                    self.assertEqual(result.code, code, str(result))
                self.wait_until_settled()
                if complete is None:
                    complete = bool(self.a.groups().get("groups"))
                (self.assert_complete if complete else self.assert_nowhere)(exchange)
                self.remove(complete)
        # What is killed often enough still works.
        self.checkpoint_group("x:1", members)
        self.assert_complete(exchange)

    def test_member(self):
        self.kill_at(
            self.b,
            [
                ("member-prepared", False, FAILED),
                ("member-frozen", False, FAILED),
                ("member-storing", False, FAILED),
                ("member-stored", False, FAILED),
                ("member-in-doubt", None, None),  # the other one may or may not have stored by then
                ("member-committing", True, DONE),
                ("member-committed", True, DONE),
            ],
        )

    def test_coordinator(self):
        self.kill_at(
            self.a,
            [
                ("coordinator-begun", False, FAILED),
                ("coordinator-freeze", False, FAILED),
                ("coordinator-go", False, FAILED),
                ("coordinator-deciding", False, FAILED),
                ("coordinator-decided", True, FAILED),
                ("coordinator-committed", True, FAILED),
            ],
        )

    def test_coordinator_whose_clock_was_set_back(self):
        """The new group counts, although it was taken before the old one by that clock."""
        exchange, members = self.exchange_by_file()
        self.checkpoint_group("x:1", members)
        old = self.a.groups()["groups"][0]["id"]
        self.a.stop()
        path = os.path.join(self.a.store, "groups", old + ".json")
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
        record["created_unix_ns"] = str(int(record["created_unix_ns"]) + 86400 * 10**9)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(record, file)
        self.attempt(members, self.a, "coordinator-decided", "--replace")
        self.assert_complete(exchange)
        self.assertNotEqual(self.a.groups()["groups"][0]["id"], old)

    def test_coordinator_that_is_a_member_too(self):
        exchange = Exchange(self)
        channel = self.path("channel")
        sender = exchange.start(self.a, "send", f"file:{channel}", "sender")
        receiver = exchange.start(self.c, "receive", f"file:{channel}", "receiver")
        for name in ("sender", "receiver"):
            waiting.until(lambda name=name: exchange.status(name).isdigit(), f"{name} begins")
        members = [(self.a, sender.pid), (self.c, receiver.pid)]
        for point, complete in (("member-stored", False), ("coordinator-decided", True)):
            with self.subTest(point=point):
                self.attempt(members, self.a, point)
                self.wait_until_settled()
                expected = [["x/0:1"], [], ["x/1:1"]] if complete else [[], [], []]
                self.assertEqual([node.images() for node in self.nodes], expected, self.logs())
                exchange.wait_for_progress("sender", "receiver")
        self.assert_stores_whole()

    def test_caller(self):
        """Ctrl-C while the jobs stand still."""
        exchange, members = self.exchange_by_file()
        self.b.restart("member-frozen=STOP")
        command = self.a.cli.start(*self.group_arguments("x:1", members))
        self.b.wait_until_stopped()
        os.killpg(command.pid, signal.SIGINT)
        waiting.until(lambda: "given up" in self.a.daemon.log_text(), "the coordinator gives up")
        self.b.go_on()
        self.assert_refused(self.a.cli.finish(command), FAILED, "its jobs run on")
        self.assert_nowhere(exchange)


class RestoreKilledTest(GroupTest):
    """A member's daemon is killed when its job runs already."""

    def restore_with(self, point):
        exchange, members = self.exchange_by_file()
        self.checkpoint_group("x:1", members)
        self.kill_jobs()
        self.b.restart(f"{point}=KILL")
        result = self.a.cli.run("group", "restore", "x:1")
        for _, pid in members:
            self.kill_job_at_end(pid)
        self.b.wait_until_dead()
        return exchange, [pid for _, pid in members], result

    def test_before_it_hears_that_the_job_is_kept(self):
        exchange, (sender, receiver), result = self.restore_with("member-runs")
        self.assert_refused(result, FAILED, "not heard of any more, and may run", "ps` there): member 0")
        self.assertTrue(procfs.alive(sender))
        self.assertFalse(procfs.alive(receiver))
        self.b.restart()
        waiting.until(lambda: not procfs.alive(sender), "the job that nobody keeps is ended")
        jobs.reap_orphans()
        self.restore_group("x:1")
        exchange.wait_for_progress("sender", "receiver")

    def test_after_it_has_heard_it(self):
        exchange, pids, result = self.restore_with("member-kept")
        self.assert_refused(result, FAILED, "kept and running: member 1", "ps` there): member 0")
        self.b.restart()
        self.b.groups()
        exchange.wait_for_progress("sender", "receiver")
        self.assertEqual([procfs.alive(pid) for pid in pids], [True, True])


class SupervisedTest(GroupTest):
    def test_an_image_of_its_own_is_waited_for(self):
        """Jobs that take many images would be in no group for long."""
        status, log = self.path("memory.status"), self.path("memory.log")
        started = self.succeed(
            "run", "--detach", "--name", "train", "--log", log, "--every", "1s", "--",
            jobs.program("memory_job"), str(256 * MIB), status, cli=self.b.cli,
        )  # fmt: skip
        self.addCleanup(self.b.cli.run, "stop", "train", "--grace", "1s")
        pid = started["job"]["pid"]
        phases.wait_for_checkpoint_phase("freeze", self.b.daemon.pid, pid, lambda: False)
        criu = phases.main_criu(self.b.daemon.pid, "dump")
        os.kill(criu, signal.SIGSTOP)
        self.addCleanup(lambda: procfs.alive(criu) and os.kill(criu, signal.SIGCONT))
        command = self.a.cli.start(*self.group_arguments("x:1", [(self.b, pid)], "--freeze-limit", "60"))
        # Nobody tells that it waits; without that it would have failed by then.
        with self.assertRaises(subprocess.TimeoutExpired):
            command.wait(3)
        os.kill(criu, signal.SIGCONT)
        result = self.a.cli.finish(command, 60)
        self.assertEqual(result.code, DONE, str(result))
        self.assertTrue(result.data["group"]["complete"], result)


class InterruptedTest(GroupTest):
    """Ctrl-C: the command comes back when the members' jobs are free, or none of them is left."""

    def start_jobs(self):
        """Whose freezes are long enough to be seen."""
        self.jobs, self.memories = zip(
            *(self.start_memory_job(256 * MIB, node.name, node.namespace.prefix()) for node in (self.b, self.c)),
            strict=True,
        )
        return [(self.b, self.jobs[0].pid), (self.c, self.jobs[1].pid)]

    def start_checkpoint_that_stands(self, members):
        """In the freeze of one, which lasts until CRIU goes on."""
        command = self.a.cli.start(*self.group_arguments("x:1", members, "--freeze-limit", "60"))
        phases.wait_for_checkpoint_phase(
            "freeze", self.b.daemon.pid, self.jobs[0].pid, lambda: command.poll() is not None
        )
        criu = phases.main_criu(self.b.daemon.pid, "dump")
        os.kill(criu, signal.SIGSTOP)
        self.addCleanup(lambda: procfs.alive(criu) and os.kill(criu, signal.SIGCONT))
        return command, criu

    def interrupt(self, command):
        os.killpg(command.pid, signal.SIGINT)
        waiting.until(lambda: not procfs.pending_signals(command.pid), "it has taken the signal")

    def traced(self):
        return [procfs.traced_by(job.pid) != 0 for job in self.jobs]

    def assert_jobs_run(self):
        for memory in self.memories:
            memory.wait_for_tick()

    def test_checkpoint(self):
        members = self.start_jobs()
        command, criu = self.start_checkpoint_that_stands(members)
        self.interrupt(command)
        waiting.until(lambda: "given up" in self.a.daemon.log_text(), "the coordinator gives up")
        with self.assertRaises(subprocess.TimeoutExpired):
            command.wait(1)
        os.kill(criu, signal.SIGCONT)
        self.assert_refused(self.a.cli.finish(command, 60), FAILED, "its jobs run on")
        self.assertEqual(self.traced(), [False, False])
        self.assertTrue(self.checkpoint_group("x:1", members)["group"]["complete"])
        self.assert_jobs_run()
        self.assert_stores_whole()

    def test_who_interrupts_a_checkpoint_twice_waits_no_longer(self):
        members = self.start_jobs()
        command, criu = self.start_checkpoint_that_stands(members)
        self.interrupt(command)
        self.interrupt(command)
        self.assert_refused(self.a.cli.finish(command, 30), FAILED, "puts back what was half done")
        self.assertTrue(self.traced()[0])
        os.kill(criu, signal.SIGCONT)
        waiting.until(lambda: self.traced() == [False, False], "the jobs are free", 60)
        self.wait_until_settled()
        self.assert_jobs_run()
        self.assert_stores_whole()

    def test_restore(self):
        """Once it is back the group can be restored at once."""
        members = self.start_jobs()
        self.checkpoint_group("x:1", members, "--stop")
        for job in self.jobs:
            job.reap()
        command = self.a.cli.start("group", "restore", "x:1")
        phases.wait_for_restore_phase(
            "criu", self.b.daemon.pid, self.jobs[0].pid, lambda: command.poll() is not None
        )
        self.interrupt(command)
        self.assert_refused(self.a.cli.finish(command, 60), FAILED, "no member is left running")
        self.assertEqual([procfs.alive(job.pid) for job in self.jobs], [False, False])
        self.restore_group("x:1")
        self.assert_jobs_run()
        self.assert_stores_whole()


class CutTest(GroupTest):
    """The network of one node is cut."""

    def cut_at(self, stopped, point, *options):
        """While the daemon of `stopped` stands at `point` node b is cut off."""
        exchange, members = self.exchange_by_file()
        stopped.restart(f"{point}=STOP")
        command = self.a.cli.start(*self.group_arguments("x:1", members, *options))
        stopped.wait_until_stopped()
        self.b.cut()
        stopped.go_on()
        result = self.a.cli.finish(command)
        return exchange, members, result

    def test_while_frozen(self):
        exchange, _, result = self.cut_at(self.b, "member-frozen", "--freeze-limit", "3")
        self.assertEqual(result.code, FAILED, str(result))
        # Before it is mended: the job does not wait for that.
        exchange.wait_for_progress("sender", "receiver")
        self.b.mend()
        self.assert_nowhere(exchange)

    def test_before_the_decision_is_known(self):
        exchange, members, result = self.cut_at(self.a, "coordinator-decided")
        self.assertEqual(result.code, DONE, str(result))
        self.assertFalse(result.data["group"].get("complete", False), result)
        self.assertEqual(len(result.data["warnings"]), 1)
        exchange.wait_for_progress("sender", "receiver")
        # Node b has stored its part, and nobody sees it; node c was told.
        self.assertEqual((self.b.images(), self.c.images()), ([], ["x/1:1"]))
        self.assertEqual([part["reference"] for part in self.b.groups()["in_doubt"]], ["x:1"])
        self.assert_refused(self.a.cli.run("group", "restore", "x:1"), FAILED, "not complete")
        self.assert_refused(self.b.cli.run("ckpt", members[0][1], "-t", "x/0:1"), FAILED, "decision")
        self.b.mend()
        self.assert_complete(exchange)

    def test_the_coordinator_comes_back_without_its_store(self):
        """Its file system is not mounted yet: an empty store knows nothing of what was committed."""
        exchange, _, _ = self.cut_at(self.a, "coordinator-decided")
        self.a.stop()
        os.rename(self.a.store, self.a.store + ".away")
        self.a.start()
        self.b.mend()
        waiting.until(lambda: "another store" in self.b.daemon.log_text(), "node b is told")
        self.assertEqual([part["reference"] for part in self.b.groups()["in_doubt"]], ["x:1"])
        self.a.stop()
        shutil.rmtree(self.a.store)
        os.rename(self.a.store + ".away", self.a.store)
        self.a.start()
        self.assert_complete(exchange)

    def test_an_operator_decides(self):
        """Node b's coordinator is gone for good."""
        exchange, _, result = self.cut_at(self.a, "coordinator-decided")
        self.assertEqual(result.code, DONE, str(result))
        group = result.data["group"]["id"]
        self.a.daemon.kill()
        self.assert_refused(self.b.cli.run("group", "resolve", "0" * 32, "commit"), NOT_FOUND, "in doubt")
        decided = self.succeed("group", "resolve", group, "commit", cli=self.b.cli)
        self.assertEqual(decided["images"], ["x/0:1"])
        self.assertEqual(self.b.images(), ["x/0:1"])
        self.b.mend()
        self.a.restart()
        self.assert_complete(exchange)

    def test_an_operator_decides_about_a_job_that_is_to_end(self):
        _, members, result = self.cut_at(self.a, "coordinator-decided", "--stop")
        self.a.daemon.kill()
        self.assertTrue(procfs.alive(members[0][1]))
        self.succeed("group", "resolve", result.data["group"]["id"], "commit", cli=self.b.cli)
        self.assertEqual(self.b.images(), ["x/0:1"])
        self.assertFalse(procfs.alive(members[0][1]), "it runs on behind its image")

    def start_without_its_store(self, node):
        """Its file system is not mounted."""
        node.stop()
        os.rename(node.store, node.store + ".away")
        node.start()

    def start_with_its_store(self, node):
        node.stop()
        shutil.rmtree(node.store)
        os.rename(node.store + ".away", node.store)
        node.start()

    def test_a_member_comes_back_without_its_store(self):
        """An empty store says nothing of what the real one has."""
        exchange, _, _ = self.cut_at(self.a, "coordinator-decided")
        self.start_without_its_store(self.b)
        self.b.mend()
        waiting.until(lambda: "is in another store" in self.a.daemon.log_text(), "node a is told")
        refused = self.a.cli.run("group", "restore", "x:1")
        self.assert_refused(refused, FAILED, "member 0", "not complete", "is its file system mounted?")
        self.start_with_its_store(self.b)
        self.assert_complete(exchange)

    def test_removed_while_a_member_has_another_store(self):
        exchange, members = self.exchange_by_file()
        self.checkpoint_group("x:1", members)
        self.start_without_its_store(self.b)
        removed = self.succeed("group", "rm", "x:1", cli=self.a.cli)
        self.assertEqual(len(removed["warnings"]), 1)
        self.start_with_its_store(self.b)
        self.assert_nowhere(exchange)

    def test_a_lost_image_that_is_there_again(self):
        exchange, _, result = self.cut_at(self.a, "coordinator-decided")
        self.b.stop()
        shutil.copytree(self.b.store, self.b.store + ".copy", symlinks=True)
        self.b.start()
        self.succeed("group", "resolve", result.data["group"]["id"], "abort", cli=self.b.cli)
        self.b.mend()
        waiting.until(lambda: self.a.groups()["groups"][0]["parts"][0].get("lost", False), "the part is lost")
        self.assert_refused(self.a.cli.run("group", "restore", "x:1"), FAILED, "has lost its image")
        self.b.stop()
        shutil.rmtree(self.b.store)
        os.rename(self.b.store + ".copy", self.b.store)
        self.b.start()
        waiting.until(lambda: self.b.images() == ["x/0:1"], "node b publishes it")
        self.kill_jobs()
        self.restore_group("x:1")
        self.assert_complete(exchange)

    def test_removed_while_a_member_is_away(self):
        exchange, members = self.exchange_by_file()
        self.checkpoint_group("x:1", members)
        self.b.cut()
        removed = self.succeed("group", "rm", "x:1", cli=self.a.cli)
        self.assertEqual(len(removed["warnings"]), 1)
        self.assertEqual((self.b.images(), self.c.images()), (["x/0:1"], []))
        self.b.mend()
        self.assert_nowhere(exchange)


if __name__ == "__main__":
    unittest.main()
