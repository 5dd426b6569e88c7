"""Real clients call functions of a real daemon."""

import base64
import json
import os
import subprocess
import unittest

from harness import waiting
from harness.functions import SECONDS, FunctionsTest, UnixConnection


class ClientsTest(FunctionsTest):
    def setUp(self):
        super().setUp()
        self.deploy("app")

    def run_program(self, *argv):
        environment = {
            "PATH": "/usr/bin:/bin", "HOME": self.directory, "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true", "AWS_MAX_ATTEMPTS": "1",
            "LANG": "C.UTF-8",
        }
        return subprocess.run(argv, env=environment, capture_output=True, timeout=120, check=False)

    def lines(self, path):
        if not os.path.exists(path):
            return 0
        with open(path, encoding="ascii") as file:
            return len(file.readlines())

    def test_curl(self):
        url = self.url + "/2015-03-31/functions/app/invocations"
        for argv in (("-d", '{"n": 1}', url),
                     ("--unix-socket", self.front, "-d", '{"n": 1}', url)):
            done = self.run_program("curl", "-sS", "--fail", *argv)
            self.assertEqual(json.loads(done.stdout), {"n": 1}, done.stderr)
        done = self.run_program("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-d", "no json", url)
        self.assertEqual(done.stdout, b"400")

    def test_one_connection_many_calls(self):
        connection = UnixConnection(self.front)
        self.addCleanup(connection.close)
        for number in range(200):
            self.assertEqual(self.post("app", {"n": number}, connection=connection).json(), {"n": number})

    @unittest.skipUnless(os.path.exists("/usr/bin/aws"), "needs Debian's awscli")
    def test_aws_cli(self):
        out = self.path("out.json")

        def invoke(name, event):
            return self.run_program("/usr/bin/aws", "lambda", "--endpoint-url", self.url, "--output", "json", "invoke",
                                    "--function-name", name, "--cli-binary-format", "raw-in-base64-out", "--payload",
                                    json.dumps(event), "--log-type", "Tail", out)

        done = invoke("app", {"do": "print", "text": "printed"})
        self.assertEqual(done.returncode, 0, done.stderr)
        told = json.loads(done.stdout)
        self.assertEqual((told["StatusCode"], told["ExecutedVersion"]), (200, "$LATEST"))
        self.assertIn(b"printed\n", base64.b64decode(told["LogResult"]))
        done = invoke("app", {"do": "raise"})
        self.assertEqual(json.loads(done.stdout)["FunctionError"], "Unhandled")
        done = invoke("nosuch", {})
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(b"ResourceNotFoundException", done.stderr)

    def test_boto3(self):
        try:
            import boto3
            from botocore.config import Config
        except ImportError:
            self.skipTest("needs Debian's python3-boto3")
        client = boto3.client("lambda", endpoint_url=self.url, region_name="us-east-1", aws_access_key_id="any",
                              aws_secret_access_key="any", config=Config(retries={"total_max_attempts": 1}))
        self.addCleanup(client.close)
        answer = client.invoke(FunctionName="app", Payload=b'{"do": "self"}')
        self.assertEqual(json.load(answer["Payload"])["request"], answer["ResponseMetadata"]["RequestId"])
        answer = client.invoke(FunctionName="app", Payload=b'{"do": "exit", "code": 4}')
        self.assertEqual(answer["FunctionError"], "Unhandled")
        self.assertEqual(json.load(answer["Payload"])["errorType"], "Runtime.ExitError")

        event = json.dumps({"do": "once_in", "file": self.path("tries"), "times": 2}).encode()
        answer = client.invoke(FunctionName="app", Payload=event, InvocationType="Event")
        self.assertEqual((answer["StatusCode"], answer["Payload"].read()), (202, b""))
        waiting.until(lambda: self.lines(self.path("tries")) == 2, "tried until it succeeded", SECONDS)
        before = self.stats("app")["invocations"]
        self.assertEqual(client.invoke(FunctionName="app", InvocationType="DryRun")["StatusCode"], 204)
        self.assertEqual(self.stats("app")["invocations"], before)

        errors = client.exceptions
        with self.assertRaises(errors.ResourceNotFoundException):
            client.invoke(FunctionName="nosuch")
        with self.assertRaises(errors.ResourceNotFoundException):
            client.invoke(FunctionName="nosuch", InvocationType="Event")
        with self.assertRaises(errors.InvalidRequestContentException):
            client.invoke(FunctionName="app", Payload=b"no json")
        pages = client.get_paginator("list_functions").paginate()
        self.assertEqual([one["FunctionName"] for page in pages for one in page["Functions"]], ["app"])
        configuration = client.get_function(FunctionName="app")["Configuration"]
        self.assertEqual((configuration["Handler"], configuration["MemorySize"], configuration["Timeout"]),
                         ("app.handler", 1024, 3))


if __name__ == "__main__":
    unittest.main()
