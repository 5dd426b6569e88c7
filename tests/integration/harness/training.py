"""The jobs of examples/training under supervision, and what they have written held against an undisturbed run."""

import glob
import hashlib
import json
import os
import random
import signal
import struct
import sys

from harness import jobs, procfs, waiting
from harness.case import RekindleTest
from harness.cli import DONE

EXAMPLES = os.path.join(os.path.dirname(__file__), "../../../examples/training")
# One thread: with more, OpenMP's threads wait for each other in vain where the machine is busy. And no faster than this
# on any machine: there have to be images of it before it is done.
GPT = ("char_gpt.py", "--size", "tiny", "--threads", "1", "--step-seconds", "0.03")
RESNET = ("resnet_cifar_like.py", "--size", "tiny", "--threads", "1", "--step-seconds", "0.02")
DISTRIBUTED = ("ddp_gpt.py", "--size", "tiny", "--processes", "4", "--step-seconds", "0.1")
SECONDS = 300  # for whatever a busy machine has to do


def read_step_log(path):
    """[(step, time of day)], those that were done again too; none while there is no log."""
    try:
        with open(path, encoding="ascii") as file:
            lines = file.read().split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [(int(line.split()[0]), float(line.split()[1])) for line in lines]


class Training:
    """One run. Everything that it writes has a place of its own."""

    def __init__(self, directory, name, example, steps):
        self.out, self.step_log, self.log = (os.path.join(directory, name + end) for end in (".out", ".steps", ".log"))
        self.steps = steps
        script = os.path.realpath(os.path.join(EXAMPLES, example[0]))
        self.argv = [jobs.PYTHON, "-B", script, *example[1:], "--steps", str(steps)]
        self.argv += ["--out", self.out, "--step-log", self.step_log]

    def steps_done(self):
        return read_step_log(self.step_log)

    def last_step(self):
        done = self.steps_done()
        return done[-1][0] if done else 0

    def furthest_step(self):
        return max((step for step, _ in self.steps_done()), default=0)

    def processes(self):
        return [pid for pid in procfs.all_pids() if f"--out {self.out} " in procfs.command_line(pid) and procfs.alive(pid)]

    def result(self):
        return Result(self)


class Result:
    """All that must be the same, however often a training was killed."""

    def __init__(self, training):
        with open(os.path.join(training.out, "metrics.jsonl"), encoding="ascii") as file:
            self.metrics = file.read().split("\n")
        with open(os.path.join(training.out, "weights.pt"), "rb") as file:
            self.weights = hashlib.sha256(file.read()).hexdigest()
        with open(training.log, encoding="utf-8", errors="replace") as file:
            self.output = file.read()
        (events,) = glob.glob(os.path.join(training.out, "events.out.tfevents.*"))
        self.events = scalars_of(events)


