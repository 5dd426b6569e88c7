"""The HTTP servers for functions, with the real runtimes on one side and real clients on the other."""

import base64
import json
import os
import subprocess
import threading
import unittest

from function_server import FunctionTest

LARGEST_ANSWER = 6_291_556


class RuntimeTests:
    """What every runtime can."""

    runtime = transport = ""
    failing = {"do": "raise"}
    error_type = "OrderError"

    def start(self, **options):
        self.serve(self.runtime, self.transport, **options)

    def test_events_and_answers(self):
        self.start()
        for event in ({"do": "echo", "n": 1}, {"do": "echo", "text": "ünïcode \u2028 \U0001f600"},
                      {"do": "echo", "large": "x" * 6_000_000}):
            answer = self.call(event)
            self.assertEqual(answer.json(), event)
            self.assertIsNone(answer.function_error)

    def test_many_invocations(self):
        self.start()
        for n in range(300):
            self.assertEqual(self.call({"do": "echo", "n": n}).json()["n"], n)

    def test_many_callers(self):
        self.start()
        answers = []

        def call(n):
            connection = self.connect()
            answers.append((n, self.call({"do": "echo", "n": n}, connection=connection).json()["n"]))
            connection.close()

        threads = [threading.Thread(target=call, args=(n,)) for n in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(answers), [(n, n) for n in range(40)])

    def test_errors_of_the_handler(self):
        self.start()
        answer = self.call(self.failing)
        self.assertEqual(answer.function_error, "Unhandled")
        self.assertEqual(answer.json()["errorType"], self.error_type)
        self.assertEqual(self.call({"do": "echo"}).json(), {"do": "echo"})


class HandlerTests(RuntimeTests):
    """What those can that load handlers."""

    def test_context(self):
        self.start()
        custom = base64.b64encode(json.dumps({"custom": {"k": "ü"}}, indent=1).encode()).decode()
        answer = self.call({"do": "context"}, headers={"X-Amz-Client-Context": custom, "X-Amzn-Trace-Id": "Root=1"})
        seen = answer.json()
        self.assertEqual(seen["id"], answer.headers["x-amzn-RequestId"])
        self.assertEqual(seen["arn"], "arn:aws:lambda:us-east-1:000000000000:function:tested")
        self.assertTrue(0 < seen["remaining"] <= 60_000, seen)
        self.assertIn("ü", json.dumps(seen["client"], ensure_ascii=False))
        self.assertEqual(seen["trace"], "Root=1")

    def test_an_answer_that_is_too_large(self):
        self.start()
        answer = self.call({"do": "large", "size": LARGEST_ANSWER - 1})  # with its quotes
        self.assertEqual(answer.json()["errorType"], "Function.ResponseSizeTooLarge")
        self.assertEqual(answer.function_error, "Unhandled")
        self.assertEqual(len(self.call({"do": "large", "size": LARGEST_ANSWER - 2}).body), LARGEST_ANSWER)

    def test_a_handler_that_does_not_load(self):
        self.start(handler="nosuch.handler")
        answer = self.call({})
        self.assertEqual(answer.function_error, "Unhandled")
        self.assertEqual(answer.json()["errorType"], "Runtime.ImportModuleError")
        self.assertNotEqual(self.process.wait(), 0)


class PythonUnixTest(HandlerTests, FunctionTest):
    runtime, transport = "python", "unix"

    def test_an_answer_that_is_late(self):
        self.start(timeout=1)
        fifo = self.path("fifo")
        os.mkfifo(fifo)
        answer = self.call({"do": "wait", "fifo": fifo})
        self.assertIn("Task timed out after 1.00 seconds", answer.json()["errorMessage"])
        with open(fifo, "w", encoding="ascii") as file:
            file.write("late")
        self.assertEqual(self.call({"do": "echo"}).json(), {"do": "echo"})
        self.assertIn("with 400: ", self.process.log())


class PythonTcpTest(HandlerTests, FunctionTest):
    runtime, transport = "python", "tcp"


class NodeUnixTest(HandlerTests, FunctionTest):
    runtime, transport = "node", "unix"


class NodeTcpTest(HandlerTests, FunctionTest):
    runtime, transport = "node", "tcp"


class MinimalTests(RuntimeTests):
    runtime = "minimal"
    failing = {"do": "fail"}
    error_type = "Custom.Failure"

    def test_a_streamed_answer_and_a_new_connection(self):
        self.start()
        for event in ({"do": "stream", "text": "x" * 1000}, {"do": "reconnect"}, {"do": "stream reconnect"}):
            self.assertEqual(self.call(event).json(), event)


class MinimalUnixTest(MinimalTests, FunctionTest):
    transport = "unix"


class MinimalTcpTest(MinimalTests, FunctionTest):
    transport = "tcp"


