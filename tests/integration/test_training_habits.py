"""What trainings do that an image alone does not see: files that are opened for each line, helpers that become daemons,
workers that come and go, and hangs that use the processor.
"""

import json
import os
import signal
import subprocess
import struct
import unittest

from harness import jobs, procfs, waiting
from harness.case import RekindleTest
from harness.cli import DONE, FAILED, USAGE
from test_supervision import SupervisedTest, lines_of

# As TensorBoard's SummaryWriter appends where there is no TensorFlow (tensorflow_stub/io/gfile.py), and as many a training
# keeps its log: opened, written and closed each time.
_APPEND = """
import os, struct, sys, time
folder, until = sys.argv[1:3]
os.makedirs(folder + "/runs/first", exist_ok=True)
events = f"{folder}/runs/first/events.out.tfevents.{int(time.time()):010d}.host.{os.getpid()}.0"
number = 0
while not os.path.exists(until):
    with open(events, "ab") as file:
        file.write(struct.pack("<Q", number))
    with open(folder + "/log.txt", "a") as log:
        log.write(f"{number}\\n")
    print(number, flush=True)
    number += 1
    time.sleep(0.02)
"""


class TrackedFilesTest(SupervisedTest):
    def events(self):
        folder = self.path("runs/first")
        (name,) = os.listdir(folder)
        with open(os.path.join(folder, name), "rb") as file:
            content = file.read()
        self.assertEqual(len(content) % 8, 0)
        return [number for (number,) in struct.iter_unpack("<Q", content)]

    def wait_for_lines(self, more=20):
        count = len(lines_of(self.path("log.txt")))
        waiting.until(lambda: len(lines_of(self.path("log.txt"))) > count + more, "more lines")

    def command(self):
        return [jobs.PYTHON, "-c", _APPEND, self.directory, self.may_end]

    def test_each_record_is_there_once_however_often_the_job_is_killed(self):
        self.succeed("run", "--name", "job", "--detach", "--every", "300ms", "--restarts", "5",
                     "--track-path", self.path("runs/**/events.out.tfevents.*"), "--track-path", self.path("log.txt"),
                     "--", *self.command(), cli=self.remote)  # fmt: skip
        waiting.until(lambda: lines_of(self.path("log.txt")), "the job runs")
        for restart in range(1, 4):
            self.wait_for_image(self.state()["checkpoints"])
            self.wait_for_lines()
            self.kill_job()
            self.wait_for(lambda job, n=restart: job["supervised"]["restarts"] == n, "a restart")
        self.wait_for_lines()
        self.let_end()
        self.wait_for_end()
        count = len(lines_of(self.path("log.txt")))
        self.assertEqual(lines_of(self.path("log.txt")), [str(number) for number in range(count)])
        self.assertEqual(self.events(), list(range(count)))

    def test_by_hand(self):
        job = self.start_job(self.command(), "appends")
        waiting.until(lambda: len(lines_of(self.path("log.txt"))) > 20, "the job runs")
        self.checkpoint(job.pid, "x:1", "--track-path", self.path("runs"), "--track-path", self.path("log.txt"))
        written = {file["path"]: file for file in self.succeed("inspect", "x:1")["written_files"]}
        self.assertTrue(written[self.path("log.txt")]["tracked"], written)
        self.wait_for_lines()
        os.kill(job.pid, 9)
        job.reap()
        had = len(self.events())
        with open(self.path("runs/first/made.later"), "w", encoding="ascii"):
            pass
        result = self.cli.run("restore", "x:1", "--rollback", "append", "--dry-run")
        self.assertEqual(result.code, DONE, str(result))
        files = {os.path.basename(file["path"]): file for file in json.loads(result.out.splitlines()[0])["files"]}
        self.assertEqual(files["log.txt"]["action"], "truncated", files)
        self.assertEqual(files["log.txt"]["size"], written[self.path("log.txt")]["size"])
        self.assertEqual(files["made.later"]["action"], "left", files)
        self.assertIn("made after the image", files["made.later"]["why"])
        os.unlink(self.path("runs/first/made.later"))
        self.assertEqual(len(self.events()), had)
        result = self.cli.run("restore", "x:1", "--rollback", "append", "--detach")
        self.assertEqual(result.code, DONE, str(result))
        self.kill_job_at_end(result.data["job"]["pid"])
        self.wait_for_lines(2 * had)
        self.let_end()
        waiting.until(lambda: not procfs.alive(result.data["job"]["pid"]), "its end")
        self.assertEqual(self.events(), list(range(len(self.events()))))

    def test_an_image_by_hand_before_any_other(self):
        """It is the first image of a supervised job, which goes on from it, and so does whoever restores it."""
        self.succeed("run", "--name", "job", "--detach", "--restarts", "5",
                     "--track-path", self.path("runs/**/events.out.tfevents.*"), "--track-path", self.path("log.txt"),
                     "--", *self.command(), cli=self.remote)  # fmt: skip
        waiting.until(lambda: lines_of(self.path("log.txt")), "the job runs")
        self.succeed("ckpt", "job", "-t", "mine:1", cli=self.remote)
        written = {file["path"]: file for file in self.succeed("inspect", "mine:1", cli=self.remote)["written_files"]}
        self.assertTrue(written[self.path("log.txt")]["tracked"], written)
        self.wait_for_lines()
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        self.wait_for_lines()
        self.succeed("stop", "job", cli=self.remote)
        result = self.remote.run("restore", "mine:1", "--rollback", "append", "--detach")
        self.assertEqual(result.code, DONE, str(result))
        self.kill_job_at_end(result.data["job"]["pid"])
        self.wait_for_lines()
        self.let_end()
        waiting.until(lambda: not procfs.alive(result.data["job"]["pid"]), "its end")
        count = len(lines_of(self.path("log.txt")))
        self.assertEqual(lines_of(self.path("log.txt")), [str(number) for number in range(count)])
        self.assertEqual(self.events(), list(range(len(self.events()))))

    def test_what_can_not_be_tracked(self):
        for path, words in (("/proc/self", "/proc"), ("/dev/shm/x", "/dev")):
            result = self.remote.run("run", "--name", "job", "--detach", "--every", "1h", "--track-path", path, "--", "true")
            self.assertEqual(result.code, USAGE, str(result))
            self.assertIn(words, str(result))
        result = self.remote.run("run", "--name", "job", "--detach", "--track-path", "runs", "--", "true")
        self.assertEqual(result.code, USAGE, str(result))
        self.assertIn("--track-path is for jobs that are supervised", str(result))


