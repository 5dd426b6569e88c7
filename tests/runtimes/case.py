"""What the tests of the runtimes share."""

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
        self.assertEqual(parked.receive(first), {"type": "ready"})
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
