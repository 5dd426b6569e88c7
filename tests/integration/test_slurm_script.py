"""examples/slurm/rekindle-slurm by itself, with an `scontrol` of ours: what would take hours or two nodes with a real
Slurm, which test_slurm.py has.
"""

import os
import pwd
import shutil
import signal
import subprocess
import unittest

from harness import jobs, procfs, waiting
from harness.case import RekindleTest
from harness.cli import DONE, FAILED, NOT_PERMITTED, binary, environment

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/slurm")
IMAGE = f"slurm-{pwd.getpwuid(os.geteuid()).pw_name}-7"

SCONTROL = """#!/bin/sh
case "$1 $2" in
  "show config") echo "ProctrackType           = proctrack/cgroup" ;;
  "requeue 7") touch "${0%/*}/requeued" ;;
  "show job")
    echo "JobId=7 Reason=$(cat "${0%/*}/reason") Requeue=1 Restarts=$(cat "${0%/*}/restarts") ExcNodeList=(null)"
    ;;
  "update JobId=7") echo "$3" >>"${0%/*}/updates" ;;
esac
"""
# Counts, also into a file of its own where it is told one, until it is asked to end or a file is there.
COUNTER = """
trap 'exit 0' TERM
exec 9>>"${2:-/dev/null}"
i=0
until test -e "$1"; do
  i=$((i + 1))
  echo $i
  echo $i >&9
  sleep 0.05
done
exit "$(cat "$1")"
"""
# A `rekindle` for which the job ends just before its last image is taken.
ENDS_BEFORE = """#!/bin/sh
case "$*" in
  ckpt*--stop*)
    mv "$STATUS" "$STATUS.end"
    while test -e "/proc/$2" && ! grep -q '^State:.Z' "/proc/$2/status"; do sleep 0.05; done
    ;;
esac
exec "$REAL" "$@"
"""
# One that can't take the last image at once: somebody else takes one.
BUSY = """#!/bin/sh
case "$*" in
  ckpt*--stop*)
    echo tried >>"$TRIES"
    if test "$(wc -l <"$TRIES")" -le "$BUSY"; then
      echo "another checkpoint of it is under way" >&2
      exit 1
    fi
    ;;
esac
exec "$REAL" "$@"
"""


# One whose image had GPUs, and which tells what it was to map.
WITH_GPUS = """#!/bin/sh
case "$1 $3" in
  "inspect --json") "$REAL" "$@" | sed 's/^{/{"gpu":{"devices":[{"uuid":"GPU-a"},{"uuid":"GPU-b"}]},/' && exit ;;
esac
case "$*" in
  restore*--gpu-map*)
    echo "$*" | grep -o -- '--gpu-map .*' >"$MAPPED"
    exec "$REAL" $(echo "$*" | sed 's/ --gpu-map [^ ]*//')
    ;;
esac
exec "$REAL" "$@"
"""
NVIDIA_SMI = """#!/bin/sh
printf '0, GPU-a\\n1, GPU-b\\n2, GPU-c\\n3, GPU-d\\n'
"""


