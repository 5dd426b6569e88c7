"""What is kept for clones: working sets and their pages beside images, frames in the pager's memory, the list of these."""

import os
import signal
import time
import unittest

from harness import waiting
from harness.clones import CloneTest
from harness.juggler import Juggler

MIB = 1 << 20
# In which a thread of the pager waits for events, by their numbers.
SYSTEM_CALLS = {
    "x86_64": {202: "futex", 232: "epoll", 281: "epoll"},
    "aarch64": {98: "futex", 22: "epoll"},
}


class CacheTest(CloneTest):
    """With clones that sleep until they are told to end."""

    def setUp(self):
        super().setUp()
        self.juggler = Juggler(self, mode="sleep", megabytes=16)
        self.juggler.go(0)
        self.sleepers = []

    def sleeper(self, name, *options):
        started = self.clone(self.juggler.reference, "--name", name, *options)
        self.sleepers.append((name, started["job"]["pid"]))
        return started

    def wake_all(self):
        """They end well, their memory as it ought to be."""
        self.juggler.end()
        for name, pid in self.sleepers:
            self.juggler.wait_for_ok(name, pid)
        self.sleepers = []
        self.juggler.forget()
        self.juggler.go(0)

    def working_set(self):
        return self.succeed("inspect", self.juggler.reference)["working_set"]

    def wait_for_recordings(self, number):
        def recorded():
            found = self.working_set()
            return found if found and found["recordings"] == number else None

        return waiting.until(recorded, f"{number} recordings")

    def memory(self):
        return self.succeed("stats")["memory"]

    def end_pager(self):
        """The daemon and the pager end in order."""
        self.daemon.stop()
        waiting.until(lambda: not self.pagers(), "the pager's end", 60)

    def told(self, *arguments):
        """What people see."""
        result = self.cli.run(*arguments, json_output=False)
        self.assertEqual(result.code, 0, str(result))
        return result.out


class WorkingSetTest(CacheTest):
    def test_it_is_shown_dropped_and_recorded_anew(self):
        reference = self.juggler.reference
        self.assertIsNone(self.working_set())
        self.assertIn("no working set recorded", self.told("inspect", reference))
        self.assertFalse(self.succeed("working-set", "drop", reference)["dropped"])
        begin = time.time_ns()
        first = self.sleeper("first", "--record-ms", "200")
        found = self.wait_for_recordings(1)
        self.assertGreater(found["pages"], 0)
        self.assertEqual(found["bytes"], found["pages"] * 4096)
        self.assertEqual(found["lazy_bytes"], first["lazy_pages"] * 4096)
        self.assertLess(found["bytes"], found["lazy_bytes"])
        self.assertGreaterEqual(found["recorded_unix_ns"], begin)
        self.assertLessEqual(found["recorded_unix_ns"], time.time_ns())
        self.assertIn("1 recording, the last ", self.told("inspect", reference))
        second = self.sleeper("second", "--record-ms", "200")
        self.assertEqual(second["prefilled_pages"], found["pages"])
        self.assertGreaterEqual(self.wait_for_recordings(2)["pages"], found["pages"])

        self.assertTrue(self.succeed("working-set", "drop", reference)["dropped"])
        self.assertIsNone(self.working_set())
        third = self.sleeper("third", "--record-ms", "200")
        self.assertEqual(third.get("prefilled_pages", 0), 0)
        self.wait_for_recordings(1)
        self.wake_all()

    def test_what_was_recorded_while_it_was_dropped_is_not_kept(self):
        self.sleeper("first", "--record-ms", "1", "--fill", "never")
        self.wait_for_recordings(1)
        started = self.sleeper("recording", "--record-ms", "600000")
        self.assertTrue(self.succeed("working-set", "drop", self.juggler.reference)["dropped"])
        self.wake_all()
        waiting.until(lambda: not self.missing_pages(started["instance"]), "the pager rid of it")
        self.assertIsNone(self.working_set())
        self.assertFalse(self.succeed("working-set", "drop", self.juggler.reference)["dropped"])

    def test_who_is_killed_tells_nothing(self):
        for number in range(2):
            killed = self.clone(self.juggler.reference, "--name", f"killed-{number}", "--record-ms", "600000")
            os.kill(killed["job"]["pid"], signal.SIGKILL)
            self.wait_until_rid_of(killed)
            self.assertIsNone(self.working_set())
        ended = self.sleeper("ended", "--record-ms", "600000")
        self.wake_all()
        self.wait_until_rid_of(ended)
        self.assertEqual(self.working_set()["recordings"], 1)

    def wait_until_rid_of(self, started):
        waiting.until(
            lambda: started["instance"] not in [clone["clone"] for clone in self.pager_stats()["clones"]],
            "the pager rid of it",
        )

    def test_it_is_dropped_without_a_pager_too(self):
        self.sleeper("first", "--record-ms", "1")
        self.wait_for_recordings(1)
        self.wake_all()
        self.daemon.stop()
        waiting.until(lambda: not self.pagers(), "the pager's end", 60)
        alone = self.make_cli(store=self.store)
        self.assertTrue(self.succeed("working-set", "drop", self.juggler.reference, cli=alone)["dropped"])
        self.assertIsNone(self.succeed("inspect", self.juggler.reference, cli=alone)["working_set"])
        self.assertEqual(self.pagers(), [])

    def test_other_images_and_others_images(self):
        self.assert_refused(self.cli.run("working-set", "drop", "jugglers:parked"), 3, "juggler:parked")
        self.assert_refused(
            self.make_cli(host=self.daemon.host, uid=65534).run("working-set", "drop", self.juggler.reference), 4
        )


