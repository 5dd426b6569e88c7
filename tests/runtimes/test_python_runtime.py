"""The Lambda runtime for Python, with real handlers, against a Runtime API server."""

import base64
import json
import os
import sys
import textwrap
import unittest

from case import HERE, SOURCE, RuntimeTest, SnapshotTests

PYTHON = "/usr/bin/python3"


class PythonRuntimeTest(RuntimeTest):
    argv = (PYTHON, os.path.join(SOURCE, "functions/runtimes/python/bootstrap.py"))
    functions = os.path.join(HERE, "python_functions")
    spec = "app.handler"


class InvocationTest(PythonRuntimeTest):
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
        for value in ({}, "ünïcode \u2028 \U0001f600 \x00", [1.5, -0.0, 10**30, True, None], {"": {"a": [[]]}}):
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
            "Lambda-Runtime-Client-Context": json.dumps(
                {"custom": {"k": "ü"}, "env": {"e": "v"}, "client": {"app_title": "App"}}, ensure_ascii=False),
            "Lambda-Runtime-Cognito-Identity": '{"cognitoIdentityId":"me","cognitoIdentityPoolId":"pool"}',
        })
        outcome, body = invocation.wait()
        self.assertEqual(outcome, "response")
        seen = json.loads(body)
        self.assertEqual(seen["id"], invocation.id)
        self.assertEqual((seen["name"], seen["version"], seen["memory"]), ("tested", "$LATEST", "128"))
        self.assertEqual((seen["group"], seen["stream"]), ("/aws/lambda/tested", "2026/11/22/[$LATEST]abc"))
        self.assertEqual(seen["identity"], ["me", "pool"])
        self.assertEqual(seen["client"], [{"k": "ü"}, {"e": "v"}, "App"])
        self.assertEqual(seen["trace"], "Root=1-2-3")
        self.assertTrue(0 < seen["remaining"] <= 300_000, seen["remaining"])
        self.assertIn("aws_request_id=" + invocation.id, seen["shown"])
        plain = self.call({"do": "context"}, seconds=-1)
        self.assertEqual((plain["client"], plain["identity"], plain["trace"]), (None, [None, None], None))
        self.assertEqual(plain["remaining"], 0)

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
        invocation = self.api.begin({"do": "bytes"})
        self.assertEqual(invocation.wait(), ("response", bytes(range(256))))
        self.assertEqual(invocation.answer_headers["Content-Type"], "application/unknown")

    def test_decimals_and_surrogates(self):
        self.start()
        _, body = self.api.begin({"do": "decimal"}).wait()
        self.assertEqual(body, b'{"price": 12.340000000000000000001, "list": [1, NaN], "text": "decimal-0"}')
        self.assertEqual(self.call({"do": "surrogate"}), "half \ud83d")

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

    def test_output(self):
        runtime = self.start()
        invocation = self.api.begin({"do": "print"})
        self.assertEqual(invocation.wait(), ("response", b"null"))
        log = runtime.log()
        self.assertTrue(log.startswith("a line\nand another\non standard error\n[INFO]\t2"), log)
        self.assertIn("Z\t%s\tan entry of %s\n" % (invocation.id, invocation.id), log)
        self.assertTrue(log.endswith("no end of line"), log)

    def test_handlers_of_other_kinds(self):
        for spec, answer in (("package/inner.handler", "package.inner"), ("app.instance", "called")):
            self.start_afresh(spec)
            self.assertEqual(self.call({}), answer)

    def test_layers(self):
        version = "python%d.%d" % sys.version_info[:2]
        self.write("one/python/of_layer.py", "VALUE = 'one'")
        self.write("two/python/of_layer.py", "VALUE = 'two'")
        self.write("two/python/lib/python3.11/site-packages/deep.py", "VALUE = 'deep'")
        self.write("two/python/lib/%s/site-packages/deep.py" % version, "VALUE = 'deep'")
        self.write("one/bin/tool", "")
        self.write("code/app.py", "import deep, of_layer, os\n"
                   "def handler(event, context):\n    return [of_layer.VALUE, deep.VALUE, os.environ['PATH']]\n")
        self.start(root=self.path("code"), REKINDLE_LAYERS="%s:%s" % (self.path("one"), self.path("two")))
        answer = self.call({})
        self.assertEqual(answer[:2], ["two", "deep"])
        self.assertTrue(answer[2].startswith(self.path("one/bin:")))


