"""Functions of one name or one machine that are not one owner's: what somebody else has prepared, removed or deployed
meanwhile does not get into a function.
"""

import grp
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

from harness import procfs, waiting
from harness.functions import FROM_OWN_IMAGE, SECONDS, FunctionsTest
from harness.cli import DONE, FAILED, NOT_FOUND, USAGE

ALICE, BOB = 65533, 65534
_ASYNCHRONOUSLY = {"X-Amz-Invocation-Type": "Event"}

# Its import waits until the test lets it go on.
_SLOW = """import os
import time

open({loading!r}, "a").write("x")
while os.path.exists({held!r}):
    time.sleep(0.01)
import decimal


def handler(event, context):
    return "old"
"""
_QUICK = """def handler(event, context):
    return "new"
"""
_FAILS_FOR = """import os


def handler(event, context):
    open({path!r}, "a").write(repr(event) + "\\n")
    raise RuntimeError("again, please")
"""
# In a copy that is to become its image; elsewhere it loads at once.
_HANGS_IN_CAPTURE = """import os
import time

if os.environ.get("REKINDLE_FUNCTION_IMAGE"):
    open({path!r}, "a").write("x")
    time.sleep(100_000)


def handler(event, context):
    return "answered"
"""
# Likewise, as long as there is a file; says whether it is the only one.
_WAITS_IN_CAPTURE = """import fcntl
import os
import time

if os.environ.get("REKINDLE_FUNCTION_IMAGE"):
    with open({path!r}, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write("alone ")
        except BlockingIOError:
            file.write("beside another ")
        file.flush()
        while os.path.exists({block!r}):
            time.sleep(0.01)


def handler(event, context):
    return "answered"
"""
# Its log is beyond its limit after each call.
_HUGE_TIMES = """import os


def handler(event, context):
    log = os.readlink("/proc/self/fd/1")
    os.truncate(log[: -len(".log")] + ".times", 1 << 40)
    print("x" * (17 << 20))
    return event["n"]
"""
# Opens connections to a Unix socket and a port, in turns, and counts the answers.
_HOARDS = """import collections, json, socket, sys

answers, kept = collections.Counter(), []
for number in range(70):
    if number % 2:
        one = socket.create_connection(("127.0.0.1", int(sys.argv[2])), 30)
    else:
        one = socket.socket(socket.AF_UNIX)
        one.settimeout(30)
        one.connect(sys.argv[1])
    kept.append(one)
    # More than a socket's buffers hold: also a client that is refused gets all of it off.
    one.sendall(b"GET /health HTTP/1.1\\r\\nHost: h\\r\\n\\r\\n" if number < 64 else
                b"POST /2015-03-31/functions/any/invocations HTTP/1.1\\r\\nContent-Length: 3000000\\r\\n\\r\\n" +
                b"1" * 3_000_000)
    answers[one.recv(4096).split()[1].decode()] += 1
print(json.dumps(answers), flush=True)
sys.stdin.read()
"""
_ASKS_FOR_HEALTH = """import http.client, sys

connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=30)
connection.request("GET", "/health")
print(connection.getresponse().status)
"""
# Begins requests with the largest bodies there may be, and counts the answers.
_UPLOADS = """import collections, json, socket, sys

answers, kept = collections.Counter(), []
for _ in range(int(sys.argv[2])):
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(30)
    one.connect(sys.argv[1])
    kept.append(one)
    one.sendall(b"POST /2015-03-31/functions/any/invocations HTTP/1.1\\r\\nHost: h\\r\\n"
                b"Expect: 100-continue\\r\\nContent-Length: 6291456\\r\\n\\r\\n")
    answers[one.recv(4096).split()[1].decode()] += 1
print(json.dumps(answers), flush=True)
sys.stdin.read()
"""
# Calls a function asynchronously, over and over on one connection, and counts the answers.
_SENDS = """import collections, http.client, json, sys

connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
answers = collections.Counter()
for _ in range(int(sys.argv[3])):
    connection.request("POST", f"/2015-03-31/functions/{sys.argv[2]}/invocations", sys.argv[4],
                       {"X-Amz-Invocation-Type": "Event"})
    response = connection.getresponse()
    response.read()
    answers[response.status] += 1
print(json.dumps(answers))
"""
# Says that it was called, and by whom; one call waits until its file has gone.
_NAMES = """import os
import time


def handler(event, context):
    with open({path!r}, "a") as file:
        file.write(event["name"] + "\\n")
    while os.path.exists(event.get("while", "")):
        time.sleep(0.01)
"""
# Says that it was called; one call waits until its file has gone.
_COUNTS = """import os
import time


def handler(event, context):
    with open({path!r}, "a") as file:
        file.write("x")
    while event and os.path.exists(event["while"]):
        time.sleep(0.01)
"""
# Which of these it sees.
_LOOKS = """import os
import socket

seen = [path for path in {paths!r} if os.path.exists(path)]
for family, address in ((socket.AF_INET, ("127.0.0.1", {port})), (socket.AF_UNIX, {abstract!r})):
    with socket.socket(family) as one:
        if one.connect_ex(address) == 0:
            seen.append(address)
"""
_HOME = """import os
import site


def handler(event, context):
    return {"home": os.environ["HOME"], "user_site": site.ENABLE_USER_SITE, "keeps": os.path.exists(os.environ["HOME"])}
"""


