"""Functions from their deployment to their removal."""

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import unittest

from harness import jobs, waiting
from harness.cli import DONE, FAILED, NOT_FOUND, NOT_PERMITTED, USAGE
from harness.functions import FROM_OWN_IMAGE, SECONDS, FunctionsTest
from harness.terminal import shown_by


class LifeTest(FunctionsTest):
    def test_warm_then_from_its_own_image(self):
        deployed = self.deploy("hello", "--env", "GREETING=hi", "--memory", "256M", "--timeout", "20s")
        self.assertEqual((deployed["unchanged"], deployed["warnings"], deployed["result"]["revision"]), (False, [], 1))
        seen, first = self.invoke("hello", {"do": "self"})
        self.assertEqual((seen["calls"], seen["name"], seen["greeting"], seen["memory"], seen["uid"]),
                         (1, "hello", "hi", 256, 0))
        self.assertEqual(seen["request"], first["request_id"])
        self.assertTrue(0 < seen["remaining"] <= 20_000, seen)
        self.assertNotEqual(seen["folder"], self.path("hello.code"))
        self.assertIn(first["start_level"], ("dependency-memory", "dependency-disk", "dependency-template"))
        self.assertGreater(first["start_seconds"], 0)
        again, second = self.invoke("hello", {"do": "self"})
        self.assertEqual((again["calls"], again["space"], second["instance"]), (2, seen["space"], first["instance"]))
        self.assertEqual((second["start_level"], second["start_seconds"]), ("running", 0))
        image = self.wait_for_image("hello")
        self.assertIn(image, self.references())

        os.kill(self.process_of(again), signal.SIGKILL)
        self.wait_for_no_instance("hello")
        seen, third = self.invoke("hello", {"do": "self"})
        self.assertIn(third["start_level"], FROM_OWN_IMAGE)
        self.assertNotEqual(third["instance"], first["instance"])
        self.assertEqual((seen["calls"], seen["greeting"]), (1, "hi"))
        levels = {starts["level"] for starts in self.stats("hello")["starts"]}
        self.assertEqual(levels, {first["start_level"], third["start_level"]})

    def test_two_share_a_dependency_image(self):
        code = {"app.py": "import numpy\ndef handler(event, context):\n    return int(numpy.ones(3).sum())\n"}
        found = self.deploy("found", files=code)["result"]
        named = self.deploy("named", "--deps", "numpy", files=code)["result"]
        self.assertEqual((found["dependencies"], named["dependencies"]), (["numpy"], ["numpy"]))
        self.assertEqual(found["dependency_image"], named["dependency_image"])
        self.assertEqual([self.invoke(name)[0] for name in ("found", "named")], [3, 3])
        images = [one for one in self.succeed("deps", "ls")["images"] if one["modules"]]
        self.assertEqual([(one["reference"], one["modules"], sorted(one["used_by"])) for one in images],
                         [(found["dependency_image"], ["numpy"], ["found", "named"])])
        refused = self.cli.run("deps", "rm", found["dependency_image"])
        self.assert_refused(refused, 1, found["dependency_image"], "used by function")
        self.succeed("fn", "rm", "found", "named")
        self.succeed("deps", "rm", found["dependency_image"])
        # What it was built on.
        self.assertEqual(self.references(), ["deps/python:bare"])

    def test_dependencies_that_are_built_first(self):
        built = self.succeed("deps", "build", "decimal", "json", "--runtime", "python")
        self.assertEqual((built["unchanged"], built["result"]["modules"]), (False, ["decimal", "json"]))
        self.assertTrue(self.succeed("deps", "build", "json", "decimal", "--runtime", "python")["unchanged"])
        deployed = self.deploy("exact", "--deps", "json,decimal")
        self.assertEqual(deployed["result"]["dependency_image"], built["result"]["reference"])

    def test_variables_that_come_too_late(self):
        code = {"app.py": "import decimal\nimport os\ndef handler(event, context):\n"
                          "    return os.environ['OMP_NUM_THREADS']\n"}
        deployed = self.deploy("early", "--deps", "decimal", "--env", "OMP_NUM_THREADS=2", files=code)
        self.assertIn("OMP_NUM_THREADS", "\n".join(deployed["warnings"]))
        self.assertIn("decimal", "\n".join(deployed["warnings"]))
        self.assertEqual(self.invoke("early")[0], "2")
        deployed = self.deploy("early", "--replace", "--env", "OMP_NUM_THREADS=2", "--deps", "none", files=code)
        self.assertEqual(deployed["warnings"], [])

    def test_layers(self):
        for layer, text in (("below", "VALUE = 'below'\nONLY = 'here'\n"), ("above", "VALUE = 'above'\n")):
            os.makedirs(self.path(layer + "/python"))
            for module in ("shared", layer):
                with open(self.path(f"{layer}/python/{module}.py"), "w", encoding="ascii") as file:
                    file.write(text)
        code = {"app.py": "import above, below, shared\ndef handler(event, context):\n"
                          "    return [shared.VALUE, above.VALUE, below.ONLY]\n"}
        deployed = self.deploy("layered", "--layer", self.path("below"), "--layer", self.path("above"), files=code)
        self.assertEqual(deployed["warnings"], [])
        shutil.rmtree(self.path("below"))
        self.assertEqual(self.invoke("layered")[0], ["above", "above", "here"])

    def test_an_image_of_its_dependencies_that_was_removed_is_built_anew(self):
        self.deploy("bereft", "--deps", "decimal")
        image = self.function("bereft")["dependency_image"]
        for reference in self.references():
            self.succeed("rm", reference)
        self.assertEqual(self.invoke("bereft")[1]["start_level"], "cold")
        waiting.until(lambda: image in self.references() and self.function("bereft")["problem"] == "", "it is back",
                      SECONDS)

    def test_and_so_is_one_that_was_removed_while_nobody_looked(self):
        self.deploy("bereft", "--deps", "decimal")
        image = self.function("bereft")["dependency_image"]
        for reference in self.references():
            self.succeed("rm", reference)
        self.daemon.stop()
        self.restart_daemon()
        waiting.until(lambda: image in self.references() and self.function("bereft")["problem"] == "", "it is back", SECONDS)
        self.assertIn("which is done in the background", self.daemon.log_text())
        self.assertIn(self.invoke("bereft")[1]["start_level"], ("dependency-memory", "dependency-disk"))

    def test_images_that_functions_start_from_are_not_pruned(self):
        for name in ("kept", "gone"):
            self.deploy(name, "--deps", "decimal" if name == "kept" else "fractions")
            self.about(name)
        own = self.wait_for_image("kept")
        needed = [self.function("kept")["dependency_image"], own]
        self.succeed("fn", "rm", "gone")
        pruned = self.succeed("prune", "--all", "--keep-label", "no=such")
        self.assertEqual(sorted(self.references()), sorted(needed))
        reasons = {image["image"]["reference"]: image.get("reasons") for image in pruned["images"]}
        for reference in needed:
            self.assertEqual(reasons[reference], ["function 'kept' starts from it"])

    def test_provisioned_are_there_before_the_first_call(self):
        self.deploy("ready", "--provisioned", "2")
        waiting.until(lambda: self.function("ready")["instances_idle"] == 2, "two instances", SECONDS)
        answer = self.invoke("ready", {"do": "self"})[1]
        self.assertEqual((answer["start_level"], answer["start_seconds"]), ("running", 0))
        waiting.until(lambda: self.function("ready")["instances_idle"] == 2, "it stays", SECONDS)

    def test_no_call_finds_what_was_changed_in_the_code_folder(self):
        folder = self.code("fixed")
        self.deploy("fixed", code=folder)
        with open(os.path.join(folder, "app.py"), "w", encoding="ascii") as file:
            file.write("raise RuntimeError('this was not deployed')\n")
        self.assertEqual(self.invoke("fixed", {"n": 1})[0], {"n": 1})
        shutil.rmtree(folder)
        seen = self.about("fixed")
        os.kill(self.process_of(seen), signal.SIGKILL)
        self.wait_for_no_instance("fixed")
        self.assertEqual(self.about("fixed")["calls"], 1)

    def test_threads_have_higher_numbers_than_what_is_in_the_image(self):
        """CRIU itself has low ones in the copy's namespace, which the next image would need."""
        self.deploy("threaded", "--timeout", "30s", files={"app.py": """
import os, threading
thread = threading.Thread(target=threading.Event().wait, daemon=True)
thread.start()
def handler(event, context):
    return {"thread": thread.native_id, "pid": os.getpid(), "space": os.readlink("/proc/self/ns/pid")}
"""})
        seen = self.about("threaded")
        self.assertGreater(seen["thread"], seen["pid"])
        self.wait_for_image("threaded")
        os.kill(self.process_of(seen), signal.SIGKILL)
        self.wait_for_no_instance("threaded")
        self.assertIn(self.invoke("threaded")[1]["start_level"], FROM_OWN_IMAGE)

    def test_processes_that_are_spawned(self):
        """They are no runtimes, though multiprocessing has them import the main module again."""
        code = {"app.py": "import multiprocessing, os\ndef twice(number):\n    return 2 * number\n"
                          "def handler(event, context):\n"
                          "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
                          "        doubled = pool.map(twice, [1, 2])\n"
                          "    return {'doubled': doubled, 'pid': os.getpid(),\n"
                          "            'space': os.readlink('/proc/self/ns/pid')}\n"}
        self.deploy("plain", "--timeout", "30s", "--no-image", files=code)
        self.assertEqual(self.about("plain")["doubled"], [2, 4])
        self.deploy("copied", "--timeout", "30s", files=code)
        seen = self.about("copied")
        self.assertEqual(seen["doubled"], [2, 4])
        self.wait_for_image("copied")
        os.kill(self.process_of(seen), signal.SIGKILL)
        self.wait_for_no_instance("copied")
        seen, how = self.invoke("copied")
        self.assertEqual(seen["doubled"], [2, 4])
        self.assertIn(how["start_level"], FROM_OWN_IMAGE)

    def test_workers_that_it_has_forked(self):
        """When it is loaded: they are in its image."""
        text = "import multiprocessing\n\nPOOL = multiprocessing.Pool(2)\n\n\n" \
               "def handler(event, context):\n    return POOL.map(abs, [1, -2])\n"
        self.deploy("pool", "--deps", "none", files={"app.py": text})
        self.assertEqual(self.invoke("pool")[0], [1, 2])
        self.wait_for_image("pool")
        for _ in range(2):
            for pid in self.runtimes():
                with contextlib.suppress(ProcessLookupError):  # workers go with the first of them
                    os.kill(pid, signal.SIGKILL)
            self.wait_for_no_instance("pool")
            answer, how = self.invoke("pool")
            self.assertEqual((answer, how["start_level"] in FROM_OWN_IMAGE), ([1, 2], True), how)

    def test_the_channel_is_none_of_its_workers(self):
        text = """import fcntl
import json
import os
import rekindle


def look():
    channel = rekindle.channel()
    number = channel.fileno()
    # As with a program that opens many files.
    taken = fcntl.fcntl(0, fcntl.F_DUPFD, number) == number
    try:
        channel.send({"type": "ready"})
        sent = "sent"
    except OSError as error:
        sent = "not sent"
    return os.readlink(f"/proc/self/fd/{number}"), taken, channel.receive(), sent


reader, writer = os.pipe()
worker = os.fork()
if worker == 0:
    try:
        os.write(writer, json.dumps(look()).encode())
    finally:
        os._exit(0)
os.close(writer)
LOOKED = os.read(reader, 4096).decode()
os.waitpid(worker, 0)


def handler(event, context):
    return LOOKED
"""
        self.deploy("forks", "--deps", "none", files={"app.py": text})
        self.assertEqual(json.loads(self.invoke("forks")[0]), ["/dev/null", False, None, "not sent"])


