"""Group checkpoints on three nodes: complete or not there, whatever is killed, cut off or has lost its store."""

import json
import os
import shutil
import signal
import unittest

from harness import jobs, procfs, waiting
from harness.cli import DONE, FAILED, NOT_FOUND
from harness.group_case import Exchange, GroupTest


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

    def test_coordinator_whose_store_is_at_another_machine_then(self):
        """What it had not decided is given up there, too."""
        job = self.a.start_job(self, [jobs.PYTHON, "-c", "import signal; signal.pause()"], "job")
        self.a.restart("coordinator-deciding=KILL")
        self.a.cli.run(*self.group_arguments("x:1", [(self.a, job.pid)]))
        self.a.wait_until_dead()
        self.a.stop()
        machine_id = self.path("machine-id")
        with open(machine_id, "w", encoding="ascii") as file:
            file.write("0123456789abcdef0123456789abcdef\n")
        bind = 'mount --bind "$0" /etc/machine-id && exec "$@"'
        self.a.wrapper = ["unshare", "--mount", "sh", "-c", bind, machine_id]
        self.a.start()
        waiting.until(lambda: not self.a.groups().get("in_doubt"), "the part is given up")
        self.assertEqual(self.a.images(), [])
        self.assertTrue(procfs.alive(job.pid))

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
    """A member's daemon is killed when its job runs already, or the coordinator hangs before."""

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

    def test_a_coordinator_that_hangs(self):
        exchange, members = self.exchange_by_file()
        self.checkpoint_group("x:1", members)
        self.kill_jobs()
        self.a.restart("coordinator-ready=STOP")
        command = self.a.cli.start("group", "restore", "x:1")
        self.a.wait_until_stopped()
        for _, pid in members:
            self.assertTrue(procfs.alive(pid), "it stands ready")
        for node, pid in members:
            waiting.until(lambda pid=pid: not procfs.alive(pid), "it does not stand there for good", 90)
            waiting.until(lambda node=node: "its coordinator has said nothing for 30s" in node.daemon.log_text(), "why")
        self.a.go_on()
        self.assert_refused(self.a.cli.finish(command), FAILED, "restoring group x:1")
        jobs.reap_orphans()
        self.a.restart()
        self.restore_group("x:1")
        exchange.wait_for_progress("sender", "receiver")


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
        waiting.until(lambda: "stays in doubt" in self.b.daemon.log_text(), "node b says why")
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