class RoomTest(FunctionsTest):
    """Code keeps to the limits of the store."""

    def deployment(self, name, megabytes, *options):
        code = self.code(name, {"bootstrap": "#!/bin/sh\n", "data": "x" * int(megabytes * (1 << 20))})
        os.chmod(os.path.join(code, "bootstrap"), 0o755)
        return ("fn", "deploy", name, "--runtime", "provided", "--handler", "x", "--code", code, *options)

    def test_the_owners_quota(self):
        alice, bob = (self.make_cli(host=self.daemon.host, uid=uid) for uid in (ALICE, BOB))
        self.succeed("quota", "--owner", ALICE, "--max", "3M")
        refused = alice.run(*self.deployment("large", 40))
        self.assert_refused(refused, FAILED, "'large' has more than 16", f"quota of uid {ALICE}", "3.0 MiB", "fn rm")
        self.succeed(*self.deployment("one", 1.5), cli=alice)
        self.assert_refused(alice.run(*self.deployment("two", 2)), FAILED, "code of their functions 1.5 MiB", "fn rm")
        self.succeed(*self.deployment("one", 2, "--replace"), cli=alice)
        self.succeed(*self.deployment("other", 40), cli=bob)
        # Nothing of what was refused.
        self.assertEqual(sorted(os.listdir(os.path.join(self.store, "functions"))), [".lock", "one", "other"])

    def test_code_and_images_count_together(self):
        self.succeed("quota", "--owner", "root", "--max", "9M")
        self.succeed(*self.deployment("one", 4))
        shown = next(owner for owner in self.succeed("quota")["owners"] if owner["uid"] == 0)
        self.assertGreater(shown["code_bytes"], 4 << 20)
        self.assertEqual(self.succeed("quota")["store"]["code_bytes"], shown["code_bytes"])
        job, memory = self.start_memory_job(8 << 20)
        refused = self.cli.run("ckpt", job.pid, "-t", "large:1")
        self.assert_refused(refused, FAILED, "quota of uid 0", "the code of functions 4.0 MiB", "rekindle fn rm")
        memory.wait_for_tick()
        self.succeed("fn", "rm", "one")
        self.succeed("ckpt", job.pid, "-t", "large:1")
        self.assert_refused(self.cli.run(*self.deployment("one", 4)), FAILED, "quota of uid 0", "rekindle fn rm")

    def test_the_stores_limit_and_its_file_systems(self):
        self.succeed("quota", "--store-max", "20M")
        refused = self.cli.run(*self.deployment("large", 40))
        self.assert_refused(refused, FAILED, "the store", "20.0 MiB", "--store-max")
        self.succeed("quota", "--store-max", "none", "--high-water", "1")
        refused = self.cli.run(*self.deployment("small", 0.1))
        self.assert_refused(refused, FAILED, "high-water mark", "--high-water")
        self.succeed("quota", "--high-water", "none")
        self.succeed(*self.deployment("small", 0.1))


