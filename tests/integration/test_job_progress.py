"""Jobs that say how far they are and offer moments for an image. Their file's other side, which is the supervisor's, is
played by the test.
"""

import os

from harness import jobs, procfs, waiting
from harness.reporting import JobFile, ReportingTest


class ProgressTest(ReportingTest):
    def test_ps_shows_steps(self):
        self.start_reporting()
        first = waiting.until(lambda: self.job("train")["progress"], "progress")
        self.assertEqual(first["total"], 1000000)
        later = waiting.until(
            lambda: (lambda p: p if p["step"] > first["step"] and p["steps_per_second"] > 0 else None)(
                self.job("train")["progress"]), "more steps, at a rate")
        self.assertGreaterEqual(later["unix_ns"], first["unix_ns"])
        self.assertGreater(later["boundaries"], 0)
        self.assertLessEqual(later["step"], len(self.lines()))
        result = self.cli.run("ps", json_output=False)
        self.assertRegex(result.out, r"STEP")
        self.assertRegex(result.out, r"\d+/1000000 ")

    def test_a_job_that_says_nothing_has_no_progress(self):
        self.succeed("run", "--detach", "--name", "quiet", "--", "sleep", "1000")
        job = self.job("quiet")
        self.kill_job_at_end(job["pid"])
        self.assertIsNone(job["progress"])
        # Nor that of an earlier job with its name, or what is no progress at all.
        path = os.path.join(self.runtime, "progress", "quiet")
        JobFile(path).write_job(step=5, unix_ns=job["started_unix_ns"] - 1)
        self.assertIsNone(self.job("quiet")["progress"])
        with open(path, "wb") as file:
            file.write(b"x" * 192)
        self.assertIsNone(self.job("quiet")["progress"])
        self.assertNotIn("STEP", self.cli.run("ps", json_output=False).out)


class BoundaryTest(ReportingTest):
    """Images are taken between two steps: the job waits in the hook while CRIU has it."""

    def take_image_at_a_boundary(self, pid, due):
        self.file.write_daemon(due=due)
        waiting.until(lambda: self.file.job().waiting == due, "it waits at a boundary")
        at = self.file.job().step
        self.checkpoint(pid, f"train:{due}")
        return at

    def test_goes_on_after_its_image(self):
        pid = self.start_reporting()
        self.take_image_at_a_boundary(pid, 1)
        before = self.last_step()
        self.file.write_daemon(released=1, taken=1)
        self.assertEqual(self.wait_for_event("continued"), before)
        waiting.until(lambda: self.last_step() > before, "more steps")
        self.assert_no_step_is_missing()

    def bring_back(self, new_file):
        pid = self.start_reporting()
        self.take_image_at_a_boundary(pid, 1)
        before = self.last_step()
        jobs.kill_tree(pid)
        if new_file:
            os.unlink(self.file.path)
            self.file.make()
        self.file.write_daemon(released=1, taken=1, restored=1)
        self.assertEqual(self.restore("train:1"), pid)
        self.assertEqual(self.wait_for_event("restored"), before)
        waiting.until(lambda: self.last_step() > before, "more steps")
        self.assert_no_step_is_missing()
        waiting.until(lambda: self.file.job().step > before, "it reports again")

    def test_is_brought_back_at_the_boundary(self):
        self.bring_back(new_file=False)

    def test_is_brought_back_with_a_new_file(self):
        self.bring_back(new_file=True)

    def test_asks_for_an_image(self):
        pid = self.start_reporting()
        with open(self.log + ".ask", "w", encoding="ascii"):
            pass
        waiting.until(lambda: self.file.job().wanted == 1, "it asks")
        self.take_image_at_a_boundary(pid, 1)
        self.file.write_daemon(released=1, taken=1)
        self.wait_for_event("continued")

    def test_a_daemon_that_is_gone_holds_nobody(self):
        pid = self.start_reporting()
        self.file.write_daemon(due=1)
        waiting.until(lambda: self.file.job().waiting == 1, "it waits at a boundary")
        self.daemon.kill()
        before = self.last_step()
        os.unlink(self.file.path)
        waiting.until(lambda: self.last_step() > before, "more steps")
        self.assertTrue(procfs.alive(pid))
