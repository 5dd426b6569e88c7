"""Group checkpoints of jobs on three nodes: one set of images, or none; and what the images say of each other fits."""

import os
import signal
import subprocess
import unittest

from harness import jobs, phases, procfs, waiting
from harness.case import MIB
from harness.cli import DONE, FAILED, NOT_FOUND
from harness.clones import HOOK_PYTHON, hook_library, is_parked
from harness.group_case import Exchange, GroupTest

_SENDTO = 44  # the system call


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

    def test_what_is_removed_on_a_members_node(self):
        """`prune` spares members' images, `rm` warns, and the coordinator hears of what is gone."""
        _, members = self.exchange_by_file()
        for reference in ("x:1", "x:2"):
            self.checkpoint_group(reference, members)
        rules = ("prune", "--all", "--keep-label", "no=such")
        pruned = self.succeed(*rules, cli=self.b.cli)
        self.assertEqual(self.b.images(), ["x/0:1", "x/0:2"], pruned)
        self.assertIn("it is of group x:2", pruned["images"][0]["reasons"][0])
        self.assertEqual([group["complete"] for group in self.a.groups()["groups"]], [True, True])

        removed = self.succeed("rm", "x/0:1", cli=self.b.cli)
        self.assertIn("x:1", removed["warnings"][0])

        def complete():
            return {group["reference"]: group.get("complete", False) for group in self.a.groups()["groups"]}

        self.assertEqual(complete(), {"x:1": False, "x:2": True})
        self.assert_refused(self.a.cli.run("group", "restore", "x:1"), FAILED, "member 0", "has lost its image")
        self.succeed(*rules, "--groups", cli=self.b.cli)
        self.assertEqual(self.b.images(), [])
        self.assertEqual(complete(), {"x:1": False, "x:2": False})

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

    def test_nothing_is_cut_off_before_all_are_ready(self):
        """A member of which nothing comes back leaves the others' files as they were."""
        folders, members = self.start_writers()
        self.checkpoint_then_death(folders, members)
        files = [os.path.join(folder, name) for folder in folders for name in ("lines", "metrics")]
        sizes = [os.path.getsize(path) for path in files]
        self.b.restart("member-ready=STOP")
        command = self.a.cli.start("group", "restore", "x:1", "--rollback", "append")
        self.b.wait_until_stopped()
        waiting.until(lambda: self.tails_in(folders[1]), "the other one's files are looked at")
        waiting.until(lambda: procfs.alive(members[1][1]), "the other one is there")
        self.b.daemon.kill()
        result = self.a.cli.finish(command)
        self.assertNotEqual(result.code, 0, str(result))
        self.assertEqual([os.path.getsize(path) for path in files], sizes)
        self.assertEqual(self.tails_in(folders[1]), [])
        self.b.restart()
        for _, pid in members:
            waiting.until(lambda pid=pid: not procfs.alive(pid), "nothing of it is left")
        jobs.reap_orphans()
        self.roll_back("append")
        self.wait_for_lines([os.path.join(folder, "lines") for folder in folders])
        self.kill_restored()

    def test_files_that_others_write_to(self):
        """What these had written since the image went with what the job had."""
        folders, members = self.start_writers()
        lines = os.path.join(folders[0], "lines")
        self.checkpoint_then_death(folders, members)
        with open(lines, "ab") as file:
            other = subprocess.Popen(["sleep", "1000"], stdout=file)
        jobs.waited_elsewhere.add(other.pid)
        self.addCleanup(other.wait)
        self.addCleanup(other.kill)
        data = self.succeed("group", "restore", "x:1", "--rollback", "append", cli=self.a.cli)
        for member in data["members"]:
            self.kill_job_at_end(member["job"]["pid"])
        told = [member.get("warnings", []) for member in data["members"]]
        self.assertTrue(any(lines in warning and f"process {other.pid} " in warning for warning in told[0]), told)
        self.assertFalse(any("writes to it, too" in warning for warning in told[1]), told)

    def test_what_is_told_of_many_files_gets_there(self):
        """It is more than gRPC's clients take by themselves, 4 MiB."""
        folders, members = self.start_writers()
        logs = os.path.join(folders[0], "logs")
        folder = logs
        while len(folder) < 3500:
            folder = os.path.join(folder, "d" * 250)
        os.makedirs(folder)
        files = [os.path.join(folder, f"log{number}") for number in range(700)]
        for path in files:
            with open(path, "w", encoding="ascii") as file:
                file.write("before\n")
        self.checkpoint_then_death(folders, members, "--track-path", logs)
        for path in files:
            with open(path, "a", encoding="ascii") as file:
                file.write("after\n")
        told = self.roll_back("append")
        self.assertGreater(sum(len(told[path]["path"] + told[path]["tail_copy"]) for path in files), 4 << 20)
        self.assertEqual({os.path.getsize(path) for path in files}, {len("before\n")})
        self.wait_for_lines([os.path.join(folder, "lines") for folder in folders])
        self.kill_restored()

    @staticmethod
    def tails_in(folder):
        return [name for name in os.listdir(folder) if ".rekindle-tail-" in name]

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

    def test_hosts_that_no_member_is_at(self):
        """A wrong --map would start the members where they were to leave."""
        exchange, members = self.exchange_by_file()
        self.checkpoint_group("x:1", members)
        self.kill_jobs()
        for wrong in (self.b.address, "here"):
            refused = self.a.cli.run("group", "restore", "x:1", "--map", f"{wrong}={self.a.host}")
            self.assert_refused(refused, 2, f"is at {wrong}", self.b.host, self.c.host)
        self.assertFalse(any(procfs.alive(pid) for _, pid in members))
        twice = ("--map", f"{self.b.host}={self.b.host}", "--map", f"{self.b.host}=here")
        self.assert_refused(self.a.cli.run("group", "restore", "x:1", *twice), 2, "twice")
        self.restore_group("x:1", "--map", f"{self.b.host}={self.b.host}")
        exchange.wait_for_progress("sender", "receiver")

    def test_labels_of_groups_are_not_for_callers(self):
        """`group rm` and restores find members' images by them."""
        _, members = self.exchange_by_file()
        self.checkpoint_group("x:1", members)
        group = self.a.groups()["groups"][0]["id"]
        label = f"rekindle.group-id={group}"
        forged = self.b.cli.run("ckpt", members[0][1], "-t", "mine:1", "--label", label)
        self.assert_refused(forged, 2, "rekindle.group-id")
        self.assert_refused(self.a.cli.run(*self.group_arguments("x:2", members, "--label", label)), 2, "group-id")
        self.assertEqual(self.b.images(), ["x/0:1"])

    def test_a_coordinator_that_members_can_not_ask(self):
        """Their parts would be in doubt for ever, should the stream break."""
        exchange, members = self.exchange_by_file()
        self.a.options = ["--advertise", "nowhere.invalid:7443"]
        self.a.restart()
        refused = self.a.cli.run(*self.group_arguments("x:1", members))
        self.assert_refused(refused, FAILED, "can't ask its coordinator at nowhere.invalid:7443", "--advertise")
        self.assert_nowhere(exchange)

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

    def supervised(self):
        (job,) = self.succeed("ps", cli=self.b.cli)["jobs"]
        return job["supervised"]

    def test_its_last_image_does_not_wait_for_a_group(self):
        """Its daemon ends while it is not told yet that all are ready."""
        program = [jobs.PYTHON, "-c", "import signal; signal.pause()"]
        started = self.succeed(
            "run", "--detach", "--name", "train", "--every", "1h", "--", *program, cli=self.b.cli
        )
        pid = started["job"]["pid"]
        self.addCleanup(lambda: self.b.cli.run("stop", "train", "--grace", "1s"))
        self.a.restart("coordinator-freeze=STOP")
        command = self.a.cli.start(*self.group_arguments("x:1", [(self.b, pid)]))
        self.a.wait_until_stopped()
        before = self.b.images()
        self.b.daemon.stop()
        self.assertNotIn("no last image", self.b.daemon.log_text())
        self.a.go_on()
        self.assert_refused(self.a.cli.finish(command), FAILED, "member 0")
        self.b.start()
        self.assertEqual(len(self.b.images()), len(before) + 1)

    def test_its_last_image_follows_that_of_a_group(self):
        """Its daemon ends when the job is frozen for the group already: that image may come to nothing."""
        status = self.path("memory.status")
        started = self.succeed(
            "run", "--detach", "--name", "train", "--every", "1h", "--",
            jobs.program("memory_job"), str(256 * MIB), status, cli=self.b.cli,
        )  # fmt: skip
        pid = started["job"]["pid"]
        self.addCleanup(lambda: self.b.cli.run("stop", "train", "--grace", "1s"))
        waiting.until(self.b.images, "its first image is there")
        command = self.a.cli.start(*self.group_arguments("x:1", [(self.b, pid)], "--freeze-limit", "60"))
        phases.wait_for_checkpoint_phase("freeze", self.b.daemon.pid, pid, lambda: False)
        criu = phases.main_criu(self.b.daemon.pid, "dump")
        os.kill(criu, signal.SIGSTOP)
        self.addCleanup(lambda: procfs.alive(criu) and os.kill(criu, signal.SIGCONT))
        os.kill(self.b.daemon.pid, signal.SIGTERM)
        waiting.until(
            lambda: "another checkpoint" in self.supervised()["last_error"], "its own can't be taken beside it"
        )
        os.kill(criu, signal.SIGCONT)
        self.b.daemon.stop()
        self.assertNotIn("no last image", self.b.daemon.log_text())
        self.a.cli.finish(command, 60)
        self.b.start()
        own = [image for image in self.b.images() if image.startswith("train:")]
        self.assertGreaterEqual(len(own), 2, self.b.images())