class LateDeploymentTest(FunctionsTest):
    def setUp(self):
        super().setUp()
        self.slow, self.held, self.loading = 0, "", ""

    def deploy_slowly(self, cli=None, *options):
        """A deployment that goes on until `held` is removed. Returns when its code has been taken."""
        # Of this one alone: an instance of an earlier one may load its code meanwhile.
        self.slow += 1
        self.held, self.loading = self.path(f"held.{self.slow}"), self.path(f"loading.{self.slow}")
        for path in (self.held, self.loading):
            with open(path, "w", encoding="ascii"):
                pass
            os.chmod(path, 0o666)
        folder = self.code("slow", {"app.py": _SLOW.format(held=self.held, loading=self.loading)})
        command = (cli or self.cli).start(
            "fn", "deploy", "name", "--runtime", "python", "--handler", "app.handler", "--code", folder, *options)
        waiting.until(lambda: os.path.getsize(self.loading) or command.poll() is not None, "its code taken", SECONDS)
        return command

    def let_go(self, command):
        os.unlink(self.held)
        self.assert_refused(self.cli.finish(command), FAILED, "no effect")

    def folders(self):
        return sorted(os.listdir(os.path.join(self.store, "functions", "name")))

    def test_it_does_not_replace_what_was_deployed_meanwhile(self):
        command = self.deploy_slowly()
        self.assertIsNone(self.function("name"))
        self.deploy("name", files={"app.py": _QUICK})
        self.assertEqual(self.invoke("name", None)[0], "new")
        self.let_go(command)
        self.assertEqual(self.invoke("name", None)[0], "new")
        self.wait_for_image("name")
        self.assertEqual(self.invoke("name", None)[0], "new")

    def test_nor_what_another_user_has_put_in_its_place(self):
        alice, bob = (self.make_cli(host=self.daemon.host, uid=uid) for uid in (ALICE, BOB))
        command = self.deploy_slowly(alice)
        self.deploy("name", files={"app.py": _QUICK}, cli=bob)
        self.let_go(command)
        self.assertEqual(self.invoke("name", None, cli=bob)[0], "new")

    def test_what_was_removed_does_not_come_back(self):
        command = self.deploy_slowly()
        self.assert_refused(self.cli.run("fn", "rm", "name"), NOT_FOUND, "name")
        os.unlink(self.held)
        self.assertEqual(self.cli.finish(command).code, DONE)
        self.assertEqual(self.invoke("name", None)[0], "old")
        command = self.deploy_slowly(None, "--replace", "--env", "N=7")
        self.succeed("fn", "rm", "name")
        self.let_go(command)
        self.assertIsNone(self.function("name"))
        self.assert_refused(self.cli.run("fn", "invoke", "name"), NOT_FOUND, "name")

    def test_a_daemon_that_is_killed_leaves_what_there_was(self):
        self.deploy("name", files={"app.py": _QUICK})
        command = self.deploy_slowly(None, "--replace")
        self.assertEqual(self.folders(), ["1", "2", "function.json"])
        self.assertEqual(self.invoke("name", None)[0], "new")
        self.daemon.kill()
        self.cli.finish(command)
        os.unlink(self.held)
        self.restart_daemon()
        function = self.function("name")
        self.assertEqual((function["revision"], function["dependency_image"]), (1, "deps/python:bare"))
        self.assertEqual(self.invoke("name", None)[0], "new")
        self.assertEqual(self.folders(), ["1", "function.json"])