# What it appends to without keeping it open, and what it writes anew each time: a state, all metrics, weights.
_REOPENS = """
import os, struct, sys, time
folder, until = sys.argv[1:3]
os.makedirs(folder + "/runs/first", exist_ok=True)
events = f"{folder}/runs/first/events.out.tfevents.0000000001.host.{os.getpid()}.0"
lines = []
step = 0
while not os.path.exists(until):
    lines.append(f"step {step}\\n")
    with open(folder + "/log.txt", "a") as log:
        log.write(lines[-1])
    with open(events, "ab") as file:
        file.write(struct.pack("<Q", step))
    with open(folder + "/all.csv", "w") as table:
        table.writelines(lines)
    with open(folder + "/state.json", "w") as state:
        state.write(f'{{"step": {step}}}\\n')
    with open(folder + "/weights.bin", "wb") as weights:
        weights.write(bytes(1000 + step))
    print(step, flush=True)
    step += 1
    time.sleep(0.02)
"""


class ReopenedFilesTest(SupervisedTest):
    def setUp(self):
        super().setUp()
        self.log = self.path("log.txt")

    def start_job_that_reopens(self, *options, detach=True):
        command = ["run", "--name", "job", "--every", "1h", "--restarts", "5", *options,
                   *(["--detach"] if detach else []), "--", jobs.PYTHON, "-c", _REOPENS, self.directory, self.may_end]  # fmt: skip
        return self.succeed(*command, cli=self.remote) if detach else self.remote.start(*command)

    def lose_some(self):
        self.wait_for(lambda job: job["supervised"]["checkpoints"], "an image")
        at = len(lines_of(self.log))
        waiting.until(lambda: len(lines_of(self.log)) > at + 40, "more lines")
        restarts = self.state()["restarts"]
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["restarts"] == restarts + 1, "a restart")

    def test_that_lines_are_there_twice_is_told_once(self):
        follower = self.start_job_that_reopens("--log", self.path("out"), detach=False)
        pid = waiting.until(lambda: self.job()["pid"], "the job")
        self.lose_some()
        (warning,) = self.wait_for(lambda job: job["supervised"]["warnings"], "a warning")
        for words in (self.log, self.path(f"runs/first/events.out.tfevents.0000000001.host.{pid}.0"), "--track-path", "twice"):
            self.assertIn(words, warning)
        for name in ("all.csv", "state.json", "weights.bin", self.path("out")):
            self.assertNotIn(name, warning)
        self.lose_some()
        self.let_end()
        result = self.remote.finish(follower)
        self.assertEqual(self.state()["warnings"], [warning])
        events = [json.loads(line) for line in result.out.splitlines()]
        self.assertEqual([event["warning"] for event in events if "warning" in event], [warning])
        restarted = [event for event in events if "written_since" in event]
        self.assertEqual(len(restarted), 2, events)
        self.assertIn(self.log, restarted[0]["written_since"])
        self.assertNotIn(self.path("weights.bin"), restarted[0]["written_since"])
        self.assertGreater(len(lines_of(self.log)), len(set(lines_of(self.log))))

    def test_of_one_made_after_the_image_that_is_told(self):
        """As a training opens its table after it has loaded its data: no option would have helped."""
        table, go = self.path("table.csv"), self.path("go")
        self.succeed("run", "--name", "job", "--every", "1h", "--restarts", "5", "--detach", "--log", self.path("out"),
                     "--", "sh", "-c",
                     'until [ -e "$1" ]; do sleep 0.02; done; exec 3>>"$2"; i=0; '
                     'while :; do i=$((i+1)); echo "row $i" >&3; sleep 0.02; done', "sh", go, table,
                     cli=self.remote)  # fmt: skip
        self.succeed("ckpt", "job", "-t", "before:1", cli=self.remote)
        with open(go, "w", encoding="ascii"):
            pass
        waiting.until(lambda: os.path.exists(table) and len(lines_of(table)) > 40, "rows")
        self.kill_job()
        (warning,) = self.wait_for(lambda job: job["supervised"]["warnings"], "a warning")
        for words in (table, "made after the image", "twice", "rekindle ckpt job -t"):
            self.assertIn(words, warning)
        self.assertNotIn("does not keep", warning)

    def test_tracked_ones_are_no_trouble(self):
        self.start_job_that_reopens("--track-path", self.log, "--track-path", self.path("runs"))
        self.lose_some()
        at = len(lines_of(self.log))
        waiting.until(lambda: len(lines_of(self.log)) > at + 400, "more lines")
        self.assertEqual(self.state()["warnings"], [])


