"""What the tests of the runtimes share."""

import base64
import json
import os
import shutil
import sys
import tempfile
import unittest

from runtime_api import Runtime, RuntimeApi

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(SOURCE, "tests", "hook"))
import parked  # noqa: E402


class RuntimeTest(unittest.TestCase):
    """One server; any number of runtimes."""

    maxDiff = None
    argv = ()
    functions = ""
    spec = ""  # of the handler that most tests use

    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="rk-runtime.")
        self.addCleanup(shutil.rmtree, self.directory)
        self.api = self.serve()

    def serve(self, *address):
        api = RuntimeApi(*address)
        self.addCleanup(api.close)
        return api

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, text):
        """A file of a function's own code folder, which is the test's directory."""
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def start(self, spec=None, root=None, **environment):
        runtime = Runtime(self.argv, {
            "_HANDLER": self.spec if spec is None else spec,
            "LAMBDA_TASK_ROOT": root or self.functions,
            "AWS_LAMBDA_RUNTIME_API": self.api.address,
            "AWS_LAMBDA_FUNCTION_NAME": "tested",
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128",
            "AWS_LAMBDA_LOG_GROUP_NAME": "/aws/lambda/tested",
            "AWS_LAMBDA_LOG_STREAM_NAME": "2026/11/22/[$LATEST]abc",
            **environment,
        })
        self.addCleanup(runtime.end)
        return runtime

    def start_afresh(self, *arguments, **options):
        """With a server of its own: runtimes of before don't take its invocations."""
        self.api = self.serve()
        return self.start(*arguments, **options)

    def fail_to_start(self, spec, root=None, **environment):
        """(init/error's headers and body, the log) of a function that can't be loaded."""
        runtime = self.start(spec, root, **environment)
        status = runtime.wait()
        self.assertNotEqual(status, 0, runtime.log())
        path, headers, body = self.api.errors.get(timeout=10)
        self.assertEqual(path, "init/error")
        self.assertEqual(headers["Lambda-Runtime-Function-Error-Type"], body["errorType"])
        return headers, body, runtime.log()

    def call(self, event=None, outcome="response", **options):
        seen, answer = self.api.invoke(event, **options)
        self.assertEqual(seen, outcome, answer)
        return answer


CLIENT_CONTEXT = {"custom": {"k": "ü"}, "env": {"e": "v"}, "client": {"app_title": "App"}}


