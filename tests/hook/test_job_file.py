"""What supervised jobs say of themselves, and how they wait for an image, in C, Python and Node.js alike. The daemon is
played by the test.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from job_file import JobFile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
SECONDS = 60


class Program:
    """One that does what it is told on its standard input."""

    def __init__(self, argv, environment):
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True,
        )

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answers(self, seconds=0):
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def answer(self):
        if not self.answers(SECONDS):
            raise AssertionError("no answer within %d s" % SECONDS)
        return self.process.stdout.readline().rstrip("\n")

    def ask(self, line):
        self.tell(line)
        return self.answer()

    def reads(self):
        """Its calls of read() and its like, so far."""
        with open("/proc/%d/io" % self.process.pid, encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("syscr:"))

    def end(self):
        """What it wrote to its standard error."""
        _, errors = self.process.communicate(timeout=SECONDS)
        return errors


class Supervised:
    """The tests; for each language with its own program."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="job-file-")
        self.addCleanup(folder.cleanup)
        self.file = JobFile(os.path.join(folder.name, "train"))

    def start(self, **environment):
        environment = {"REKINDLE_JOB_FILE": self.file.path, **environment}
        program = Program(self.ARGV, {**self.ENVIRONMENT, **{k: v for k, v in environment.items() if v is not None}})
        self.addCleanup(self.check_end, program)
        return program

    def check_end(self, program):
        if program.process.returncode is None:
            self.assertEqual(program.end(), "")
        self.assertEqual(program.process.returncode, 0)

    def until(self, condition):
        deadline = time.monotonic() + SECONDS
        while not condition():
            self.assertLess(time.monotonic(), deadline, self.file.job())
            select.select([], [], [], 0.002)

    def wait_until_it_waits(self, program, due):
        self.until(lambda: self.file.job().waiting == due or program.answers())
        self.assertFalse(program.answers())

    def test_without_supervision(self):
        program = self.start(REKINDLE_JOB_FILE=None)
        self.assertEqual(program.ask("progress 1 2"), "said")
        self.assertEqual(program.ask("here"), "not held")
        self.assertEqual(program.ask("now"), "not held")

    def test_progress(self):
        program = self.start()
        before = time.time_ns()
        self.assertEqual(program.ask("progress 3 5"), "said")
        job = self.file.job()
        self.assertEqual((job.step, job.total, job.calls, job.steps_per_second), (3, 5, 1, 0))
        self.assertGreaterEqual(job.unix_ns, before)
        self.assertLessEqual(job.unix_ns, time.time_ns())
        # The last step is always written, and what was not written before is counted.
        program.ask("progress 4 5")
        program.ask("progress 5 5")
        job = self.file.job()
        self.assertEqual((job.step, job.total, job.calls), (5, 5, 3))
        self.assertGreater(job.steps_per_second, 0)

    def test_large_numbers(self):
        program = self.start()
        program.ask("progress %d %d" % (2**40 + 1, 2**40 + 1))
        self.assertEqual(self.file.job().step, 2**40 + 1)

    def test_the_rate_is_that_of_the_steps(self):
        program = self.start()
        self.file.write_job(step=100, total=1000, unix_ns=time.time_ns() - 10 * 10**9, calls=9, steps_per_second=0)
        program.ask("progress 1000 1000")
        job = self.file.job()
        self.assertEqual(job.calls, 10)
        self.assertLessEqual(job.steps_per_second, 90)
        self.assertGreater(job.steps_per_second, 0)

    def test_after_a_restore_the_rate_begins_anew(self):
        program = self.start()
        self.file.write_job(step=100, unix_ns=time.time_ns(), steps_per_second=7)
        program.ask("progress 90 90")
        self.assertEqual((self.file.job().step, self.file.job().steps_per_second), (90, 0))

    def test_most_calls_write_nothing(self):
        program = self.start()
        writes, seconds = program.ask("burst 20000").split()
        self.assertLessEqual(int(writes), float(seconds) / 0.1 + 2)
        self.assertGreaterEqual(int(writes), 1)

    def test_nothing_due(self):
        program = self.start()
        self.assertEqual(program.ask("here"), "not held")
        self.file.write_daemon(due=4, released=4, taken=4)
        self.assertEqual(program.ask("here"), "not held")
        self.assertEqual(self.file.job().waiting, 0)

    def drop_and_take_images(self, program):
        program.ask("here")
        self.assertEqual(program.ask("drops"), "0")
        for due, word in enumerate(("here", "now"), 1):
            if word == "here":
                self.file.write_daemon(due=due)
                program.tell(word)
            else:
                program.tell(word)
                self.until(lambda: self.file.job().wanted == 1)
                self.file.write_daemon(due=due, released=due - 1)
            self.wait_until_it_waits(program, due)
            self.file.write_daemon(due=due, released=due, taken=due)
            self.assertEqual(program.answer(), "continued")
            self.assertEqual(program.ask("drops"), str(due))
        program.ask("here")
        self.assertEqual(program.ask("drops"), "2")

    def test_caches_are_dropped_before_an_image_and_at_no_other_time(self):
        program = self.start()
        program.ask("caches")
        self.drop_and_take_images(program)

    def test_boundaries_are_counted(self):
        program = self.start()
        for _ in range(3):
            program.ask("here")
        program.ask("progress 1 1")
        self.assertEqual(self.file.job().boundaries, 3)

    def test_waits_until_released(self):
        program = self.start()
        self.file.write_daemon(due=1)
        program.tell("here")
        self.wait_until_it_waits(program, 1)
        self.file.write_daemon(released=1, taken=1)
        self.assertEqual(program.answer(), "continued")
        self.assertEqual(self.file.job().waiting, 0)
        # Once is enough for one image.
        self.assertEqual(program.ask("here"), "not held")

    def test_an_image_that_failed(self):
        program = self.start()
        self.file.write_daemon(due=5, released=4, taken=4)
        program.tell("here")
        self.wait_until_it_waits(program, 5)
        self.file.write_daemon(released=5)
        self.assertEqual(program.answer(), "not held")

    def test_brought_back_with_a_new_file(self):
        program = self.start()
        self.file.write_daemon(due=2, released=1, restored=77)
        program.tell("here")
        self.wait_until_it_waits(program, 2)
        # As after a reboot, in a new file.
        other = JobFile(self.file.path + ".new")
        other.write_daemon(restored=78)
        os.rename(other.path, self.file.path)
        self.assertEqual(program.answer(), "restored")
        self.assertEqual(self.file.job().waiting, 0)

    def test_brought_back_in_the_same_file(self):
        program = self.start()
        self.file.write_daemon(due=2, released=1, restored=77)
        program.tell("here")
        self.wait_until_it_waits(program, 2)
        self.file.write_daemon(released=2, restored=78)
        self.assertEqual(program.answer(), "restored")
        self.assertEqual(self.file.job().waiting, 0)

    def test_a_daemon_that_never_answers(self):
        program = self.start(REKINDLE_BOUNDARY_SECONDS="0.05")
        self.file.write_daemon(due=3)
        self.assertEqual(program.ask("here"), "not held")
        self.assertEqual(self.file.job().waiting, 0)
        # It does not wait for the same image again at every step: a wait is a long series of looks.
        reads = program.reads()
        for _ in range(3):
            self.assertEqual(program.ask("here"), "not held")
        self.assertLess(program.reads() - reads, 20)

    def test_patience_begins_anew_while_the_image_is_stored(self):
        patience = 2
        program = self.start(REKINDLE_BOUNDARY_SECONDS=str(patience))
        program.tell("now")
        self.until(lambda: self.file.job().wanted == 1)
        self.file.write_daemon(due=1)
        looks = 8 * patience
        for storing in range(1, looks + 1):  # twice as long in all
            self.file.write_daemon(storing=storing)
            self.assertFalse(program.answers(2 * patience / looks), "it gave up an image that is being stored")
        self.file.write_daemon(released=1, taken=1)
        self.assertEqual(program.answer(), "continued")

    def test_numbers_that_begin_anew_are_not_those_given_up(self):
        program = self.start(REKINDLE_BOUNDARY_SECONDS="0.05")
        program.ask("caches")
        self.file.write_daemon(due=3)
        for _ in range(2):
            self.assertEqual(program.ask("here"), "not held")
        self.assertEqual(program.ask("drops"), "1")
        self.file.write_daemon(restored=1)
        self.assertEqual(program.ask("here"), "not held")
        self.assertEqual(program.ask("drops"), "2")

    def test_the_file_goes_away(self):
        program = self.start()
        self.file.write_daemon(due=1)
        program.tell("here")
        self.wait_until_it_waits(program, 1)
        os.unlink(self.file.path)
        self.assertEqual(program.answer(), "not held")
        self.assertEqual(program.ask("progress 1 1"), "said")
        self.assertEqual(program.ask("now"), "not held")
        # And comes again.
        self.file.make()
        program.ask("progress 2 2")
        self.assertEqual(self.file.job().step, 2)

    def test_another_version_is_left_alone(self):
        self.file.make(version=2)
        self.file.write_daemon(due=1)
        program = self.start()
        self.assertEqual(program.ask("progress 1 1"), "said")
        self.assertEqual(program.ask("here"), "not held")
        self.assertEqual(self.file.job().step, 0)

    def test_asks_for_an_image(self):
        program = self.start()
        program.tell("now")
        self.until(lambda: self.file.job().wanted == 1)
        self.assertFalse(program.answers())
        self.file.write_daemon(due=1)
        self.wait_until_it_waits(program, 1)
        self.file.write_daemon(released=1, taken=1)
        self.assertEqual(program.answer(), "continued")
        # Not granted.
        program.tell("now")
        self.until(lambda: self.file.job().wanted == 2)
        self.file.write_daemon(due=2, released=2)
        self.assertEqual(program.answer(), "not held")

    def test_asking_while_one_is_due_takes_that_one(self):
        program = self.start()
        self.file.write_daemon(due=1)
        program.tell("now")
        self.wait_until_it_waits(program, 1)
        # The daemon is to know that this one must be stored when the job goes on.
        self.assertEqual(self.file.job().wanted, 1)
        self.file.write_daemon(released=1, taken=1)
        self.assertEqual(program.answer(), "continued")

    def test_says_again_what_another_process_overwrote(self):
        program = self.start()
        self.file.write_daemon(due=1)
        program.tell("here")
        self.wait_until_it_waits(program, 1)
        self.file.write_job(waiting=0)
        self.wait_until_it_waits(program, 1)
        self.file.write_daemon(released=1, taken=1)
        self.assertEqual(program.answer(), "continued")

    def test_holds_no_descriptor(self):
        program = self.start()
        program.ask("progress 1 0")
        program.ask("here")
        folder = "/proc/%d/fd" % program.process.pid
        links = [os.readlink(os.path.join(folder, fd)) for fd in os.listdir(folder)]
        self.assertNotIn(self.file.path, links)