# A log that its program rotates, as many a training's.
_ROTATES = """
import logging, logging.handlers, os, sys, time
handler = logging.handlers.RotatingFileHandler(sys.argv[1], maxBytes=400, backupCount=1000)
logging.getLogger().addHandler(handler)
number = 0
while not os.path.exists(sys.argv[2]):
    logging.warning("%06d", number)
    print(number, flush=True)
    number += 1
    time.sleep(0.01)
"""


class RotatedLogTest(SupervisedTest):
    def logged(self):
        """All that its logs say, from the oldest on."""
        backups = [name for name in os.listdir(self.path("rotated")) if name.startswith("app.log.") and name[8:].isdigit()]
        lines = []
        for name in sorted(backups, key=lambda name: -int(name[8:])) + ["app.log"]:
            lines += lines_of(self.path("rotated/" + name))
        return lines

    def test_each_line_is_there_once(self):
        os.mkdir(self.path("rotated"))
        self.succeed("run", "--name", "job", "--detach", "--every", "1h", "--restarts", "5", "--log", self.path("out"),
                     "--", jobs.PYTHON, "-c", _ROTATES, self.path("rotated/app.log"), self.may_end, cli=self.remote)  # fmt: skip
        self.wait_for_image()
        for restart in range(1, 4):
            at = len(lines_of(self.path("out")))
            # Some times beyond all that the image has.
            waiting.until(lambda: len(lines_of(self.path("out"))) > at + 60 * restart, "more lines")
            if restart == 2:
                self.succeed("ckpt", "job", "-t", "mine:1", cli=self.remote)
            self.kill_job()
            self.wait_for(lambda job, n=restart: job["supervised"]["restarts"] == n, "a restart")
        at = len(lines_of(self.path("out")))
        waiting.until(lambda: len(lines_of(self.path("out"))) > at + 60, "more lines")
        self.let_end()
        self.wait_for_end()
        self.assertEqual(self.logged(), [f"{number:06}" for number in range(len(self.logged()))])