class ScriptTest(RekindleTest):
    def setUp(self):
        super().setUp()
        for folder in ("bin", "submit", "scratch"):
            os.mkdir(self.path(folder))
        self.write("bin/scontrol", SCONTROL, 0o755)
        self.announce_restarts(0)
        self.write("bin/reason", "None")
        self.settings = {
            **self.environment,
            "PATH": f"{self.path('bin')}:{os.path.dirname(binary('rekindle'))}:/usr/bin:/bin",
            "REKINDLE_STORE": self.store,
            "SLURM_JOB_ID": "7",
            "SLURM_SUBMIT_DIR": self.path("submit"),
            "SLURMD_NODENAME": "one",
        }

    def write(self, name, text, mode=0o644):
        path = self.path(name)
        with open(path + ".new", "w", encoding="ascii") as file:
            file.write(text)
        os.chmod(path + ".new", mode)
        os.rename(path + ".new", path)
        return path

    def announce_restarts(self, number):
        """What Slurm would say: is the job about to be started again?"""
        self.write("bin/restarts", str(number))

    def start(self, *options, lives=0, counts_in="", **settings):
        """One life of the job."""
        with open(self.output(), "ab") as output:
            script = subprocess.Popen(
                [os.path.join(EXAMPLES, "rekindle-slurm"), *options, "--", "sh", "-c", COUNTER, "sh",
                 self.path("end"), *([counts_in] if counts_in else [])],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment({**self.settings, "SLURM_RESTART_COUNT": str(lives), **settings}),
                start_new_session=True,
            )  # fmt: skip
        jobs.waited_elsewhere.add(script.pid)
        self.addCleanup(jobs.waited_elsewhere.discard, script.pid)
        self.addCleanup(script.wait)
        self.addCleanup(jobs.kill_tree, script.pid)
        return script

    def finish(self, script):
        def ended():
            jobs.reap_orphans()
            return script.poll() is not None

        waiting.until(ended, "the script ends", 90, 0.05)
        return script.returncode

    def end_counter(self, status):
        self.write("end", str(status))

    def preempt(self, *scripts, restarts=1):
        self.announce_restarts(restarts)
        for script in scripts:
            script.send_signal(signal.SIGTERM)
            self.assertEqual(self.finish(script), DONE, self.story())

    def output(self):
        return self.path("out")

    def story(self):
        with open(self.output(), encoding="utf-8", errors="replace") as file:
            return file.read()

    def numbers(self):
        return [int(line) for line in self.story().split("\n")[:-1] if line.isdigit()]

    def wait_for_numbers(self, more):
        at = len(self.numbers())

        def counted():
            jobs.reap_orphans()
            return len(self.numbers()) >= at + more

        try:
            waiting.until(counted, f"{more} more numbers", 60, 0.05)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.story()}") from None

    def wait_for_image(self, image=IMAGE):
        waiting.until(lambda: self.cli.run("inspect", image).code == DONE, f"{image}", 60, 0.1)

    def counter(self):
        command = f"sh -c {COUNTER} sh {self.path('end')}"
        return [pid for pid in procfs.all_pids() if procfs.command_line(pid).startswith(command)]

    def kill_counter(self, script):
        for pid in self.counter():
            os.kill(pid, signal.SIGKILL)
        self.assertEqual(self.finish(script), 128 + signal.SIGKILL, self.story())

    def mark(self):
        path = self.path("submit/.rekindle-slurm-" + IMAGE)
        if not os.path.exists(path):
            return None
        with open(path, encoding="ascii") as file:
            return file.read()

    def assert_each_number_once(self):
        numbers = self.numbers()
        self.assertEqual(numbers, list(range(1, len(numbers) + 1)), self.story())


class EndsTest(ScriptTest):
    """When an image goes, and when it stays."""

    def test_who_was_asked_to_end_and_ends_with_0_is_not_done(self):
        script = self.start("--every", "1")
        self.wait_for_image()
        script.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(script), DONE, self.story())
        self.assertEqual(self.references(), [IMAGE + ":latest"])
        self.assertIn("goes on from it", self.story())

        script = self.start(lives=1)
        self.wait_for_numbers(5)
        self.end_counter(0)
        self.assertEqual(self.finish(script), DONE, self.story())
        self.assert_each_number_once()
        self.assertEqual(self.references(), [])
        self.assertIsNone(self.mark())

    def test_one_that_was_told_nothing_of_its_time_limit_loses_nothing(self):
        script = self.start()
        self.wait_for_numbers(5)
        self.write("bin/reason", "TimeLimit")
        script.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(script), 128 + signal.SIGKILL, self.story())
        self.assertFalse(os.path.exists(self.path("bin/requeued")))
        self.assertEqual(self.references(), [IMAGE + ":latest"])
        self.assertIn("goes on from it", self.story())

        self.write("bin/reason", "None")
        script = self.start(lives=1)
        self.wait_for_numbers(5)
        self.end_counter(0)
        self.assertEqual(self.finish(script), DONE, self.story())
        self.assert_each_number_once()

    def test_either_signal_ahead_of_the_time_limit_asks_for_a_restart(self):
        for lives, signum in enumerate((signal.SIGUSR2, signal.SIGUSR1)):
            script = self.start(lives=lives)
            self.wait_for_numbers(5)
            script.send_signal(signum)
            self.assertEqual(self.finish(script), DONE, self.story())
            os.unlink(self.path("bin/requeued"))
        self.assert_each_number_once()

    def test_its_image_goes_where_that_is_wanted(self):
        script = self.start("--every", "1", "--remove-images")
        self.wait_for_image()
        script.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(script), DONE, self.story())
        self.assertEqual(self.references(), [])
        self.assertIsNone(self.mark())

    def test_who_ends_just_when_it_is_to_be_started_again(self):
        """Slurm starts it again whatever it has ended with."""
        rekindle = self.write("ends-before", ENDS_BEFORE, 0o755)
        status = self.write("status", "0")
        os.symlink(status + ".end", self.path("end"))
        script = self.start("--every", "1", REKINDLE=rekindle, REAL=binary("rekindle"), STATUS=status)
        self.wait_for_image()
        self.preempt(script)
        self.assertEqual(self.references(), [IMAGE + ":latest"], self.story())


