"""Functions when the daemon ends, and when many call at once."""

import glob
import itertools
import json
import os
import random
import shutil
import signal
import threading
import time
import unittest

from harness import jobs, procfs, waiting
from harness.cli import FAILED, NOT_PERMITTED, UNSUPPORTED, Daemon
from harness.functions import SECONDS, FunctionsTest


class DaemonTest(FunctionsTest):
    def prepare(self):
        """Two functions, one of them at work. Returns the call under way and the processes."""
        self.deploy("idle")
        self.deploy("busy", "--timeout", "600s")
        self.invoke("idle")
        call, _ = self.begin_waiting("busy")
        return call, self.runtimes()

    def check_new_daemon(self, call, old):
        self.assertEqual(self.cli.finish(call).code, 1)
        self.restart_daemon()
        for pid in old:
            waiting.until(lambda pid=pid: not procfs.alive(pid), f"{procfs.command_line(pid)} has ended", SECONDS)
        names = [function["spec"]["name"] for function in self.succeed("fn", "ls")["functions"]]
        self.assertEqual(sorted(names), ["busy", "idle"])
        self.assertEqual(self.sockets(), [])
        for name in names:
            seen, answer = self.invoke(name, {"do": "self"})
            self.assertEqual(seen["calls"], 1)
            self.assertNotEqual(answer["start_level"], "running")
        self.assertEqual(len(self.runtimes()), 2)
        self.succeed("fn", "rm", "busy", "idle")
        self.wait_for_nothing()

    def test_ended(self):
        call, old = self.prepare()
        self.daemon.stop()
        self.assertEqual([pid for pid in old if procfs.alive(pid)], [])
        self.assertEqual(self.sockets(), [])
        self.check_new_daemon(call, old)

    def test_killed(self):
        call, old = self.prepare()
        self.daemon.kill()
        self.check_new_daemon(call, old)

    def test_one_that_a_killed_one_has_left_takes_no_calls(self):
        """Even where the next daemon does not know of it, and it is loaded only then."""
        begun, go = self.path("begun"), self.path("go")
        loads = (f"import os, time\nopen({begun!r}, 'x').close()\n"
                 f"while not os.path.exists({go!r}): time.sleep(0.01)\n")
        for name, first in (("left", loads), ("other", "")):
            self.deploy(name, "--no-image", files={"app.py": f"{first}def handler(event, context): return {name!r}\n"})
        call = self.begin_invoke("left", {})
        waiting.until(lambda: os.path.exists(begun), "it is being loaded", SECONDS)
        old = self.runtimes()
        self.daemon.kill()
        self.assertEqual(self.cli.finish(call).code, 1)
        for record in glob.glob(os.path.join(self.runtime, "f", "*", "*.pid")):
            os.unlink(record)
        self.restart_daemon()
        self.assertEqual(self.invoke("other")[0], "other")
        self.assertEqual([pid for pid in old if not procfs.alive(pid)], [])
        with open(go, "w", encoding="ascii"):
            pass
        for pid in old:
            waiting.until(lambda pid=pid: not procfs.alive(pid), "it has ended", SECONDS)
        self.assertEqual([self.invoke("other")[0] for _ in range(3)], ["other"] * 3)

    def test_what_can_not_be_loaded_is_told_of_until_it_can(self):
        flag = self.path("flag")
        code = {"app.py": f"open({flag!r}).close()\ndef handler(event, context):\n    while event == 'hang': pass\n"}
        self.deploy("tried", files=code)
        self.deploy("hangs", "--deps", "none", "--timeout", "1", files=code)
        self.deploy("untried", "--deps", "none", files=code)
        self.assertEqual(self.function("untried")["state"], "ready")
        self.failed("untried")
        self.failed("hangs")

        def is_called(name, state):
            waiting.until(lambda: self.function(name)["state"] == state, f"{name} is {state}", SECONDS)

        is_called("untried", "unloadable")
        is_called("hangs", "unloadable")
        self.daemon.stop()
        self.restart_daemon()
        for name, words in (("tried", "No such file or directory"), ("untried", "rekindle fn logs untried")):
            function = self.function(name)
            self.assertEqual(function["state"], "unloadable")
            self.assertIn("could not be loaded", function["problem"])
            self.assertIn(words, function["problem"])
        with open(flag, "w", encoding="ascii"):
            pass
        for name in ("tried", "untried"):
            self.invoke(name)
            is_called(name, "ready")
        # Also of one that is loaded, and answers nothing.
        self.failed("hangs", "hang")
        is_called("hangs", "ready")

    def test_killed_while_sandboxes_are_made(self):
        """What becomes of these then is no fault of the pager's, which lives."""
        self.deploy("idle")
        self.invoke("idle")
        self.wait_for_image("idle")
        folder = os.path.join(self.runtime, "s")
        for _ in range(3):
            pager, before = self.pager(), set(os.listdir(folder))
            calls = [self.begin_invoke("idle", {"do": "self"}) for _ in range(8)]
            waiting.until(
                lambda before=before, calls=calls: set(os.listdir(folder)) - before
                or all(call.poll() is not None for call in calls),
                "a sandbox in the making", SECONDS, 0.0005,
            )  # fmt: skip
            time.sleep(random.uniform(0, 0.12))  # any moment of it
            self.daemon.kill()
            for call in calls:
                self.cli.finish(call)
            self.restart_daemon()
            self.assertEqual(self.pager(), pager)
            self.assertNotIn("the pager that served", self.daemon.log_text())
            self.invoke("idle")

    def test_provisioned_come_back(self):
        self.deploy("ready", "--provisioned", "1")
        waiting.until(lambda: self.function("ready")["instances_idle"] == 1, "an instance", SECONDS)
        self.daemon.kill()
        self.restart_daemon()
        waiting.until(lambda: self.function("ready")["instances_idle"] == 1, "an instance again", SECONDS)