class DaemonisedHelperTest(SupervisedTest):
    """`redis-server --daemonize yes; python3 train.py`, as far as a process tree goes."""

    def start_with_helper(self, *options, detach=True):
        command = ["run", "--name", "job", *options, *(["--detach"] if detach else []), "--", "sh", "-c",
                   'setsid -f sleep 98765 </dev/null >/dev/null 2>&1; exec "$@"', "sh",
                   jobs.PYTHON, jobs.workload("counting.py"), self.numbers, "100000"]  # fmt: skip
        return self.succeed(*command, cli=self.remote) if detach else self.remote.start(*command, json_output=False)

    def test_it_is_told_once_that_it_is_in_no_image(self):
        command = self.start_with_helper("--every", "300ms", "--restarts", "0", detach=False)
        self.wait_for(lambda job: job["supervised"]["warnings"], "a warning")
        self.wait_for_image(self.state()["checkpoints"] + 1)
        (warning,) = self.state()["warnings"]
        self.assertIn("(sleep 98765)", warning)
        self.assertIn("in the foreground", warning)
        asked = self.succeed("ckpt", "job", "-t", "mine:1", cli=self.remote)
        self.assertIn("(sleep 98765)", "".join(asked["warnings"]))
        self.succeed("stop", "job", "--grace", "0s", cli=self.remote)
        result = self.remote.finish(command)
        self.assertEqual(result.err.count("sleep 98765"), 1, result.err)

    def test_a_tree_is_no_trouble(self):
        self.start(100000, "child", options=["--every", "300ms", "--restarts", "0"])
        self.wait_for_image(2)
        self.assertEqual(self.state()["warnings"], [])
        self.assertEqual(self.succeed("ckpt", "job", "-t", "mine:1", cli=self.remote)["warnings"], [])


# A helper that is told each step over a connection, as of wandb. Its port is not marked as one that may be had again at
# once, and the end that keeps the port busy closes first.
_TELLS_A_HELPER = """
import os, socket, sys, time
server = socket.socket()
server.bind(("127.0.0.1", 0))
server.listen()
if os.fork() == 0:
    told = socket.create_connection(server.getsockname())
    server.close()
    out = open(sys.argv[1], "a", buffering=1)
    for line in told.makefile():
        out.write(line)
    os._exit(0)
helper, _ = server.accept()
for number in range(100000):
    helper.sendall(b"%d\\n" % number)
    time.sleep(0.01)
"""


