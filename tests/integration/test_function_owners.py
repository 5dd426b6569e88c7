"""Functions of two users: neither gets at what is the other's, though they share images of dependencies."""

import glob
import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
import unittest

from harness import procfs, waiting
from harness.cli import DONE, NOT_PERMITTED, USAGE
from harness.functions import SECONDS, FunctionsTest

ALICE, BOB = 65533, 65534
_PIECE, _PAGE = 1 << 20, 4096
_STARTS, _ROUNDS = 20, 40  # at least so many, so that forks are among them; at most

# The secret is nowhere but in the memory of who has made it: not in the code, the event, or the answer.
_KEEPER = """import hashlib
import numpy

kept = []


def handler(event, context):
    secret = hashlib.sha256(event["seed"].encode()).hexdigest()
    kept.extend([secret, numpy.frombuffer(secret.encode(), dtype=numpy.uint8).copy()])
    return len(kept)
"""
_NEIGHBOUR = """import os
import numpy


def handler(event, context):
    return {"pid": os.getpid(), "space": os.readlink("/proc/self/ns/pid"), "ones": int(numpy.ones(3).sum())}
"""


_KEY = """import hashlib
from multiprocessing import process


def handler(event, context):
    return hashlib.sha256(process.current_process().authkey).hexdigest()
"""


class OwnersTest(FunctionsTest):
    def setUp(self):
        super().setUp()
        self.alice = self.make_cli(host=self.daemon.host, uid=ALICE)
        self.bob = self.make_cli(host=self.daemon.host, uid=BOB)

    def as_user(self, uid, *argv):
        """curl as this user, who is known by the kernel: (status, error type, body)."""
        done = subprocess.run(["curl", "-sS", "-i", *argv], user=uid, group=uid, extra_groups=[], capture_output=True,
                              text=True, timeout=60, check=True)  # fmt: skip
        head, _, body = done.stdout.replace("\r", "").partition("\n\n")
        headers = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if ": " in line)
        return int(head.split()[1]), headers.get("x-amzn-errortype"), body


class RightsTest(OwnersTest):
    def setUp(self):
        super().setUp()
        self.deploy("theirs", cli=self.bob)

    def test_it_runs_as_its_owner(self):
        for cli in (self.bob, self.cli):  # root may invoke it, and it is Bob's all the same
            seen, _ = self.invoke("theirs", {"do": "self"}, cli=cli)
            self.assertEqual(seen["uid"], BOB)
        for pid in self.runtimes():
            with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
                ids = [line.split()[1:] for line in status if line.startswith(("Uid:", "Gid:"))]
            self.assertEqual(ids, [[str(BOB)] * 4] * 2)
        for name in self.log_files("theirs"):
            about = os.stat(self.path(f"logs/functions/theirs/{name}"))
            self.assertEqual((about.st_uid, about.st_mode & 0o777), (BOB, 0o600), name)

    def test_the_password_of_multiprocessing_is_each_instances_own(self):
        keys = set()
        for name, cli in (("one", self.alice), ("two", self.bob)):
            deployed = self.deploy(name, "--deps", "multiprocessing.process", files={"app.py": _KEY}, cli=cli)
            self.assertEqual(deployed["result"]["dependencies"], ["multiprocessing.process"])
            keys.add(self.invoke(name, cli=cli)[0])
        self.assertEqual(len(keys), 2)

    def test_others_can_not_touch_it(self):
        before = self.invoke("theirs", {"do": "self"}, cli=self.bob)[0]
        code = self.code("mine")
        for command in (("invoke", "theirs"), ("invoke", "theirs", "--async"), ("invoke", "theirs", "--dry-run"),
                        ("logs", "theirs"), ("stats", "theirs"), ("rm", "theirs")):  # fmt: skip
            with self.subTest(command):
                self.assert_refused(self.alice.run("fn", *command), NOT_PERMITTED, "theirs", f"uid {BOB}")
        deploy = ("fn", "deploy", "theirs", "--replace", "--runtime", "python", "--handler", "app.handler", "--code", code)
        self.assert_refused(self.alice.run(*deploy), NOT_PERMITTED, "theirs", "another user's")
        self.assertEqual(self.succeed("fn", "ls", cli=self.alice).get("functions", []), [])
        self.assertEqual(self.succeed("fn", "stats", cli=self.alice).get("functions", []), [])
        image = self.succeed("deps", "ls", cli=self.alice)["images"][0]
        self.assertEqual(image.get("used_by", []), [])
        for reference in (image["reference"], "deps/none"):  # nor is she told which images there are
            self.assert_refused(self.alice.run("deps", "rm", reference), NOT_PERMITTED, "administrator")
        after = self.invoke("theirs", {"do": "self"}, cli=self.bob)[0]
        self.assertEqual((after["space"], after["calls"]), (before["space"], 2))

    def test_over_http_they_are_told_what_lambda_says(self):
        invoke = "/2015-03-31/functions/theirs/invocations"
        os.chmod(self.front, 0o666)
        for ways in ((), ("--unix-socket", self.front)):
            url = self.url + invoke
            for more in ((), ("-H", "X-Amz-Invocation-Type: Event"), ("-H", "X-Amz-Invocation-Type: DryRun")):
                with self.subTest(ways=ways, more=more):
                    status, error, _ = self.as_user(ALICE, *ways, *more, "-d", '{"n": 1}', url)
                    self.assertEqual((status, error), (403, "accessdeniedexception"))
            status, _, body = self.as_user(ALICE, *ways, self.url + "/2015-03-31/functions/")
            self.assertEqual((status, json.loads(body)["Functions"]), (200, []))
            status, error, body = self.as_user(BOB, *ways, "-d", '{"n": 1}', url)
            self.assertEqual((status, json.loads(body)), (200, {"n": 1}), error)
        self.assertEqual(self.stats("theirs")["invocations"], 2)

    def test_its_files_are_closed_to_others(self):
        self.invoke("theirs", {"do": "self"}, cli=self.bob)
        folders = [self.path("store/functions/theirs"), self.path("logs/functions/theirs"), os.path.join(self.runtime, "f")]
        for folder in folders:
            for path, _, names in os.walk(folder):
                for name in names:
                    done = subprocess.run(["/usr/bin/head", "-c", "1", os.path.join(path, name)], user=ALICE, group=ALICE,
                                          extra_groups=[], capture_output=True, check=False)  # fmt: skip
                    self.assertNotEqual(done.returncode, 0, os.path.join(path, name))