class GraceTest(FunctionsTest):
    """The daemon's end gives what is in work some time, however it was called."""
    files = {
        "app.py": "import os, time\n"
                  "def handler(event, context):\n"
                  "    open(event['begun'], 'x').close()\n"
                  "    while not os.path.exists(event['go']):\n"
                  "        time.sleep(0.01)\n"
                  "    open(event['begun'] + '.done', 'x').close()\n"
                  "    return 'through'\n"
    }

    def event(self, name):
        return {"begun": self.path(name), "go": self.path("go")}

    def test_calls_and_events_go_on(self):
        self.deploy("held", "--timeout", "600s", files=self.files)
        answers = []
        caller = threading.Thread(target=lambda: answers.append(self.post("held", self.event("call"))))
        caller.start()
        self.assertEqual(self.post("held", self.event("event"), {"X-Amz-Invocation-Type": "Event"}).status, 202)
        for name in ("call", "event"):
            waiting.until(lambda name=name: os.path.exists(self.path(name)), f"the {name} has begun", SECONDS)
        os.kill(self.daemon.pid, signal.SIGTERM)
        # Those that come before the signal is seen do not wait: the time that is given would pass.
        late = (self.path(f"late-{number}") for number in itertools.count())
        waiting.until(lambda: self.post("held", {"begun": next(late), "go": "/"}).status == 503,
                      "new ones are refused", SECONDS)  # fmt: skip
        self.assertTrue(self.daemon.running())
        open(self.path("go"), "x", encoding="ascii").close()
        caller.join()
        self.assertEqual((answers[0].status, answers[0].json()), (200, "through"))
        self.daemon.stop()
        for name in ("call.done", "event.done"):
            self.assertTrue(os.path.exists(self.path(name)), name)

    def test_who_calls_is_told_that_it_was_cut_off(self):
        self.daemon.stop()
        self.restart_daemon("--grace", "1")
        self.deploy("held", "--timeout", "600s", files=self.files)
        call = self.cli.start("fn", "invoke", "held", "--payload", json.dumps(self.event("call")))
        self.addCleanup(call.kill)
        waiting.until(lambda: os.path.exists(self.path("call")), "the call has begun", SECONDS)
        self.daemon.stop()
        self.assert_refused(self.cli.finish(call), FAILED, "rekindled ends", "cut off")

    def test_the_daemon_of_another_store_leaves_them_alone(self):
        """It has the same runtime folder, as by default."""
        self.deploy("held", "--timeout", "600s", files=self.files)
        answers = []
        caller = threading.Thread(target=lambda: answers.append(self.post("held", self.event("call"))))
        caller.start()
        waiting.until(lambda: os.path.exists(self.path("call")), "the call has begun", SECONDS)
        other = self.path("other")
        os.mkdir(other)
        second = Daemon(other, os.path.join(other, "store"), self.environment)
        self.addCleanup(second.stop)
        open(self.path("go"), "x", encoding="ascii").close()
        caller.join()
        self.assertEqual((answers[0].status, answers[0].json()), (200, "through"))

    def test_an_event_that_waits_for_its_next_attempt_has_it(self):
        seen = self.path("seen")
        self.deploy("fails", files={
            "app.py": f"def handler(event, context):\n    open({seen!r}, 'a').write('x')\n    raise ValueError\n"})
        answer = self.post("fails", {}, {"X-Amz-Invocation-Type": "Event"})
        self.assertEqual(answer.status, 202)
        waiting.until(lambda: self.stats("fails")["errors"] == 1, "the first attempt", SECONDS)
        self.daemon.stop()  # perhaps before it waits
        with open(seen, encoding="ascii") as file:
            attempts = len(file.read())
        self.assertIn(attempts, (1, 2))
        self.restart_daemon()
        self.assertIn(f"RequestId: {answer.headers['x-amzn-RequestId']} rekindle: this asynchronous call is dropped: "
                      f"it failed {attempts} times, and the daemon is ending: ", self.cli.run("fn", "logs", "fails").out)

    def test_an_event_waits_until_the_node_can_start_its_function(self):
        seen = self.path("seen")
        # Without an image it has no network of its own, and can't be started.
        self.deploy("waits", "--net", "none", "--deps", "decimal", files={
            "app.py": f"def handler(event, context):\n    open({seen!r}, 'a').write('x')\n"})
        image = self.function("waits")["dependency_image"]
        self.succeed("rm", image)
        self.assertEqual(self.post("waits", {}, {"X-Amz-Invocation-Type": "Event"}).status, 202)
        waiting.until(lambda: os.path.exists(seen), "the event has come", SECONDS)
        self.assertIn("function 'waits' could not be started", self.daemon.log_text())
        self.assertIn(image, self.references())


