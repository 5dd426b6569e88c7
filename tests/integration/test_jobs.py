"""Jobs as people start them: in a terminal, by hand with setsid, under `rekindle run`, with
multiprocessing.
"""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import unittest

from harness import freezer, jobs, procfs, waiting
from harness.case import MIB, RekindleTest, shell
from harness.cli import DONE, FAILED, binary, environment
from harness.memory_job import MemoryJob

sys.path.insert(0, jobs.WORKLOADS)
import multiprocess  # noqa: E402  pylint: disable=wrong-import-position


def lines_of(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read().split("\n")[:-1]


class Terminal:
    """The master side of a pty whose slave a program controls."""

    def __init__(self):
        self.master, self.slave = pty.openpty()
        self.text = ""

    def close(self):
        os.close(self.master)
        os.close(self.slave)

    def type(self, line):
        os.write(self.master, line.encode() + b"\n")

    def wait_for(self, what, seconds=waiting.DEFAULT_SECONDS):
        def seen():
            while select.select([self.master], [], [], 0)[0]:
                self.text += os.read(self.master, 65536).decode(errors="replace")
            return what in self.text

        try:
            waiting.until(seen, f"{what!r} on the terminal", seconds, 0.01)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; it shows: {self.text}") from None


class MultiprocessingTest(RekindleTest):
    def test_workers_and_shared_array(self):
        log = self.path("rounds")
        job = self.start_job([jobs.PYTHON, jobs.workload("multiprocess.py"), log], "multiprocess")
        waiting.until(lambda: len(lines_of(log)) >= 3, "three rounds", 60, 0.02)
        self.assertGreaterEqual(len(procfs.descendants(job.pid)), multiprocess.WORKERS)

        self.checkpoint(job.pid, "mp:1", "--stop")
        job.reap()
        at_stop = len(lines_of(log))
        self.restore("mp:1")
        waiting.until(lambda: len(lines_of(log)) >= at_stop + 3, "three more rounds", 60, 0.02)
        for number, line in enumerate(lines_of(log), 1):
            self.assertEqual(line, f"{number} {multiprocess.expected_digest(number)}")
        self.assert_store_whole(["mp:1"])


    def test_with_little_room_in_run(self):
        """What several processes have at one address CRIU gets as files."""
        log = self.path("digests")
        program = (
            "import hashlib, os, sys, time\n"
            "memory = os.urandom(24 << 20)\n"
            "for _ in range(2):\n"
            "    if os.fork() == 0:\n"
            "        memory = os.urandom(24 << 20)\n"
            "        break\n"
            "while True:\n"
            "    with open(sys.argv[1], 'a') as log:\n"
            "        log.write(f'{os.getpid()} {hashlib.sha256(memory).hexdigest()}\\n')\n"
            "    time.sleep(0.02)\n"
        )
        runtime = self.environment["REKINDLE_RUNTIME_DIR"]
        os.makedirs(runtime, exist_ok=True)
        shell("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", runtime)
        self.addCleanup(lambda: shell("umount", runtime))
        job = self.start_job([jobs.PYTHON, "-c", program, log], "forks")
        waiting.until(lambda: len(set(lines_of(log))) == 3, "three processes")
        digests = set(lines_of(log))
        self.checkpoint(job.pid, "forks:1", "--stop")
        job.reap()
        at_stop = len(lines_of(log))
        self.restore("forks:1")
        waiting.until(lambda: set(lines_of(log)[at_stop:]) == digests, "all three go on")
        self.assertEqual(set(lines_of(log)), digests)


class SetsidTest(RekindleTest):
    def test_started_by_hand(self):
        """`setsid counter.sh … &` from a shell, as the quick start tells people to."""
        log = self.path("count")
        shell = subprocess.run(
            [
                "sh",
                "-c",
                'setsid "$0" "$1" </dev/null >"$2" 2>&1 & echo $!',
                jobs.workload("counter.sh"),
                log,
                self.path("output"),
            ],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env=environment(self.environment),
        )
        pid = int(shell.stdout)
        self.kill_job_at_end(pid)
        waiting.until(lambda: len(lines_of(log)) > 3, "it counts")

        self.checkpoint(pid, "byhand:1")
        count = len(lines_of(log))
        waiting.until(lambda: len(lines_of(log)) > count + 3, "it counts on after the checkpoint")
        self.checkpoint(pid, "byhand:2", "--stop")
        waiting.for_exit(pid)
        jobs.reap_orphans()
        stopped_at = len(lines_of(log))
        self.assertEqual(self.restore("byhand:2"), pid)
        waiting.until(lambda: len(lines_of(log)) > stopped_at + 3, "it counts on after the restore")
        numbers = [int(line) for line in lines_of(log)]
        # The shell may have been between two of its commands, never elsewhere.
        self.assertEqual(numbers, list(range(1, len(numbers) + 1)))

    def test_output_has_grown_since_the_image(self):
        """`job > output`, as most jobs are started: it goes on after the image, dies, and comes back to it."""
        count_to_output = "n=0; while :; do n=$((n + 1)); echo $n; sleep 0.02; done"
        output = self.path("output")
        pid = int(
            subprocess.run(
                ["sh", "-c", 'setsid sh -c "$0" </dev/null >"$1" 2>&1 & echo $!', count_to_output, output],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                env=environment(self.environment),
            ).stdout
        )
        self.kill_job_at_end(pid)
        waiting.until(lambda: len(lines_of(output)) > 3, "it counts")
        self.checkpoint(pid, "grown:1")
        at = len(lines_of(output))
        waiting.until(lambda: len(lines_of(output)) > at + 10, "it counts on after the checkpoint")
        jobs.kill_tree(pid)
        size = os.path.getsize(output)
        self.assertEqual(self.restore("grown:1"), pid)
        waiting.until(lambda: os.path.getsize(output) > size, "it writes on", 60)
        # A job that became what it was is the same job: written again from where the image was, to the same bytes.
        numbers = [int(line) for line in lines_of(output)]
        self.assertEqual(numbers, list(range(1, len(numbers) + 1)))


    def test_whoever_restores_may_have_its_output_open(self):
        """As a batch script has that of Slurm, of which the job's is the same file."""
        output = self.path("output")
        count = ["sh", "-c", "n=0; while :; do n=$((n + 1)); echo $n; sleep 0.02; done"]
        with open(output, "ab") as log:
            job = subprocess.Popen(
                count, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=environment(self.environment))  # fmt: skip
        self.kill_job_at_end(job.pid)
        waiting.until(lambda: len(lines_of(output)) > 3, "it counts")
        self.checkpoint(job.pid, "batch:1")
        at = len(lines_of(output))
        waiting.until(lambda: len(lines_of(output)) > at + 3, "it counts on after the checkpoint")
        jobs.kill_tree(job.pid)
        job.wait()
        script = '"$@" 2>"$0"; exit $?'
        told, words = self.path("told"), self.cli.argv("restore", "batch:1", "--detach", "--rollback", "append")
        with open(output, "ab") as log:
            batch = ["sh", "-c", script, told, *words]
            subprocess.run(batch, stdout=log, check=True, env=environment(self.environment))
        with open(told, encoding="utf-8") as file:
            self.assertNotIn("writes to it, too", file.read())

    def test_a_file_that_it_appends_to(self):
        """What it wrote after the image comes once more: told with the cure, which leaves nothing to tell."""
        table = self.path("ap.csv")
        program = 'exec 3>>"$0"; n=0; while :; do n=$((n + 1)); echo $n >&3; sleep 0.02; done'
        job = self.start_job(["sh", "-c", program, table])
        waiting.until(lambda: len(lines_of(table)) > 3, "it counts")
        self.checkpoint(job.pid, "grown:1")
        at = len(lines_of(table))
        waiting.until(lambda: len(lines_of(table)) > at + 3, "it counts on after the checkpoint")
        jobs.kill_tree(job.pid)
        job.reap()
        for options, told in (((), 1), (("--rollback", "append"), 0)):
            started = self.succeed("restore", "grown:1", "--detach", *options)
            jobs.kill_tree(started["job"]["pid"])
            warnings = [warning for warning in started["warnings"] if "has grown" in warning]
            self.assertEqual(len(warnings), told, started)
            for warning in warnings:
                self.assertIn(table, warning)
                self.assertIn("; --rollback append cuts off what was written since", warning)


class SettingsTest(RekindleTest):
    """Through the daemon a job has what a command that is started by hand has of the shell."""

    USER = 65534
    SHOW = "umask; ulimit -Sn; ulimit -Hn; ulimit -v; ulimit -c; nice; "
    SHOW += "grep processes /proc/self/limits; grep allowed: /proc/self/status; : >made"

    def setUp(self):
        super().setUp()
        os.chmod(self.directory, 0o777)
        processor = max(os.sched_getaffinity(0))
        self.prefix = (
            "sh",
            "-c",
            f'cd "$0"; umask 077; ulimit -Sn 400; ulimit -Hn 500; ulimit -v 4000000; ulimit -c 0; '
            f'exec nice -n 10 prlimit --nproc=5000:5000 taskset -c {processor} "$@"',
            self.directory,
        )

    def by_hand(self):
        shown = subprocess.run(
            [*self.prefix, "sh", "-c", self.SHOW], user=self.USER, group=self.USER, extra_groups=[],
            check=True, capture_output=True, text=True,
        ).stdout.splitlines()  # fmt: skip
        self.assertEqual([shown[0], shown[1], shown[5]], ["0077", "400", str(min(19, os.nice(0) + 10))])
        self.assertIn("5000", shown[6])
        os.unlink(self.path("made"))
        return shown

    def user_of(self, daemon):
        return self.make_cli(host=daemon.host, uid=self.USER)

    def test_as_by_hand(self):
        by_hand = self.by_hand()
        user = self.user_of(self.start_daemon())
        for options in ((), ("--detach",)):
            log = self.path(f"job{len(options)}.log")
            data = self.succeed(
                "run", "--log", log, *options, "--", "sh", "-c", self.SHOW + "; echo end", cli=user, prefix=self.prefix
            )
            self.assertEqual(data.get("warnings", []), [])
            waiting.until(lambda log=log: lines_of(log)[-1:] == ["end"], "its end")
            self.assertEqual(lines_of(log)[:-1], by_hand)
            self.assertEqual(os.stat(self.path("made")).st_mode & 0o777, 0o600)
            os.unlink(self.path("made"))

    def test_a_supervised_job_has_them_each_time(self):
        by_hand = self.by_hand()
        user = self.user_of(self.start_daemon())
        log = self.path("job.log")
        self.succeed(
            "run", "--every", "1h", "--restarts", "3", "--log", log,
            "--", "sh", "-c", self.SHOW + "; [ -e again ] || { : >again; exit 3; }", cli=user, prefix=self.prefix,
        )  # fmt: skip
        self.assertEqual(lines_of(log), by_hand * 2)

    def test_one_user_has_so_many_and_no_more(self):
        daemon = self.start_daemon("--jobs-of-one", "2")
        user = self.user_of(daemon)

        def wait(name):
            return "--log", self.path(f"{name}.log"), "--detach", "--", "sleep", "1000"

        self.succeed("run", "--name", "one", *wait("one"), cli=user)
        self.succeed("run", "--name", "two", "--every", "1h", *wait("two"), cli=user)
        for more in ((), ("--every", "1h")):
            refused = user.run("run", *more, *wait("more"))
            self.assert_refused(refused, FAILED, f"uid {self.USER} has 2 jobs", "may have 2", "stop", "--jobs-of-one")
        self.assertEqual(len(self.succeed("ps", cli=user)["jobs"]), 2)
        self.succeed("run", "--name", "roots", *wait("roots"), cli=self.make_cli(host=daemon.host))
        for name in ("one", "two"):
            self.succeed("stop", name, cli=user)
        for name in ("three", "four"):
            self.succeed("run", "--name", name, *wait(name), cli=user)
        self.assert_refused(user.run("run", *wait("more")), FAILED, "has 2 jobs")
        for name in ("three", "four", "roots"):
            self.succeed("stop", name, cli=self.make_cli(host=daemon.host))

    def test_what_the_daemon_may_not_give_is_told(self):
        self.daemon_prefix = (
            *("setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource"),
            *("prlimit", "--nofile=450:450"),
        )
        user = self.user_of(self.start_daemon())
        log = self.path("job.log")
        result = user.run(
            "run", "--log", log, "--", "sh", "-c", "ulimit -Sn; ulimit -Hn", prefix=self.prefix, json_output=False
        )
        self.assertEqual(result.code, DONE, str(result))
        for words in ("open files (ulimit -n)", "400, at most 450", "400, at most 500", "CAP_SYS_RESOURCE"):
            self.assertIn(words, result.err)
        self.assertEqual(lines_of(log), ["400", "450"])

    def test_pids_that_a_starting_machine_does_not_give_out(self):
        with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
            least = min(65536, int(file.read()) // 2)
        daemon = self.make_cli(host=self.start_daemon().host)
        for cli in (self.make_cli(store=self.path("other")), daemon):
            with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as file:
                file.write("400")
            data = self.succeed("run", "--detach", "--log", self.path("x.log"), "--", "sleep", "1000", cli=cli)
            pid = data["job"]["pid"]
            self.kill_job_at_end(pid)
            self.assertGreater(pid, least)


class RunTest(RekindleTest):
    def test_run_checkpoint_restore(self):
        log, count = self.path("run.log"), self.path("count")
        started = self.succeed(
            "run", "--detach", "--name", "it-counter", "--log", log, "--", jobs.workload("counter.sh"), count
        )
        pid = self.pid_of("it-counter")
        self.kill_job_at_end(pid)
        self.assertIn(str(pid), str(started))
        waiting.until(lambda: len(lines_of(count)) > 3, "it counts")
        self.assertEqual(procfs.stat_fields(pid)[3], str(pid), "a session of its own")
        self.assertEqual(sorted(procfs.descriptor_targets(pid))[:3], [0, 1, 2])

        self.checkpoint("it-counter", "counted:1", "--stop")
        waiting.for_exit(pid)
        jobs.reap_orphans()
        at = len(lines_of(count))
        self.assertEqual(self.restore("counted:1"), pid)
        waiting.until(lambda: len(lines_of(count)) > at + 3, "it counts on")
        self.assertEqual(self.pid_of("it-counter"), pid)

    def pid_of(self, name):
        found = [job for job in self.succeed("ps").get("jobs", []) if job.get("name") == name]
        self.assertEqual(len(found), 1, f"{name} in ps")
        return found[0]["pid"]

    def test_it_is_known_before_it_runs(self):
        """So that it is found even where the daemon is killed just then."""
        daemon = self.start_daemon()
        cli, log = self.make_cli(host=daemon.host), self.path("told")
        self.succeed("run", "--name", "asks", "--log", log, "--", binary("rekindle"), "--host", daemon.host, "--json", "ps",
                     cli=cli)  # fmt: skip
        with open(log, encoding="utf-8") as file:
            (job,) = json.load(file)["jobs"]
        self.assertEqual(job["name"], "asks")
        # What could not be run is not, nor does it take the place of one that has ended.
        self.assertEqual(cli.run("run", "--name", "ended", "--", "sh", "-c", "echo said; exit 3").code, 3)
        for name in ("absent", "ended"):
            self.assertNotEqual(cli.run("run", "--name", name, "--", "/no/such/program").code, DONE)
        found = {job["name"]: job.get("exit_code") for job in self.succeed("ps", "--all", cli=cli)["jobs"]}
        self.assertEqual(found, {"asks": 0, "ended": 3})
        self.assertIn("said", cli.run("logs", "ended", json_output=False).out)

    def test_output_that_goes_elsewhere_is_named(self):
        count = self.path("count")
        job = self.start_job([jobs.workload("counter.sh"), count])
        waiting.until(lambda: len(lines_of(count)) > 3, "it counts")
        self.checkpoint(job.pid, "counted:1", "--stop")
        job.reap()
        command = self.cli.start("restore", "counted:1", json_output=False)
        at = len(lines_of(count))
        waiting.until(lambda: len(lines_of(count)) > at + 3, "it counts on")
        command.send_signal(signal.SIGINT)
        self.assertIn(f"its output goes to {job.log}\n", self.cli.finish(command).err)

    def test_exit_status_is_the_jobs(self):
        result = self.cli.run(
            "run", "--log", self.path("x.log"), "--", "sh", "-c", "echo said; exit 23", json_output=False
        )
        self.assertEqual(result.code, 23, str(result))
        self.assertIn("said", result.out)

    def test_a_folder_that_is_gone(self):
        """The command must not run in another one."""
        gone = ("sh", "-c", 'mkdir "$0" && cd "$0" && rmdir "$0" && exec "$@"', self.path("gone"))
        refused = self.cli.run("run", "--log", self.path("x.log"), "--", "pwd", prefix=gone)
        self.assert_refused(refused, FAILED, "removed", "cd to one")
        relative = self.make_cli(store="rel")
        for cli, *words in (
            (relative, "ls"), (self.cli, "export", "x:1", "--file", "x.img"), (self.cli, "import", "--file", "x.img"),
            (self.cli, "copy", "x:1", "--from", "./place"),
        ):
            with self.subTest(words=words):
                refused = cli.run(*words, prefix=gone)
                self.assert_refused(refused, FAILED, "folder that you are in has been removed", "cd to one")
                self.assertNotIn("/proc/", str(refused))
        self.succeed("ps", prefix=gone)

    def test_input_from_a_pipe(self):
        log = self.path("x.log")
        # What dash gives so is in the pipe before the command begins.
        piped = ("sh", "-c", '"$0" "$@" <<END\nsomething\nEND')
        result = self.cli.run("run", "--log", log, "--", "cat", prefix=piped)
        self.assertEqual(result.code, DONE, str(result))
        self.assertIn("< FILE", result.err)
        self.assertEqual(lines_of(log), [])

    def test_an_answer_that_can_not_be_written(self):
        for cli in (self.cli, self.make_cli(host=self.start_daemon().host)):
            for target, why in ((">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")):
                result = cli.run("version", prefix=("sh", "-c", f'exec "$0" "$@" {target}'))
                self.assertEqual(result.code, FAILED, str(result))
                self.assertIn("writing standard output: " + why, result.err)

    def test_output_that_can_not_be_shown(self):
        log = self.path("x.log")
        for status, code in ((0, FAILED), (17, 17)):
            with self.subTest(status=status):
                result = self.cli.run(
                    "run", "--log", log, "--", "sh", "-c", f"echo hello; exit {status}", json_output=False,
                    prefix=("sh", "-c", 'exec "$0" "$@" >/dev/full'),
                )
                self.assertEqual(result.code, code, str(result))
                self.assertIn("was not shown further: writing standard output: No space left", result.err)
                self.assertIn(f"all of it is in {log}", result.err)
        self.assertEqual(lines_of(log), ["hello", "hello"])

    def test_output_of_which_the_beginning_is_enough(self):
        log = self.path("x.log")
        script = 'set -- "$0" "$@"; "$@" | head -n 1'
        result = self.cli.run("run", "--log", log, "--", "seq", 100000, json_output=False, prefix=("sh", "-c", script))
        self.assertEqual(result.out, "1\n", str(result))
        self.assertEqual(result.err, "", str(result))
        waiting.until(lambda: lines_of(log)[-1:] == ["100000"], "the job's end")

    def test_output_for_a_pipe_that_does_not_wait(self):
        """As Node.js gives one to its children."""
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        os.set_blocking(writing, False)
        log = self.path("x.log")
        done = subprocess.Popen(
            self.cli.argv("run", "--log", log, "--", "seq", 100000),
            stdin=subprocess.DEVNULL,
            stdout=writing,
            env=environment(self.environment),
        )
        os.close(writing)
        waiting.until(lambda: lines_of(log)[-1:] == ["100000"], "all of the output is in the log")
        shown = b""
        while piece := os.read(reading, 65536):
            shown += piece
        self.assertEqual(done.wait(60), DONE)
        self.assertEqual(shown.decode(), "".join(f"{number}\n" for number in range(1, 100001)))

    def test_ignored_signals_stay_ignored(self):
        """As under nohup: the job never hears of a signal that the command was started to ignore."""
        count = self.path("count")
        command = self.cli.start(
            "run",
            "--log",
            self.path("x.log"),
            "--",
            jobs.workload("counter.sh"),
            count,
            json_output=False,
            prefix=("env", "--ignore-signal=HUP"),
        )
        self.addCleanup(jobs.kill_tree, command.pid)
        waiting.until(lambda: len(lines_of(count)) > 3, "it counts")
        os.kill(command.pid, signal.SIGHUP)
        os.kill(command.pid, signal.SIGTERM)
        self.assertEqual(self.cli.finish(command, 60).code, 128 + signal.SIGTERM)

    def test_restore_returns_the_exit_status(self):
        """A restored job that is not detached: its output is shown, its exit status returned."""
        go = self.path("go")
        log = self.path("wait.log")
        self.succeed(
            "run",
            "--detach",
            "--name",
            "it-waiter",
            "--log",
            log,
            "--",
            "sh",
            "-c",
            f"while ! test -e {go}; do sleep 0.05; done; echo finished; exit 17",
        )
        pid = self.pid_of("it-waiter")
        self.kill_job_at_end(pid)
        self.checkpoint(pid, "waiter:1", "--stop")
        waiting.for_exit(pid)
        jobs.reap_orphans()
        restore = self.cli.start("restore", "waiter:1", json_output=False)
        waiting.until(lambda: procfs.alive(pid) or restore.poll() is not None, "the job is back")
        with open(go, "w", encoding="ascii"):
            pass
        result = self.cli.finish(restore, 60)
        self.assertEqual(result.code, 17, str(result))
        self.assertIn("finished", result.out)

    def test_with_json_nothing_else_is_on_standard_output(self):
        """The job had a pipe as its output, and gets the command's."""
        go = self.path("go")
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        script = f"while ! test -e {go}; do sleep 0.05; done; echo finished"
        job = self.start_job(["/bin/sh", "-c", script], output=writing)
        os.close(writing)
        self.checkpoint(job.pid, "piped:1", "--stop")
        job.reap()
        restore = self.cli.start("restore", "piped:1")
        waiting.until(lambda: procfs.alive(job.pid) or restore.poll() is not None, "the job is back")
        with open(go, "w", encoding="ascii"):
            pass
        result = self.cli.finish(restore, 60)
        self.assertEqual(result.code, DONE, str(result))
        documents = [json.loads(line) for line in result.out.splitlines()]
        self.assertEqual(documents[-1]["pid"], job.pid)
        self.assertIn("finished", result.err)


class StopTest(RekindleTest):
    """Without a supervisor."""

    def start(self, script):
        pid = self.succeed("run", "--detach", "--name", "it-stop", "--", "/bin/sh", "-c", script)["job"]["pid"]
        self.kill_job_at_end(pid)
        return pid

    def test_all_of_its_session_ends(self):
        children = self.path("children")
        script = (f"trap '' TERM; sleep 1000 & echo $! > {children}.new; trap - TERM; "
                  f"mv {children}.new {children}; {{end}}")  # fmt: skip
        for end in ("exec sleep 1000", "trap 'exit 3' TERM; while :; do sleep 0.05; done"):
            with self.subTest(end=end):
                pid = self.start(script.format(end=end))
                waiting.until(lambda: os.path.exists(children), "its child")
                with open(children, encoding="ascii") as file:
                    child = int(file.read())
                self.succeed("stop", "it-stop", "--grace", "500ms")
                self.assertFalse(procfs.alive(pid))
                self.assertFalse(procfs.alive(child))
                os.unlink(children)
                jobs.reap_orphans()

    def test_one_that_is_stopped_ends_in_order(self):
        ready, done = self.path("ready"), self.path("done")
        pid = self.start(f"trap 'echo x > {done}; exit 0' TERM; echo x > {ready}; while :; do sleep 0.05; done")
        waiting.until(lambda: os.path.exists(ready), "its trap")
        os.kill(pid, signal.SIGSTOP)
        self.succeed("stop", "it-stop", "--grace", "60s")
        self.assertTrue(os.path.exists(done))

    def test_without_grace(self):
        ready, asked = self.path("ready"), self.path("asked")
        self.start(f"trap 'echo x > {asked}' TERM; echo x > {ready}; while :; do sleep 0.05; done")
        waiting.until(lambda: os.path.exists(ready), "its trap")
        self.succeed("stop", "it-stop", "--grace", "0s")
        self.assertEqual([job for job in self.succeed("ps")["jobs"] if job["name"] == "it-stop"], [])

    def test_what_keeps_it_from_running_is_told(self):
        pid = self.start("# in\n\tlines\nexec sleep 1000")

        def state():
            (job,) = [job for job in self.succeed("ps")["jobs"] if job["name"] == "it-stop"]
            return job["state"]

        self.assertEqual(state(), "running")
        self.assertIn("# in  lines exec", self.cli.run("ps", json_output=False).out)
        os.kill(pid, signal.SIGSTOP)
        waiting.until(lambda: state() == "stopped", "it is said to be stopped")
        os.kill(pid, signal.SIGCONT)
        for hierarchy in freezer.hierarchies():
            with freezer.frozen(pid, hierarchy):
                self.assertEqual(state(), "frozen")
        waiting.until(lambda: state() == "running", "it is said to run")


class CgroupTest(RekindleTest):
    """Through the daemon: a job that the caller waits for is under the caller's limits, one that is detached is
    not.
    """

    def setUp(self):
        super().setUp()
        tops = [top for top in ("/sys/fs/cgroup/freezer", "/sys/fs/cgroup") if os.access(top + "/cgroup.procs", os.W_OK)]
        if not tops:
            self.skipTest("no cgroup hierarchy that can be written to")
        self.name = os.path.basename(self.directory)
        self.group = os.path.join(tops[0], self.name)
        os.mkdir(self.group)
        self.addCleanup(os.rmdir, self.group)
        self.daemon = self.start_daemon()
        self.cli = self.make_cli(host=self.daemon.host)

    def start(self, *arguments):
        """The command, from within the group; returns it and the job's PID."""
        enter = ("sh", "-c", f'echo $$ >{self.group}/cgroup.procs && exec "$@"', "sh")
        command = self.cli.start(*arguments, prefix=enter)
        self.addCleanup(jobs.kill_tree, command.pid)
        waiting.until(lambda: self.succeed("ps")["jobs"] or command.poll() is not None, "the job runs")
        running = self.succeed("ps")["jobs"]
        self.assertEqual(len(running), 1, running or str(self.cli.finish(command, 60)))
        (job,) = running
        self.kill_job_at_end(job["pid"])
        return command, job["pid"]

    def in_group(self, pid):
        with open(f"/proc/{pid}/cgroup", encoding="ascii") as file:
            return any(line.strip().endswith("/" + self.name) for line in file)

    def end(self, command, pid):
        jobs.kill_tree(pid)
        self.cli.finish(command, 60)

    def test_where_jobs_are(self):
        run = ("run", "--log", self.path("log"))
        sleep = ("--", "sh", "-c", "sleep 1000 & wait")  # two processes
        command, pid = self.start(*run, "--detach", *sleep)
        self.assertFalse(self.in_group(pid))
        self.end(command, pid)

        command, pid = self.start(*run, *sleep)
        self.assertTrue(self.in_group(pid))
        (child,) = waiting.until(lambda: procfs.descendants(pid), "both processes run")
        self.checkpoint(pid, "grouped:1", "--stop")
        self.cli.finish(command, 60)
        waiting.for_exit(child)
        jobs.reap_orphans()

        command, pid = self.start("restore", "grouped:1")
        tree = [pid, *procfs.descendants(pid)]
        self.assertEqual([self.in_group(each) for each in tree], [True, True])
        self.end(command, pid)


class MemoryLimitTest(RekindleTest):
    """Job and command under one limit, as in a container."""

    LIMIT = 320 * MIB

    def make_group(self):
        for top, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
            group = os.path.join(top, os.path.basename(self.directory))
            try:
                os.mkdir(group)
            except OSError:
                continue
            self.addCleanup(os.rmdir, group)
            if os.access(os.path.join(group, limit), os.W_OK):
                with open(os.path.join(group, limit), "w", encoding="ascii") as file:
                    file.write(str(self.LIMIT))
                return group
        return self.skipTest("no memory limits can be set here")

    def test_nobody_is_killed(self):
        group = self.make_group()
        enter = ("sh", "-c", f'echo $$ >{group}/cgroup.procs && exec "$@"', "sh")
        status = self.path("status")
        job = self.start_job([*enter, jobs.program("memory_job"), str(self.LIMIT // 2), status])
        memory = MemoryJob(status)
        self.addCleanup(memory.close)
        digest = memory.digest()
        done = self.succeed("ckpt", job.pid, "-t", "x:1", prefix=enter)
        self.assertIn("memory budget", str(done["warnings"]))
        memory.wait_for_tick()
        self.assertEqual(memory.digest(), digest)
        job.kill_tree()


class TerminalTest(RekindleTest):
    def open_terminal(self):
        terminal = Terminal()
        self.addCleanup(terminal.close)
        return terminal

    def test_job_in_a_terminal_moves_to_another(self):
        log = self.path("lines")
        first = self.open_terminal()
        job = self.start_job(
            [jobs.PYTHON, jobs.workload("terminal_job.py"), log], "terminal", terminal=first.slave
        )
        waiting.until(lambda: lines_of(log) == ["ready"], "ready")
        first.type("one")
        first.wait_for("line 1: one")

        self.checkpoint(job.pid, "term:1")
        first.type("two")
        first.wait_for("line 2: two")
        self.checkpoint(job.pid, "term:2", "--stop")
        job.reap()

        second = self.open_terminal()
        command = jobs.Started(
            self.cli.argv("restore", "term:2"),
            self.path("restore.log"),
            terminal=second.slave,
            env=environment(self.environment),
        )
        self.addCleanup(command.kill_tree)
        self.kill_job_at_end(job.pid)
        waiting.until(lambda: procfs.alive(job.pid) or not procfs.alive(command.pid), "the job is back")
        second.type("three")
        second.wait_for("line 3: three")
        os.kill(job.pid, signal.SIGTERM)
        command.reap()

    def test_in_the_foreground_of_a_shell(self):
        """The shell, whose session and terminal it has, is no part of the job."""
        terminal = self.open_terminal()
        count = self.path("count")
        shell = self.start_job(["bash", "--norc", "-i"], "shell", terminal=terminal.slave)
        terminal.type(f"{jobs.workload('counter.sh')} {count}")
        waiting.until(lambda: len(lines_of(count)) > 2, "it counts")
        (pid,) = procfs.children_by_parent()[shell.pid]
        self.checkpoint(pid, "foreground:1", "--stop")

        def collected():  # by the shell, and the program that it was just running by us
            jobs.reap_orphans()
            return not any(int(f[2]) == pid for f in map(procfs.stat_fields, procfs.all_pids()) if f)

        waiting.until(collected, "the job's process group is gone")
        at = len(lines_of(count))
        self.assertEqual(self.restore("foreground:1", "--log", self.path("again.log")), pid)
        waiting.until(lambda: len(lines_of(count)) > at + 3, "it counts on")

    def test_terminal_becomes_a_log(self):
        terminal = self.open_terminal()
        count_to_terminal = "n=0; while :; do n=$((n + 1)); echo $n; sleep 0.02; done"
        job = self.start_job(["sh", "-c", count_to_terminal], "shell", terminal=terminal.slave)
        terminal.wait_for("3\r\n")
        self.checkpoint(job.pid, "typed:1", "--stop")
        job.reap()
        log = self.path("again.log")
        self.assertEqual(self.restore("typed:1", "--log", log), job.pid)
        waiting.until(lambda: len(lines_of(log)) > 3, "it counts on, into the log")
        numbers = [int(line) for line in lines_of(log)]
        self.assertGreater(numbers[0], 3)
        self.assertEqual(numbers, list(range(numbers[0], numbers[0] + len(numbers))))

    def test_serial_console_becomes_a_log(self):
        """CRIU by itself knows no serial ports."""
        console = "/dev/ttyS0"
        try:
            os.close(os.open(console, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK))
        except OSError as error:
            self.skipTest(f"no serial console here: {error}")
        count = self.path("count")
        script = "n=0; while :; do n=$((n + 1)); echo $n >> $1; [ ! -e $1.back ] || echo $n; sleep 0.02; done"
        terminal = os.open(console, os.O_RDWR | os.O_NOCTTY)
        job = self.start_job(["sh", "-c", script, "sh", count], "serial", output=terminal)
        os.close(terminal)
        waiting.until(lambda: len(lines_of(count)) > 2, "it counts")
        self.checkpoint(job.pid, "serial:1", "--stop")
        job.reap()
        at = len(lines_of(count))
        with open(count + ".back", "w", encoding="ascii"):
            pass  # from now on it writes what it counts
        log = self.path("again.log")
        self.assertEqual(self.restore("serial:1", "--log", log), job.pid)
        waiting.until(lambda: len(lines_of(log)) > 3, "it counts on, into the log")
        self.assertGreaterEqual(int(lines_of(log)[0]), at)

    def test_with_terminals_of_its_own(self):
        """As tmux, ssh and mpirun have them: both sides are in the job."""
        count = self.path("count")
        command = f"{jobs.workload('counter.sh')} {count}"
        job = self.start_job(["script", "-qfc", command, self.path("typescript")], "script")
        waiting.until(lambda: len(lines_of(count)) > 2, "it counts")
        self.checkpoint(job.pid, "own:1", "--stop")
        job.reap()
        at = len(lines_of(count))
        self.assertEqual(self.restore("own:1"), job.pid)
        waiting.until(lambda: len(lines_of(count)) > at + 3, "it counts on")

    def test_run_in_a_terminal(self):
        """`rekindle run` typed into a terminal: the job does not hold it."""
        terminal = self.open_terminal()
        count = self.path("count")
        command = jobs.Started(
            self.cli.argv(
                "run",
                "--name",
                "it-typed",
                "--log",
                self.path("typed.log"),
                "--",
                jobs.workload("counter.sh"),
                count,
            ),
            self.path("command.log"),
            terminal=terminal.slave,
            env=environment(self.environment),
        )
        self.addCleanup(command.kill_tree)
        waiting.until(lambda: len(lines_of(count)) > 2, "it counts")
        pids = [job["pid"] for job in self.succeed("ps").get("jobs", []) if job.get("name") == "it-typed"]
        self.assertEqual(len(pids), 1)
        self.kill_job_at_end(pids[0])
        self.assertEqual(
            [t for t in procfs.descriptor_targets(pids[0]).values() if t.startswith("/dev/pts")], []
        )
        self.checkpoint("it-typed", "typed:1", "--stop")
        command.reap()
        jobs.reap_orphans()
        at = len(lines_of(count))
        self.assertEqual(self.restore("typed:1"), pids[0])
        waiting.until(lambda: len(lines_of(count)) > at + 2, "it counts on")


if __name__ == "__main__":
    unittest.main()