class FailureTest(PythonRuntimeTest):
    def test_an_exception(self):
        runtime = self.start()
        invocation = self.api.begin({"do": "raise"})
        outcome, body = invocation.wait()
        self.assertEqual(outcome, "error")
        error = json.loads(body)
        self.assertEqual(sorted(error), ["errorMessage", "errorType", "requestId", "stackTrace"])
        self.assertEqual(error["errorMessage"], "order 7 is no good: ünïcode")
        self.assertEqual(error["errorType"], "OrderError")
        self.assertEqual(error["requestId"], invocation.id)
        self.assertEqual(len(error["stackTrace"]), 3, error["stackTrace"])
        self.assertRegex(error["stackTrace"][0], r'^  File ".*/app.py", line \d+, in handler\n    return ')
        self.assertIn("in check", error["stackTrace"][2])
        self.assertEqual(invocation.answer_headers["Lambda-Runtime-Function-Error-Type"], "OrderError")
        self.assertIn("[ERROR] OrderError: order 7 is no good: ünïcode\rTraceback (most recent call last):\r",
                      runtime.log())
        self.assertEqual(self.call({"do": "echo"}), {"do": "echo"}, "it goes on")

    def test_an_exception_that_has_no_text(self):
        self.start()
        self.assertEqual(self.call({"do": "untellable"}, "error")["errorType"], "Untellable")
        self.call({"do": "echo"})

    def test_no_log(self):
        self.start()
        self.assertEqual(self.call({"do": "close"}, "error")["errorMessage"], "and no log")
        self.assertEqual(self.call({"do": "echo"}), {"do": "echo"})

    def test_marshalling(self):
        self.start()
        error = self.call({"do": "unserialisable"}, "error")
        self.assertEqual(error["errorType"], "Runtime.MarshalError")
        self.assertEqual(error["errorMessage"],
                         "Unable to marshal response: Object of type set is not JSON serializable")
        self.assertEqual(error["stackTrace"], [])
        error = self.call(payload=b"{not json", outcome="error")
        self.assertEqual(error["errorType"], "Runtime.UnmarshalError")
        self.assertIn("Unable to unmarshal input: Expecting property name", error["errorMessage"])
        error = self.call(payload=b"\xff\xfe\xff", outcome="error")
        self.assertEqual(error["errorType"], "Runtime.UnmarshalError")
        error = self.call({"do": "echo"}, "error", headers={"Lambda-Runtime-Client-Context": "{"})
        self.assertEqual(error["errorType"], "Runtime.LambdaContextUnmarshalError")
        self.call({"do": "echo"})

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
        for what, status in (("exit", 3), ("exit", 0), ("crash", 9)):
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


