"""Functions that do what they should not, and what their callers are told: as AWS Lambda would."""

import json
import os
import signal
import unittest

from harness import procfs, waiting
from harness.cli import FAILED, NOT_FOUND, USAGE
from harness.functions import FROM_OWN_IMAGE, SECONDS, FunctionsTest

LARGEST_ANSWER = 6_291_556


# Notes in which cgroups it is whenever a copy of it is forked.
_BEFORE_FORKS = """import os


def before():
    with open("/proc/self/cgroup") as groups, open({path!r}, "a") as seen:
        seen.write(groups.read())


os.register_at_fork(before=before)


def handler(event, context):
    return None
"""


# Its first call starts a worker that is killed.
_WORKER_EATS = """import multiprocessing
import sys


def eat():
    held = []
    while True:
        held.append(bytearray(16 << 20))


def handler(event, context):
    if "exit" in event:
        sys.exit(event["exit"])
    worker = multiprocessing.get_context("fork").Process(target=eat)
    worker.start()
    worker.join()
    return worker.exitcode
"""


# As one that is not made to be loaded for an image.
_LOADS_ALONE = """import os
import sys

print("loading")
if os.environ["AWS_LAMBDA_LOG_STREAM_NAME"] == "capture":
    {fails}


def handler(event, context):
    return "answered"
"""


def limiting(groups):
    """Of the lines of a process's `cgroup` file those of groups that can limit memory."""
    lines = [line.split(":", 2) for line in groups.splitlines()]
    return [line[2] for line in lines if "memory" in line[1].split(",")] or [line[2] for line in lines if line[0] == "0"]


class NoImageTest(FunctionsTest):
    """Functions that can't be loaded for their image: what `fn ls` and `fn logs` say of it."""

    def problem_of(self, name, fails):
        files = {"app.py": _LOADS_ALONE.format(fails=fails)}
        self.deploy(name, "--deps", "none", files=files)
        self.assertEqual(self.invoke(name)[0], "answered")
        problem = waiting.until(lambda: self.function(name)["problem"], "why it has no image", SECONDS)
        self.assertIn("it ended before it was ready", problem)
        self.assertIn(f"rekindle fn logs {name}", problem)
        entries = [json.loads(line) for line in self.cli.run("fn", "logs", name).out.splitlines()]
        return problem, "\n".join(entry["text"] for entry in entries if entry["instance"] == "image")

    def test_an_error(self):
        problem, log = self.problem_of("raises", "raise OSError(98, 'Address already in use')")
        self.assertIn("OSError: [Errno 98] Address already in use", problem)
        self.assertIn("loading\n[ERROR] OSError: [Errno 98]", log)
        self.assertNotIn("Runtime API", log)

    def test_an_end(self):
        problem, log = self.problem_of("leaves", "print('no second one'); sys.exit(3)")
        self.assertIn("(exit status 3): it wrote last: no second one", problem)
        self.assertIn("loading\nno second one", log)

    def test_an_end_without_a_word(self):
        problem, _ = self.problem_of("silent", "import os; os._exit(4)")
        self.assertIn("it ended before it was ready (exit status 4): it wrote last: loading", problem)