class MemoryTierTest(CacheTest):
    daemon_arguments = ("--page-cache", "64M")

    def test_numbers_grow_with_clones(self):
        self.assertIsNone(self.memory())
        self.assertIn("no pager runs", self.told("stats"))
        self.assertEqual(self.pagers(), [])
        self.sleeper("first", "--record-ms", "1", "--fill", "never")
        first = self.memory()
        self.assertEqual(first["bound_bytes"], 64 * MIB)
        self.assertGreater(first["misses"], 0)
        self.assertEqual(first["clones"], 1)
        self.assertGreater(first["missing_pages"], 2000)
        self.sleeper("second", "--fill", "never")
        second = self.memory()
        self.assertGreater(second["hits"], first["hits"])
        self.assertGreater(second["missing_pages"], first["missing_pages"])
        self.assertEqual((second["clones"], second["clones_served"], second["images"]), (2, 2, 1))
        self.assertAlmostEqual(second["hit_rate"], second["hits"] / (second["hits"] + second["misses"]))
        self.assertLessEqual(second["bytes"], second["taken_bytes"])
        self.assertLessEqual(second["taken_bytes"], second["bound_bytes"])
        self.assertLessEqual(second["huge_bytes"], second["taken_bytes"])
        text = self.told("stats")
        self.assertIn("64.0 MiB", text)
        self.assertIn("2 being served", text)
        self.wake_all()

    def test_frames_of_an_image_that_is_gone_go_with_it(self):
        for name in ("first", "second"):
            self.sleeper(name, "--record-ms", "1", "--fill", "eager")
        self.wake_all()
        waiting.until(lambda: self.memory()["clones"] == 0, "the pager rid of them")
        self.assertGreater(self.memory()["bytes"], 8 * MIB)
        self.succeed("rm", self.juggler.reference)
        self.succeed("gc")
        memory = self.memory()
        self.assertEqual((memory["images"], memory["bytes"], memory["taken_bytes"]), (0, 0, 0))

    def test_a_pager_that_runs_is_told_another_size(self):
        self.sleeper("first", "--record-ms", "1", "--fill", "never")
        pager = self.pager()
        self.daemon.stop()
        self.daemon_arguments = ("--page-cache", "10M")
        self.restart_daemon()
        waiting.until(lambda: self.memory()["bound_bytes"] == 10 * MIB, "the new bound")
        self.sleeper("eager", "--fill", "eager")
        memory = self.memory()
        self.assertLessEqual(memory["taken_bytes"], 10 * MIB)
        self.assertGreater(memory["evictions"] + memory["refusals"], 0)
        self.daemon.stop()
        # A command that has been told nothing leaves it as it is.
        self.cli = self.make_cli(store=self.store)
        self.sleeper("third", "--fill", "never")
        self.assertEqual(self.memory()["bound_bytes"], 10 * MIB)
        self.cli = self.make_cli(store=self.store, env={"REKINDLE_PAGE_CACHE": "20M"})
        self.sleeper("fourth", "--fill", "never")
        self.assertEqual(self.memory()["bound_bytes"], 20 * MIB)
        self.assertEqual(self.pager(), pager)
        self.cli = self.make_cli(store=self.store, env={"REKINDLE_PAGE_CACHE": "much"})  # is warned of
        self.sleeper("fifth", "--fill", "never")
        self.assertEqual(self.memory()["bound_bytes"], 20 * MIB)
        self.environment["REKINDLE_PAGE_CACHE"] = "much"
        self.daemon_arguments = ()
        self.restart_daemon()
        self.assertIn("$REKINDLE_PAGE_CACHE is 'much'", self.daemon.log_text())
        self.wake_all()