class LeftImagesTest(FunctionsTest):
    def test_images_of_functions_that_are_no_more_go_at_the_next_start(self):
        for name in ("left", "kept"):
            self.deploy(name, "--deps", "none", files={"app.py": _QUICK})
            self.invoke(name, None)
        left, kept = (self.wait_for_image(name) for name in ("left", "kept"))
        job, _ = self.start_memory_job(1 << 20)
        self.succeed("ckpt", job.pid, "-t", "images/other:1", "--label", "rekindle.function=left")
        self.daemon.kill()
        # As by a daemon that was killed while it removed the function.
        shutil.rmtree(os.path.join(self.store, "functions", "left"))
        self.restart_daemon()
        waiting.until(lambda: left not in self.references(), "the image gone", SECONDS)
        self.assertEqual(self.references(), sorted(["deps/python:bare", kept, "images/other:1"]))
        self.wait_for_no_instance("kept")
        self.assertIn(self.invoke("kept", None)[1]["start_level"], FROM_OWN_IMAGE)

    def start(self):
        """What a new instance was made from."""
        for pid in self.runtimes():
            os.kill(pid, signal.SIGKILL)
        self.wait_for_no_instance("name")
        answer, call = self.invoke("name", None)
        self.assertEqual(answer, "new")
        return call["start_level"]

    def test_another_image_under_its_name_is_not_used(self):
        administrators = ("--group", grp.getgrgid(BOB).gr_name)
        self.daemon.stop()
        self.restart_daemon(*administrators)
        self.deploy("name", "--deps", "none", files={"app.py": _QUICK})
        self.invoke("name", None)
        image, file = self.wait_for_image("name"), self.path("exported")
        self.succeed("export", image, "--file", file)
        os.chmod(file, 0o644)
        job, _ = self.start_memory_job(1 << 20)
        self.succeed("rm", image)
        with self.subTest("another user's"):
            self.succeed("import", "--file", file, "-t", image, cli=self.make_cli(host=self.daemon.host, uid=BOB))
            self.daemon.stop()
            self.restart_daemon(*administrators)
            self.assertNotIn(self.start(), FROM_OWN_IMAGE)
        with self.subTest("another revision's"):
            self.daemon.stop()  # with what it was about to take
            root, other = self.make_cli(store=self.store), self.path("other")
            self.succeed("ckpt", job.pid, "-t", "other:1", "--label", "rekindle.function=name",
                         "--label", "rekindle.function.revision=2", cli=root)
            for refused in (root.run("ckpt", job.pid, "-t", image, "--replace"),
                            root.run("tag", "other:1", image, "--replace")):
                self.assertNotEqual(refused.code, 0, str(refused))
                self.assertIn("choose another one", str(refused))
            self.succeed("export", "other:1", "--file", other, cli=root)
            self.succeed("rm", image, cli=root)
            self.succeed("import", "--file", other, "-t", image, cli=root)
            self.restart_daemon(*administrators)
            self.assertNotIn(self.start(), FROM_OWN_IMAGE)


class EventTest(FunctionsTest):
    def test_an_event_is_for_the_owner_who_had_the_function(self):
        alice, bob = (self.make_cli(host=self.daemon.host, uid=uid) for uid in (ALICE, BOB))
        seen = self.path("seen")
        with open(seen, "w", encoding="ascii"):
            pass
        os.chmod(seen, 0o666)
        code = {"app.py": _FAILS_FOR.format(path=seen)}
        self.deploy("mail", files=code, cli=alice)
        self.succeed("fn", "invoke", "mail", "--async", "--payload", '{"of": "alice"}', cli=alice)
        waiting.until(lambda: os.path.getsize(seen), "the first attempt", SECONDS)
        self.succeed("fn", "rm", "mail", cli=alice)
        os.truncate(seen, 0)
        self.deploy("mail", files=code, cli=bob)
        waiting.until(lambda: "removed meanwhile" in self.daemon_log(), "the event dropped", SECONDS)
        self.assertEqual(os.path.getsize(seen), 0)

    def begin_held(self):
        """One instance of "names" is in work until the file that is returned goes; the other one has the names of all
        calls."""
        seen, held = self.path("seen"), self.path("held")
        for path in (seen, held):
            with open(path, "w", encoding="ascii"):
                pass
        self.deploy("names", "--deps", "none", "--max-instances", "1", "--timeout", "60s",
                    files={"app.py": _NAMES.format(path=seen)})
        self.assertEqual(self.post("names", {"name": "held", "while": held}, _ASYNCHRONOUSLY).status, 202)
        waiting.until(lambda: os.path.getsize(seen), "the first one in work", SECONDS)
        return held, seen

    def wait_for_queued(self, count):
        waiting.until(lambda: self.stats("names")["queued"] == count, f"{count} wait", SECONDS)

    def names(self, seen):
        with open(seen, encoding="ascii") as file:
            return file.read().split()

    def test_events_wait_behind_callers_and_none_is_lost(self):
        held, seen = self.begin_held()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        self.addCleanup(connection.close)
        # The queue has 1000 places for callers.
        for _ in range(1050):
            self.assertEqual(self.post("names", {"name": "event"}, _ASYNCHRONOUSLY, connection).status, 202)
        caller = self.begin_invoke("names", {"name": "caller"})
        self.wait_for_queued(1051)
        os.unlink(held)
        self.end_invoke(caller)
        self.assertEqual(self.names(seen)[1], "caller")
        waiting.until(lambda: len(self.names(seen)) >= 1052, "all called", SECONDS)
        waiting.until(lambda: self.stats("names")["invocations"] == 1052, "once each", SECONDS)
        self.assertEqual(len(self.names(seen)), 1052)
        self.assertEqual(self.stats("names")["throttles"], 0)

    def test_who_has_gone_is_not_called_for(self):
        held, seen = self.begin_held()
        child = self.begin_invoke("names", {"name": "gone"})
        gone = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        gone.request("POST", "/2015-03-31/functions/names/invocations", '{"name": "gone"}')
        self.wait_for_queued(2)
        child.kill()
        child.communicate(timeout=SECONDS)
        gone.close()
        self.wait_for_queued(0)
        os.unlink(held)
        self.invoke("names", {"name": "caller"})
        self.assertEqual(self.names(seen), ["held", "caller"])

    def daemon_log(self):
        with open(self.daemon.log, encoding="utf-8", errors="replace") as file:
            return file.read()