class ClientsTest(FunctionTest):
    def setUp(self):
        super().setUp()
        self.serve("python", "unix")
        self.environment = {
            "PATH": "/usr/bin:/bin", "HOME": self.directory, "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true", "AWS_MAX_ATTEMPTS": "1",
            "LANG": "C.UTF-8",
        }

    def run_program(self, *argv):
        return subprocess.run(argv, env=self.environment, capture_output=True, timeout=120, check=False)

    def test_curl(self):
        url = self.url + "/2015-03-31/functions/tested/invocations"
        done = self.run_program("curl", "-sS", "-i", "-d", '{"do": "echo"}', url)
        self.assertEqual(done.returncode, 0, done.stderr)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        self.assertTrue(head.startswith(b"HTTP/1.1 200 OK\r\n"), head)
        self.assertEqual(json.loads(body), {"do": "echo"})
        # Asks first whether it may send so much (Expect: 100-continue).
        with open(self.path("large"), "w", encoding="ascii") as file:
            json.dump({"do": "echo", "x": "y" * 5_000_000}, file)
        done = self.run_program("curl", "-sS", "-v", "-d", "@" + self.path("large"), url)
        self.assertEqual(len(json.loads(done.stdout)["x"]), 5_000_000)
        self.assertIn(b"100 Continue", done.stderr)
        done = self.run_program("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-d", "no json", url)
        self.assertEqual(done.stdout, b"400")

    def aws(self, *arguments):
        return self.run_program("/usr/bin/aws", "lambda", "--endpoint-url", self.url, "--output", "json", *arguments)

    @unittest.skipUnless(os.path.exists("/usr/bin/aws"), "needs Debian's awscli")
    def test_aws_cli(self):
        out = self.path("out.json")

        def invoke(name, event, *more):
            return self.aws("invoke", "--function-name", name, "--cli-binary-format", "raw-in-base64-out", "--payload",
                            event, *more, out)

        done = invoke("tested", '{"do": "echo", "n": 7}', "--log-type", "Tail")
        self.assertEqual(done.returncode, 0, done.stderr)
        told = json.loads(done.stdout)
        self.assertEqual((told["StatusCode"], told["ExecutedVersion"]), (200, "$LATEST"))
        self.assertTrue(base64.b64decode(told["LogResult"]).startswith(b"END RequestId: "))
        with open(out, encoding="utf-8") as file:
            self.assertEqual(json.load(file), {"do": "echo", "n": 7})
        done = invoke("tested:$LATEST", '{"do": "raise"}')
        self.assertEqual(json.loads(done.stdout)["FunctionError"], "Unhandled")
        done = invoke("nosuch", "{}")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, rb"\(ResourceNotFoundException\) .* Function not found: arn:aws:lambda:")
        done = self.aws("list-functions")
        self.assertEqual([one["FunctionName"] for one in json.loads(done.stdout)["Functions"]], ["tested"], done.stderr)

    def test_boto3(self):
        import boto3
        from botocore.config import Config
        client = boto3.client("lambda", endpoint_url=self.url, region_name="us-east-1", aws_access_key_id="any",
                              aws_secret_access_key="any", config=Config(retries={"total_max_attempts": 1}))
        self.addCleanup(client.close)
        errors = client.exceptions

        answer = client.invoke(FunctionName="tested", Payload=b'{"do": "echo"}', LogType="Tail")
        self.assertEqual((answer["StatusCode"], answer["ExecutedVersion"]), (200, "$LATEST"))
        self.assertNotIn("FunctionError", answer)
        self.assertEqual(json.load(answer["Payload"]), {"do": "echo"})
        request = answer["ResponseMetadata"]["RequestId"]
        self.assertEqual(base64.b64decode(answer["LogResult"]).decode(), "END RequestId: %s\n" % request)

        for name in ("tested:$LATEST", "arn:aws:lambda:us-east-1:123456789012:function:tested",
                     "123456789012:function:tested"):
            answer = client.invoke(FunctionName=name, Payload=b'{"do": "raise"}')
            self.assertEqual(answer["FunctionError"], "Unhandled")
            self.assertEqual(json.load(answer["Payload"])["errorType"], "OrderError")
        client.invoke(FunctionName="tested", Qualifier="$LATEST", Payload=b'{"do": "echo"}')

        # No payload is an empty event, which this handler has no use for.
        self.assertEqual(json.load(client.invoke(FunctionName="tested")["Payload"])["errorType"], "KeyError")

        context = base64.b64encode(b'{"custom": {"k": "v"}}').decode()
        answer = client.invoke(FunctionName="tested", Payload=b'{"do": "context"}', ClientContext=context)
        self.assertEqual(json.load(answer["Payload"])["client"][0], {"k": "v"})

        answer = client.invoke(FunctionName="tested", Payload=b'{"do": "echo"}', InvocationType="Event")
        self.assertEqual((answer["StatusCode"], answer["Payload"].read()), (202, b""))
        answer = client.invoke(FunctionName="tested", InvocationType="DryRun")
        self.assertEqual(answer["StatusCode"], 204)

        with self.assertRaises(errors.ResourceNotFoundException):
            client.invoke(FunctionName="nosuch")
        with self.assertRaises(errors.ResourceNotFoundException):
            client.invoke(FunctionName="tested", Qualifier="7")
        with self.assertRaisesRegex(errors.InvalidRequestContentException, "Could not parse request body into json: "):
            client.invoke(FunctionName="tested", Payload=b"no json")
        with self.assertRaisesRegex(errors.RequestTooLargeException, "smaller than 262144 bytes"):
            client.invoke(FunctionName="tested", Payload=b"1" * 300_000, InvocationType="Event")
        with self.assertRaisesRegex(errors.RequestTooLargeException, "smaller than 6291456 bytes"):
            client.invoke(FunctionName="tested", Payload=b"1" * 7_000_000)

        pages = client.get_paginator("list_functions").paginate()
        self.assertEqual([one["FunctionName"] for page in pages for one in page["Functions"]], ["tested"])
        configuration = client.get_function(FunctionName="tested")["Configuration"]
        self.assertEqual((configuration["Handler"], configuration["MemorySize"]), ("app.handler", 128))
        self.assertEqual(client.get_function_configuration(FunctionName="tested")["Timeout"], 60)
