"""The Lambda runtime for Node.js, with real handlers, against a Runtime API server."""

import base64
import json
import os
import unittest

from case import HERE, SOURCE, RuntimeTest, SnapshotTests


class NodeRuntimeTest(RuntimeTest):
    argv = ("/usr/bin/node", os.path.join(SOURCE, "functions/runtimes/node/bootstrap.js"))
    functions = os.path.join(HERE, "node_functions")
    spec = "app.handler"


class InvocationTest(NodeRuntimeTest):
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
        for value in ({}, "ünïcode \u2028 \U0001f600 \x00", [1.5, True, None], {"": {"a": [[]]}}, "half \ud83d"):
            self.assertEqual(self.call({"do": "echo", "value": value})["value"], value)
        self.assertIsNone(self.call({"do": "nothing"}))

    def test_on_a_unix_socket(self):
        path = self.path("api.sock")
        self.api = self.serve(path)
        self.start(REKINDLE_RUNTIME_SOCKET=path, AWS_LAMBDA_RUNTIME_API="127.0.0.1:1")
        self.assertEqual(self.call({"do": "echo", "value": 1})["value"], 1)

    def test_context(self):
        self.start()
        invocation = self.api.begin({"do": "context"}, seconds=300, headers={
            "Lambda-Runtime-Trace-Id": "Root=1-2-3",
            "Lambda-Runtime-Client-Context": json.dumps({"custom": {"k": "ü"}}, ensure_ascii=False),
            "Lambda-Runtime-Cognito-Identity": '{"cognitoIdentityId":"me","cognitoIdentityPoolId":"pool"}',
        })
        outcome, body = invocation.wait()
        self.assertEqual(outcome, "response")
        seen = json.loads(body)
        self.assertEqual(seen["id"], invocation.id)
        self.assertEqual(seen["arn"], invocation.headers["Lambda-Runtime-Invoked-Function-Arn"])
        self.assertEqual((seen["name"], seen["version"], seen["memory"]), ("tested", "$LATEST", "128"))
        self.assertEqual((seen["group"], seen["stream"]), ("/aws/lambda/tested", "2026/11/22/[$LATEST]abc"))
        self.assertEqual(seen["identity"], {"cognitoIdentityId": "me", "cognitoIdentityPoolId": "pool"})
        self.assertEqual(seen["client"], {"custom": {"k": "ü"}})
        self.assertEqual(seen["trace"], "Root=1-2-3")
        self.assertTrue(0 < seen["remaining"] <= 300_000, seen["remaining"])
        plain = self.call({"do": "context"}, seconds=-1)
        self.assertTrue({"client", "identity", "trace"}.isdisjoint(plain), plain)
        self.assertLess(plain["remaining"], 0)

    def test_large_payloads(self):
        self.start()
        size = 6 * 1024 * 1024
        self.assertEqual(self.call({"do": "echo", "value": "ä" * (size // 2)})["value"], "ä" * (size // 2))
        self.assertEqual(self.call({"do": "large", "size": size}), "x" * size)
        refused = self.api.begin({"do": "large", "size": 2 * size})
        self.assertIn(refused.id, self.api.refused.get(timeout=60))
        self.assertEqual(self.call({"do": "echo"}), {"do": "echo"})

    def test_binary(self):
        self.start()
        data = os.urandom(100_000)
        answer = self.call({"do": "binary", "data": base64.b64encode(data).decode()})
        self.assertEqual(base64.b64decode(answer), data[::-1])

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

    def test_handlers_of_other_kinds(self):
        for spec, answer in (
            ("package/inner.handler", "package"), ("esm/app.handler", "module app.js"), ("other.handler", "mjs"),
            ("third.handler", "cjs"), ("app.nested.deep.handler", "deep"), ("app.thenable", "thenable"),
        ):
            self.start_afresh(spec)
            self.assertEqual(self.call({}), answer, spec)

    def test_layers(self):
        self.write("one/nodejs/node_modules/of_layer/index.js", "module.exports = 'one';")
        self.write("two/nodejs/node_modules/of_layer/index.js", "module.exports = 'two';")
        self.write("code/app.js", "exports.handler = async () => require('of_layer');")
        self.start(root=self.path("code"), REKINDLE_LAYERS="%s:%s" % (self.path("one"), self.path("two")))
        self.assertEqual(self.call({}), "two")


class FailureTest(NodeRuntimeTest):
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

    def test_an_answer_that_comes_too_late(self):
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

    def test_errors_outside_of_the_handler(self):
        for what, status, kind, message in (
            ("uncaught", 129, "RangeError", "late"),
            ("unhandled", 128, "Runtime.UnhandledPromiseRejection", "RangeError: lost"),
        ):
            runtime = self.start()
            error = self.call({"do": what}, "error")
            self.assertEqual((error["errorType"], error["errorMessage"]), (kind, message))
            self.assertEqual(runtime.wait(), status, runtime.log())

    def test_exits(self):
        """The end says it all: the server makes Runtime.ExitError of it."""
        for status in (3, 0):
            runtime = self.start()
            invocation = self.api.begin({"do": "exit", "status": status})
            self.assertEqual(runtime.wait(), status, runtime.log())
            self.assertFalse(invocation.over.is_set())

    def test_the_server_goes(self):
        runtime = self.start()
        self.call({"do": "echo"})
        self.api.close_now()
        self.assertEqual(runtime.wait(), 1)
        self.assertIn("closed the connection", runtime.log())


class LoadingTest(NodeRuntimeTest):
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

    def test_no_code_folder(self):
        _, error, _ = self.fail_to_start("app.handler", self.path("gone"))
        self.assertIn(self.path("gone"), error["errorMessage"])

    def test_dependencies(self):
        self.write("node_modules/dep/index.js", "globalThis.loadedFirst = true;")
        self.write("app.js", "const first = globalThis.loadedFirst;\nexports.handler = async () => first;")
        self.start("app.handler", self.directory, REKINDLE_DEPS="zlib, dep")
        self.assertIs(self.call({}), True)
        runtime = self.start(REKINDLE_DEPS="zlib,no_such_dependency")
        self.assertEqual(runtime.wait(), 1)
        self.assertIn("no_such_dependency (REKINDLE_DEPS)", runtime.log())

    def test_no_server(self):
        for address, words in (("127.0.0.1:1", "the Runtime API at 127.0.0.1:1"),
                               ("nonsense", "not HOST:PORT"), ("", "REKINDLE_RUNTIME_SOCKET")):
            runtime = self.start(AWS_LAMBDA_RUNTIME_API=address)
            self.assertEqual(runtime.wait(), 1)
            self.assertIn(words, runtime.log())


class SnapshotTest(SnapshotTests, NodeRuntimeTest):
    dependency = "zlib"

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
