"""The Lambda runtime for Node.js, with real handlers, against a Runtime API server."""

import json
import os
import unittest

from case import (CLIENT_CONTEXT, HERE, SOURCE, FailureTests, InvocationTests, LoadingTests, RuntimeTest,
                  SnapshotTests, parked)


class NodeRuntimeTest(RuntimeTest):
    argv = ("/usr/bin/node", os.path.join(SOURCE, "functions/runtimes/node/bootstrap.js"))
    functions = os.path.join(HERE, "node_functions")
    spec = "app.handler"


class InvocationTest(InvocationTests, NodeRuntimeTest):
    values = ("half \ud83d",)
    handlers = (
        ("package/inner.handler", "package"), ("esm/app.handler", "module app.js"), ("other.handler", "mjs"),
        ("third.handler", "cjs"), ("app.nested.deep.handler", "deep"), ("app.thenable", "thenable"),
    )

    def check_context(self, seen, invocation):
        self.assertEqual(seen["arn"], invocation.headers["Lambda-Runtime-Invoked-Function-Arn"])
        self.assertEqual(seen["identity"], {"cognitoIdentityId": "me", "cognitoIdentityPoolId": "pool"})
        self.assertEqual(seen["client"], CLIENT_CONTEXT)

    def check_plain_context(self, seen):
        self.assertTrue({"client", "identity", "trace"}.isdisjoint(seen), seen)
        self.assertLess(seen["remaining"], 0)

    def test_nothing(self):
        self.start()
        self.assertIsNone(self.call({"do": "nothing"}))

    def test_output(self):
        runtime = self.start()
        invocation = self.api.begin({"do": "print"})
        self.assertEqual(invocation.wait(), ("response", b"null"))
        log = runtime.log()
        self.assertIn("Z\t%s\tINFO\ta line\rand { another: 1 }\n" % invocation.id, log)
        self.assertIn("Z\t%s\tERROR\tan entry of %s\n" % (invocation.id, invocation.id), log)
        self.assertTrue(log.endswith("no end of line"), log)

    def test_callbacks(self):
        self.start("app.callback")
        self.assertEqual(self.call({}), {"done": True}, "the event loop was empty")
        self.assertEqual(self.call({"method": "succeed"}), {"done": False})
        self.assertIsNone(self.call({"silent": True}))
        self.assertEqual(self.call({"error": 1}, "error")["errorType"], "OrderError")
        self.assertEqual(self.call({"method": "fail"}, "error")["errorMessage"], "order 8 is no good: ünïcode")
        self.assertEqual(self.call({"method": "throw"}, "error")["errorMessage"], "order 9 is no good: ünïcode")
        self.assertEqual(self.call({"wait": False}), {"done": False}, "nothing is waited for")
        self.assertEqual(self.call({"method": "succeed"}), {"done": False})

    def test_streams(self):
        """Collected, and answered when they have ended."""
        self.start("streams.handler")
        invocation = self.api.begin({"do": "pieces"})
        self.assertEqual(invocation.wait(), ("response", b'one,\xff{"two":2},three'))
        self.assertEqual(invocation.answer_headers["Content-Type"], "application/octet-stream")
        invocation = self.api.begin({"do": "html"})
        self.assertEqual(invocation.wait(), ("response", b'{"statusCode":201}' + bytes(8) + b"<p>"))
        self.assertEqual(invocation.answer_headers["Content-Type"], "application/vnd.awslambda.http-integration-response")
        invocation = self.api.begin({"do": "pipeline", "name": "tested"})
        self.assertEqual(invocation.wait(), ("response", b"x" * 300_000))
        self.assertEqual(invocation.answer_headers["Content-Type"], "text/plain")
        invocation = self.api.begin({"do": "context"})
        self.assertEqual(invocation.wait(), ("response", invocation.id.encode()))
        error = self.call({"do": "raise"}, "error")
        self.assertEqual((error["errorType"], error["errorMessage"]), ("RangeError", "half-way"))
        error = self.call({"do": "destroy"}, "error")
        self.assertEqual((error["errorType"], error["errorMessage"]), ("TypeError", "broken off"))
        error = self.call({"do": "leave open"}, "error")
        self.assertEqual(error["errorType"], "Runtime.NodeJsExit")
        self.assertIn("responseStream.end()", error["errorMessage"])
        self.assertEqual(self.api.begin({"do": "nothing"}).wait(), ("response", b""), "it goes on")

    def test_layers(self):
        self.write("one/nodejs/node_modules/of_layer/index.js", "module.exports = 'one';")
        self.write("two/nodejs/node_modules/of_layer/index.js", "module.exports = 'two';")
        self.write("code/app.js", "exports.handler = async () => require('of_layer');")
        self.start(root=self.path("code"), REKINDLE_LAYERS="%s:%s" % (self.path("one"), self.path("two")))
        self.assertEqual(self.call({}), "two")