class ReplaceTest(FunctionsTest):
    def test_a_call_under_way_ends_on_the_code_that_it_began_with(self):
        self.deploy("app", "--timeout", "60s")
        under_way = self.begin_waiting("app")
        refused = self.cli.run("fn", "deploy", "app", "--runtime", "python", "--handler", "app.handler", "--code",
                               self.code("other", {"app.py": "def handler(event, context):\n    return 'new'\n"}))
        self.assert_refused(refused, 1, "--replace")
        deployed = self.deploy("app", "--replace", code=self.path("other.code"))
        self.assertEqual(deployed["result"]["revision"], 2)
        self.assertEqual(self.invoke("app")[0], "new")
        self.assertEqual(self.end_waiting(under_way), {"told": "go", "calls": 1})
        self.assertEqual(self.invoke("app")[0], "new")
        waiting.until(lambda: len(self.runtimes()) == 1, "only an instance of the new revision is left", SECONDS)
        own = self.wait_for_image("app")
        # Nobody starts from an old revision's.
        waiting.until(lambda: [one for one in self.references() if one.startswith("functions/")] == [own],
                      "the old image is gone", SECONDS)

    def test_unchanged(self):
        for name, options in (("app", {}), ("own", custom_runtime(self))):
            self.deploy(name, **options)
            instance = self.invoke(name, {"n": 1})[1]["instance"]
            self.assertTrue(self.deploy(name, "--replace", **options)["unchanged"])
            answer = self.invoke(name, {"n": 1})[1]
            self.assertEqual((answer["start_level"], answer["instance"]), ("running", instance), name)

    def test_other_settings_end_no_instance(self):
        self.deploy("app", "--provisioned", "1")
        waiting.until(lambda: self.function("app")["instances_idle"] == 1, "an instance", SECONDS)
        first = self.runtimes()
        deployed = self.deploy("app", "--provisioned", "2", "--timeout", "7s", "--max-instances", "3", "--replace")
        self.assertEqual((deployed["result"]["revision"], deployed.get("unchanged", False)), (1, False))
        waiting.until(lambda: self.function("app")["instances_idle"] == 2, "one more", SECONDS)
        self.assertLessEqual(set(first), set(self.runtimes()))
        self.daemon.stop()
        self.restart_daemon()
        waiting.until(lambda: self.function("app")["instances_idle"] == 2, "two instances", SECONDS)
        self.assertEqual(self.function("app")["spec"]["timeout_ms"], 7000)

    def test_settings_without_the_code(self):
        self.deploy("hello", "--timeout", "20s", "--env", "GREETING=hi", "--env", "OTHER=1")
        shutil.rmtree(self.path("hello.code"))
        about = self.about("hello")
        image = self.wait_for_image("hello")

        def set_to(*options):
            answer = self.succeed("fn", "set", "hello", *options)
            return answer["unchanged"], answer["result"]["revision"], answer["result"]

        _, revision, now = set_to("--timeout", "30s", "--max-instances", "4", "--description", "says hello")
        self.assertEqual((revision, now["spec"]["timeout_ms"], now["spec"]["max_instances"]), (1, 30000, 4))
        self.assertEqual(now["spec"]["description"], "says hello")
        self.assertEqual(now["function_image"], image)
        self.assertEqual(self.about("hello")["pid"], about["pid"], "the same instance")
        self.assertEqual(set_to("--timeout", "30s")[:2], (True, 1))

        before = self.function("hello")
        _, revision, now = set_to("--memory", "256M", "--env", "GREETING=ho", "--no-env", "OTHER")
        self.assertEqual((revision, now["spec"]["environment"]), (2, {"GREETING": "ho"}))
        self.assertEqual((now["code_sha256"], now["spec"]["code"], now["dependency_image"]),
                         (before["code_sha256"], before["spec"]["code"], before["dependency_image"]))  # fmt: skip
        seen, _ = self.invoke("hello", {"do": "self"})
        self.assertEqual((seen["greeting"], seen["memory"], seen["calls"]), ("ho", 256, 1))
        self.daemon.stop()
        self.restart_daemon()
        seen, _ = self.invoke("hello", {"do": "self"})
        self.assertEqual((seen["greeting"], seen["memory"]), ("ho", 256))
        self.assertEqual(set_to("--cpus", "0.5")[2]["spec"]["cpus"], 0.5)
        self.assertEqual(set_to("--cpus", "0", "--max-instances", "0")[2]["spec"]["max_instances"], 0)

    def test_other_code_with_the_same_settings(self):
        app = ("import os\ndef handler(event, context):\n"
               "    return [{}, os.environ.get('SECRET'), os.environ.get('LEVEL')]\n")
        self.deploy("hello", "--timeout", "20s", "--env", "SECRET=s", "--env", "LEVEL=1", "--memory", "256M",
                    "--max-instances", "3", files={"app.py": app.format(1)})  # fmt: skip
        before = self.function("hello")["spec"]
        self.assertEqual(self.invoke("hello")[0], [1, "s", "1"])
        code = self.code("next", {"app.py": app.format(2)})
        now = self.succeed("fn", "set", "hello", "--code", code)["result"]
        self.assertEqual((now["revision"], now["spec"]), (2, {**before, "code": code}))
        self.assertEqual(self.invoke("hello")[0], [2, "s", "1"])
        self.assertTrue(self.succeed("fn", "set", "hello", "--code", code)["unchanged"])

        code = self.code("last", {"app.py": app.format(3)})
        now = self.succeed("fn", "set", "hello", "--code", code, "--no-env", "LEVEL", "--env", "MORE=1",
                           "--timeout", "9s")  # fmt: skip
        self.assertEqual(now["result"]["spec"], {**before, "code": code, "timeout_ms": 9000,
                                                 "environment": {"SECRET": "s", "MORE": "1"}})  # fmt: skip
        self.assertEqual(self.invoke("hello")[0], [3, "s", None])
        broken = self.code("broken", {"app.py": "import nosuchmodule\n"})
        self.assert_refused(self.cli.run("fn", "set", "hello", "--code", broken), FAILED, "nosuchmodule")
        self.assertEqual(self.invoke("hello")[0], [3, "s", None])
        self.assert_refused(self.cli.run("fn", "set", "none", "--code", code), NOT_FOUND, "none")

    def test_settings_that_are_none(self):
        self.deploy("hello")
        self.assert_refused(self.cli.run("fn", "set", "none", "--timeout", "1s"), NOT_FOUND, "none")
        for options, word in (([], "--memory"), (["--memory", "1M"], "memory"), (["--timeout", "1h"], "timeout"),
                              (["--no-env", "GREETING"], "GREETING"), (["--no-env", "A=B"], "A=B")):  # fmt: skip
            with self.subTest(options=options):
                self.assert_refused(self.cli.run("fn", "set", "hello", *options), USAGE, word)
        nobody = self.make_cli(host=self.daemon.host, uid=65534)
        self.assert_refused(nobody.run("fn", "set", "hello", "--timeout", "1s"), NOT_PERMITTED, "hello")
        self.assertEqual(self.function("hello")["revision"], 1)

    def test_what_can_not_be_loaded_takes_nobodys_place(self):
        self.deploy("app")
        code = self.code("broken", {"app.py": "print('looking for it')\nimport nosuchmodule\n"})
        broken = ("fn", "deploy", "app", "--runtime", "python", "--handler", "app.handler", "--code", code, "--replace")
        self.assert_refused(self.cli.run(*broken), 1, "nosuchmodule", "looking for it", "--force")
        self.assertEqual(self.about("app")["calls"], 1)
        forced = self.succeed(*broken, "--force")
        self.assertEqual(forced["result"]["revision"], 2)
        self.assertIn("could not be loaded", "\n".join(forced["warnings"]))
        self.assertEqual(self.failed("app")["errorType"], "Runtime.ImportModuleError")

    def test_many_callers_meanwhile(self):
        """None of them is told of an error."""
        def files(number):
            return {"app.py": f"def handler(event, context):\n    return {number}\n"}

        self.deploy("app", files=files(0))
        for number in range(1, 5):
            calls = [self.begin_invoke("app", {}) for _ in range(6)]
            self.deploy("app", "--replace", files=files(number))
            for call in calls:
                self.assertIn(self.end_invoke(call), (number - 1, number))
            self.assertEqual(self.invoke("app")[0], number)