class BusyTest(ScriptTest):
    """The last image can't be taken at once."""

    def start_busy(self, tries):
        rekindle = self.write("busy", BUSY, 0o755)
        script = self.start(REKINDLE=rekindle, REAL=binary("rekindle"), BUSY=str(tries), TRIES=self.path("tries"))
        self.wait_for_numbers(5)
        return script

    def tries(self):
        if not os.path.exists(self.path("tries")):
            return 0
        with open(self.path("tries"), encoding="ascii") as file:
            return len(file.readlines())

    def goes_on(self):
        self.assertEqual(self.references(), [IMAGE + ":latest"], self.story())
        script = self.start(lives=1)
        self.wait_for_numbers(5)
        self.end_counter(0)
        self.assertEqual(self.finish(script), DONE, self.story())
        self.assert_each_number_once()

    def test_preempted(self):
        self.preempt(self.start_busy(2))
        self.goes_on()

    def test_ahead_of_the_time_limit(self):
        script = self.start_busy(2)
        script.send_signal(signal.SIGUSR1)
        self.assertEqual(self.finish(script), DONE, self.story())
        self.assertTrue(os.path.exists(self.path("bin/requeued")))
        self.goes_on()

    def test_until_the_time_limit(self):
        script = self.start_busy(1000)
        script.send_signal(signal.SIGUSR1)
        waiting.until(lambda: self.tries() >= 2, "it tries again", 30, 0.05)
        self.wait_for_numbers(5)
        script.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(script), DONE, self.story())
        self.assertEqual(self.counter(), [])