class TrainingTest(RekindleTest):
    """One supervised training at a time, under a daemon that may be killed."""

    NAME = "training"
    _undisturbed = {}

    def undisturbed(self, example, steps):
        """The result of a run that nobody touches."""
        key = (example, steps)
        if key not in self._undisturbed:
            training = Training(self.directory, "undisturbed-" + example[0], example, steps)
            job = jobs.Started(training.argv, training.log)
            self.addCleanup(job.kill_tree)
            status = job.reap(SECONDS)
            with open(training.log, encoding="utf-8", errors="replace") as file:
                self.assertEqual(status, 0, file.read())
            result = training.result()
            self.assertEqual([json.loads(line)["step"] for line in result.metrics[:-1]], list(range(1, steps + 1)))
            self._undisturbed[key] = result
        return self._undisturbed[key]

    def begin(self, example, steps, every="500ms", restarts=60, keep=3):
        """Starts daemon and training. Returns when there is an image of it with its files open: before that it would
        begin anew, and write all of them once more.
        """
        self.example, self.training = example, Training(self.directory, self.NAME, example, steps)
        self.undisturbed(example, steps)
        self.start_daemon_again()
        self.succeed(
            "run", "--detach", "--name", self.NAME, "--log", self.training.log, "--every", every, "--keep", keep,
            "--restarts", restarts, "--backoff", "100ms", "--rollback", "append",
            "--ignore-path", self.training.step_log, "--", *self.training.argv, cli=self.client)  # fmt: skip
        self.wait_for_step(1)
        self.wait_for_images(2)

    def start_daemon_again(self):
        self.daemon = self.start_daemon()
        self.client = self.make_cli(host=self.daemon.host)
        self.addCleanup(self._end_all)  # before the daemon is ended in peace: it would bring the job back

    def _end_all(self):
        self.daemon.kill()
        for pid in self.training.processes():
            jobs.kill_tree(pid)

    # Looking. What ends without a daemon becomes a child of this process.

    def job(self):
        jobs.reap_orphans()
        listed = self.succeed("ps", "--all", cli=self.client)["jobs"]
        (job,) = [job for job in listed if job["name"] == self.NAME]
        return job

    def supervised(self):
        return self.job()["supervised"]

    def wait_for(self, condition, what):
        """Until `condition(supervised)`; the training must not have been given up."""

        def look():
            state = self.supervised()
            if state is None:
                return None  # a process that the last daemon had begun still holds the job's lock
            if condition(state):
                return state
            self.assertNotIn(state["phase"], ("failed", "done"), f"{what}: it is over\n{self.records(state)}")
            return None

        try:
            return waiting.until(look, what, SECONDS, 0.1)
        except TimeoutError:
            self.fail(f"{what}: not in time\n{self.records(self.supervised())}")

    def wait_for_images(self, more):
        """So many more; the first of them may be about to be done when this begins."""
        taken = self.supervised()["checkpoints"]
        return self.wait_for(lambda state: state["checkpoints"] >= taken + more, f"{more} more images")

    def wait_for_step(self, step):
        def there():
            jobs.reap_orphans()  # what has ended keeps its PID, without which the training can't be brought back
            return self.training.furthest_step() >= step

        try:
            waiting.until(there, f"step {step}", SECONDS, 0.01)
        except TimeoutError:
            self.fail(f"step {step}: not in time\n{self.records(self.supervised())}")

    def image_times(self):
        """When the pages of each image had been taken out of the job, oldest first."""
        images = self.succeed("ls", cli=self.client).get("images", [])
        return sorted(int(image["created_unix_ns"]) / 1e9 for image in images)

    def records(self, state):
        log = "".join(self.daemon.log_text().splitlines(keepends=True)[-40:])
        with open(self.training.log, encoding="utf-8", errors="replace") as file:
            return f"{json.dumps(state, indent=1)}\n{log}\n{file.read()[-4000:]}"

    # Killing.

    def kill_job(self, chosen=None):
        """Its root, or another process of it."""
        jobs.reap_orphans()
        try:
            os.kill(chosen or self.job()["pid"], signal.SIGKILL)
        except ProcessLookupError:
            pass  # it is being brought back already

    def kill_and_see_it_go_on(self, kill, images_back=0):
        """What had been done when the image before the one that it goes on from was taken is not done again."""
        restarts = self.supervised()["restarts"]
        times = self.image_times()
        lines = len(self.training.steps_done())
        kill()
        self.wait_for(lambda state: state["restarts"] > restarts, "the training brought back")

        at = self._wait_for_step_again(lines)
        before, resumed = self.training.steps_done()[:at], self.training.steps_done()[at][0]
        done_before = [time for step, time in before if step == resumed]
        if done_before and len(times) > images_back + 1:
            told = f"step {resumed} was done before that image\n{times}\n{self.records(self.supervised())}"
            self.assertGreater(done_before[-1], times[-2 - images_back], told)
        lost = before[-1][0] - resumed + 1 if before else 0
        print(f"{self.NAME}: killed after step {before[-1][0]}, goes on with {resumed} ({lost} again)", file=sys.stderr)

    def _wait_for_step_again(self, lines_before):
        """The line of the step log with which the new life begins."""

        def begins():
            jobs.reap_orphans()
            steps = [step for step, _ in self.training.steps_done()]
            for at in range(max(lines_before, 1), len(steps)):
                if steps[at] <= steps[at - 1]:
                    return at
            # Nothing was lost, then; the life before may have written one more.
            return lines_before if len(steps) > lines_before + 10 or self.finished() else None

        try:
            return waiting.until(begins, "steps after the restart", SECONDS, 0.1)
        except TimeoutError:
            self.fail(f"no step after the restart\n{self.records(self.job())}")

    def finished(self):
        return self.supervised()["phase"] in ("done", "failed")

    # The end.

    def assert_ends_as_undisturbed(self):
        state = self.wait_for(lambda state: state["phase"] == "done", "the training's end")
        expected, result = self.undisturbed(self.example, self.training.steps), self.training.result()
        told = self.records(state)
        self.assertEqual(result.metrics, expected.metrics, told)
        self.assertEqual(result.weights, expected.weights, told)
        self.assertEqual(result.output, expected.output, told)
        self.assertEqual(result.events, expected.events, told)
        self.assertEqual(len({(step, tag) for step, tag, _ in result.events}), len(result.events))
        return state

    def assert_images_whole(self):
        result = self.client.run("fsck", "--read")
        self.assertEqual(result.code, DONE, str(result))


def random_steps(seed, steps, count):
    """Moments over a run: not at its very beginning, where there is no image yet, nor when it is all but done."""
    chosen = random.Random(seed)
    return sorted(chosen.randrange(steps // 10, steps - steps // 10) for _ in range(count))


# TensorBoard's event files, read with code of its own: every length and record is checked by its sum.


def scalars_of(path):
    """[(step, tag, value)] in the order of the file; ValueError when any byte of it is wrong."""
    with open(path, "rb") as file:
        content = file.read()
    found, at, first = [], 0, True
    while at < len(content):
        if len(content) - at < 16:
            raise ValueError(f"{path}: {len(content) - at} bytes behind the last record")
        length = struct.unpack_from("<Q", content, at)[0]
        record = content[at + 12 : at + 12 + length]
        sums = struct.unpack_from("<I", content, at + 8)[0], struct.unpack_from("<I", content, at + 12 + length)[0]
        if sums != (_masked_crc32c(content[at : at + 8]), _masked_crc32c(record)):
            raise ValueError(f"{path}: the record at {at} does not have the sum that it says")
        event = dict(_fields(record))
        if first and event.get(3) != b"brain.Event:2":
            raise ValueError(f"{path} does not begin as an event file does")
        if not first:
            value = dict(_fields(dict(_fields(event[5]))[1]))
            found.append((event[2], value[1].decode(), value[2]))
        at, first = at + 16 + length, False
    return found


def _fields(message):
    """(number, value) of a protocol buffer's fields; four and eight bytes are float and double."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
        elif kind == 2:
            length, at = _varint(message, at)
            value, at = message[at : at + length], at + length
        else:
            form, size = {1: ("<d", 8), 5: ("<f", 4)}[kind]
            value, at = struct.unpack_from(form, message, at)[0], at + size
        yield key >> 3, value


def _varint(message, at):
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if byte < 0x80:
            return value, at


def crc32c(data):
    """Bit by bit, as RFC 3720 has it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc ^ 0xFFFFFFFF


def _masked_crc32c(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