def waits_with_an_end(pid):
    """How many threads of the process wait for a time or for something unknown; None: one is in no wait."""
    calls = SYSTEM_CALLS[os.uname().machine]
    waits = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/syscall", encoding="ascii") as file:
                words = file.read().split()
        except OSError:
            return None  # it has just ended
        if len(words) < 7:
            return None  # it runs
        call, fourth = calls.get(int(words[0])), int(words[4], 16)
        if call == "futex":
            waits += fourth != 0
        elif call == "epoll":
            waits += fourth & 0xFFFFFFFF != 0xFFFFFFFF
        else:
            waits += 1
    return waits


class IdleTest(CacheTest):
    def wait_until_idle(self, pager):
        # One thread waits for the moment at which the list of hot frames is next written.
        waiting.until(lambda: waits_with_an_end(pager) in (0, 1), "a pager without polling")

    def test_a_pager_without_clones_waits_for_events_alone(self):
        for name in ("first", "second"):
            self.sleeper(name, "--record-ms", "1")
            self.wake_all()
            self.wait_until_idle(self.pager())
        self.assertEqual(self.memory()["clones_served"], 2)
        self.end_pager()

    def test_one_that_no_daemon_needs_ends(self):
        self.sleeper("first", "--record-ms", "1", "--fill", "never")
        pager = self.pager()
        self.daemon.stop()
        self.wake_all()
        waiting.for_exit(pager, 60)
        self.assertEqual(self.pagers(), [])