class SidecarTest(SupervisedTest):
    def test_its_port_is_there_at_once(self):
        command = self.remote.start("run", "--name", "job", "--every", "300ms", "--restarts", "3", "--", jobs.PYTHON, "-c",
                                    _TELLS_A_HELPER, self.numbers, json_output=False)  # fmt: skip
        self.wait_for_image()
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart", 100)
        at = len(lines_of(self.numbers))
        waiting.until(lambda: len(lines_of(self.numbers)) > at + 10, "more numbers")
        self.succeed("stop", "job", cli=self.remote)
        self.assertNotIn("can't be brought back yet", self.remote.finish(command).err)
        numbers = lines_of(self.numbers)
        self.assertEqual(numbers, [str(number) for number in range(len(numbers))])


# Workers as of a DataLoader that is not persistent: some are always just ending, and have threads.
_WORKERS = """
import os, sys, threading, time
workers = set()
while True:
    while len(workers) < 6:
        worker = os.fork()
        if worker == 0:
            for _ in range(6):
                threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
            os._exit(0)
        workers.add(worker)
        print(worker, flush=True)
    workers.discard(os.wait()[0])
"""


class ShortLivedWorkersTest(RekindleTest):
    def test_each_image_is_taken(self):
        log = self.path("log")
        job = self.succeed("run", "--detach", "--name", "job", "--log", log, "--", jobs.PYTHON, "-c", _WORKERS)["job"]
        self.kill_job_at_end(job["pid"])
        waiting.until(lambda: len(lines_of(log)) > 20, "workers")
        # One of eight met one that was just ending.
        for number in range(30):
            self.succeed("ckpt", "job", "-t", f"job:{number}")


# What a training that keeps its last three checkpoints does to itself when it goes back.
_REMOVES = """
import os, sys, time
folder = sys.argv[1]
for step in range(100000):
    open(f"{folder}/checkpoint-{step}", "w").close()
    if step >= 3:
        os.remove(f"{folder}/checkpoint-{step - 3}")
    time.sleep(0.05)
"""


# The same, of steps that take longer, which are what is counted.
_KEEPS = """
import os, sys, time
for step in range(100000):
    if sys.argv[1] == "file":
        open(f"checkpoint-{step}", "w").write(str(step))
    else:
        os.makedirs(f"checkpoint-{step}/shards", exist_ok=True)
        open(f"checkpoint-{step}/shards/model.pt", "w").write(str(step))
    print(step, flush=True)
    if step >= 60:
        old = f"checkpoint-{step - 60}"
        assert open(old if sys.argv[1] == "file" else old + "/shards/model.pt").read() == str(step - 60)
        if sys.argv[1] == "file":
            os.remove(old)
        else:
            os.remove(old + "/shards/model.pt")
            os.rmdir(old + "/shards")
            os.rmdir(old)
    time.sleep(0.05)
"""