class LoadingTest(PythonRuntimeTest):
    def test_no_such_module(self):
        _, error, log = self.fail_to_start("nosuch.handler")
        self.assertEqual(error["errorType"], "Runtime.ImportModuleError")
        self.assertEqual(error["errorMessage"], "Unable to import module 'nosuch': No module named 'nosuch'")
        self.assertEqual(error["stackTrace"], [])
        self.assertIn("[ERROR] Runtime.ImportModuleError: Unable to import", log)

    def test_a_dependency_is_missing(self):
        self.write("app.py", "import not_installed_anywhere\n")
        _, error, _ = self.fail_to_start("app.handler", self.directory)
        self.assertEqual(error["errorType"], "Runtime.ImportModuleError")
        self.assertIn("No module named 'not_installed_anywhere'", error["errorMessage"])

    def test_syntax(self):
        self.write("app.py", "def handler(event, context)\n    pass\n")
        _, error, _ = self.fail_to_start("app.handler", self.directory)
        self.assertEqual(error["errorType"], "Runtime.UserCodeSyntaxError")
        self.assertIn("Syntax error in module 'app': expected ':' (app.py, line 1)", error["errorMessage"])
        self.assertIn('File "%s" Line 1' % self.path("app.py"), error["stackTrace"][0])

    def test_names(self):
        for spec, kind, words in (
            ("app.nothing", "Runtime.HandlerNotFound", "Handler 'nothing' missing on module 'app'"),
            ("app", "Runtime.MalformedHandlerName", "Bad handler 'app'"),
            ("", "Runtime.MalformedHandlerName", "_HANDLER"),
            ("sys.exit", "Runtime.BuiltInModuleConflict", "built-in module sys"),
            ("a..b.handler", "Runtime.ImportModuleError", "Unable to import module 'a..b'"),
        ):
            _, error, _ = self.fail_to_start(spec)
            self.assertEqual(error["errorType"], kind, error)
            self.assertIn(words, error["errorMessage"])

    def test_the_module_raises(self):
        self.write("app.py", "def start():\n    raise ValueError('not today')\nstart()\n")
        _, error, _ = self.fail_to_start("app.handler", self.directory)
        self.assertEqual((error["errorType"], error["errorMessage"]), ("ValueError", "not today"))
        self.assertEqual(len(error["stackTrace"]), 2, error["stackTrace"])
        self.assertIn("line 3, in <module>", error["stackTrace"][0])

    def test_the_module_exits(self):
        self.write("app.py", "import sys\nsys.exit(5)\n")
        runtime = self.start("app.handler", self.directory)
        self.assertEqual(runtime.wait(), 5, runtime.log())
        self.assertTrue(self.api.errors.empty())

    def test_no_code_folder(self):
        _, error, _ = self.fail_to_start("app.handler", self.path("gone"))
        self.assertIn(self.path("gone"), error["errorMessage"])

    def test_dependencies(self):
        self.write("app.py", "import sys\nhad = 'colorsys' in sys.modules\n"
                   "def handler(event, context):\n    return had\n")
        self.start("app.handler", self.directory, REKINDLE_DEPS="json, colorsys")
        self.assertIs(self.call({}), True)
        runtime = self.start(REKINDLE_DEPS="json,no_such_dependency")
        self.assertEqual(runtime.wait(), 1)
        self.assertIn("no_such_dependency (REKINDLE_DEPS)", runtime.log())

    def test_no_server(self):
        for address, words in (("127.0.0.1:1", "connecting to the Runtime API at 127.0.0.1:1"),
                               ("nonsense", "not HOST:PORT"), ("", "REKINDLE_RUNTIME_SOCKET")):
            runtime = self.start(AWS_LAMBDA_RUNTIME_API=address)
            self.assertEqual(runtime.wait(), 1)
            self.assertIn(words, runtime.log())

    def test_a_module_with_a_name_of_ours(self):
        for name in ("bootstrap", "handlers", "faults", "life"):
            self.write(name + ".py", "def handler(event, context):\n    return __file__\n")
            self.start_afresh(name + ".handler", self.directory)
            self.assertEqual(self.call({}), self.path(name + ".py"))

    def test_the_package_of_snapstart(self):
        self.write("app.py", "import snapshot_restore_py\ncalls = []\n"
                   "snapshot_restore_py.register_after_restore(calls.append, 1)\n"
                   "@snapshot_restore_py.register_before_snapshot\ndef before():\n    calls.append(2)\n"
                   "def handler(event, context):\n    return [calls, len(snapshot_restore_py.get_after_restore())]\n")
        self.start("app.handler", self.directory)
        self.assertEqual(self.call({}), [[], 1], "no snapshot, no call")


class SnapshotTest(SnapshotTests, PythonRuntimeTest):
    dependency = "colorsys"

    def write_function(self, failing=""):
        self.write("code/app.py", textwrap.dedent("""
            import sys
            assert "colorsys" in sys.modules or %(failing)r
            from snapshot_restore_py import register_after_restore, register_before_snapshot
            order = []
            def note(what):
                if what == %(failing)r:
                    raise ValueError("no " + what)
                order.append(what)
            register_before_snapshot(note, "before")
            register_after_restore(note, "after")
            def handler(event, context):
                return {"event": event, "name": context.function_name, "order": order}
            """) % {"failing": failing})


if __name__ == "__main__":
    unittest.main()