class KeptPagesTest(CacheTest):
    """What a copy has before it runs, kept in one piece beside the image."""

    def setUp(self):
        super().setUp()
        # Until it is known for good; then one more copy, whose pager keeps it.
        for number in range(4):
            self.sleeper(f"learning-{number}", "--record-ms", "1", "--fill", "never")
            self.wait_for_recordings(number + 1)
        self.sleeper("first", "--fill", "never")
        self.wait_until_kept()
        self.wake_all()
        digest = self.succeed("inspect", self.juggler.reference)["image"]["digest"]
        self.note = os.path.join(self.store, "notes", digest.split(":")[1] + ".working-set-pages")

    def wait_until_kept(self):
        waiting.until(lambda: self.pager_stats()["prefill"]["kept"] == 1, "the pages kept")

    def restart_all(self):
        self.end_pager()
        self.restart_daemon()

    def pager_log(self):
        with open(os.path.join(self.runtime, "pager.log"), encoding="utf-8") as file:
            return file.read()

    def damage(self, position):
        with open(self.note, "r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 0x20]))

    def test_the_next_pager_reads_them_and_no_frames(self):
        self.assertEqual(os.stat(self.note).st_mode & 0o777, 0o600)
        self.assert_store_whole([self.juggler.reference])
        self.restart_all()
        started = self.sleeper("second", "--fill", "never")
        self.assertGreater(started["prefilled_pages"], 0)
        self.assertEqual(self.pager_stats()["prefill"], {"loaded": 1, "made": 0, "kept": 0})
        self.sleeper("third", "--fill", "never")
        self.assertEqual(self.pager_stats()["prefill"], {"loaded": 1, "made": 0, "kept": 0})
        self.wake_all()
        self.assertNotIn("read from its packs", self.pager_log())

    def test_damaged_ones_are_not_used_and_made_again(self):
        size = os.path.getsize(self.note)
        for turn, position in enumerate((200, size // 2, size - 1), start=1):
            self.end_pager()
            self.damage(position)
            self.restart_daemon()
            self.sleeper(f"turn-{turn}", "--fill", "never")
            stats = self.pager_stats()["prefill"]
            self.assertEqual((stats["loaded"], stats["made"]), (0, 1), position)
            self.assertEqual(self.pager_log().count("is read from its packs"), turn)
            self.wait_until_kept()
            self.wake_all()
            self.assert_store_whole([self.juggler.reference])

    def test_cut_off_ones_are_not_used_and_reported(self):
        self.end_pager()
        os.truncate(self.note, os.path.getsize(self.note) - 1)
        alone = self.make_cli(store=self.store)
        self.assertNotEqual(alone.run("fsck").code, 0)
        self.restart_daemon()
        self.sleeper("second", "--fill", "never")
        self.assertEqual(self.pager_stats()["prefill"]["made"], 1)
        self.wait_until_kept()
        self.wake_all()
        self.assert_store_whole([self.juggler.reference])

    def test_they_go_with_the_working_set(self):
        self.assertTrue(self.succeed("working-set", "drop", self.juggler.reference)["dropped"])
        self.assertFalse(os.path.exists(self.note))
        started = self.sleeper("second", "--fill", "never", "--record-ms", "1")
        self.assertEqual(started.get("prefilled_pages", 0), 0)
        self.wake_all()

    def test_they_go_with_the_working_set_without_a_pager_too(self):
        self.end_pager()
        alone = self.make_cli(store=self.store)
        self.assertTrue(self.succeed("working-set", "drop", self.juggler.reference, cli=alone)["dropped"])
        self.assertFalse(os.path.exists(self.note))

    def test_they_go_with_the_image(self):
        before = self.succeed("stats")["metadata_bytes"]
        size = os.path.getsize(self.note)
        self.succeed("rm", self.juggler.reference)
        self.assertFalse(os.path.exists(self.note))
        self.assertLessEqual(self.succeed("stats")["metadata_bytes"], before - size)
        self.assert_store_whole([])


class WarmingTest(CacheTest):
    def test_a_new_pager_has_what_was_used_often(self):
        for name in ("first", "second"):
            self.sleeper(name, "--fill", "eager", "--record-ms", "1")
        self.wake_all()
        self.end_pager()
        self.assertTrue(os.path.exists(os.path.join(self.store, "hot-frames")))
        # By itself, before there is a clone.
        self.restart_daemon()
        self.pager()
        waiting.until(lambda: (self.memory() or {"warming": True})["warming"] is False, "the cache warm")
        warm = self.memory()
        self.assertGreater(warm["warmed_frames"], 0)
        self.assertEqual((warm["hits"], warm["misses"], warm["clones_served"]), (0, 0, 0))
        self.assertGreater(warm["bytes"], 8 * MIB)
        self.sleeper("third", "--fill", "eager")
        used = self.memory()
        self.assertGreater(used["hits"], 0)
        self.assertEqual(used["misses"], 0)
        self.wake_all()
        self.assert_store_whole([self.juggler.reference])

    def test_images_that_are_gone_and_a_damaged_list(self):
        for name in ("first", "second"):
            self.sleeper(name, "--fill", "eager", "--record-ms", "1")
        self.wake_all()
        self.end_pager()
        path = os.path.join(self.store, "hot-frames")
        with open(path, "rb") as file:
            content = file.read()
        with open(path, "wb") as file:
            file.write(content[:-1])
        self.restart_daemon()
        self.pager()
        waiting.until(lambda: (self.memory() or {"warming": True})["warming"] is False, "the pager up")
        self.assertEqual(self.memory()["warmed_frames"], 0)
        self.sleeper("third", "--record-ms", "1")
        self.wake_all()
        with open(os.path.join(self.runtime, "pager.log"), encoding="utf-8") as file:
            self.assertEqual(file.read().count("the list of hot frames is damaged"), 1)
        self.end_pager()
        with open(path, "wb") as file:
            file.write(content)
        alone = self.make_cli(store=self.store)
        self.succeed("rm", self.juggler.reference, cli=alone)
        self.succeed("gc", cli=alone)
        self.restart_daemon()
        self.pager()
        waiting.until(lambda: (self.memory() or {"warming": True})["warming"] is False, "the pager up")
        self.assertEqual(self.memory()["warmed_frames"], 0)
        with open(os.path.join(self.runtime, "pager.log"), encoding="utf-8") as file:
            self.assertEqual(file.read().count("damaged"), 1)


if __name__ == "__main__":
    unittest.main()