class RemovedCheckpointsTest(SupervisedTest):
    def setUp(self):
        super().setUp()
        self.work, self.log = self.path("work"), self.path("log")
        os.mkdir(self.work)

    def begin(self, *options, kind="file"):
        result = self.remote.run("run", "--name", "job", "--detach", "--restarts", "3", "--backoff", "100ms",
                                 "--log", self.log, "--keep-removed", self.work, *options, "--", jobs.PYTHON, "-c",
                                 _KEEPS, kind,
                                 prefix=("env", "-C", self.work))  # fmt: skip
        self.assertEqual(result.code, DONE, str(result))

    def kept(self):
        return self.path(f".rekindle-removed.job@{os.path.basename(self.work)}")

    def steps(self):
        return len(lines_of(self.log))

    def wait_for_steps(self, more):
        at = self.steps()
        waiting.until(lambda: self.steps() > at + more, "further steps", 120)
        return at

    def goes_back_beyond_what_it_has_removed(self):
        """Dies when it has removed what was there in its image, and gets further than then."""
        self.wait_for_steps(70)
        at = self.steps()
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        self.assert_gets_further_than(at)

    def assert_gets_further_than(self, at):
        waiting.until(lambda: self.steps() > at + 5 or self.state()["restarts"] > 1, "it gets further than it was", 120)
        self.assertEqual(self.state()["restarts"], 1, self.state()["deaths"])

    def test_it_finds_them_when_it_has_gone_back(self):
        for kind in ("file", "folder"):
            with self.subTest(kind=kind):
                self.work = self.path(kind)
                os.mkdir(self.work)
                self.begin("--every", "1h", kind=kind)
                self.wait_for_steps(70)
                self.succeed("ckpt", "job", "-t", f"{kind}:1", cli=self.remote)
                self.goes_back_beyond_what_it_has_removed()
                self.succeed("stop", "job", cli=self.remote)
                waiting.until(lambda: self.state()["phase"] == "done", "its end")
                os.unlink(self.log)

    def test_those_of_an_earlier_submission_are_its_own(self):
        self.begin("--every", "1h")
        self.wait_for_steps(70)
        self.succeed("ckpt", "job", "-t", "job:first", cli=self.remote)
        self.succeed("stop", "job", cli=self.remote)
        waiting.until(lambda: self.state()["phase"] in ("done", "failed"), "its end")
        self.succeed("run", "--name", "job", "--detach", "--restarts", "3", "--backoff", "100ms", "--every", "1h",
                     "--keep-removed", self.work, "--from", "job:first", cli=self.remote)  # fmt: skip
        self.goes_back_beyond_what_it_has_removed()

    def test_of_its_own_images_and_after_a_daemon_was_killed(self):
        self.begin("--every", "2s", "--keep", "2")
        self.wait_for_image(3)
        pid = self.job()["pid"]
        at = self.steps()
        os.kill(pid, signal.SIGSTOP)
        waiting.until(lambda: procfs.state(pid) == "T", "it stands still")
        self.daemon.kill()
        os.kill(pid, signal.SIGCONT)
        waiting.until(lambda: self.steps() > at + 70, "it removes what the images had", 120)
        at = self.steps()
        os.kill(pid, signal.SIGKILL)
        self.restart_daemon()
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        self.assert_gets_further_than(at)
        self.wait_for_image(self.state()["checkpoints"] + 2)
        # What no image needs any more is gone.
        kept = os.listdir(self.kept())
        self.assertLess(len(kept), self.steps() - 60, kept)

    def test_a_start_that_fails_leaves_them_and_the_record(self):
        self.begin("--every", "1h")
        self.wait_for_steps(70)
        self.succeed("ckpt", "job", "-t", "job:first", cli=self.remote)
        self.wait_for_steps(10)
        self.succeed("stop", "job", cli=self.remote)
        waiting.until(lambda: self.state()["phase"] in ("done", "failed"), "its end")
        before, kept, at = self.job(), os.listdir(self.kept()), self.steps()
        self.assertTrue(kept)
        again = ("run", "--name", "job", "--detach", "--restarts", "3", "--every", "1h", "--keep-removed", self.work)
        refused = self.remote.run(*again, "--", "/no/such/program")
        self.assert_refused(refused, FAILED, "/no/such/program")
        self.daemon.stop()
        self.restart_daemon()
        self.assertEqual(self.job(), before)
        self.assertEqual(os.listdir(self.kept()), kept)
        self.succeed(*again, "--from", "job:first", cli=self.remote)
        waiting.until(lambda: self.steps() > at or self.state()["restarts"] > 0, "it gets further than it was", 120)
        self.assertEqual(self.state()["restarts"], 0, self.state()["deaths"])

    def test_where_nobody_asks_for_it_nothing_is_kept(self):
        result = self.remote.run("run", "--name", "job", "--every", "200ms", "--detach", "--", "sh", "-c",
                                 'touch a; exec sleep 1000', prefix=("env", "-C", self.work))  # fmt: skip
        self.assertEqual(result.code, DONE, str(result))
        self.wait_for_image(2)
        self.assertEqual(os.listdir(self.work), ["a"])
        refused = self.remote.run("run", "--name", "other", "--every", "1h", "--detach", "--keep-removed", "/tmp", "--", "true")
        self.assertEqual(refused.code, USAGE, str(refused))
        self.assertIn("alone has its files", str(refused))

    def test_one_that_is_ignored_is_not_kept(self):
        self.begin("--every", "300ms", "--ignore-path", self.work)
        self.wait_for_image(2)
        self.assertEqual([name for name in os.listdir(self.work) if name.startswith(".")], [])

    def test_nothing_is_left_of_one_that_ends_well(self):
        result = self.remote.run("run", "--name", "job", "--every", "200ms", "--detach", "--keep-removed", ".", "--", "sh", "-c",
                                 'touch a; while [ ! -e "$1" ]; do sleep 0.05; done; rm a', "sh", self.may_end,
                                 prefix=("env", "-C", self.work))  # fmt: skip
        self.assertEqual(result.code, DONE, str(result))
        self.wait_for_image(1)
        waiting.until(lambda: os.path.exists(self.kept()), "it is kept")
        self.assertEqual(os.listdir(self.work), ["a"])
        self.let_end()
        self.wait_for_end()
        self.assertEqual(os.listdir(self.work), [])
        self.assertFalse(os.path.exists(self.kept()))

    def test_in_a_mount_of_its_own_it_is_kept_inside(self):
        """Also of one file system: no second names are given from one mount to the other."""
        subprocess.run(["mount", "--bind", self.work, self.work], check=True)
        self.addCleanup(subprocess.run, ["umount", "--lazy", self.work], check=True)
        self.begin("--every", "200ms")
        waiting.until(lambda: os.path.exists(os.path.join(self.work, ".rekindle-removed.job")), "it is kept")
        self.assertFalse(os.path.exists(self.kept()))