class FailureTest(FailureTests, NodeRuntimeTest):
    def test_an_error(self):
        runtime = self.start()
        invocation = self.api.begin({"do": "raise"})
        outcome, body = invocation.wait()
        self.assertEqual(outcome, "error")
        error = json.loads(body)
        self.assertEqual(sorted(error), ["errorMessage", "errorType", "trace"])
        self.assertEqual(error["errorMessage"], "order 7 is no good: ünïcode")
        self.assertEqual(error["errorType"], "OrderError")
        self.assertIn("app.js", error["trace"][1])
        self.assertEqual(invocation.answer_headers["Lambda-Runtime-Function-Error-Type"], "OrderError")
        self.assertIn('\tERROR\tInvoke Error \t{"errorType":"OrderError"', runtime.log())
        self.assertIn('"order":7', runtime.log())
        error = self.call({"do": "reject"}, "error")
        self.assertEqual((error["errorType"], error["errorMessage"]), ("TypeError", "no type"))
        error = self.call({"do": "text"}, "error")
        self.assertEqual(error, {"errorType": "string", "errorMessage": "only a text", "trace": []})
        self.assertEqual(self.call({"do": "echo"}), {"do": "echo"}, "it goes on")

    def test_marshalling(self):
        self.start()
        for what in ("unserialisable", "big"):
            error = self.call({"do": what}, "error")
            self.assertEqual(error["errorMessage"], "Unable to stringify response body")
        self.assertEqual(self.call(payload=b"{not json", outcome="error")["errorType"], "SyntaxError")
        error = self.call({"do": "echo"}, "error", headers={"Lambda-Runtime-Client-Context": "{"})
        self.assertIn("Cannot parse ClientContext as json", error["errorMessage"])
        self.call({"do": "echo"})

    def test_a_promise_that_is_never_settled(self):
        self.start()
        self.assertEqual(self.call({"do": "never"}, "error")["errorType"], "Runtime.NodeJsExit")
        self.call({"do": "echo"})

    def test_errors_outside_of_the_handler(self):
        for what, status, kind, message in (
            ("uncaught", 129, "RangeError", "late"),
            ("unhandled", 128, "Runtime.UnhandledPromiseRejection", "RangeError: lost"),
        ):
            runtime = self.start()
            error = self.call({"do": what}, "error")
            self.assertEqual((error["errorType"], error["errorMessage"]), (kind, message))
            self.assertEqual(runtime.wait(), status, runtime.log())