class RemoveTest(FunctionsTest):
    def test_nothing_is_left(self):
        self.deploy("gone", "--deps", "json")
        self.invoke("gone")
        self.wait_for_image("gone")
        self.assertTrue(self.log_files("gone"))
        self.assertTrue(self.sockets())
        self.succeed("fn", "rm", "gone")
        self.wait_for_nothing()
        self.wait_for_no_sandbox()
        self.assertEqual(self.log_files("gone"), [])
        self.assertEqual([one for one in self.references() if one.startswith("functions/")], [])
        self.assertIsNone(self.function("gone"))
        for command in (("invoke", "gone"), ("logs", "gone"), ("stats", "gone"), ("rm", "gone")):
            self.assert_refused(self.cli.run("fn", *command), NOT_FOUND, "gone")
        for image in self.succeed("deps", "ls")["images"]:
            self.succeed("deps", "rm", image["reference"])
        self.succeed("gc")
        self.assert_store_whole([])

    def test_a_dependency_image_goes_with_its_template(self):
        # Starts that a template would have made quicker add up until there is one.
        level = ""
        for number in range(100):
            self.deploy("app", "--deps", "json", "--env", f"N={number}", *(("--replace",) if number else ()))
            level = self.invoke("app")[1]["start_level"]
            if level == "dependency-template":
                break
        self.assertEqual(level, "dependency-template")
        image = self.function("app")["dependency_image"]
        self.succeed("fn", "rm", "app")
        self.wait_for_nothing()
        self.assertTrue(self.sandboxes(), "the template")
        self.succeed("deps", "rm", image)
        self.wait_for_no_sandbox()
        # A new one of the same name is used as any other.
        self.deploy("again", "--deps", "json")
        self.assertEqual(self.about("again")["calls"], 1)

    def test_while_its_image_is_being_taken(self):
        for number in range(3):
            self.deploy("brief", "--env", f"N={number}")
            self.invoke("brief")
            self.succeed("fn", "rm", "brief")
        self.wait_for_nothing()
        waiting.until(lambda: not [one for one in self.references() if one.startswith("functions/")],
                      "no image of a function is left", SECONDS)

    def test_a_call_under_way_ends(self):
        self.deploy("app", "--timeout", "60s")
        # From its own image, pages of which it may not have touched yet.
        seen = self.about("app")
        self.wait_for_image("app")
        os.kill(self.process_of(seen), signal.SIGKILL)
        self.wait_for_no_instance("app")
        under_way = self.begin_waiting("app")
        self.succeed("fn", "rm", "app")
        self.succeed("gc")
        answer = self.post("app", {})
        self.assertEqual((answer.status, answer.error_type), (404, "ResourceNotFoundException"), str(answer))
        self.assertEqual(self.end_waiting(under_way), {"told": "go", "calls": 1})
        self.wait_for_nothing()

    def test_its_name_is_free_again(self):
        self.deploy("app", files={"app.py": "def handler(event, context):\n    return 1\n"})
        self.assertEqual(self.invoke("app")[0], 1)
        self.succeed("fn", "rm", "app")
        self.deploy("app", files={"app.py": "def handler(event, context):\n    return 2\n"})
        self.assertEqual(self.invoke("app")[0], 2)
        self.assertEqual(self.stats("app")["invocations"], 1)


