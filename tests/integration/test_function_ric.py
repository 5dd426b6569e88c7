"""AWS's own runtime interface client for Node.js, from npm, as a custom runtime."""

import os
import shutil
import subprocess
import tempfile
import unittest

from harness.functions import FunctionsTest

_PACKAGE = "aws-lambda-ric@4.0.2"
_SECONDS = 800  # to fetch and build it: it has an add-on in C++, over a curl of its own
_APP = """exports.handler = async (event, context) => {
  if (event.fail) throw new RangeError(event.fail);
  console.log('called');
  return { event, name: context.functionName, request: context.awsRequestId,
           remaining: context.getRemainingTimeInMillis() };
};
"""


class RuntimeClientTest(FunctionsTest):
    # The environment may name a folder that has it in its node_modules.
    installed = os.environ.get("REKINDLE_LAMBDA_RIC", "")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for program in ("node", "npm"):
            if shutil.which(program) is None:
                raise unittest.SkipTest(f"needs {program}")
        if cls.installed:
            return
        cls.installed = tempfile.mkdtemp(prefix="rekindle-ric.", dir="/var/tmp")
        cls.addClassCleanup(shutil.rmtree, cls.installed)
        # Old npm runs the package's scripts, which build the add-on; new ones ask for their names.
        argv = ["npm", "install", _PACKAGE, "--no-audit", "--no-fund", "--no-save"]
        try:
            done = subprocess.run(argv, cwd=cls.installed, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise unittest.SkipTest(f"npm has not installed {_PACKAGE} within {_SECONDS} s") from None
        if done.returncode != 0:
            raise unittest.SkipTest(f"npm can't install {_PACKAGE} here: {done.stderr[-300:]}")

    def test_a_handler(self):
        client = os.path.join(self.installed, "node_modules/aws-lambda-ric/index.mjs")
        bootstrap = f'#!/bin/sh\ncd "$LAMBDA_TASK_ROOT" || exit 1\nexec node {client} "$_HANDLER"\n'
        code = self.code("ric", {"app.js": _APP, "bootstrap": bootstrap})
        os.chmod(os.path.join(code, "bootstrap"), 0o755)
        self.deploy("ric", "--timeout", "20s", runtime="provided", code=code)
        seen, first = self.invoke("ric", {"n": 1})
        self.assertEqual((seen["event"], seen["name"], first["start_level"]), ({"n": 1}, "ric", "cold"))
        self.assertTrue(0 < seen["remaining"] <= 20_000, seen)
        again, second = self.invoke("ric", {"n": 2})
        self.assertEqual((again["event"], second["start_level"]), ({"n": 2}, "running"))
        self.assertNotEqual(again["request"], seen["request"])
        error = self.failed("ric", {"fail": "no such order"})
        self.assertEqual((error["errorType"], error["errorMessage"]), ("RangeError", "no such order"))
        answer = self.post("ric", {"n": 3})
        self.assertEqual((answer.status, answer.json()["request"]), (200, answer.headers["x-amzn-RequestId"]))
        self.assertIn("called", self.cli.run("fn", "logs", "ric").out)
        self.succeed("fn", "rm", "ric")
        self.wait_for_nothing()


if __name__ == "__main__":
    unittest.main()
