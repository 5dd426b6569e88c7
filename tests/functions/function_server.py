"""function_http_server with a runtime, and asking it over HTTP."""

import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(SOURCE, "tests", "runtimes"))
from runtime_api import Runtime  # noqa: E402

SERVER = os.environ["FUNCTION_HTTP_SERVER"]
RUNTIMES = {
    "python": ["/usr/bin/python3", os.path.join(SOURCE, "functions/runtimes/python/bootstrap.py")],
    "node": ["/usr/bin/node", os.path.join(SOURCE, "functions/runtimes/node/bootstrap.js")],
    "minimal": [os.environ["MINIMAL_RUNTIME"]],
}


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    def json(self):
        return json.loads(self.body)

    @property
    def function_error(self):
        return self.headers["X-Amz-Function-Error"]


class FunctionTest(unittest.TestCase):
    """One function, `tested`."""

    maxDiff = None

    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="rk-http.")
        self.addCleanup(shutil.rmtree, self.directory)

    def path(self, name):
        return os.path.join(self.directory, name)

    def serve(self, runtime, transport, handler="app.handler", timeout=60):
        """`transport`: how the runtime reaches the server, `unix` or `tcp`."""
        where = "tcp" if transport == "tcp" else self.path("api.sock")
        server = subprocess.Popen([SERVER, where, str(timeout)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(self.end, server)
        address = json.loads(server.stdout.readline())
        environment = {
            "_HANDLER": handler,
            "LAMBDA_TASK_ROOT": os.path.join(SOURCE, "tests/runtimes", runtime + "_functions"),
            "AWS_LAMBDA_FUNCTION_NAME": "tested",
        }
        environment["AWS_LAMBDA_RUNTIME_API" if transport == "tcp" else "REKINDLE_RUNTIME_SOCKET"] = address["runtime"]
        self.process = Runtime(RUNTIMES[runtime], environment)
        self.addCleanup(self.process.end)
        self.address = address["invoke"]
        self.url = "http://" + self.address
        self.connection = self.connect()
        self.addCleanup(self.connection.close)

    def connect(self):
        return http.client.HTTPConnection(self.address, timeout=60)

    def end(self, server):
        server.stdin.close()
        self.assertEqual(server.wait(60), 0)
        server.stdout.close()

    def call(self, event, headers=None, connection=None):
        connection = connection or self.connection
        connection.request("POST", "/2015-03-31/functions/tested/invocations", json.dumps(event), headers or {})
        answer = Answer(connection.getresponse())
        self.assertEqual(answer.status, 200, answer.body)
        return answer
