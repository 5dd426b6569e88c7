"""Clones that do everything with their memory that a program may do, while it is still coming in."""

import os
import unittest

from harness import waiting
from harness.clones import CloneTest
from harness.juggler import Juggler

# For a longer run by hand: seconds for each clone.
SECONDS = float(os.environ.get("REKINDLE_JUGGLE_SECONDS", "3"))


class JuggleTest(CloneTest):
    seconds = SECONDS

    def juggle(self, juggler, *options, count=1, name="clone"):
        """Clones that juggle for `seconds`; all must end well."""
        juggler.forget()
        juggler.go(int(self.seconds * 1000))
        started = self.clones(juggler.reference, count, "--name", name, *options)
        started = [answer for answer in started if "job" in answer]
        self.assertEqual(len(started), count)
        for answer in started:
            juggler.wait_for_ok(answer["job"]["name"], answer["job"]["pid"], self.seconds + 120)
        self.assertEqual(juggler.complaints(), [])
        self.wait_for_no_sandbox()
        return started

    def test_background_fill(self):
        juggler = Juggler(self)
        # The first ones record what they touch, later ones find that in place.
        first = self.juggle(juggler, "--record-ms", "200")
        self.assertEqual(first[0].get("prefilled_pages", 0), 0)
        second = self.juggle(juggler, "--record-ms", "200")
        self.assertGreater(second[0]["prefilled_pages"], 0)
        self.assertGreater(second[0]["lazy_pages"], second[0]["prefilled_pages"])

    def test_without_fill(self):
        self.juggle(Juggler(self, seed=2), "--fill", "never", "--record-ms", "1")

    def test_eager_fill(self):
        self.juggle(Juggler(self, seed=3), "--fill", "eager")

    def test_side_by_side(self):
        self.juggle(Juggler(self, seed=4, megabytes=24), count=4)

    def test_side_by_side_without_fill(self):
        self.juggle(Juggler(self, seed=5, megabytes=24, threads=2), "--fill", "never", count=4)

    def test_woken_through_the_hook(self):
        juggler = Juggler(self, park="hook", seed=6)
        for name in ("first", "second", "third"):
            answer = self.clone(
                juggler.reference, "--name", name, "--env", f"MILLISECONDS={int(self.seconds * 500)}"
            )
            self.assertGreater(answer["ready_seconds"], 0)
            juggler.wait_for_ok(name, answer["job"]["pid"])


class ForkTest(CloneTest):
    def test_more_children_than_descriptors(self):
        """Each fork while memory is missing gives the pager and the sandbox a descriptor more to hold."""
        juggler = Juggler(self, mode="forks", megabytes=16, threads=1)
        juggler.go(8000)
        answer = self.clone(juggler.reference, "--name", "forker", "--fill", "never", "--record-ms", "1")
        result = juggler.wait_for_ok("forker", answer["job"]["pid"])
        self.assertGreater(int(result.split()[-1]), 1000, result)

    def test_children_that_ended_are_let_go(self):
        juggler = Juggler(self, mode="forks", megabytes=64, threads=1)
        juggler.go(2000)
        answer = self.clone(juggler.reference, "--name", "forker", "--record-ms", "60000")
        juggler.wait_for_ok("forker", answer["job"]["pid"])

    def test_large_process_forks(self):
        """A fork that lasts: the kernel takes no page for the parent meanwhile."""
        juggler = Juggler(self, megabytes=1536, threads=2, seed=9)
        juggler.go(6000)
        answer = self.clone(juggler.reference, "--name", "large", "--record-ms", "1")
        juggler.wait_for_ok("large", answer["job"]["pid"], 180)


class CompleteTest(CloneTest):
    def test_pager_lets_go_of_what_is_complete(self):
        juggler = Juggler(self, mode="sleep", megabytes=16)
        juggler.go(0)
        answer = self.clone(juggler.reference, "--name", "sleeper", "--record-ms", "1")
        waiting.until(lambda: not self.pager_stats()["clones"], "the clone complete")
        os.kill(self.pager(), 9)
        juggler.end()
        juggler.wait_for_ok("sleeper", answer["job"]["pid"])

    def test_not_filled_unless_asked_for(self):
        juggler = Juggler(self, mode="sleep", megabytes=16)
        juggler.go(0)
        answer = self.clone(juggler.reference, "--name", "sleeper", "--record-ms", "1", "--fill", "never")
        self.assertGreater(self.missing_pages(answer["instance"]), 2000)
        juggler.end()
        juggler.wait_for_ok("sleeper", answer["job"]["pid"])


    def test_a_copy_is_captured_whole(self):
        juggler = Juggler(self, mode="sleep", megabytes=16)
        juggler.go(0)
        answer = self.clone(juggler.reference, "--name", "first", "--record-ms", "1", "--fill", "never")
        self.assertGreater(self.missing_pages(answer["instance"]), 2000)
        self.checkpoint(answer["job"]["pid"], "second:1", "--stop")
        self.wait_for_end(answer["job"]["pid"])
        # It asked for its host name when it woke up first.
        again = self.clone("second:1", "--name", "first", "--record-ms", "1", "--fill", "never")
        juggler.end()
        juggler.wait_for_ok("first", again["job"]["pid"])


class LongJuggleTest(JuggleTest):
    """As JuggleTest, for longer: $REKINDLE_JUGGLE_SECONDS each, else a minute."""

    seconds = float(os.environ.get("REKINDLE_JUGGLE_SECONDS", "60"))


if __name__ == "__main__":
    unittest.main()