class FaultTest(FunctionsTest):
    """Beside each of them a neighbour that must not notice."""

    def setUp(self):
        super().setUp()
        self.deploy("neighbour")
        self.neighbour = self.about("neighbour")

    def tearDown(self):
        seen = self.about("neighbour")
        self.assertEqual((seen["space"], seen["calls"]), (self.neighbour["space"], 2))

    def test_a_handler_that_does_not_load(self):
        for name, files, handler, error in (
            ("absent", {"app.py": "import nosuchmodule\n"}, "app.handler", "Runtime.ImportModuleError"),
            ("nofile", {"app.py": ""}, "other.handler", "Runtime.ImportModuleError"),
            ("nohandler", {"app.py": ""}, "app.handler", "Runtime.HandlerNotFound"),
            ("syntax", {"app.py": "def handler(:\n"}, "app.handler", "Runtime.UserCodeSyntaxError"),
            ("throws", {"app.py": "raise ValueError('at import')\n"}, "app.handler", "ValueError"),
            ("exits", {"app.py": "import sys\nsys.exit(3)\n"}, "app.handler", "Runtime.ExitError"),
        ):
            with self.subTest(name):
                deployed = self.deploy(name, files=files, handler=handler)
                self.assertIn("could not be loaded", "\n".join(deployed["warnings"]))
                for _ in range(2):
                    self.assertEqual(self.failed(name)["errorType"], error)
                answer = self.post(name, {})
                self.assertEqual((answer.status, answer.function_error, answer.json()["errorType"]),
                                 (200, "Unhandled", error))
                self.assertEqual(self.stats(name)["errors"], 3)
                self.succeed("fn", "rm", name)

    def test_a_handler_that_fails(self):
        self.deploy("app", "--timeout", "30s")
        error = self.failed("app", {"do": "raise"})
        self.assertEqual((error["errorType"], error["errorMessage"]), ("KeyError", "'no such order'"))
        self.assertIn("raise KeyError", "".join(error["stackTrace"]))
        self.assertEqual(self.about("app")["calls"], 2)  # it goes on
        for event, words in (({"do": "exit", "code": 3}, "exit status 3"), ({"do": "crash"}, "segmentation fault")):
            error = self.failed("app", event)
            self.assertEqual(error["errorType"], "Runtime.ExitError")
            self.assertIn(words, error["errorMessage"])
            self.assertEqual(self.about("app")["calls"], 1)  # of another instance
        logs = self.cli.run("fn", "logs", "app").out
        self.assertIn("Runtime exited with error: exit status 3", logs)

    def test_a_handler_that_hangs(self):
        self.deploy("app", "--timeout", "1s")
        error = self.failed("app", {"do": "hang"})
        self.assertEqual(error["errorType"], "Sandbox.Timedout")
        self.assertRegex(error["errorMessage"], r"RequestId: \S+ Error: Task timed out after 1.00 seconds")
        answer = self.post("app", {"do": "hang"})
        self.assertEqual((answer.status, answer.function_error), (200, "Unhandled"), str(answer))
        self.assertEqual(self.about("app")["calls"], 1)
        stats = self.stats("app")
        self.assertEqual((stats["invocations"], stats["errors"], stats["timeouts"]), (3, 2, 2))
        self.assertIn("Task timed out after 1.00 seconds", self.cli.run("fn", "logs", "app").out)
        waiting.until(lambda: len(self.runtimes()) == 2, "what hangs has been ended", SECONDS)

    def test_more_memory_than_it_may_have(self):
        self.deploy("app", "--memory", "128M", "--timeout", "60s")
        error = self.failed("app", {"do": "eat"})
        self.assertEqual(error["errorType"], "Runtime.OutOfMemory")
        self.assertIn("memory limit of 128 MB", error["errorMessage"])
        self.assertIn("Max Memory Used: 128 MB", self.cli.run("fn", "logs", "app").out)
        self.assertEqual(self.about("app")["calls"], 1)

    def used(self, name):
        """What the reports in its log say of memory."""
        return [int(line.split("Max Memory Used: ")[1].split(" ")[0])
                for line in self.cli.run("fn", "logs", name).out.splitlines() if "Max Memory Used" in line]

    def test_the_memory_that_is_reported_is_the_most_that_a_call_had(self):
        self.deploy("app", "--memory", "512M", "--timeout", "60s", files={
            "app.py": "def handler(event, context):\n    return len(b'x' * (event['mib'] << 20))\n"})
        for mib in (200, 1):
            self.invoke("app", {"mib": mib})
        first, second = self.used("app")
        self.assertGreaterEqual(first, 200)
        self.assertLess(second, 200)

    def test_a_worker_that_had_too_much_memory_is_not_the_function(self):
        self.deploy("app", "--memory", "256M", "--timeout", "60s", files={"app.py": _WORKER_EATS})
        self.assertEqual(self.invoke("app")[0], -signal.SIGKILL)
        self.assertIn("256 MB: the kernel ended 1 of the processes", self.cli.run("fn", "logs", "app").out)
        error = self.failed("app", {"exit": 3})
        self.assertEqual(error["errorType"], "Runtime.ExitError")
        self.assertIn("exit status 3", error["errorMessage"])

    def test_what_can_not_be_loaded_is_in_its_log(self):
        for name, code, options, error, words in (
            ("exits", "import sys\nsys.exit(3)\n", (), "Runtime.ExitError", ("exit status 3", "Status: error")),
            ("eats", "much = bytearray(1 << 30)\n", ("--memory", "128M"), "Runtime.OutOfMemory",
             ("signal: killed (memory limit of 128 MB reached)", "Status: error")),
            ("sleeps", "import time\ntime.sleep(600)\n", ("--start-timeout", "1s"), "Sandbox.Timedout",
             ("did not load within 1 seconds", "Status: timeout")),
        ):
            with self.subTest(name):
                self.deploy(name, "--deps", "none", *options, files={"app.py": code})
                self.assertEqual(self.failed(name)["errorType"], error)
                logs = self.cli.run("fn", "logs", name).out
                for word in (*words, "INIT_REPORT Init Duration: ", "Error Type: " + error):
                    self.assertIn(word, logs)
                if name == "eats":
                    waiting.until(lambda: "--memory" in self.function("eats").get("problem", ""), "its image refused",
                                  SECONDS)
                self.succeed("fn", "rm", name)

    def test_an_answer_that_is_too_large(self):
        self.deploy("app", "--timeout", "60s")
        answer = self.post("app", {"do": "large", "bytes": LARGEST_ANSWER - 1})  # with its quotes
        self.assertEqual((answer.status, answer.function_error, answer.json()["errorType"]),
                         (200, "Unhandled", "Function.ResponseSizeTooLarge"), str(answer))
        answer = self.post("app", {"do": "large", "bytes": LARGEST_ANSWER - 2})
        self.assertEqual((len(answer.body), answer.function_error), (LARGEST_ANSWER, None))
        self.assertEqual(self.failed("app", {"do": "large", "bytes": 10 << 20})["errorType"],
                         "Function.ResponseSizeTooLarge")
        out = self.path("answer")
        self.succeed("fn", "invoke", "app", "--payload", json.dumps({"do": "large", "bytes": 1 << 20}), "--output", out)
        self.assertEqual(os.path.getsize(out), (1 << 20) + 2)

    def test_daemons_end_with_their_instance(self):
        mark = "rekindle test " + os.path.basename(self.directory)

        def daemons():
            return [pid for pid in procfs.all_pids() if procfs.alive(pid) and mark in procfs.command_line(pid)]

        self.deploy("app")
        self.invoke("app", {"do": "daemons", "count": 3, "mark": mark})
        waiting.until(lambda: len(daemons()) == 3, "three daemons")
        self.failed("app", {"do": "exit"})
        waiting.until(lambda: not daemons(), "the daemons have gone", SECONDS)
        self.invoke("app", {"do": "daemons", "count": 2, "mark": mark})
        waiting.until(lambda: len(daemons()) == 2, "two daemons")
        self.succeed("fn", "rm", "app")
        waiting.until(lambda: not daemons(), "the daemons have gone", SECONDS)

    def test_killed_from_outside(self):
        self.deploy("app", "--timeout", "60s")
        child, _ = self.begin_waiting("app")
        for pid in self.runtimes():
            if pid != self.process_of(self.neighbour):
                os.kill(pid, signal.SIGKILL)
        result = self.cli.finish(child)
        self.assertEqual(result.code, FAILED, str(result))
        self.assertEqual(json.loads(result.data["payload"])["errorType"], "Runtime.ExitError")
        self.assertEqual(self.about("app")["calls"], 1)