# Its output goes through a pipe of its own to its own log, and on to where it went before.
_TEES = """
exec > >(tee -a "$1") 2>&1
tee=$!
n=0
while [ ! -e "$2" ]; do echo $n; n=$((n + 1)); sleep 0.02; done
exec > /dev/null 2>&1
wait $tee
"""

# The same within one process.
_CATCHES_ITSELF = """
import os, sys, threading, time
was = os.dup(1)
read, write = os.pipe()
os.dup2(write, 1)
os.close(write)
log = open(sys.argv[1], "a")


def pass_on():
    while data := os.read(read, 65536):
        os.write(was, data)
        log.write(data.decode())
        log.flush()


thread = threading.Thread(target=pass_on)
thread.start()
number = 0
while not os.path.exists(sys.argv[2]):
    os.write(1, b"%d\\n" % number)
    number += 1
    time.sleep(0.02)
os.close(1)
thread.join()
"""

_READS_ITS_OWN = """
exec 3>> "$1"
while read -r number; do
  echo $number
  echo $number >&3
done < <(n=0; while [ ! -e "$2" ]; do echo $n; n=$((n + 1)); sleep 0.02; done)
"""


class OwnPipesTest(SupervisedTest):
    """A pipe whose both ends are the job's is brought back as it was, also where it is its standard output or input."""

    def goes_through(self, *argv):
        own, log = self.path("own.log"), self.path("out.log")
        with open(own, "w", encoding="ascii"):
            pass
        self.succeed("run", "--name", "job", "--detach", "--every", "300ms", "--restarts", "5", "--backoff", "100ms",
                     "--log", log, "--", *argv, own, self.may_end, cli=self.remote)  # fmt: skip
        for killed in (1, 2):
            self.wait_for_image(self.state()["checkpoints"])
            at = len(lines_of(own))
            waiting.until(lambda n=at: len(lines_of(own)) > n + 3, "further lines")
            self.kill_job()
            self.wait_for(lambda job, n=killed: job["supervised"]["restarts"] == n, "a restart")
            at = len(lines_of(log))
            waiting.until(lambda n=at: len(lines_of(log)) > n + 3, "its log goes on")
        self.let_end()
        self.wait_for_end()
        self.assertEqual(lines_of(own), [str(number) for number in range(len(lines_of(own)))])
        self.assertEqual(lines_of(log), lines_of(own))
        self.assertEqual([name for name in os.listdir(self.path("logs")) if name.endswith(".log")], [])

    def test_an_output_with_tee(self):
        self.goes_through("bash", "-c", _TEES, "bash")

    def test_an_output_that_it_catches_itself(self):
        self.goes_through(jobs.PYTHON, "-c", _CATCHES_ITSELF)

    def test_an_input_from_a_process_of_its_own(self):
        self.goes_through("bash", "-c", _READS_ITS_OWN, "bash")