class HeldTest(GroupTest):
    """`REKINDLE_HOLD`, `run --hold`: it goes on when its image is there, and not before."""

    def start_held(self):
        answers, program = self.path("woken"), self.path("held.py")
        with open(program, "w", encoding="utf-8") as file:
            file.write("import rekindle, signal\nhow = rekindle.ready()\n"
                       f"open({answers!r}, 'w').write(str(how))\nsignal.pause()\n")  # fmt: skip
        held = {"REKINDLE_HOLD": "1", "REKINDLE_HOOK_LIBRARY": hook_library(), "PYTHONPATH": HOOK_PYTHON}
        job = self.b.start_job(self, [jobs.PYTHON, "-B", program], "held", env=held)
        waiting.until(lambda: is_parked(job.pid), "it is held")
        return answers, [(self.b, job.pid)]

    def assert_goes_on(self, answers):
        waiting.until(lambda: os.path.exists(answers) and os.path.getsize(answers), "the job goes on")
        with open(answers, encoding="utf-8") as file:
            self.assertEqual(file.read(), "continued")

    def test_stays_held_if_the_group_is_given_up(self):
        answers, members = self.start_held()
        self.attempt(members, self.a, "coordinator-deciding")
        self.wait_until_settled()
        self.assertEqual(self.b.images(), [])
        self.assertTrue(is_parked(members[0][1]))
        self.assertFalse(os.path.exists(answers))
        self.checkpoint_group("x:1", members)
        self.assert_goes_on(answers)

    def test_goes_on_when_its_daemon_comes_back(self):
        answers, members = self.start_held()
        self.attempt(members, self.b, "member-committing")
        self.wait_until_settled()
        self.assertEqual(self.b.images(), ["x/0:1"])
        self.assert_goes_on(answers)


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


if __name__ == "__main__":
    unittest.main()
