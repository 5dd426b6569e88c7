"""A supervised training killed at 30 random moments over its run: the job, one of its processes, the daemon, both; also
while it is being brought back. In the end it is bit for bit what an undisturbed run is.

REKINDLE_KILLS_SEED repeats a run (as far as the machine's own timing lets it), REKINDLE_KILLS_ROUNDS changes its length.
"""

import os
import random
import sys
import time
import unittest

from harness import jobs, procfs, waiting
from harness.training import DISTRIBUTED, GPT, RESNET, SECONDS, TrainingTest, random_steps

LONGEST_DELAY_SECONDS = 0.4
TARGETS = ("root", "root", "process", "twice", "daemon", "both")


class ManyKillsTest(TrainingTest):
    def setUp(self):
        super().setUp()
        self.seed = int(os.environ.get("REKINDLE_KILLS_SEED", random.SystemRandom().randrange(1 << 32)))
        self.random = random.Random(self.seed)

    def kill_all_over(self, example, steps, kills, every="500ms"):
        kills = int(os.environ.get("REKINDLE_KILLS_ROUNDS", kills))
        print(f"REKINDLE_KILLS_SEED={self.seed}", file=sys.stderr)
        self.begin(example, steps, every, restarts=3 * kills)
        for step in random_steps(self.seed, steps, kills):
            self.wait_for_step(step)
            deadline = time.monotonic() + self.random.uniform(0, LONGEST_DELAY_SECONDS)
            waiting.until(lambda: time.monotonic() > deadline, "a random moment")  # noqa: B023
            target = self.random.choice(TARGETS)
            getattr(self, "kill_" + target)()
            print(f"{target} killed at step {step} or later", file=sys.stderr)
        self.assert_ends_as_undisturbed()
        self.assert_images_whole()

    def kill_root(self):
        self.kill_job()

    def kill_process(self):
        """What the others then do is the job's own failure: twice in a row without an image it is not brought back from
        the same one.
        """
        self.wait_for_images(1)
        there = sorted(self.training.processes())
        if there:
            self.kill_job(self.random.choice(there))

    def kill_twice(self):
        """The second time as soon as there is something again, which is while it is being brought back."""
        pid = self.job()["pid"]
        self.kill_job(pid)
        waiting.for_exit(pid)
        waiting.until(self._back_or_done, "it is being brought back", SECONDS, 0.002)
        self.kill_job(pid)

    def _back_or_done(self):
        jobs.reap_orphans()
        return self.training.processes() or self.finished()

    def kill_daemon(self):
        self.daemon.kill()
        self.start_daemon_again()

    def kill_both(self):
        self.daemon.kill()
        for pid in self.training.processes():
            if procfs.alive(pid):
                jobs.kill_tree(pid)
        jobs.reap_orphans()
        self.start_daemon_again()

    def test_gpt(self):
        self.kill_all_over(GPT, 3000, 30)

    def test_resnet_with_data_loader_workers(self):
        self.kill_all_over(RESNET, 1500, 30)

    def test_distributed(self):
        self.kill_all_over(DISTRIBUTED, 300, 6, "2s")


if __name__ == "__main__":
    unittest.main()