class CaptureTest(FunctionsTest):
    def test_functions_that_hang_in_their_capture_stop_no_neighbour(self):
        alice = self.make_cli(host=self.daemon.host, uid=ALICE)
        hanging = self.path("hanging")
        with open(hanging, "w", encoding="ascii"):
            pass
        os.chmod(hanging, 0o666)
        for name in ("first", "second"):
            self.deploy(name, "--deps", "none", files={"app.py": _HANGS_IN_CAPTURE.format(path=hanging)}, cli=alice)
            self.assertEqual(self.invoke(name, cli=alice)[0], "answered")
        waiting.until(lambda: os.path.getsize(hanging) >= 2, "both captures", SECONDS)
        # Each call needs that the instance of the one before has been cleared away.
        self.deploy("neighbour", "--deps", "none", "--max-instances", "1")
        for number in range(3):
            self.assertEqual(self.failed("neighbour", {"do": "exit"})["errorType"], "Runtime.ExitError")
            self.assertEqual(self.invoke("neighbour", {"n": number}, seconds=SECONDS)[0], {"n": number})
        self.wait_for_image("neighbour")
        # Its capture is given up; the other one's when the daemon ends.
        self.assertEqual(alice.run("fn", "rm", "first", seconds=SECONDS).code, DONE)
        self.assertEqual(self.invoke("second", cli=alice)[0], "answered")
        self.daemon.stop()
        self.wait_for_nothing()
        self.wait_for_no_sandbox()


    def test_one_whose_dependencies_are_made_anew_meanwhile(self):
        path, block = self.path("captures"), self.path("block")
        for file in (path, block):
            with open(file, "w", encoding="ascii"):
                pass

        def captures():
            with open(path, encoding="ascii") as file:
                return file.read()

        self.deploy("one", "--deps", "json", files={"app.py": _WAITS_IN_CAPTURE.format(path=path, block=block)})
        self.assertEqual(self.invoke("one")[0], "answered")
        waiting.until(captures, "the first capture", SECONDS)
        self.succeed("deps", "build", "json", "--runtime", "python", "--rebuild")

        def next_one():
            self.assertEqual(self.invoke("one")[0], "answered")
            return captures().count(" ") > 1

        waiting.until(next_one, "the next capture", SECONDS)
        self.assertEqual(set(captures().split()), {"alone"})
        os.unlink(block)
        image = self.succeed("inspect", self.wait_for_image("one"))["image"]
        parent = self.succeed("inspect", self.function("one")["dependency_image"])["image"]
        self.assertEqual(image["parent_digest"], parent["digest"])
        self.daemon.kill()
        self.restart_daemon()
        self.assertIn(self.invoke("one")[1]["start_level"], FROM_OWN_IMAGE)
        self.assertEqual(set(captures().split()), {"alone"})


class LogTimesTest(FunctionsTest):
    def test_a_function_may_make_the_times_of_its_log_any_size(self):
        alice = self.make_cli(host=self.daemon.host, uid=ALICE)
        self.deploy("huge", "--deps", "none", files={"app.py": _HUGE_TIMES}, cli=alice)
        for number in range(2):
            self.assertEqual(self.invoke("huge", {"n": number}, cli=alice)[0], number)
            lines = alice.run("fn", "logs", "huge", "--tail", "3", "--since", "1h").out
            self.assertIn("REPORT RequestId", lines)
        self.assertTrue(self.daemon.running())
        self.assertLess(procfs.memory_bytes(self.daemon.pid), 1 << 30)


