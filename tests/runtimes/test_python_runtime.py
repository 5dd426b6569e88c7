"""The Lambda runtime for Python, with real handlers, against a Runtime API server."""

import json
import os
import sys
import textwrap
import unittest

from case import (CLIENT_CONTEXT, HERE, SOURCE, FailureTests, InvocationTests, LoadingTests, RuntimeTest,
                  SnapshotTests)

PYTHON = "/usr/bin/python3"


class PythonRuntimeTest(RuntimeTest):
    argv = (PYTHON, os.path.join(SOURCE, "functions/runtimes/python/bootstrap.py"))
    functions = os.path.join(HERE, "python_functions")
    spec = "app.handler"


class InvocationTest(InvocationTests, PythonRuntimeTest):
    values = (-0.0, 10**30)
    handlers = (("package/inner.handler", "package.inner"), ("app.instance", "called"))

    def check_context(self, seen, invocation):
        self.assertEqual(seen["identity"], ["me", "pool"])
        self.assertEqual(seen["client"], [CLIENT_CONTEXT["custom"], CLIENT_CONTEXT["env"], "App"])
        self.assertIn("aws_request_id=" + invocation.id, seen["shown"])

    def check_plain_context(self, seen):
        self.assertEqual((seen["client"], seen["identity"], seen["trace"]), (None, [None, None], None))
        self.assertEqual(seen["remaining"], 0)

    def test_bytes(self):
        self.start()
        invocation = self.api.begin({"do": "bytes"})
        self.assertEqual(invocation.wait(), ("response", bytes(range(256))))
        self.assertEqual(invocation.answer_headers["Content-Type"], "application/unknown")

    def test_decimals_and_surrogates(self):
        self.start()
        _, body = self.api.begin({"do": "decimal"}).wait()
        self.assertEqual(body, b'{"price": 12.340000000000000000001, "list": [1, NaN], "text": "decimal-0"}')
        self.assertEqual(self.call({"do": "surrogate"}), "half \ud83d")

    def test_output(self):
        runtime = self.start()
        invocation = self.api.begin({"do": "print"})
        self.assertEqual(invocation.wait(), ("response", b"null"))
        log = runtime.log()
        self.assertTrue(log.startswith("a line\nand another\non standard error\n[INFO]\t2"), log)
        self.assertIn("Z\t%s\tan entry of %s\n" % (invocation.id, invocation.id), log)
        self.assertTrue(log.endswith("no end of line"), log)

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

    def test_processes_that_are_spawned(self):
        """They are the handler's, and no runtimes: multiprocessing has them import the main module again."""
        self.write("app.py", textwrap.dedent("""
            import concurrent.futures, multiprocessing
            def twice(number):
                return 2 * number
            def handler(event, context):
                method = multiprocessing.get_context(event)
                with method.Pool(1) as pool:
                    doubled = pool.map(twice, [1, 2])
                with concurrent.futures.ProcessPoolExecutor(1, mp_context=method) as pool:
                    return doubled + list(pool.map(twice, [3]))
            """))
        self.start("app.handler", self.directory)
        for method in ("spawn", "forkserver"):
            self.assertEqual(self.call(method), [2, 4, 6], method)
        self.assertEqual(self.api.connections, 1)


class FailureTest(FailureTests, PythonRuntimeTest):
    exits = (("exit", 3), ("exit", 0), ("crash", 9))

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
        error = self.call({"do": "coroutine"}, "error")
        self.assertEqual(error["errorType"], "Runtime.MarshalError")
        self.assertIn("Object of type coroutine is not JSON serializable (a handler can't be async", error["errorMessage"])
        error = self.call(payload=b"{not json", outcome="error")
        self.assertEqual(error["errorType"], "Runtime.UnmarshalError")
        self.assertIn("Unable to unmarshal input: Expecting property name", error["errorMessage"])
        error = self.call(payload=b"\xff\xfe\xff", outcome="error")
        self.assertEqual(error["errorType"], "Runtime.UnmarshalError")
        error = self.call({"do": "echo"}, "error", headers={"Lambda-Runtime-Client-Context": "{"})
        self.assertEqual(error["errorType"], "Runtime.LambdaContextUnmarshalError")
        self.call({"do": "echo"})


class LoadingTest(LoadingTests, PythonRuntimeTest):
    unreachable = "connecting to the Runtime API at 127.0.0.1:1"

    def write_dependent(self):
        self.write("app.py", "import sys\nhad = 'colorsys' in sys.modules\n"
                   "def handler(event, context):\n    return had\n")
        return "json", "colorsys"

    def test_a_module_with_the_name_of_one_that_a_dependency_has_loaded(self):
        self.write("colorsys.py", "WHOSE = 'its own'")
        self.write("csv/__init__.py", "")
        self.write("csv/inner.py", "WHOSE = 'its own, too'")
        self.write("wave.d/nothing", "")
        self.write("app.py", "import colorsys, csv.inner, wave\n"
                   "answer = [colorsys.WHOSE, csv.inner.WHOSE, wave.__name__]\n"
                   "def handler(event, context):\n    return answer\n")
        for dependencies in ("colorsys,csv,wave", ""):
            self.start_afresh("app.handler", self.directory, REKINDLE_DEPS=dependencies)
            self.assertEqual(self.call({}), ["its own", "its own, too", "wave"])

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
