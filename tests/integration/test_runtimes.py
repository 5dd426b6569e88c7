"""The Lambda runtimes through real CRIU: a dependency image becomes a function, and that an image of its own."""

import os
import sys
import unittest

from harness import waiting
from harness.clones import SOURCE, CloneTest, hook_addon

sys.path.insert(0, os.path.join(SOURCE, "tests", "runtimes"))
from runtime_api import RuntimeApi  # noqa: E402

RUNTIMES = os.path.join(SOURCE, "functions", "runtimes")


class FunctionTests:
    program = ()
    dependencies = ""
    code = ("", "")  # name and text of the handler's file

    def setUp(self):
        super().setUp()
        os.mkdir(self.path("code"))
        with open(os.path.join(self.path("code"), self.code[0]), "w", encoding="utf-8") as file:
            file.write(self.code[1])

    def serve(self, name):
        """A Runtime API of its own for each copy."""
        api = RuntimeApi(self.path(name + ".sock"))
        self.addCleanup(api.close)
        return api

    def start_runtime(self, **environment):
        return self.start_held(list(self.program), "runtime", env={
            "REKINDLE_DEPS": self.dependencies, **self.environment_of_language(), **environment,
        })

    def environment_of_language(self):
        return {}

    def variables(self, name, api):
        return {"_HANDLER": "app.handler", "LAMBDA_TASK_ROOT": self.path("code"), "AWS_LAMBDA_FUNCTION_NAME": name,
                "REKINDLE_RUNTIME_SOCKET": api.address}

    def start_copy(self, image, name, api, **environment):
        variables = {**self.variables(name, api), **environment}
        options = [word for item in variables.items() for word in ("--env", "=".join(item))]
        return self.clone(image, "--name", name, *options)["job"]["pid"]

    def call(self, api, event=None):
        outcome, answer = api.invoke(event or {})
        self.assertEqual(outcome, "response", answer)
        return answer

    def test_a_function(self):
        image = self.take_image(self.start_runtime(), "dependencies:1")
        answers = []
        for name in ("first", "second"):
            api = self.serve(name)
            pid = self.start_copy(image, name, api, GREETING="from " + name)
            answer = self.call(api, {"n": 1})
            self.assertEqual((answer["name"], answer["greeting"]), (name, "from " + name))
            self.assertEqual((answer["had"], answer["event"], answer["calls"]), (True, {"n": 1}, 1))
            self.assertEqual(self.call(api)["calls"], 2)
            answers.append(answer)
            api.close_now()
            self.wait_for_end(pid)
        self.assertNotEqual(answers[0]["random"], answers[1]["random"])
        self.wait_for_no_sandbox()

    def test_an_image_of_the_function(self):
        made = self.serve("made")
        image = self.take_image(self.start_runtime(), "dependencies:1")
        pid = self.start_copy(image, "made", made, REKINDLE_FUNCTION_IMAGE="1")
        waiting.until(lambda: self._is_parked(pid), "parked again, with the function loaded", 60)
        self.assertEqual(made.connections, 0, "nothing is connected before the last restore")
        self.checkpoint(pid, "function:1", "--stop")
        self.wait_for_end(pid)
        for name in ("one", "two"):
            api = self.serve(name)
            pid = self.start_copy("function:1", name, api)
            answer = self.call(api)
            self.assertEqual((answer["name"], answer["calls"], answer["restored"]), (name, 1, True))
            api.close_now()
            self.wait_for_end(pid)
        self.wait_for_no_sandbox()


class PythonTest(FunctionTests, CloneTest):
    program = ("/usr/bin/python3", "-B", os.path.join(RUNTIMES, "python", "bootstrap.py"))
    dependencies = "json,decimal"
    code = ("app.py", """
import os, random, sys
had = "decimal" in sys.modules
import snapshot_restore_py
calls = 0
restored = False

@snapshot_restore_py.register_after_restore
def reconnect():
    global restored
    restored = True

def handler(event, context):
    global calls
    calls += 1
    return {"name": context.function_name, "greeting": os.environ.get("GREETING"), "event": event, "calls": calls,
            "had": had, "random": random.random(), "restored": restored}
""")

    def test_copies_of_a_template(self):
        image = self.take_image(self.start_runtime(), "dependencies:1")
        self.assertEqual(self.succeed("template", "up", image, "--name", "tpl")["refusal"], "")
        seen = set()
        for name in ("one", "two"):
            api = self.serve(name)
            variables = self.variables(name, api)
            options = [word for item in variables.items() for word in ("--env", "=".join(item))]
            pid = self.succeed("template", "start", "tpl", "--detach", *options)["job"]["pid"]
            answer = self.call(api)
            self.assertEqual((answer["name"], answer["had"], answer["calls"]), (name, True, 1))
            seen.add(answer["random"])
            api.close_now()
            self.wait_for_end(pid)
        self.assertEqual(len(seen), 2)
        self.succeed("template", "down", "tpl")


class NodeTest(FunctionTests, CloneTest):
    program = ("/usr/bin/node", os.path.join(RUNTIMES, "node", "bootstrap.js"))
    dependencies = "zlib"
    code = ("app.js", """
const had = process.moduleLoadList.includes('NativeModule zlib');
const rekindle = require('rekindle'); // the runtime has it in the path
let calls = 0;
let restored = false;
rekindle.registerAfterRestore(() => { restored = true; });
exports.handler = async (event, context) => ({
  name: context.functionName, greeting: process.env.GREETING, event, calls: ++calls, had, restored,
  random: Math.random(),
});
""")

    def environment_of_language(self):
        # CRIU can't dump an io_uring.
        return {"REKINDLE_HOOK_ADDON": hook_addon(), "UV_USE_IO_URING": "0"}


if __name__ == "__main__":
    unittest.main()