class ImportTest(FunctionsTest):
    """While a deployment imports its handler."""
    endless = ("import os, time\n"
               "with open({path!r} + '.new', 'w') as file:\n"
               "    file.write(str(os.getpid()))\n"
               "os.rename({path!r} + '.new', {path!r})\n"
               "while True:\n"
               "    time.sleep(1)\n")

    def begin(self):
        """A deployment whose import does not end. Returns the command and the importing process."""
        path = self.path("importing")
        folder = self.code("endless", {"app.py": self.endless.format(path=path)})
        command = self.cli.start(
            "fn", "deploy", "endless", "--runtime", "python", "--handler", "app.handler", "--code", folder)
        waiting.until(lambda: os.path.exists(path) or command.poll() is not None, "it imports", SECONDS)
        with open(path, encoding="ascii") as file:
            return command, int(file.read())

    def assert_ends(self, pid):
        waiting.until(lambda: not procfs.alive(pid), "the import has ended", SECONDS)

    def test_the_daemons_end_ends_it(self):
        command, pid = self.begin()
        self.daemon.stop()  # which has a minute
        self.assert_ends(pid)
        self.assertEqual(self.cli.finish(command).code, 1)

    def test_with_who_deploys_it_ends(self):
        command, pid = self.begin()
        command.send_signal(signal.SIGINT)
        self.assert_ends(pid)
        self.cli.finish(command)
        self.assertIsNone(self.function("endless"))

    def test_it_may_have_as_many_processes_as_an_instance(self):
        command, pid = self.begin()
        with open(f"/proc/{pid}/cgroup", encoding="ascii") as file:
            groups = [line.strip().split(":") for line in file]
        path = next(path for _, controllers, path in sorted(groups, reverse=True) if controllers in ("pids", ""))
        hierarchy = "/pids" if any(controllers == "pids" for _, controllers, _ in groups) else ""
        with open(f"/sys/fs/cgroup{hierarchy}{path}/pids.max", encoding="ascii") as file:
            self.assertEqual(file.read().strip(), "1024")
        command.send_signal(signal.SIGINT)
        self.cli.finish(command)