class PlacesTest(ScriptTest):
    """Nodes, stores and folders that are not what they were."""

    def test_another_node_does_not_begin_anew(self):
        script = self.start("--every", "1")
        self.wait_for_image()
        waiting.until(self.mark, "it is noted where", 30)
        self.assertEqual(self.mark(), f"one {IMAGE}:latest\n")
        self.kill_counter(script)
        there = {"SLURMD_NODENAME": "two", "REKINDLE_STORE": self.path("there")}
        before = len(self.numbers())
        self.assertEqual(self.finish(self.start(lives=1, **there)), FAILED, self.story())
        self.assertEqual(len(self.numbers()), before)
        for word in ("on node one", "not on this node, two", "rekindle copy", "rm " + self.path("submit")):
            self.assertIn(word, self.story())

        # Brought there, it goes on.
        self.succeed("copy", IMAGE, "--to", self.path("there"))
        script = self.start("--every", "1", lives=2, **there)
        self.wait_for_numbers(5)
        waiting.until(lambda: self.mark() == f"two {IMAGE}:latest\n", "it is noted anew", 30)
        self.end_counter(0)
        self.assertEqual(self.finish(script), DONE, self.story())
        self.assert_each_number_once()
        self.assertIsNone(self.mark())

    def move_to_another_node(self):
        """It goes on there from the image that the first node has, and comes to a further one."""
        there = {"SLURMD_NODENAME": "two", "REKINDLE_STORE": self.path("there")}
        script = self.start("--every", "1")
        waiting.until(self.mark, "it is noted where", 30)
        self.kill_counter(script)
        self.succeed("copy", IMAGE, "--to", self.path("there"))
        script = self.start("--every", "1", lives=1, **there)
        waiting.until(lambda: (self.mark() or "").startswith("two"), "it is noted anew", 30)
        self.wait_for_numbers(5)
        self.kill_counter(script)

    def test_it_does_not_go_back_to_what_an_earlier_node_has(self):
        self.move_to_another_node()
        before = self.numbers()
        self.assertEqual(self.finish(self.start(lives=2)), FAILED, self.story())
        self.assertEqual(self.numbers(), before)
        for word in ("on node two", "of node one", "copy --replace", "rm " + self.path("submit")):
            self.assertIn(word, self.story())

        # With that of the other node it goes on.
        self.succeed("copy", IMAGE, "--from", self.path("there"), "--replace")
        script = self.start("--every", "1", lives=3)
        self.wait_for_numbers(5)
        self.end_counter(0)
        self.assertEqual(self.finish(script), DONE, self.story())
        self.assert_each_number_once()

    def test_it_goes_back_where_that_is_wanted(self):
        self.move_to_another_node()
        script = self.start("--begin-anew", lives=2)
        self.wait_for_numbers(5)
        self.end_counter(0)
        self.assertEqual(self.finish(script), DONE, self.story())
        self.assert_each_number_once()

    def test_it_begins_anew_where_that_is_wanted(self):
        script = self.start("--every", "1")
        waiting.until(self.mark, "an image", 60)
        self.kill_counter(script)
        script = self.start("--begin-anew", lives=1, REKINDLE_STORE=self.path("there"))
        self.wait_for_numbers(5)
        self.assertEqual(self.numbers().count(1), 2, self.story())
        self.assertIsNone(self.mark())
        self.end_counter(0)
        self.assertEqual(self.finish(script), DONE, self.story())

    def test_no_store_is_not_no_image(self):
        script = self.start("--every", "1")
        waiting.until(self.mark, "an image", 60)
        self.kill_counter(script)
        shutil.rmtree(self.path("submit"))
        before = len(self.numbers())
        gone = self.start(lives=1, REKINDLE_STORE=self.path("not-mounted"))
        self.assertEqual(self.finish(gone), FAILED, self.story())
        self.assertIn("mount the store", self.story())
        self.assertEqual(len(self.numbers()), before)

    def test_files_that_an_epilog_has_removed(self):
        scratch = self.path("scratch/numbers")
        script = self.start(counts_in=scratch)
        self.wait_for_numbers(5)
        self.preempt(script)
        os.unlink(scratch)
        with open(self.output(), "a", encoding="ascii") as output:
            output.write("CANCELLED DUE TO PREEMPTION\n")
        script = self.start(lives=1)
        self.wait_for_numbers(5)
        self.end_counter(0)
        self.assertEqual(self.finish(script), DONE, self.story())
        self.assert_each_number_once()
        self.assertIn("CANCELLED DUE TO PREEMPTION\n", self.story())
        with open(scratch, encoding="ascii") as file:
            self.assertEqual(file.read().strip("\0").split("\n")[-2], str(self.numbers()[-1]))

    def test_images_of_an_earlier_script(self):
        """Their names had no user."""
        script = self.start("--name", "slurm-7")
        self.wait_for_numbers(5)
        self.preempt(script)
        script = self.start(lives=1)
        self.wait_for_numbers(5)
        self.end_counter(0)
        self.assertEqual(self.finish(script), DONE, self.story())
        self.assert_each_number_once()
        self.assertEqual(self.references(), [])

    def test_tasks_of_an_array_have_images_of_their_own(self):
        array = [{"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": task} for task in ("1", "2")]
        scripts = [self.start("--name", "sweep", **task) for task in array]
        waiting.until(lambda: len(self.counter()) == 2, "both run", 30)
        self.wait_for_numbers(10)
        self.preempt(*scripts)
        self.assertEqual(self.references(), ["sweep_1:latest", "sweep_2:latest"], self.story())

    def test_a_name_that_another_user_has(self):
        rekindle = self.write("rekindle", f'#!/bin/sh\n[ "$1" != inspect ] || exit {NOT_PERMITTED}\n', 0o755)
        self.assertEqual(self.finish(self.start("--name", "theirs", REKINDLE=rekindle)), FAILED)
        self.assertIn("choose another --name", self.story())