# What is found out about it is read from what it can write, too: each byte of this would be many of the daemon's.
_REPORTS_WITHOUT_END = """import os, signal
told_by = os.getppid()
left = b'\\n{"imports":' + b"[" * (15 << 20)
to = os.open(f"/proc/{told_by}/fd/1", os.O_WRONLY)
while left:
    left = left[os.write(to, left):]
os.kill(told_by, signal.SIGKILL)
"""


class ReportTest(FunctionsTest):
    def test_what_a_function_reports_takes_no_memory_of_the_daemon(self):
        with open(f"/proc/{self.daemon.pid}/status", encoding="ascii") as status:
            before = int(re.search(r"VmHWM:\s+(\d+)", status.read())[1])
        deployed = self.deploy("hostile", files={"app.py": _REPORTS_WITHOUT_END})
        self.assertIn("Runtime.ExitError", deployed["warnings"][0])
        with open(f"/proc/{self.daemon.pid}/status", encoding="ascii") as status:
            after = int(re.search(r"VmHWM:\s+(\d+)", status.read())[1])
        self.assertLess(after - before, 100 << 10, "KiB")


class ShareTest(FunctionsTest):
    def test_one_user_can_not_take_all_connections(self):
        # Its connections stay open until its input ends.
        hoarder = subprocess.Popen(
            [sys.executable, "-c", _HOARDS, self.front, str(self.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            user=ALICE, group=ALICE, extra_groups=[], text=True)
        try:
            self.assertEqual(json.loads(hoarder.stdout.readline()), {"200": 64, "429": 6})
            refused = self.succeed("fn", "stats")["refused"]
            self.assertEqual((refused["connections_of_one"], refused["connections"]), (6, 0))
            for _ in range(3):
                self.assertEqual(self.http("GET", "/health").status, 200)
            # The node works, for whoever asks.
            asked = subprocess.run([sys.executable, "-c", _ASKS_FOR_HEALTH, str(self.port)], user=ALICE, group=ALICE,
                                   extra_groups=[], capture_output=True, text=True, check=True, timeout=60)
            self.assertEqual(asked.stdout.split(), ["200"])
        finally:
            hoarder.communicate(timeout=SECONDS)

    def test_how_many_connections_one_user_may_have_is_an_option(self):
        self.daemon.stop()
        self.restart_daemon("--functions-connections-of-one", "66", "--functions-connections", "68")
        done = subprocess.run(
            [sys.executable, "-c", _HOARDS, self.front, str(self.port)], user=ALICE, group=ALICE, extra_groups=[],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=60)
        self.assertEqual(json.loads(done.stdout), {"200": 64, "404": 2, "429": 4})

    def test_one_user_can_not_take_all_memory_for_requests(self):
        hoarder = subprocess.Popen(
            [sys.executable, "-c", _UPLOADS, self.front, "12"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            user=ALICE, group=ALICE, extra_groups=[], text=True)
        try:
            # 64 MiB are ten of them.
            self.assertEqual(json.loads(hoarder.stdout.readline()), {"100": 10, "429": 2})
            for uid, expected in ((BOB, {"100": 10, "429": 1}), (0, {"100": 20})):
                done = subprocess.run(
                    [sys.executable, "-c", _UPLOADS, self.front, str(sum(expected.values()))], user=uid, group=uid,
                    extra_groups=[], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=60)
                self.assertEqual(json.loads(done.stdout), expected)
            refused = self.succeed("fn", "stats")["refused"]
            self.assertEqual((refused["bodies_of_one"], refused["bodies"]), (3, 0))
        finally:
            hoarder.communicate(timeout=SECONDS)

    def send(self, uid, name, count, event):
        done = subprocess.run(
            [sys.executable, "-c", _SENDS, str(self.port), name, str(count), json.dumps(event)], user=uid, group=uid,
            extra_groups=[], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=60)
        return json.loads(done.stdout)

    def test_one_user_can_not_take_all_places_of_asynchronous_calls(self):
        seen, held = self.path("seen"), self.path("held")
        for path in (seen, held):
            with open(path, "w", encoding="ascii"):
                pass
        os.chmod(seen, 0o666)
        for name, uid in (("alices", ALICE), ("bobs", BOB)):
            self.deploy(name, "--deps", "none", "--max-instances", "1", "--timeout", "60s",
                        files={"app.py": _COUNTS.format(path=seen)}, cli=self.make_cli(host=self.daemon.host, uid=uid))
        # All of them wait, one of them for its file.
        self.assertEqual(self.send(ALICE, "alices", 2510, {"while": held}), {"202": 2500, "429": 10})
        self.assertEqual(self.send(BOB, "bobs", 1, {}), {"202": 1})
        refused = self.succeed("fn", "stats")["refused"]
        self.assertEqual((refused["events"], refused["events_of_one"]), (0, 10))
        self.succeed("fn", "rm", "alices")
        os.unlink(held)

    def test_no_user_can_provision_more_than_there_is(self):
        command = ("fn", "deploy", "all", "--runtime", "python", "--handler", "app.handler", "--code",
                   self.code("all", {"app.py": _QUICK}), "--deps", "none", "--memory", "10G", "--provisioned")
        self.assert_refused(self.cli.run(*command, "1000"), FAILED, "9.8 TiB", "--functions-memory")
        self.assertIsNone(self.function("all"))


class PreparedByOthersTest(FunctionsTest):
    def test_no_code_is_loaded_from_a_home(self):
        for options in ((), ("--deps", "json")):
            self.deploy("home", "--replace", *options, files={"app.py": _HOME})
            self.assertEqual(
                self.invoke("home", None)[0], {"home": "/nonexistent", "user_site": False, "keeps": False})

    def test_modules_that_are_loaded_as_root_find_nothing_of_users(self):
        """Neither files nor sockets, however the image is made that they are loaded for."""
        planted = [f"{folder}/rekindle-planted-{os.getpid()}" for folder in ("/tmp", "/var/tmp", "/dev/shm")]
        for path in planted:
            self.addCleanup(os.unlink, path)
            with open(path, "w", encoding="ascii"):
                pass
            os.chown(path, ALICE, ALICE)
        abstract = f"\0rekindle-planted-{os.getpid()}"
        for family, address in ((socket.AF_INET, ("127.0.0.1", 0)), (socket.AF_UNIX, abstract)):
            listener = socket.socket(family)
            self.addCleanup(listener.close)
            listener.bind(address)
            listener.listen()
            if family == socket.AF_INET:
                port = listener.getsockname()[1]
        looks = _LOOKS.format(paths=planted, port=port, abstract=abstract)
        with tempfile.TemporaryDirectory(prefix="rekindle", dir="/usr/lib/python3/dist-packages") as folder:
            module, program = os.path.basename(folder), os.path.join(folder, "__init__.py")
            with open(program, "w", encoding="ascii") as file:
                file.write(looks)
            for rebuild in ((), ("--rebuild",)):
                with self.subTest(rebuild):
                    self.succeed("deps", "build", module, "--runtime", "python", *rebuild)
                    self.deploy("looks", "--replace", "--deps", module, files={
                        "app.py": f"import {module}\ndef handler(event, context):\n    return {module}.seen\n"})
                    seen, how = self.invoke("looks")
                    self.assertIn(how["start_level"], ("dependency-template", "dependency-memory", "dependency-disk"))
                    self.assertEqual(seen, [])
            with open(program, "a", encoding="ascii") as file:
                file.write("raise ImportError(f'it has seen {seen}')\n")
            with self.subTest("one that can't be loaded"):
                refused = self.cli.run("deps", "build", module, "--runtime", "python", "--rebuild")
                self.assert_refused(refused, USAGE, module, "it has seen []")

    def test_labels_make_no_dependency_image(self):
        job, _ = self.start_memory_job(1 << 20)
        self.succeed("ckpt", job.pid, "-t", "images/evil:1", "--label", "rekindle.deps.runtime=python",
                     "--label", "rekindle.deps.modules=json,decimal", "--label", "rekindle.deps.resident-bytes=1")
        listed = [image["reference"] for image in self.succeed("deps", "ls").get("images", [])]
        self.assertNotIn("images/evil:1", listed)
        self.deploy("victim", "--deps", "json", files={"app.py": _QUICK})
        self.assertNotEqual(self.function("victim")["dependency_image"], "images/evil:1")
        self.assertEqual(self.invoke("victim", None)[0], "new")


if __name__ == "__main__":
    unittest.main()