class LoadingTest(LoadingTests, NodeRuntimeTest):
    unreachable = "the Runtime API at 127.0.0.1:1"

    def write_dependent(self):
        self.write("node_modules/dep/index.js", "globalThis.loadedFirst = true;")
        self.write("app.js", "const first = globalThis.loadedFirst;\nexports.handler = async () => first;")
        return "zlib", "dep"

    def test_no_such_module(self):
        _, error, log = self.fail_to_start("nosuch.handler")
        self.assertEqual(error["errorType"], "Runtime.ImportModuleError")
        self.assertIn("Error: Cannot find module 'nosuch'", error["errorMessage"])
        self.assertIn("Uncaught Exception", log)

    def test_a_dependency_is_missing(self):
        for name, text in (("app.js", "require('not_installed_anywhere')"),
                           ("app.mjs", "import 'not_installed_anywhere'")):
            self.write(name + ".d/" + name, text)
            _, error, _ = self.fail_to_start("app.handler", self.path(name + ".d"))
            self.assertEqual(error["errorType"], "Runtime.ImportModuleError")
            self.assertIn("not_installed_anywhere", error["errorMessage"])

    def test_syntax(self):
        for name in ("app.js", "app.mjs"):
            self.write(name + ".d/" + name, "function (")
            _, error, _ = self.fail_to_start("app.handler", self.path(name + ".d"))
            self.assertEqual(error["errorType"], "Runtime.UserCodeSyntaxError")
            self.assertIn("SyntaxError", error["errorMessage"])

    def test_names(self):
        for spec, kind, words in (
            ("app.missing", "Runtime.HandlerNotFound", "app.missing is undefined or not exported"),
            ("app.value", "Runtime.HandlerNotFound", "app.value is not a function"),
            ("app", "Runtime.MalformedHandlerName", "Bad handler"),
            ("", "Runtime.MalformedHandlerName", "_HANDLER"),
            ("../app.handler", "Runtime.MalformedHandlerName", "is not a valid handler name"),
        ):
            _, error, _ = self.fail_to_start(spec)
            self.assertEqual(error["errorType"], kind, error)
            self.assertIn(words, error["errorMessage"])

    def test_the_module_throws(self):
        self.write("app.js", "setTimeout(() => {}, 60000); throw new RangeError('not today');")
        _, error, _ = self.fail_to_start("app.handler", self.directory)
        self.assertEqual((error["errorType"], error["errorMessage"]), ("RangeError", "not today"))
        self.assertIn("app.js", error["trace"][1])

    def test_the_module_leaves_a_promise_rejected(self):
        for name, text in (("app.js", "Promise.reject(new RangeError('no database'));\nexports.handler = async () => 1;"),
                           ("app.mjs", "export const handler = async () => 1;\n"
                                       "(async () => { await null; throw new RangeError('no database'); })();")):
            self.write(name + ".d/" + name, text)
            _, error, log = self.fail_to_start("app.handler", self.path(name + ".d"))
            self.assertEqual((error["errorType"], error["errorMessage"]),
                             ("Runtime.UnhandledPromiseRejection", "RangeError: no database"))
            self.assertIn(name, error["trace"][1])
            self.assertIn("Unhandled Promise Rejection", log)
            self.assertTrue(self.api.errors.empty())

    def test_what_promises_are_rejected_with(self):
        for reason, message in (("{ code: 5 }", "{ code: 5 }"), ("'a text'", "a text"), ("undefined", "undefined"),
                                ("Symbol('mark')", "Symbol(mark)")):
            self.write("app.js", f"Promise.reject({reason});\nPromise.reject(2);\nexports.handler = async () => 1;")
            _, error, log = self.fail_to_start("app.handler", self.directory)
            self.assertEqual((error["errorType"], error["errorMessage"]),
                             ("Runtime.UnhandledPromiseRejection", message), log)
            self.assertTrue(self.api.errors.empty(), "of the first one alone")

    def test_the_module_throws_after_it_has_been_loaded(self):
        self.write("app.js", "process.nextTick(() => { throw new RangeError('too late'); });\n"
                             "exports.handler = async () => 1;")
        _, error, _ = self.fail_to_start("app.handler", self.directory)
        self.assertEqual((error["errorType"], error["errorMessage"]), ("RangeError", "too late"))

    def test_the_module_waits_for_what_never_comes(self):
        self.write("app.mjs", "await new Promise(() => {});\nexport const handler = async () => 1;")
        _, error, log = self.fail_to_start("app.handler", self.directory)
        self.assertEqual(error["errorType"], "Runtime.NodeJsExit")
        self.assertIn("'app.handler'", error["errorMessage"])
        self.assertIn(error["errorMessage"], log)

    def test_a_rejection_that_is_handled_late_is_none(self):
        self.write("app.js", "const failed = Promise.reject(new RangeError('handled'));\nfailed.catch(() => {});\n"
                             "exports.handler = async () => failed.catch((error) => error.message);")
        self.start(root=self.directory)
        self.assertEqual(self.call({}), "handled")


class SnapshotTest(SnapshotTests, NodeRuntimeTest):
    dependency = "zlib"

    def test_the_time_that_it_was_an_image(self):
        # The machine's clock, which the runtime reads past what the code makes of Date.
        self.write("clock.js", "const now = Date.now;\nglobalThis.ahead = 0;\nDate.now = () => now() + globalThis.ahead;\n")
        self.write("code/app.js", """
            const rekindle = require('rekindle');
            rekindle.registerBeforeSnapshot(() => { globalThis.ahead = 3600000; });
            const behind = () => Math.round((Date.now() - (performance.timeOrigin + performance.now())) / 60000);
            const seen = [behind()];
            rekindle.registerAfterRestore(() => seen.push(behind()));
            exports.handler = async () => [...seen, behind()];
            """)
        runtime = self.start_held(NODE_OPTIONS=f"--require {os.path.join(self.directory, 'clock.js')}")
        first = self.wake(runtime, **self.function(REKINDLE_FUNCTION_IMAGE="1"))
        while parked.receive(first) is not None:
            pass
        self.wake(runtime)
        self.assertEqual(self.call({}), [0, 0, 0])

    def write_function(self, failing=""):
        self.write("code/app.js", """
            const rekindle = require('rekindle');
            const order = [];
            function note(what) {
              if (what === '%s') throw new RangeError('no ' + what);
              order.push(what);
            }
            rekindle.registerBeforeSnapshot(note, 'before');
            rekindle.registerAfterRestore(async (what) => note(what), 'after');
            exports.handler = async (event, context) => ({ event, name: context.functionName, order });
            """ % failing)


if __name__ == "__main__":
    unittest.main()
