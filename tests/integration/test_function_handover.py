"""Calls that an instance was to have next when it ended: they are others' calls, and the function has not seen them."""

import json
import os
import threading
import unittest

from harness import waiting
from harness.functions import SECONDS, FunctionsTest

# A runtime that does what a call says: it ends when it has answered, or before; notes what it was given.
_BOOTSTRAP = """#!/usr/bin/python3
import json, os, sys, urllib.request

base = "http://" + os.environ["AWS_LAMBDA_RUNTIME_API"] + "/2018-06-01/runtime/invocation/"
while True:
    with urllib.request.urlopen(base + "next") as answer:
        request, event = answer.headers["Lambda-Runtime-Aws-Request-Id"], json.load(answer)
    with open({seen!r}, "a") as seen:
        print(event["n"], file=seen)
    if event.get("do") == "end":
        sys.exit(6)
    if "fifo" in event:
        open(event["fifo"]).close()
    urllib.request.urlopen(base + request + "/response", json.dumps(event["n"]).encode()).close()
    if event.get("do") == "answer and end":
        sys.exit(7)
    if event.get("do") == "answer and hang":
        open(event["fifo"]).close()
"""

# Node.js ends for the promise when the answer is out already.
_REJECTS = """
const fs = require('fs');
exports.handler = async (event) => {
  fs.appendFileSync(%s, event.n + '\\n');
  if (event.fifo) fs.closeSync(fs.openSync(event.fifo));
  if (event.fifo) Promise.reject(new Error('nobody awaits this'));
  return event.n;
};
"""


class Calls:
    """By other threads, each in its turn of the queue."""

    def __init__(self, test, name):
        self.test, self.name = test, name
        self.threads, self.answers = [], {}

    def begin(self, n, event=None, headers=None):
        def call():
            self.answers[n] = self.test.post(self.name, {"n": n, **(event or {})}, headers)

        self.threads.append(threading.Thread(target=call))
        self.threads[-1].start()

    def end(self):
        for thread in self.threads:
            thread.join()
        return self.answers


class HandoverTest(FunctionsTest):
    def seen(self):
        if not os.path.exists(self.path("seen")):
            return []
        with open(self.path("seen"), encoding="ascii") as file:
            return file.read().split()

    def put(self, *options):
        code = self.code("app", {"bootstrap": _BOOTSTRAP.format(seen=self.path("seen"))})
        os.chmod(os.path.join(code, "bootstrap"), 0o755)
        self.deploy("app", "--max-instances", "1", *options, runtime="provided", handler="none", code=code)

    def log(self):
        return [json.loads(line)["text"] for line in self.cli.run("fn", "logs", "app").out.splitlines()]

    def queue_behind(self, first, count, headers=None):
        """Calls that wait while the instance is at `first`, which ends it; when they wait it goes on. What all were told."""
        fifo = self.path("fifo")
        os.mkfifo(fifo)
        calls = Calls(self, "app")
        calls.begin("first", {"fifo": fifo, **first})
        waiting.until(lambda: "first" in self.seen(), "the first is in work", SECONDS)
        for n in range(count):
            calls.begin(str(n), headers=headers)
            waiting.until(lambda n=n: self.stats("app").get("queued", 0) == n + 1, f"call {n} waits", SECONDS)
        with open(fifo, "w", encoding="ascii"):
            pass
        return calls, fifo

    def check_answers(self, calls, count):
        answers = calls.end()
        for n in ["first", *map(str, range(count))]:
            self.assertEqual((answers[n].function_error, answers[n].json()), (None, n), str(answers[n]))
        self.assertEqual(self.seen(), ["first", *map(str, range(count))])

    def check(self, calls, count):
        self.check_answers(calls, count)
        stats = self.stats("app")
        self.assertEqual((stats["invocations"], stats.get("errors", 0), stats.get("timeouts", 0)), (count + 1, 0, 0))
        log = self.log()
        for word in ("END", "REPORT"):
            self.assertEqual(len([line for line in log if line.startswith(word + " RequestId")]), count + 1, log)
        self.assertEqual(len([line for line in log if "was not given to the function" in line]), 1, log)
        self.assertNotIn("Status: error", "\n".join(log))
        return log

    def test_an_end_after_the_answer(self):
        self.put()
        calls, _ = self.queue_behind({"do": "answer and end"}, 3)
        self.check(calls, 3)

    def test_events(self):
        self.put()
        calls, _ = self.queue_behind({"do": "answer and end"}, 2, {"X-Amz-Invocation-Type": "Event"})
        self.assertEqual([answer.status for n, answer in calls.end().items() if n != "first"], [202, 202])
        waiting.until(lambda: len(self.seen()) == 3, "both events", SECONDS)
        self.assertEqual(self.seen(), ["first", "0", "1"])
        self.assertEqual(self.stats("app").get("errors", 0), 0)

    def test_an_instance_that_asks_for_no_further_call(self):
        self.put("--timeout", "6s")
        calls, fifo = self.queue_behind({"do": "answer and hang"}, 2)
        log = self.check(calls, 2)
        self.assertIn("it asked for no further call within 6s", "\n".join(log))
        os.unlink(fifo)

    def test_an_end_before_the_answer(self):
        self.put()
        answer = self.post("app", {"n": "1", "do": "end"})
        self.assertEqual((answer.function_error, answer.json()["errorType"]), ("Unhandled", "Runtime.ExitError"))
        self.assertEqual(self.seen(), ["1"])
        self.assertEqual(self.post("app", {"n": "2"}).json(), "2")

    @unittest.skipUnless(os.path.exists("/usr/bin/node"), "needs Node.js")
    def test_a_promise_that_nobody_awaits(self):
        self.deploy("app", "--max-instances", "1", runtime="nodejs",
                    files={"app.js": _REJECTS % json.dumps(self.path("seen"))})
        for _ in range(6):
            calls, fifo = self.queue_behind({}, 3)
            self.check_answers(calls, 3)
            os.unlink(fifo)
            os.unlink(self.path("seen"))
