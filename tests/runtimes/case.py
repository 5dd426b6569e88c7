"""What the tests of the runtimes share."""

import os
import shutil
import tempfile
import unittest

from runtime_api import RuntimeApi, Runtime

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))


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