class TemplateTest(FunctionsTest):
    def start_from(self, levels):
        """Starts it until it comes from one of these, without its last instance; all that it came from."""
        seen = []
        while not seen or seen[-1] not in levels:
            self.assertLess(len(seen), 50, seen)
            for pid in self.runtimes():
                os.kill(pid, signal.SIGKILL)
            self.wait_for_no_instance("app")
            seen.append(self.invoke("app", {"do": "self"})[1]["start_level"])
        return seen

    def templates(self):
        instances = self.runtimes()
        return [pid for pid in procfs.descendants(os.getpid())
                if procfs.alive(pid) and pid not in instances and "bootstrap.py" in procfs.command_line(pid)]

    def own_templates(self):
        """Of the function, not of its dependencies: they have its limits."""
        own = []
        for pid in self.templates():
            with open(f"/proc/{pid}/cgroup", encoding="ascii") as file:
                if all("/rekindle/" in group for group in limiting(file.read())):
                    own.append(pid)
        return own

    def test_one_that_does_not_answer_is_replaced(self):
        self.deploy("app")
        self.wait_for_no_instance("app")
        self.start_from(["template"])
        stopped = self.templates()
        self.assertTrue(stopped)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        seen = self.start_from(["template"])
        # What was asked of it went on from what there was.
        self.assertIn(seen[0], ("image-memory", "image-disk"))
        self.assertFalse(set(stopped) & set(pid for pid in self.templates() if procfs.state(pid) != "T"))
        self.assertIn("it was given up and killed", self.daemon.log_text())
        for pid in stopped:  # of dependencies, that nobody has asked
            if procfs.alive(pid):
                os.kill(pid, signal.SIGCONT)


    def test_an_image_that_was_removed_is_taken_again_when_the_template_has_ended(self):
        self.deploy("app")
        self.invoke("app")
        image = self.wait_for_image("app")
        self.start_from(["template"])
        self.succeed("rm", image)
        for pid in self.own_templates():
            os.kill(pid, signal.SIGKILL)
        of_dependencies = ["dependency-template", "dependency-memory", "dependency-disk"]
        self.start_from(of_dependencies)
        # Each start tells again what an image would be worth.
        waiting.until(lambda: self.start_from([*of_dependencies, *FROM_OWN_IMAGE]) and image in self.references(),
                      "its image taken again", SECONDS)
        self.start_from(FROM_OWN_IMAGE)

    def test_what_it_runs_of_the_functions_code_keeps_to_the_functions_limits(self):
        seen = self.path("seen")
        self.deploy("app", files={"app.py": _BEFORE_FORKS.format(path=seen)})
        self.wait_for_no_instance("app")
        self.start_from(["template"])
        with open(seen, encoding="ascii") as file:
            groups = limiting(file.read())
        self.assertTrue(groups)
        for group in groups:
            self.assertIn("/rekindle/", group)


    def test_it_ends_though_a_copy_of_it_goes_on(self):
        self.deploy("app", "--timeout", "60s")
        self.wait_for_no_instance("app")
        self.start_from(["template"])
        call = self.begin_waiting("app")
        own = self.own_templates()
        self.assertEqual(len(own), 1)
        self.deploy("app", "--replace", "--timeout", "60s", "--env", "N=2")
        waiting.until(lambda: not any(procfs.alive(pid) for pid in own), "the old revision's template ends", SECONDS)
        self.assertEqual(self.end_waiting(call)["told"], "go")