class ForkedTests:
    def test_children_report_too(self):
        program = self.start()
        program.ask("progress 1 0")
        self.assertEqual(program.ask("child 2 2"), "said")
        self.assertEqual((self.file.job().step, self.file.job().calls), (2, 2))
        program.ask("progress 3 3")
        self.assertEqual((self.file.job().step, self.file.job().calls), (3, 3))


class CTest(Supervised, ForkedTests, unittest.TestCase):
    ARGV = [os.environ.get("REKINDLE_HOOK_SUPERVISED_JOB", "")]
    ENVIRONMENT = {}

    def test_what_others_write_to_a_closed_output_is_not_in_the_file(self):
        program = self.start()
        self.assertEqual(program.ask("closed 3000"), "said")
        with open(self.file.path, "rb") as file:
            self.assertNotIn(b"loss", file.read())
        self.assertEqual(self.file.job().step, 3000)


class PythonTest(Supervised, ForkedTests, unittest.TestCase):
    ARGV = [sys.executable, "-B", os.path.join(HERE, "supervised_job.py")]
    ENVIRONMENT = {
        "PATH": "/usr/bin:/bin", "PYTHONPATH": os.path.join(ROOT, "hook", "python"),
        "REKINDLE_HOOK_LIBRARY": os.environ.get("REKINDLE_HOOK_LIBRARY", ""),
    }

    def test_torch_gives_back_what_it_keeps_on_a_gpu(self):
        program = self.start()
        program.ask("torch")
        self.drop_and_take_images(program)

    def check_told_once(self, why, **environment):
        program = self.start(**environment)
        self.assertEqual(program.ask("progress 1 2"), "said")
        self.assertEqual(program.ask("progress 2 2"), "said")
        self.assertEqual(program.ask("now"), "not held")
        errors = program.end()
        self.assertEqual(errors.count("this job's progress is not reported"), 1, errors)
        self.assertIn(why, errors)

    def test_a_library_that_is_missing_is_told_once(self):
        library = "/nowhere/librekindle_hook.so"
        self.check_told_once(library, REKINDLE_HOOK_LIBRARY=library)
        self.check_told_once(library, REKINDLE_HOOK_LIBRARY=library, PYTHONWARNINGS="error")

    def test_a_library_that_has_no_such_functions_is_told_once(self):
        with open("/proc/self/maps", encoding="utf-8") as file:
            other = next(line.split()[-1] for line in file if "/libc.so" in line)
        self.check_told_once("rekindle_", REKINDLE_HOOK_LIBRARY=other)

    def test_a_python_without_ctypes_is_told_once(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "_ctypes.py"), "w", encoding="ascii") as file:
                file.write("raise ModuleNotFoundError(\"No module named '_ctypes'\")\n")
            self.check_told_once("_ctypes", PYTHONPATH=folder + os.pathsep + self.ENVIRONMENT["PYTHONPATH"])

    def test_signals_are_handled_while_it_waits(self):
        program = self.start(REKINDLE_BOUNDARY_SECONDS="600")
        self.file.write_daemon(due=1)
        program.tell("here")
        self.wait_until_it_waits(program, 1)
        program.process.send_signal(signal.SIGUSR1)
        self.assertEqual(program.answer(), "signalled")
        self.assertEqual(self.file.job().waiting, 1)
        self.file.write_daemon(released=1, taken=1)
        self.assertEqual(program.answer(), "continued")

    def test_a_handler_that_raises_ends_the_wait(self):
        program = self.start(REKINDLE_BOUNDARY_SECONDS="600")
        self.file.write_daemon(due=1)
        for _ in range(2):
            program.tell("here")
            self.wait_until_it_waits(program, 1)
            program.process.send_signal(signal.SIGUSR2)
            self.assertEqual(program.answer(), "raised")
            self.assertEqual(self.file.job().waiting, 0)


class NodeTest(Supervised, unittest.TestCase):
    ARGV = ["/usr/bin/node", os.path.join(HERE, "supervised_job.js")]
    ENVIRONMENT = {
        "PATH": "/usr/bin:/bin", "NODE_PATH": os.path.join(ROOT, "hook", "node"),
        "REKINDLE_HOOK_ADDON": os.environ.get("REKINDLE_HOOK_ADDON", ""),
    }

    def test_an_addon_that_is_missing_is_told_once(self):
        program = self.start(REKINDLE_HOOK_ADDON="/nowhere/rekindle_hook.node")
        self.assertEqual(program.ask("progress 1 2"), "said")
        self.assertEqual(program.ask("now"), "not held")
        errors = program.end()
        self.assertEqual(errors.count("this job's progress is not reported"), 1, errors)


if __name__ == "__main__":
    unittest.main()