class LastWordsTest(SupervisedTest):
    def newest(self):
        return max(int(name.split("-")[1]) for name in os.listdir(self.directory) if name.startswith("checkpoint-"))

    def test_why_it_died_is_told_with_each_death(self):
        self.succeed("run", "--name", "job", "--detach", "--every", "1h", "--restarts", "2", "--backoff", "100ms",
                     "--", jobs.PYTHON, "-c", _REMOVES, self.directory, cli=self.remote)  # fmt: skip
        self.wait_for_image()
        self.succeed("ckpt", "job", "-t", "kept:1", cli=self.remote)
        at = self.newest()
        waiting.until(lambda: self.newest() > at + 5, "it removes more")
        self.kill_job()
        self.wait_for_end("failed")
        deaths = self.state()["deaths"]
        self.assertRegex(deaths[0], r"exit status 1: FileNotFoundError: .*checkpoint-\d+'$")
        self.assertRegex(deaths[-1], r"killed by signal 9 \(Killed\)$", "nor what it merely wrote")
        self.assertIn("--keep-removed", self.state()["report"])

    def test_a_rule_below_them_is_none(self):
        """As torchrun draws it."""
        self.succeed("run", "--name", "job", "--detach", "--every", "1h", "--restarts", "0", "--",
                     "sh", "-c", 'printf "ValueError: x\n\n%s\n" =========; exit 1', cli=self.remote)  # fmt: skip
        self.wait_for_end("failed")
        self.assertRegex(self.state()["deaths"][0], "exit status 1: ValueError: x$")


class HangSignTest(SupervisedTest):
    def test_one_that_spins_is_found_by_its_output(self):
        self.start(60, "hang-at=40", "spins", f"until={self.may_end}",
                   options=["--every", "200ms", "--restarts", "2", "--hang", "5s", "--hang-sign", "output"])  # fmt: skip
        self.wait_for_image()
        self.let_end()
        self.wait_for_end()
        self.assert_counted(60)
        self.assertIn("no progress", "".join(self.state()["deaths"]))
        self.assertEqual(self.state()["policy"]["hang_sign"].lower(), "output")

    def test_where_no_image_is_older_than_its_last_sign_the_oldest_is_the_best(self):
        self.start(60, "hang-at=0", "spins", f"until={self.may_end}",
                   options=["--every", "200ms", "--restarts", "1", "--hang", "8s", "--hang-sign", "output"])  # fmt: skip
        self.wait_for_image()
        self.let_end()
        self.wait_for_end()
        self.assert_counted(60)

    def test_that_one_may_hang_unseen_is_told(self):
        self.start(100000, options=["--restarts", "0", "--hang", "4s"])
        (warning,) = self.wait_for(lambda job: job["supervised"]["warnings"], "a warning")
        self.assertIn("--hang-sign output", warning)

    def test_it_goes_with_hang(self):
        result = self.remote.run("run", "--name", "job", "--detach", "--every", "1h", "--hang-sign", "output", "--", "true")
        self.assertEqual(result.code, USAGE, str(result))
        self.assertIn("--hang-sign goes with --hang", str(result))


if __name__ == "__main__":
    unittest.main()