class LogsTest(FunctionsTest):
    def test_logs_and_stats(self):
        self.deploy("noisy")
        first = self.invoke("noisy", {"do": "print", "text": "printed"}, "--log-tail")[1]
        tail = base64.b64decode(self.post("noisy", {"do": "print", "text": "ünïcode"},
                                          {"X-Amz-Log-Type": "Tail"}).headers["X-Amz-Log-Result"]).decode()
        self.assertRegex(tail, r"\ASTART RequestId: \S+ Version: \$LATEST\nünïcode\nto standard error\n"
                               r"END RequestId: \S+\nREPORT RequestId: \S+\t")
        self.assertEqual(self.failed("noisy", {"do": "raise"})["errorType"], "KeyError")
        self.assertNotIn("X-Amz-Log-Result", self.post("noisy", {}).headers)
        lines = [json.loads(line) for line in self.cli.run("fn", "logs", "noisy").out.splitlines()]
        self.assertEqual({line["instance"] for line in lines}, {first["instance"]})
        text = "\n".join(line["text"] for line in lines)
        for words in ("START RequestId: " + first["request_id"], "printed\nto standard error\nEND RequestId: ",
                      "Init Duration: ", "ünïcode", "[ERROR] KeyError"):
            self.assertIn(words, text)
        self.assertEqual(text.count("REPORT RequestId: "), 4)
        last = self.cli.run("fn", "logs", "noisy", "--tail", "1").out.splitlines()
        self.assertEqual([json.loads(line) for line in last], lines[-1:])
        stats = self.stats("noisy")
        self.assertEqual((stats["invocations"], stats["errors"], stats["timeouts"], stats["throttles"]), (4, 1, 0, 0))
        self.assertGreater(stats["memory_bytes"], 0)

    def test_a_terminal_gets_no_orders(self):
        self.deploy("noisy")
        self.invoke("noisy", {"do": "print", "text": "before\x1b]0;title\x07after"})
        logs = ("fn", "logs", "noisy")
        self.assertIn("before\x1b]0;title\x07after\n", self.cli.run(*logs, json_output=False).out)
        code, text = shown_by(self.cli.argv(*logs), self.environment)
        self.assertEqual(code, DONE, text)
        self.assertIn("before?]0;title?after\r\n", text)
        self.assertNotIn("\x1b", text)

    def test_follow(self):
        self.deploy("noisy")
        follower = self.cli.start("fn", "logs", "noisy", "--follow")
        self.addCleanup(follower.kill)
        self.invoke("noisy", {"do": "print", "text": "while somebody looks"})
        while "while somebody looks" not in json.loads(follower.stdout.readline())["text"]:
            pass
        # That is not how it ends when the function is removed.
        self.daemon.stop()
        self.assert_refused(self.cli.finish(follower), FAILED, "rekindled ends")
        self.restart_daemon()
        follower = self.cli.start("fn", "logs", "noisy", "--follow")
        self.addCleanup(follower.kill)
        self.assertTrue(follower.stdout.readline())
        self.succeed("fn", "rm", "noisy")
        self.assertEqual(self.cli.finish(follower).code, DONE)