class BuildTest(OwnersTest):
    def test_images_for_several_users_at_once(self):
        orders = [(self.alice, "decimal"), (self.bob, "decimal"), (self.bob, "json"), (self.alice, "sqlite3"),
                  (self.cli, "decimal")]  # fmt: skip
        began = [(cli, module, cli.start("deps", "build", module, "--runtime", "python")) for cli, module in orders]
        built = []
        for cli, module, child in began:
            result = cli.finish(child)
            self.assertEqual(result.code, 0, str(result))
            if not result.data.get("unchanged"):
                built.append(module)
        # Each once, and what they lie on.
        self.assertEqual(sorted(built), ["decimal", "json", "sqlite3"])
        listed = [image["modules"] for image in self.succeed("deps", "ls")["images"]]
        self.assertEqual(sorted(listed), [[], ["decimal"], ["json"], ["sqlite3"]])
        # They are root's, and it is known who had them made: one user has only so many.
        images = {image["reference"]: image["labels"] for image in self.succeed("ls")["images"]}
        self.assertEqual(images["deps/python:json"]["rekindle.deps.asked-by"], str(BOB))
        self.assertEqual(images["deps/python:sqlite3"]["rekindle.deps.asked-by"], str(ALICE))
        refused = self.bob.run("deps", "build", "json.__main__", "--runtime", "python")
        self.assert_refused(refused, USAGE, "json.__main__", "is a program")


    def test_one_that_is_given_up_holds_up_nobody(self):
        modules = self.path("modules")
        os.mkdir(modules, 0o755)
        with open(os.path.join(modules, "loads_for_ever.py"), "w", encoding="ascii") as module:
            module.write("import signal\n\nsignal.pause()\n")
        version = "python{}.{}".format(*sys.version_info[:2])
        place = f"/usr/local/lib/{version}/dist-packages"
        subprocess.run(["mount", "--bind", modules, place], check=True)
        self.addCleanup(subprocess.run, ["umount", "--lazy", place], check=True)
        self.succeed("deps", "build", "decimal", "--runtime", "python", cli=self.bob)  # and what it lies on
        records = os.path.join(self.runtime, "f")

        def loads():
            return glob.glob(os.path.join(records, "*", "*.pid"))

        for rebuild in ((), ("--rebuild",)):  # also where there is one
            began = self.bob.start("deps", "build", "loads_for_ever", *rebuild, "--runtime", "python")
            waiting.until(loads, "it is loading")
            began.send_signal(signal.SIGINT)
            self.assertNotEqual(self.bob.finish(began).code, 0)
            waiting.until(lambda: not loads(), "nothing of it is left")
        self.succeed("deps", "build", "json", "--runtime", "python", cli=self.bob)  # his turn is free
        self.assertNotIn("deps/python:loads_for_ever", [image["reference"] for image in self.succeed("ls")["images"]])

    def test_what_one_is_built_on_goes_meanwhile(self):
        modules = self.path("modules")
        os.mkdir(modules, 0o755)
        go = os.path.join(modules, "go")
        with open(os.path.join(modules, "loads_a_while.py"), "w", encoding="ascii") as module:
            module.write("import os\nimport time\n\nimport decimal\n\n"
                         "while not os.path.exists(os.path.join(os.path.dirname(__file__), 'go')):\n    time.sleep(0.02)\n")
        version = "python{}.{}".format(*sys.version_info[:2])
        place = f"/usr/local/lib/{version}/dist-packages"
        subprocess.run(["mount", "--bind", modules, place], check=True)
        self.addCleanup(subprocess.run, ["umount", "--lazy", place], check=True)
        self.succeed("deps", "build", "decimal", "--runtime", "python")
        began = self.cli.start("deps", "build", "decimal", "loads_a_while", "--runtime", "python")
        waiting.until(lambda: glob.glob(os.path.join(self.runtime, "f", "*", "*.pid")), "it is loading")
        self.succeed("rm", "deps/python:decimal")
        open(go, "x", encoding="ascii").close()
        # It is made anew, on what is left.
        built = self.cli.finish(began)
        self.assertEqual(built.code, DONE, str(built))
        references = [image["reference"] for image in self.succeed("ls")["images"]]
        self.assertIn("deps/python:decimal-loads_a_while", references)
        self.assertNotIn("deps/python:decimal", references)
        self.assertTrue(self.succeed("deps", "build", "decimal", "loads_a_while", "--runtime", "python")["unchanged"])