class BadRequestTest(FunctionsTest):
    def test_deploying(self):
        code = self.code("any")
        for name, options, code_dir, words in (
            ("no/slash", (), code, ("name", "no/slash")),
            ("x" * 65, (), code, ("name",)),
            ("", (), code, ("name",)),
            ("app", ("--runtime", "cobol"), code, ("cobol",)),
            ("app", ("--memory", "1M"), code, ("memory",)),
            ("app", ("--timeout", "1h"), code, ("timeout",)),
            ("app", (), self.path("absent"), ("absent",)),
            ("app", ("--layer", self.path("absent")), code, ("absent",)),
            ("app", ("--deps", "os;rm"), code, ("os;rm",)),
            ("app", ("--env", "=x"), code, ("=x",)),
        ):
            with self.subTest(name=name, options=options):
                defaults = () if "--runtime" in options else ("--runtime", "python")
                result = self.cli.run("fn", "deploy", name, *defaults, "--handler", "app.handler", "--code", code_dir,
                                      *options)
                self.assertIn(result.code, (FAILED, USAGE, NOT_FOUND), str(result))
                for word in words:
                    self.assertIn(word, str(result.message))
        self.assertEqual(self.succeed("fn", "ls").get("functions", []), [])

    def test_a_dependency_that_does_not_exist(self):
        code = self.code("app")
        refused = self.cli.run("fn", "deploy", "app", "--runtime", "python", "--handler", "app.handler", "--code", code,
                               "--deps", "json,nosuchmodule")
        self.assert_refused(refused, USAGE, "No module named 'nosuchmodule'", "--deps", "Check the spelling")
        self.assertEqual(self.succeed("fn", "ls").get("functions", []), [])
        refused = self.cli.run("deps", "build", "nosuchmodule", "--runtime", "python")
        self.assert_refused(refused, USAGE, "No module named 'nosuchmodule'")

    def test_payloads(self):
        self.deploy("app")
        for payload in ("no json", "{", "{} {}", '{"a": NaN}', "\x00"):
            answer = self.post("app", payload)
            self.assertEqual((answer.status, answer.error_type), (400, "InvalidRequestContentException"), payload)
        refused = self.cli.run("fn", "invoke", "app", "--payload", "no json")
        self.assert_refused(refused, USAGE, "JSON")
        answer = self.post("app", b'{"x": "' + b"y" * (7 << 20) + b'"}')
        self.assertEqual((answer.status, answer.error_type), (413, "RequestTooLargeException"), str(answer))
        self.assertEqual(self.stats("app")["invocations"], 0)
        self.assertEqual(self.post("app", "").json(), {})

    def test_names(self):
        for path, status, error in (
            ("/2015-03-31/functions/nosuch/invocations", 404, "ResourceNotFoundException"),
            ("/2015-03-31/functions/no%2Fname/invocations", 400, "ValidationException"),
            ("/2015-03-31/functions/" + "x" * 200 + "/invocations", 400, "ValidationException"),
        ):
            answer = self.http("POST", path, "{}")
            self.assertEqual((answer.status, answer.error_type), (status, error), str(answer))
        self.assert_refused(self.cli.run("fn", "invoke", "nosuch"), NOT_FOUND, "nosuch")


if __name__ == "__main__":
    unittest.main()
