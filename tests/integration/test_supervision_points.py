"""From which of its images a supervised job goes on, and what a daemon makes of it that did not see its last moments."""

import base64
import datetime
import os
import shutil
import unittest

from harness import jobs, procfs, waiting
from test_supervision_trouble import TroubleTest

# Ends when it is told to.
_UNTIL = 'until rm "$0"; do sleep 0.01; done 2>/dev/null; '


class UntilTest(TroubleTest):
    def start_until(self, then, *options, backoff="10ms"):
        """With three images."""
        self.until = self.path("until")
        self.succeed("run", "--name", "job", "--detach", "--every", "1h", "--restarts", "9", "--backoff", backoff,
                     *options, "--", "sh", "-c", _UNTIL + then, self.until, cli=self.remote)  # fmt: skip
        for number in (1, 2, 3):
            self.take(f"of:{number}")

    def take(self, image):
        self.succeed("ckpt", "job", "-t", image, cli=self.remote)

    def end(self):
        with open(self.until, "w", encoding="ascii"):
            pass

    def wait_for_restart(self, restarts, image):
        self.wait_for(lambda job: job["supervised"]["restarts"] == restarts, "a restart")
        came_from = [line for line in self.daemon.log_text().splitlines() if "goes on from " in line][-1]
        self.assertIn(f"goes on from {image}: ", came_from)


    def is_decided(self):
        with self.record() as record:
            return record.get("restarts", {}).get("decided")


class FurtherBackTest(UntilTest):
    def goes_back(self, then):
        self.start_until(then)
        for restarts, image in ((1, "of:3"), (2, "of:2"), (3, "of:1")):
            self.end()
            self.wait_for_restart(restarts, image)
            # Too soon before its end to be trusted.
            self.take(f"of:{restarts + 3}")

    def test_one_image_back_each_time(self):
        self.goes_back("exit 7")

    def test_by_a_signal_of_its_own(self):
        self.goes_back("ulimit -c 0; kill -ABRT $$")

    def test_from_the_newest_again_behind_the_oldest(self):
        """What it dies of may lie outside, and pass."""
        works = self.path("works")
        self.start_until(f'[ -e "{works}" ] && exit 0; exit 7')
        for restarts, image in enumerate(("of:3", "of:2", "of:1", "of:3", "of:2"), start=1):
            self.end()
            self.wait_for_restart(restarts, image)
            if restarts == 3:
                # Where it stands is recorded.
                self.daemon.kill()
                self.restart_daemon()
                self.wait_for(lambda job: job["supervised"]["phase"] == "running", "it is taken over")
        with open(works, "w", encoding="ascii"):
            pass
        self.end()
        self.wait_for_end("done")

    def test_where_the_bad_one_was_removed(self):
        self.start_until("exit 7")
        self.end()
        self.wait_for_restart(1, "of:3")
        self.succeed("rm", "of:3", cli=self.remote)
        self.end()
        self.wait_for_restart(2, "of:2")

    def test_a_daemon_that_is_killed_in_between_goes_on_with_it(self):
        self.start_until("exit 7", backoff="60s")
        self.end()
        self.wait_for_restart(1, "of:3")
        self.end()
        self.wait_for(lambda job: job["supervised"]["phase"] == "waiting", "it waits")
        waiting.until(self.is_decided, "what becomes of it is recorded")
        self.daemon.kill()
        self.restart_daemon()
        self.wait_for_restart(2, "of:2")
        self.assertEqual(len(self.state()["deaths"]), 2)

    def test_after_a_restart_of_the_machine(self):
        self.start_until("exit 7", "--at-boot")
        for restarts, image in ((1, "of:3"), (2, "of:2")):
            self.end()
            self.wait_for_restart(restarts, image)
        self.kill_both()
        with self.record() as record:
            record["boot_id"] = "00000000-0000-4000-8000-000000000000"
        self.restart_daemon()
        self.wait_for_restart(3, "of:2")

    def test_images_get_old_enough_to_be_trusted(self):
        """However soon others come: else the first one would be the only one to go back to for ever."""
        self.start(100000, options=["--every", "200ms", "--keep", "3"])
        self.wait_for_image(1)

        def oldest():
            with self.record() as record:
                return record["points"][0]["number"]

        first = oldest()
        waiting.until(lambda: oldest() != first, "the first image removed", 60, 0.2)


class TakeoverTest(TroubleTest):
    def test_one_that_has_ended_well_is_not_run_again(self):
        """Its end was recorded as that of a process, but not yet as that of the job."""
        self.start(5, options=["--every", "1h", "--restarts", "3"])
        self.wait_for_end()
        self.daemon.kill()
        with self.record() as record:
            for field in ("ended", "exit_code", "ended_unix_ns", "report"):
                record.pop(field, None)
        self.restart_daemon()
        self.wait_for_end()
        self.assertEqual(self.state()["restarts"], 0)
        self.assert_counted(5)

    def test_time_without_a_daemon_is_not_lost_work(self):
        """It is counted until the job last gave a sign of life, not until somebody looked."""
        self.start(100000, options=["--every", "300ms", "--restarts", "3"])
        self.wait_for_image()
        self.kill_both()
        hour = 3600
        with self.record() as record:
            for holder, ours, clocks in [(record, "life_began_ns", "life_began_unix_ns")] + [
                (point, "taken_ns", "taken_unix_ns") for point in record["points"]
            ]:
                holder.pop(ours, None)
                holder[clocks] = str(int(holder[clocks]) - hour * 10**9)
            log = base64.b64decode(record["log"]).decode()
        progress = os.path.join(self.runtime, "progress")
        for path in [log, *(os.path.join(progress, name) for name in os.listdir(progress))]:
            at = os.stat(path).st_mtime - hour
            os.utime(path, (at, at))
        self.restart_daemon()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        state = self.state()
        self.assertLess(state["lost_seconds"], hour / 2)
        died = datetime.datetime.strptime(state["deaths"][0][:19], "%Y-%m-%d %H:%M:%S")
        self.assertGreater(datetime.datetime.now() - died, datetime.timedelta(seconds=hour / 2))

    def test_one_whose_runtime_folder_was_emptied_gets_images(self):
        """As where the daemon has another /run than the one before, which its jobs have outlived."""
        self.start(100000, options=["--every", "300ms", "--restarts", "3"])
        self.wait_for_image(1)
        self.daemon.kill()
        shutil.rmtree(self.runtime)
        self.restart_daemon()
        before = self.wait_for_image(self.state()["checkpoints"])
        self.succeed("ckpt", "job", "-t", "asked:1", cli=self.remote)
        os.unlink(os.path.join(self.runtime, "jobs", "job.json"))
        self.wait_for_image(self.state()["checkpoints"])
        self.succeed("ckpt", "job", "-t", "asked:2", cli=self.remote)
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        self.assertEqual(self.job()["pid"], before["pid"])

    def test_one_that_was_brought_back_by_hand_runs_on(self):
        self.start(100000, options=["--every", "300ms", "--restarts", "3"])
        self.wait_for_image(1)
        self.kill_both()
        with self.record() as record:
            image = record["points"][-1]["image"]
        restored = self.succeed("restore", image, "--detach")["job"]
        self.addCleanup(jobs.kill_tree, restored["pid"])
        self.assertEqual(restored["name"], "job")
        started = procfs.start_ticks(restored["pid"])
        self.restart_daemon()
        self.wait_for_words("it is supervised again")
        self.assertEqual((self.job()["pid"], procfs.start_ticks(restored["pid"])), (restored["pid"], started))
        self.wait_for_image(self.state()["checkpoints"])
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")


if __name__ == "__main__":
    unittest.main()