def custom_runtime(test):
    """What `deploy` needs for one."""
    folder = test.path("provided.code")
    if not os.path.isdir(folder):
        os.mkdir(folder)
        shutil.copy(jobs.program("minimal_runtime"), os.path.join(folder, "bootstrap"))
    return {"runtime": "provided", "handler": "any", "code": folder}


class CustomRuntimeTest(FunctionsTest):
    def test_calls(self):
        self.deploy("own", **custom_runtime(self))
        value, first = self.invoke("own", {"n": 1})
        self.assertEqual((value, first["start_level"]), ({"n": 1}, "cold"))
        for event in ({"do": "stream"}, {"do": "reconnect"}, {"x": "y" * 100_000}):
            value, answer = self.invoke("own", event)
            self.assertEqual((value, answer["start_level"]), (event, "running"))
        self.assertEqual(self.failed("own", {"do": "fail"})["errorType"], "Custom.Failure")
        self.succeed("fn", "rm", "own")
        self.wait_for_nothing()

    def test_no_bootstrap(self):
        code = self.code("none")
        deploy = ("fn", "deploy", "none", "--runtime", "provided", "--handler", "x", "--code", code)
        self.assert_refused(self.cli.run(*deploy), FAILED, "bootstrap", code, "put it there")
        with open(os.path.join(code, "bootstrap"), "w", encoding="ascii") as file:
            file.write("#!/bin/sh\n")
        self.assert_refused(self.cli.run(*deploy), FAILED, "bootstrap", code, "chmod +x")
        self.assertIsNone(self.function("none"))