_STARTS_OTHERS = """#!/bin/sh
sleep 1000 &
echo $! >> {started}
setsid sleep 1000 &
echo $! >> {started}
env -i /bin/sleep 1000 &
echo $! >> {started}
exec "$LAMBDA_TASK_ROOT/runtime"
"""


class WithoutGroupsTest(FunctionsTest):
    """A daemon that sees no control groups, as in a container."""
    daemon_prefix = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"', "sh")

    def test_limits_are_not_promised(self):
        self.assertIn("functions have no limits of memory, CPU and processes", self.daemon.log_text())
        self.assertIn("it has no limits of memory, CPU and processes", self.deploy("free")["warnings"][0])
        self.assertEqual(self.invoke("free", {"do": "self"})[0]["calls"], 1)
        for limit in (("--memory", "256M"), ("--cpus", "1")):
            refused = self.cli.run("fn", "deploy", "held", "--runtime", "python", "--handler", "app.handler", "--code",
                                   self.code("held"), *limit)
            # By what is in the way on this machine, which doctor tells too.
            self.assertIn(refused.code, (FAILED, NOT_PERMITTED, UNSUPPORTED), str(refused))
            self.assert_refused(refused, refused.code, "function 'held'", "can't be limited here", "without --memory")
        self.assertIsNone(self.function("held"))
        # What was not asked for is no reason.
        other = self.code("other", {"app.py": "def handler(event, context):\n    return 2\n"})
        self.succeed("fn", "set", "free", "--code", other)
        self.assertEqual(self.invoke("free")[0], 2)

    def start_others(self):
        """Deploys and calls a runtime that starts three processes. Returns these."""
        started = self.path("started")
        code = self.code("starts", {"bootstrap": _STARTS_OTHERS.format(started=started)})
        os.chmod(os.path.join(code, "bootstrap"), 0o755)
        shutil.copy(jobs.program("minimal_runtime"), os.path.join(code, "runtime"))
        self.deploy("starts", runtime="provided", code=code)
        self.assertEqual(self.invoke("starts", {"n": 1})[0], {"n": 1})
        with open(started, encoding="ascii") as file:
            pids = [int(line) for line in file]
        self.assertEqual([procfs.alive(pid) for pid in pids], [True] * 3)
        return pids

    def assert_end(self, pids):
        for pid in pids:
            waiting.until(lambda pid=pid: not procfs.alive(pid), f"{procfs.command_line(pid)} has ended", SECONDS)

    def test_what_an_instance_has_started_ends_with_it(self):
        pids = self.start_others()
        self.succeed("fn", "rm", "starts")
        self.assert_end(pids)

    def test_and_after_a_daemon_that_was_killed(self):
        pids = self.start_others()
        self.daemon.kill()
        self.restart_daemon()
        self.assert_end(pids)


class ConcurrencyTest(FunctionsTest):
    files = {"app.py": "import time\ndef handler(event, context):\n    time.sleep(0.2)\n    return event['n']\n"}

    def call_at_once(self, count):
        answers = [None] * count

        def call(number):
            answers[number] = self.post("slow", {"n": number})

        threads = [threading.Thread(target=call, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, answer in enumerate(answers):
            self.assertEqual((answer.status, answer.function_error), (200, None), str(answer))
            self.assertEqual(answer.json(), number)

    def instances(self):
        return sum(starts["count"] for starts in self.stats("slow")["starts"])

    def test_several_instances(self):
        self.deploy("slow", "--timeout", "60s", files=self.files)
        self.call_at_once(20)
        self.assertGreater(self.instances(), 1)
        self.assertEqual(self.stats("slow")["invocations"], 20)

    def test_no_more_than_it_may_have(self):
        self.deploy("slow", "--timeout", "60s", "--max-instances", "2", files=self.files)
        self.call_at_once(10)
        self.assertIn(self.instances(), (1, 2))
        stats = self.stats("slow")
        self.assertEqual((stats["invocations"], stats["throttles"], stats["queued"]), (10, 0, 0))


if __name__ == "__main__":
    unittest.main()