class InvocationTests:
    """What a handler gets and gives: what each language's InvocationTest inherits, and says of itself:

    values: more that go through JSON unchanged; handlers: (spec, what it answers) of other kinds of handlers.
    """

    def test_one_process_and_one_connection_serve_all(self):
        self.start()
        first = self.call({"do": "calls"})
        second = self.call({"do": "calls"})
        self.assertEqual((first["calls"], second["calls"]), (1, 2))
        self.assertEqual(first["pid"], second["pid"])
        self.assertEqual(first["directory"], self.functions)
        self.assertEqual(self.api.connections, 1)

    def test_values(self):
        self.start()
        for value in ({}, "ünïcode \u2028 \U0001f600 \x00", [1.5, True, None], {"": {"a": [[]]}}, *self.values):
            self.assertEqual(self.call({"do": "echo", "value": value})["value"], value)

    def test_on_a_unix_socket(self):
        path = self.path("api.sock")
        self.api = self.serve(path)
        # It goes before an address, which a dependency image may have kept.
        self.start(REKINDLE_RUNTIME_SOCKET=path, AWS_LAMBDA_RUNTIME_API="127.0.0.1:1")
        self.assertEqual(self.call({"do": "echo", "value": 1})["value"], 1)

    def test_context(self):
        self.start()
        invocation = self.api.begin({"do": "context"}, seconds=300, headers={
            "Lambda-Runtime-Trace-Id": "Root=1-2-3",
            "Lambda-Runtime-Client-Context": json.dumps(CLIENT_CONTEXT, ensure_ascii=False),
            "Lambda-Runtime-Cognito-Identity": '{"cognitoIdentityId":"me","cognitoIdentityPoolId":"pool"}',
        })
        outcome, body = invocation.wait()
        self.assertEqual(outcome, "response")
        seen = json.loads(body)
        self.assertEqual(seen["id"], invocation.id)
        self.assertEqual((seen["name"], seen["version"], seen["memory"]), ("tested", "$LATEST", "128"))
        self.assertEqual((seen["group"], seen["stream"]), ("/aws/lambda/tested", "2026/11/22/[$LATEST]abc"))
        self.assertEqual(seen["trace"], "Root=1-2-3")
        self.assertTrue(0 < seen["remaining"] <= 300_000, seen["remaining"])
        self.check_context(seen, invocation)
        self.check_plain_context(self.call({"do": "context"}, seconds=-1))

    def test_large_payloads(self):
        self.start()
        size = 6 * 1024 * 1024
        self.assertEqual(self.call({"do": "echo", "value": "ä" * (size // 2)})["value"], "ä" * (size // 2))
        self.assertEqual(self.call({"do": "large", "size": size}), "x" * size)
        # Too large: the server refuses it, the next one is served.
        refused = self.api.begin({"do": "large", "size": 2 * size})
        self.assertIn(refused.id, self.api.refused.get(timeout=60))
        self.assertEqual(self.call({"do": "echo"}), {"do": "echo"})

    def test_binary(self):
        self.start()
        data = os.urandom(100_000)
        answer = self.call({"do": "binary", "data": base64.b64encode(data).decode()})
        self.assertEqual(base64.b64decode(answer), data[::-1])

    def test_other_ways_of_http(self):
        self.start()
        self.api.chunked = True
        self.assertEqual(self.call({"do": "echo", "value": "y" * 5000})["value"], "y" * 5000)
        self.api.close_after_answer = True
        for _ in range(3):
            self.call({"do": "echo"})
        self.assertGreater(self.api.connections, 3)

    def test_a_connection_that_is_dropped(self):
        self.start()
        self.api.drop_while_running = True
        for value in range(3):
            self.assertEqual(self.call({"do": "echo", "value": value})["value"], value)
        self.assertGreater(self.api.connections, 2)

    def test_handlers_of_other_kinds(self):
        for spec, answer in self.handlers:
            self.start_afresh(spec)
            self.assertEqual(self.call({}), answer, spec)


class FailureTests:
    """Errors and ends: what each language's FailureTest inherits.

    exits: (what it is asked to do, the status that it ends with).
    """

    exits = (("exit", 3), ("exit", 0))

    def test_an_answer_that_comes_too_late(self):
        """The server's time-out: it refuses the answer, and the runtime serves the next one."""
        fifo = self.path("fifo")
        os.mkfifo(fifo)
        self.start()
        late = self.api.begin({"do": "wait", "fifo": fifo})
        with open(fifo, "w", encoding="ascii") as file:
            late.give_up()
            file.write("done")
        self.assertIn(late.id, self.api.refused.get(timeout=60))
        self.assertEqual(self.call({"do": "echo"}), {"do": "echo"})
        self.assertFalse(late.over.is_set())

    def test_exits(self):
        """The end says it all: the server makes Runtime.ExitError of it."""
        for what, status in self.exits:
            runtime = self.start()
            invocation = self.api.begin({"do": what, "status": status})
            self.assertEqual(runtime.wait(), status, runtime.log())
            self.assertFalse(invocation.over.is_set())

    def test_the_server_goes(self):
        runtime = self.start()
        self.call({"do": "echo"})
        self.api.close_now()
        self.assertEqual(runtime.wait(), 1)
        self.assertIn("closed the connection", runtime.log())


class LoadingTests:
    """What is there before the first invocation: what each language's LoadingTest inherits.

    unreachable: what the log says of a server that is not there; write_dependent(): writes app.handler, which answers
    whether the second of the dependencies that it returns was loaded before it.
    """

    def test_no_code_folder(self):
        _, error, _ = self.fail_to_start("app.handler", self.path("gone"))
        self.assertIn(self.path("gone"), error["errorMessage"])

    def test_dependencies(self):
        dependencies = self.write_dependent()
        self.start("app.handler", self.directory, REKINDLE_DEPS=", ".join(dependencies))
        self.assertIs(self.call({}), True)
        runtime = self.start(REKINDLE_DEPS=dependencies[0] + ",no_such_dependency")
        self.assertEqual(runtime.wait(), 1)
        self.assertIn("no_such_dependency (REKINDLE_DEPS)", runtime.log())

    def test_no_server(self):
        for address, words in (("127.0.0.1:1", self.unreachable),
                               ("nonsense", "not HOST:PORT"), ("", "REKINDLE_RUNTIME_SOCKET")):
            runtime = self.start(AWS_LAMBDA_RUNTIME_API=address)
            self.assertEqual(runtime.wait(), 1)
            self.assertIn(words, runtime.log())


class SnapshotTests:
    """The ready points, with processes that are woken without CRIU: what each language's SnapshotTest inherits."""

    def start_held(self, **environment):
        """Parked with its dependencies, and knowing nothing of a function."""
        names = ("REKINDLE_HOOK_LIBRARY", "REKINDLE_HOOK_ADDON")
        hook = {name: os.environ[name] for name in names if name in os.environ}
        runtime = Runtime(self.argv, {"REKINDLE_HOLD": "1", **hook, **environment})
        self.addCleanup(runtime.end)
        parked.wait_until_parked(runtime.process)
        return runtime

    def wake(self, runtime, **environment):
        channel = parked.wake(runtime.process, {**parked.RESTORED, "environment": environment})
        self.addCleanup(channel.close)
        return channel

    def function(self, **environment):
        return {"_HANDLER": "app.handler", "LAMBDA_TASK_ROOT": self.path("code"),
                "AWS_LAMBDA_RUNTIME_API": self.api.address, **environment}

    def test_two_images(self):
        self.write_function()
        # Not the server of the copies: nothing connects there.
        runtime = self.start_held(REKINDLE_DEPS=self.dependency, AWS_LAMBDA_RUNTIME_API="127.0.0.1:1")
        first = self.wake(runtime, **self.function(REKINDLE_FUNCTION_IMAGE="1", AWS_LAMBDA_RUNTIME_API="127.0.0.1:2"))
        self.assertEqual(parked.receive(first)["type"], "up")
        self.assertEqual(parked.receive(first), {"type": "ready", "after_restore": 1})
        self.assertIsNone(parked.receive(first), "parked again")
        second = self.wake(runtime, **self.function(AWS_LAMBDA_FUNCTION_NAME="second"))
        self.assertEqual(parked.receive(second)["type"], "up")
        self.assertEqual(self.call({"n": 1}), {"event": {"n": 1}, "name": "second", "order": ["before", "after"]})
        self.assertEqual(self.api.connections, 1)

    def test_one_image(self):
        self.write_function()
        runtime = self.start_held(REKINDLE_DEPS=self.dependency)
        self.wake(runtime, **self.function(AWS_LAMBDA_FUNCTION_NAME="only"))
        self.assertEqual(self.call({}), {"event": {}, "name": "only", "order": []})

    def test_a_function_that_does_not_load_in_a_copy(self):
        runtime = self.start_held()
        self.wake(runtime, **self.function(LAMBDA_TASK_ROOT=self.functions, _HANDLER="nosuch.handler"))
        path, _, error = self.api.errors.get(timeout=60)
        self.assertEqual((path, error["errorType"]), ("init/error", "Runtime.ImportModuleError"))
        self.assertNotEqual(runtime.wait(), 0)

    def test_callbacks_that_fail(self):
        for when, status, path, kind in (
            ("before", 64, "init/error", "Runtime.BeforeSnapshotError"),
            ("after", 65, "restore/error", "Runtime.AfterRestoreError"),
        ):
            self.write_function(failing=when)
            runtime = self.start_held()
            channel = self.wake(runtime, **self.function(REKINDLE_FUNCTION_IMAGE="1"))
            if when == "after":
                while parked.receive(channel) is not None:  # its end tells that the process is parked again
                    pass
                self.wake(runtime)
            seen, headers, error = self.api.errors.get(timeout=60)
            self.assertEqual((seen, headers["Lambda-Runtime-Function-Error-Type"]), (path, kind))
            self.assertEqual(error["errorMessage"], "no " + when)
            self.assertEqual(runtime.wait(), status)