class GpusTest(ScriptTest):
    """The GPUs are those of another node's, or other ones of this."""

    def mapped(self, allowed):
        self.write("bin/rekindle", WITH_GPUS, 0o755)
        self.write("bin/nvidia-smi", NVIDIA_SMI, 0o755)
        settings = {"REAL": binary("rekindle"), "MAPPED": self.path("mapped"), "SLURM_JOB_GPUS": allowed}
        script = self.start(**settings)
        self.wait_for_numbers(2)
        self.preempt(script)
        self.announce_restarts(1)
        script = self.start(lives=1, **settings)
        self.wait_for_numbers(2)
        self.end_counter(0)
        self.assertEqual(self.finish(script), DONE, self.story())
        if not os.path.exists(self.path("mapped")):
            return None
        with open(self.path("mapped"), encoding="ascii") as file:
            return file.read().split()[1]

    def test_others_are_given(self):
        self.assertEqual(self.mapped("2,3"), "GPU-a=GPU-c,GPU-b=GPU-d")

    def test_one_of_them_is_still_its_own(self):
        self.assertEqual(self.mapped("1,2"), "GPU-a=GPU-c")

    def test_they_are_the_same(self):
        self.assertIsNone(self.mapped("0,1"))


class DaemonTest(ScriptTest):
    def test_runs_on_while_the_daemon_is_started_anew(self):
        daemon = self.start_daemon("--standby", "0")
        del self.settings["REKINDLE_STORE"]
        self.settings["REKINDLE_HOST"] = daemon.host
        script = self.start()
        self.wait_for_numbers(5)
        self.preempt(script)
        script = self.start(lives=1)
        self.wait_for_numbers(5)
        for end in (daemon.stop, daemon.kill):
            end()
            self.wait_for_numbers(5)
            waiting.until(lambda: "the daemon has gone" in self.story(), "it is told", 30)
            self.assertIsNone(script.poll(), self.story())
            daemon = self.start_daemon("--standby", "0")
        # Also while there is none: it is waited for.
        daemon.kill()
        self.announce_restarts(2)
        script.send_signal(signal.SIGTERM)
        daemon = self.start_daemon("--standby", "0")
        self.assertEqual(self.finish(script), DONE, self.story())
        script = self.start(lives=2)
        self.wait_for_numbers(5)
        daemon.kill()
        self.end_counter(7)
        self.assertEqual(self.finish(script), 7, self.story())
        self.assert_each_number_once()

    def without_store(self, **settings):
        """With a daemon's place in the environment, where there may be none."""
        del self.settings["REKINDLE_STORE"]
        self.settings["REKINDLE_HOST"] = "unix://" + self.path("d.sock")
        self.settings.update(settings)

    def test_the_daemon_comes_after_slurmd(self):
        self.without_store()
        script = self.start()
        daemon = self.start_daemon("--standby", "0")
        self.assertEqual(daemon.host, self.settings["REKINDLE_HOST"])
        self.wait_for_numbers(3)
        self.end_counter(0)
        self.assertEqual(self.finish(script), DONE, self.story())

    def test_a_node_without_daemon_fails_no_jobs(self):
        self.without_store(REKINDLE_SLURM_WAIT="0")
        self.assertEqual(self.finish(self.start()), DONE, self.story())
        self.assertTrue(os.path.exists(self.path("bin/requeued")))
        with open(self.path("bin/updates"), encoding="ascii") as file:
            self.assertEqual(file.read(), "ExcNodeList=one\n")
        self.assertIn("Rekindle does not work on node one", self.story())
        self.assertEqual(self.numbers(), [])

    def test_what_has_an_image_waits_for_its_node(self):
        self.without_store(REKINDLE_SLURM_WAIT="0")
        self.assertEqual(self.finish(self.start(lives=1)), FAILED, self.story())
        self.assertFalse(os.path.exists(self.path("bin/requeued")))
        self.assertIn("goes on once it works", self.story())


class UsageTest(unittest.TestCase):
    def test_what_is_wrong_is_named(self):
        for words, told in (
            (["--evry", "5m"], "no option '--evry': did you mean '--every'?"),
            (["--every=5m", "--", "true"], "write '--every 5m', without '='"),
            (["--every", "5x", "--", "true"], "--every: '5x' is no time"),
            (["--name", "A", "--", "true"], "--name: 'A' is no name"),
            (["--beginanew", "--", "true"], "no option '--beginanew'\n"),
            (["train"], "'train' is no option: the command comes after '--'"),
            (["--every", "5m"], "there is no command"),
        ):
            with self.subTest(words=words):
                done = subprocess.run(["bash", os.path.join(EXAMPLES, "rekindle-slurm"), *words], capture_output=True,
                                      text=True, check=False)  # fmt: skip
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn("rekindle-slurm: ", done.stderr)
                self.assertIn(told, done.stderr)


if __name__ == "__main__":
    unittest.main()