# A module with one empty function.
_COMPILES = """
const code = Uint8Array.from([0, 97, 115, 109, 1, 0, 0, 0, 1, 4, 1, 96, 0, 0, 3, 2, 1, 0, 7, 5, 1, 1, 102, 0, 0,
                              10, 4, 1, 2, 0, 11]);
exports.handler = async () => {
  const { instance } = await WebAssembly.instantiate(code);
  instance.exports.f();
  return { pid: process.pid, space: require('fs').readlinkSync('/proc/self/ns/pid') };
};
"""
# Much that is garbage soon, beside a little that stays.
_LITTERS = """
const make = (i) => ({ a: i, b: 's' + i, c: [i, i + 1, i + 2], d: { e: i } });
exports.handler = async () => {
  const kept = [];
  for (let i = 0; i < 100_000; i++) kept.push(make(i));
  let recent = [];
  for (let i = 0; i < 1_500_000; i++) {
    recent.push(make(i));
    if (recent.length > 60_000) recent = recent.slice(50_000);
  }
  return kept.length;
};
"""


@unittest.skipUnless(os.path.exists("/usr/bin/node"), "needs Node.js")
class NodeTest(FunctionsTest):
    files = {"app.js": """
const zlib = require('zlib');
let calls = 0;
exports.handler = async (event, context) => {
  if (event.exit !== undefined) process.exit(event.exit);
  if (event.fail) throw new TypeError(event.fail);
  console.log('called');
  return { calls: ++calls, name: context.functionName, event, pid: process.pid,
           space: require('fs').readlinkSync('/proc/self/ns/pid') };
};
"""}

    def test_webassembly(self):
        self.deploy("compiles", runtime="nodejs", files={"app.js": _COMPILES})
        seen = self.about("compiles")
        self.wait_for_image("compiles")
        os.kill(self.process_of(seen), signal.SIGKILL)
        self.wait_for_no_instance("compiles")
        self.assertIn(self.invoke("compiles")[1]["start_level"], FROM_OWN_IMAGE)

    def test_it_collects_garbage_before_its_memory_is_used_up(self):
        self.deploy("litters", "--memory", "160M", "--timeout", "60s", runtime="nodejs", files={"app.js": _LITTERS})
        self.assertEqual(self.invoke("litters")[0], 100_000)

    def test_a_handler_that_does_not_load_is_told_of_when_it_is_deployed(self):
        for name, files, handler, error in (
            ("absent", {"app.js": "require('nosuchmodule');"}, "app.handler", "Runtime.ImportModuleError"),
            ("nofile", {"app.js": ""}, "other.handler", "Runtime.ImportModuleError"),
            ("nohandler", {"app.js": ""}, "app.handler", "Runtime.HandlerNotFound"),
            ("syntax", {"app.mjs": "function ("}, "app.handler", "Runtime.UserCodeSyntaxError"),
            ("throws", {"app.js": "throw new RangeError('when it is loaded');"}, "app.handler", "RangeError"),
            ("exits", {"app.js": "console.log('{'); process.exit(3);"}, "app.handler", "Runtime.ExitError"),
            ("killed", {"app.js": "process.kill(process.pid, 'SIGKILL');"}, "app.handler", "Runtime.ExitError"),
        ):
            with self.subTest(name):
                deployed = self.deploy(name, runtime="nodejs", files=files, handler=handler)
                self.assertIn("could not be loaded, and invoking it will fail: " + error,
                              "\n".join(deployed["warnings"]))
                self.assertEqual(self.failed(name)["errorType"], error)

    def test_a_promise_that_its_module_leaves_rejected(self):
        """In CommonJS and in an ES module: its reason, and where it was made, in all places in which a user looks."""
        for name, file, text in (
            ("commonjs", "app.js", "async function connect() {\n  throw new RangeError('no database');\n}\nconnect();\n"
                                   "exports.handler = async () => 1;\n"),
            ("module", "app.mjs", "async function connect() {\n  throw new RangeError('no database');\n}\nconnect();\n"
                                  "export const handler = async () => 1;\n"),
        ):
            with self.subTest(name):
                warning = "\n".join(self.deploy(name, runtime="nodejs", files={file: text})["warnings"])
                self.assertIn("Runtime.UnhandledPromiseRejection: RangeError: no database", warning)
                self.assertRegex(warning, rf"\n    at connect \(.*{file}:2:9\)\n    at .*{file}:4:1")
                self.assertNotIn("node:internal", warning)
                error = self.failed(name)
                self.assertEqual((error["errorType"], error["errorMessage"]),
                                 ("Runtime.UnhandledPromiseRejection", "RangeError: no database"))
                self.assertIn(f"{file}:2:9", error["trace"][1])
                logs = self.cli.run("fn", "logs", name).out
                self.assertIn("Unhandled Promise Rejection", logs)
                self.assertIn(f"{file}:2:9", logs)
                self.assertIn("Error Type: Runtime.UnhandledPromiseRejection", logs)

    def test_what_its_module_writes_is_in_the_log_whatever_it_is_started_from(self):
        text = "console.log('loaded');\nlet calls = 0;\n" \
               "exports.handler = async () => { console.log('called'); process.stdout.write('raw\\n'); return process.pid; };\n"
        self.deploy("writes", runtime="nodejs", files={"app.js": text})
        first = self.invoke("writes")[1]
        self.wait_for_image("writes")
        for pid in self.runtimes():
            os.kill(pid, signal.SIGKILL)
        self.wait_for_no_instance("writes")
        for level in (FROM_OWN_IMAGE, ("running",)):
            how = self.invoke("writes")[1]
            self.assertIn(how["start_level"], level)
            self.assertNotEqual(how["instance"], first["instance"])
        written = {instance: [] for instance in (first["instance"], how["instance"])}
        for line in self.cli.run("fn", "logs", "writes").out.splitlines():
            entry = json.loads(line)
            for word in ("loaded", "called", "raw"):
                if entry["text"].endswith(word):
                    written[entry["instance"]].append(word)
        self.assertEqual(written, {first["instance"]: ["loaded", "called", "raw"],
                                   how["instance"]: ["called", "raw", "called", "raw"]})

    def test_packages_that_the_machine_has_for_all(self):
        folder = os.path.dirname(os.path.dirname(os.path.realpath("/usr/bin/node"))) + "/lib/node"
        os.makedirs(folder, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
        self.addCleanup(subprocess.run, ["umount", "--lazy", folder], check=True)
        for package in ("rekindle_test_package", "@rekindle/unused"):
            os.makedirs(os.path.join(folder, package))
            with open(os.path.join(folder, package, "index.js"), "w", encoding="ascii") as file:
                file.write("module.exports = process.env._HANDLER;\n")
        code = {"app.js": "const own = require('own');\nconst seen = require('rekindle_test_package/index.js');\n"
                          "console.log('{');\nexports.handler = async () => [own, seen === undefined];\n",
                "node_modules/own/index.js": "module.exports = 'own';\n"}
        deployed = self.deploy("shared", runtime="nodejs", files=code)
        self.assertEqual((deployed["warnings"], deployed["result"]["dependencies"]), ([], ["rekindle_test_package"]))
        # Loaded before the function was known.
        self.assertEqual(self.invoke("shared")[0], ["own", True])
        # What is loaded as root is a package, whatever the code says that it imports.
        code = {"app.js": "require('fs').writeSync(1, JSON.stringify({ ok: true, error: null, imports:\n"
                          "  [__filename, '../app', 'rekindle_test_package'] }) + '\\n');\n"
                          "process.kill(process.pid, 'SIGKILL');\n"}
        deployed = self.deploy("lies", runtime="nodejs", files=code)
        self.assertEqual(deployed["result"]["dependencies"], ["rekindle_test_package"])

    def test_a_function(self):
        deployed = self.deploy("node", runtime="nodejs", files=self.files)
        self.assertEqual(deployed["warnings"], [])
        seen, first = self.invoke("node", {"n": 1})
        self.assertEqual((seen["calls"], seen["name"], seen["event"]), (1, "node", {"n": 1}))
        self.assertTrue(first["start_level"].startswith("dependency-"), first)
        seen, second = self.invoke("node", {"n": 2})
        self.assertEqual((seen["calls"], second["start_level"]), (2, "running"))
        self.assertEqual(self.failed("node", {"fail": "no such order"})["errorType"], "TypeError")
        error = self.failed("node", {"exit": 7})
        self.assertEqual(error["errorType"], "Runtime.ExitError")
        self.assertIn("exit status 7", error["errorMessage"])
        self.wait_for_image("node")
        waiting.until(lambda: not self.runtimes(), "the process has gone", SECONDS)
        seen, third = self.invoke("node", {"n": 3})
        self.assertEqual(seen["calls"], 1)
        self.assertIn(third["start_level"], FROM_OWN_IMAGE)
        self.assertIn("called", self.cli.run("fn", "logs", "node").out)


if __name__ == "__main__":
    unittest.main()
