"""`rekindle top`: on a terminal, in a pipe, as JSON."""

import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time

from harness import jobs, waiting
from harness.cli import environment
from harness.reporting import ReportingTest

_ENTER, _LEAVE = "\x1b[?1049h", "\x1b[?1049l"
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class LiveTop:
    """`rekindle top` in a terminal that it controls."""

    def __init__(self, cli, env, *options, columns=160, rows=24):
        self.master, self.slave = os.openpty()
        self.resize(columns, rows)
        self.before = termios.tcgetattr(self.slave)
        self.raw = ""
        self.child = subprocess.Popen(
            cli.argv("top", *options), stdin=self.slave, stdout=self.slave, stderr=self.slave, env=environment(env),
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        jobs.waited_elsewhere.add(self.child.pid)

    def resize(self, columns, rows):
        """Of the controlling terminal: the kernel tells its foreground group with SIGWINCH."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self):
        while select.select([self.master], [], [], 0)[0]:
            self.raw += os.read(self.master, 65536).decode()

    def screen(self):
        """The lines of the last frame that is complete."""
        self.read()
        frames = self.raw.split("\x1b[H")[1:]
        whole = [frame.split("\x1b[J")[0] for frame in frames if "\x1b[J" in frame]
        return [_ESCAPE.sub("", line).rstrip("\r") for line in whole[-1].split("\n")] if whole else []

    def wait_for(self, condition, what):
        try:
            waiting.until(lambda: condition(self.screen()), what, poll_seconds=0.01)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; it shows: {self.screen()}; all: {self.raw[-2000:]!r}") from None

    def type(self, keys):
        os.write(self.master, keys.encode())

    def end(self):
        """The exit status, once the terminal is as it was."""
        code = self.child.wait(60)
        jobs.waited_elsewhere.discard(self.child.pid)
        self.read()
        return code

    def close(self):
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        os.close(self.master)
        os.close(self.slave)


class TopTest(ReportingTest):
    def start_top(self, *options, **size):
        top = LiveTop(self.cli, self.environment, *options, **size)
        self.addCleanup(top.close)
        top.wait_for(lambda lines: lines and lines[0].startswith("rekindle top"), "a frame")
        return top

    def assert_left(self, top, code):
        self.assertEqual(top.end(), code)
        self.assertEqual(top.raw.count(_ENTER), 1)
        self.assertIn("\x1b[?25h", top.raw)
        self.assertTrue(top.raw.endswith(_LEAVE), repr(top.raw[-80:]))
        self.assertEqual(termios.tcgetattr(top.slave), top.before)

    def step_of(self, lines):
        line = next((line for line in lines if line.startswith("train ")), "")
        found = re.search(r" (\d+)/1000000", line)
        return int(found.group(1)) if found else 0

    def test_follows_the_job(self):
        pid = self.start_reporting()
        top = self.start_top("--interval", "0.1")
        top.wait_for(lambda lines: self.step_of(lines) > 0, "a step")
        first = self.step_of(top.screen())
        top.wait_for(lambda lines: self.step_of(lines) > first, "more steps")
        top.wait_for(lambda lines: any(f" {pid} " in line and "running" in line for line in lines), "the job")
        top.wait_for(lambda lines: re.search(r"\d/s", "".join(lines)), "a rate")
        self.assertTrue(any(line.startswith("Images: 0,") for line in top.screen()), top.screen())
        self.checkpoint(pid, "train:1")
        top.wait_for(lambda lines: any(line.startswith("Images: 1,") for line in lines), "its image")
        top.type("q")
        self.assert_left(top, 0)

    def test_ctrl_c(self):
        top = self.start_top()
        self.assertIn("No jobs.", top.screen())
        top.type("\x03")
        self.assert_left(top, 0)

    def test_other_keys_refresh(self):
        top = self.start_top("--interval", "3600")
        self.start_reporting()
        top.type("\x1b[A ")
        top.wait_for(lambda lines: any(line.startswith("train ") for line in lines), "the job")
        top.type("q")
        self.assert_left(top, 0)

    def test_signals(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            top = self.start_top()
            os.kill(top.child.pid, number)
            self.assert_left(top, 128 + number)

    def test_resize(self):
        self.start_reporting()
        waiting.until(lambda: self.job("train")["progress"], "progress")
        top = self.start_top("--interval", "3600", columns=160)
        self.assertGreater(self.step_of(top.screen()), 0)
        self.assertIn("MEMORY", "".join(top.screen()))
        top.resize(30, 6)
        top.wait_for(lambda lines: "MEMORY" not in "".join(lines), "a narrow frame")
        self.assertLessEqual(max(map(len, top.screen())), 30)
        self.assertLessEqual(len(top.screen()), 6)
        top.resize(160, 24)
        top.wait_for(lambda lines: "MEMORY" in "".join(lines), "a wide frame")
        top.type("q")
        self.assert_left(top, 0)

    def test_a_daemon_that_goes_and_comes(self):
        self.start_reporting()
        top = self.start_top("--interval", "0.1")
        top.wait_for(lambda lines: self.step_of(lines) > 0, "a step")
        self.daemon.kill()
        # What was known stays.
        top.wait_for(lambda lines: len(lines) > 2 and self.daemon.socket in lines[1] and self.step_of(lines) > 0,
                     "the trouble")
        last = self.step_of(top.screen())
        self.daemon = self.start_daemon("--standby", "0")
        top.wait_for(lambda lines: self.step_of(lines) > last and not lines[1], "more steps")
        top.type("q")
        self.assert_left(top, 0)

    def test_suspended_by_its_shell(self):
        """Ctrl-Z gives the terminal back, `fg` takes it again."""
        shell = ShellTop(self.cli, self.environment)
        self.addCleanup(shell.close)
        shell.type(shell.command + "\n")
        shell.wait_for(lambda lines: "No jobs." in lines, "a frame")
        shell.type("\x1a")
        shell.wait_for_raw(r"\x1b\[\?1049l[^$]*Stopped", "the shell tells that it was stopped")
        frames = shell.raw.count("\x1b[J")
        shell.type("fg\n")
        shell.wait_for(lambda lines: shell.raw.count("\x1b[J") > frames, "another frame")
        shell.type("q")
        waiting.until(lambda: shell.read() or shell.raw.count(_LEAVE) == 2, "it is left again")
        shell.type("echo ended $?\n")
        shell.wait_for_raw(r"ended 0\r", "it ended well")
        self.assertEqual((shell.raw.count(_ENTER), shell.raw.count(_LEAVE)), (2, 2))
        shell.type("exit\n")
        shell.end()

    def test_once(self):
        self.start_reporting()
        waiting.until(lambda: self.job("train")["progress"], "progress")
        for options in ((), ("--once",)):  # the first one, since its output is no terminal
            result = self.cli.run("top", *options, json_output=False)
            self.assertEqual(result.code, 0, str(result))
            self.assertNotIn("\x1b", result.out)
            self.assertGreater(self.step_of(result.out.splitlines()), 0)

    def test_json(self):
        self.start_reporting()
        waiting.until(lambda: self.job("train")["progress"], "progress")
        once = self.cli.run("top", "--once")
        self.assertEqual(len(once.out.splitlines()), 1)
        self.assertEqual(once.data["jobs"][0]["name"], "train")
        self.assertGreater(once.data["jobs"][0]["progress"]["step"], 0)
        self.assertEqual(once.data["images"]["count"], 0)
        child = self.cli.start("top", "--interval", "0.1")
        lines = [json.loads(child.stdout.readline()) for _ in range(3)]
        os.kill(child.pid, signal.SIGTERM)
        self.assertEqual(self.cli.finish(child).code, 128 + signal.SIGTERM)
        times = [line["unix_ns"] for line in lines]
        self.assertEqual(times, sorted(set(times)))

    def test_json_waits_for_a_daemon_that_goes_and_comes(self):
        child = self.cli.start("top", "--interval", "0.1")
        before = json.loads(child.stdout.readline())
        self.daemon.kill()
        said = child.stderr.readline()
        self.assertIn(self.daemon.socket, said)
        self.daemon = self.start_daemon("--standby", "0")
        back = time.time_ns()
        after = before
        while after["unix_ns"] < back:
            after = json.loads(child.stdout.readline())
        os.kill(child.pid, signal.SIGTERM)
        self.assertEqual(self.cli.finish(child).code, 128 + signal.SIGTERM)

    def test_before_there_is_a_store(self):
        result = self.make_cli(store=self.path("none")).run("top", "--once")
        self.assertEqual((result.code, result.data["jobs"]), (0, []), str(result))

    def test_other_users_see_their_own(self):
        self.start_reporting()
        nobody = self.make_cli(host=self.daemon.host, uid=65534)
        result = nobody.run("top", "--once")
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual(result.data["jobs"], [])
        self.assertIsNone(result.data["images"]["free_bytes"])

    def test_without_a_daemon(self):
        result = self.make_cli(host="unix://" + self.path("absent.sock")).run("top", "--once")
        self.assertEqual(result.code, 1, str(result))
        self.assertIn("absent.sock", result.message)

    def test_intervals_that_make_no_sense(self):
        for interval in ("0", "-1", "nan", "often"):
            self.assertEqual(self.cli.run("top", "--once", "--interval=" + interval).code, 2, interval)


class ShellTop(LiveTop):
    """An interactive shell in which `command` is to be typed."""

    def __init__(self, cli, env):  # pylint: disable=super-init-not-called
        self.command = " ".join(cli.argv("top"))
        self.master, self.slave = os.openpty()
        self.resize(160, 24)
        self.raw = ""
        self.child = subprocess.Popen(
            ["/bin/bash", "--norc", "--noprofile", "-i"], stdin=self.slave, stdout=self.slave, stderr=self.slave,
            env=environment({**env, "PS1": "$ ", "HISTFILE": ""}), start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        jobs.waited_elsewhere.add(self.child.pid)

    def wait_for_raw(self, pattern, what):
        def seen():
            self.read()
            return re.search(pattern, self.raw)

        try:
            waiting.until(seen, what, poll_seconds=0.01)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; all: {self.raw[-2000:]!r}") from None