class MemoryTest(OwnersTest):
    """Bob's instances have nothing of Alice's memory, however they are started."""

    def test_nothing_of_one_in_the_memory_of_the_other(self):
        for name, text, cli in (("keeper", _KEEPER, self.alice), ("neighbour", _NEIGHBOUR, self.bob)):
            self.deploy(name, "--deps", "numpy", files={"app.py": text}, cli=cli)
        images = {name: self.function(name)["dependency_image"] for name in ("keeper", "neighbour")}
        self.assertEqual(images["keeper"], images["neighbour"])
        seed = secrets.token_hex(16)
        secret = hashlib.sha256(seed.encode()).hexdigest().encode()
        # Before and after Alice's own image is taken, and its template, if it gets one.
        self.assertEqual(self.invoke("keeper", {"seed": seed}, cli=self.alice)[0], 2)
        keepers = self.runtimes()
        self.assertTrue(any(_has(pid, secret) for pid in keepers), "the scan finds what is there")
        wanted = {"dependency-template", *(("template",) if self.has_image("keeper") else ())}
        seen = {}
        for number in range(_ROUNDS):
            self.deploy("neighbour", "--deps", "numpy", "--replace", "--env", f"N={number}",
                        files={"app.py": _NEIGHBOUR}, cli=self.bob)
            for _ in range(2):
                self.start_and_scan(secret, seed, seen)
                self.has_image("neighbour")
                self.kill_neighbours(keepers)
            if wanted <= set(seen) and sum(seen.values()) >= _STARTS:
                break
        print(f"scanned: {seen}")
        self.assertTrue(wanted <= set(seen), seen)
        self.assertTrue(set(seen) & {"dependency-memory", "dependency-disk"}, seen)
        # It was there all the time.
        self.assertTrue(any(_has(pid, secret) for pid in keepers))

    def has_image(self, name):
        """Once it is known whether it has: CRIU may be refused what it needs to capture another user's process."""
        def known():
            function = self.function(name)
            return function["function_image"] or function["problem"]

        waiting.until(known, f"an image of {name}, or why there is none", SECONDS)
        function = self.function(name)
        if not function["function_image"]:
            self.assertIn("CAP_SYS_RESOURCE", function["problem"])
        return bool(function["function_image"])

    def start_and_scan(self, secret, seed, seen):
        about, answer = self.invoke("neighbour", cli=self.bob)
        root = self.process_of(about)
        for pid in [root, *procfs.descendants(root)]:
            self.assertFalse(_has(pid, secret), f"{answer['start_level']}: {procfs.command_line(pid)}")
            self.assertFalse(_has(pid, seed.encode()), f"{answer['start_level']}: {procfs.command_line(pid)}")
        seen[answer["start_level"]] = seen.get(answer["start_level"], 0) + 1

    def kill_neighbours(self, keepers):
        for pid in set(self.runtimes()) - set(keepers):
            os.kill(pid, signal.SIGKILL)
        self.wait_for_no_instance("neighbour")


class StandbyMemoryTest(MemoryTest):
    """The same where copies stand by, restored before anybody asked for them."""

    standby = "2"


def _has(pid, wanted):
    """Whether it is anywhere in the process's memory that can be read."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        areas = [line.split(maxsplit=5) for line in file]
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for area in areas:
            if not area[1].startswith("r") or (len(area) > 5 and area[5].startswith(("[vvar", "[vsyscall"))):
                continue
            begin, end = (int(address, 16) for address in area[0].split("-"))
            at, tail = begin, b""
            while at < end:
                try:
                    piece = os.pread(memory.fileno(), min(_PIECE, end - at), at)
                except OSError:
                    piece = b""
                if not piece:  # a page that was never touched, or is beyond the end of its file
                    at, tail = at + _PAGE, b""
                    continue
                if wanted in tail + piece:
                    return True
                at, tail = at + len(piece), piece[-len(wanted):]
    return False


if __name__ == "__main__":
    unittest.main()
