"""What each instance of a function has of its own, however it was started."""

import os
import signal
import socket
import tempfile
import threading
import unittest

from harness import waiting
from harness.functions import FROM_OWN_IMAGE, SECONDS, FunctionsTest

_CONNECTS = """import socket

{callback}connection = socket.create_connection(("127.0.0.1", {port}))


def handler(event, context):
    connection.sendall(b"x")
    return connection.recv(1).decode()
"""
_CALLBACK = """from snapshot_restore_py import register_after_restore


@register_after_restore
def connect():
    global connection
    connection = socket.create_connection(("127.0.0.1", {port}))


"""
# Not awaited, Node.js would connect in each copy, after the image.
_CONNECTS_JS = """
import net from 'node:net';

const connection = net.connect({port}, '127.0.0.1');
await new Promise((resolve) => connection.once('connect', resolve));

export const handler = (event) => new Promise((resolve) => {{
  connection.once('data', (data) => resolve(String(data)));
  connection.write('x');
}});
"""


_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
# Writes what it was called with, and reads it when it is told to.
_WRITES = """import os

{module}
def handler(event, context):
    if "open" in event:
        with open(event["open"]) as file:
            return file.read()
    for folder in {folders}:
        with open(folder + "/output", "w") as file:
            file.write(event["n"])
        if event.get("began"):
            open(event["began"], "w").close()
            open(event["fifo"]).read()
        with open(folder + "/output") as file:
            read = file.read()
        if read != event["n"]:
            return "somebody else's: " + read
    return sorted(os.listdir("/tmp"))
""".replace("{folders}", str(_FOLDERS))
# The same as a runtime of its own: it answers what it finds there, and leaves files.
_BOOTSTRAP = """#!/usr/bin/python3
import json, os, urllib.request

base = "http://" + os.environ["AWS_LAMBDA_RUNTIME_API"] + "/2018-06-01/runtime/invocation/"
while True:
    with urllib.request.urlopen(base + "next") as answer:
        request = answer.headers["Lambda-Runtime-Aws-Request-Id"]
    found = [folder for folder in ("/tmp", "/dev/shm") if os.path.exists(folder + "/output")]
    for folder in ("/tmp", "/dev/shm"):
        open(folder + "/output", "a").close()
    urllib.request.urlopen(base + request + "/response", json.dumps(found).encode()).close()
"""
_FILL = """def handler(event, context):
    try:
        with open(event["folder"] + "/much", "wb") as file:
            for _ in range(event["mib"]):
                file.write(bytes(1 << 20))
    except OSError as error:
        return error.strerror
"""


# What it is refused when it is loaded, and when it is called. With a thread it is no template.
_CHANGES = """import errno
import os
import threading
import time

CODE = os.environ["LAMBDA_TASK_ROOT"]


def change(name):
    done = []
    for what in (lambda: open(name, "w"), lambda: open(CODE + "/app.py", "a"), lambda: os.unlink(CODE + "/app.py")):
        try:
            what()
            done.append("done")
        except OSError as error:
            done.append(errno.errorcode[error.errno])
    return done


LOADED = change("loaded")
if {thread}:
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
time.sleep(0.3)


def handler(event, context):
    return LOADED + change("called") + [os.getcwd() == CODE]
"""
_CHANGES_JS = """
const fs = require('fs');
for (const until = Date.now() + 300; Date.now() < until;) {
}

exports.handler = async () => {
  try {
    fs.writeFileSync('called', '');
    return 'done';
  } catch (error) {
    return error.code;
  }
};
"""


class CodeTest(FunctionsTest):
    """Other instances have the same."""

    def end_instances(self, name):
        for pid in self.runtimes():
            os.kill(pid, signal.SIGKILL)
        self.wait_for_no_instance(name)

    def check(self, name, expected, wanted):
        levels = set()
        for _ in range(50):
            answer, how = self.invoke(name)
            self.assertEqual(answer, expected, how)
            levels.add(how["start_level"])
            self.end_instances(name)
            if len(levels & set(wanted)) > 0:
                break
        self.assertTrue(levels & set(wanted), levels)
        for _ in range(8):  # those that stand by
            answer, how = self.invoke(name)
            self.assertEqual(answer, expected, how)
            self.end_instances(name)

    def test_python(self):
        for name, wanted in (("template", ("template",)), ("image", FROM_OWN_IMAGE)):
            deployed = self.deploy(name, "--deps", "none", files={"app.py": _CHANGES.replace("{thread}", str(name == "image"))})
            self.assertEqual(deployed["warnings"], [])
            self.check(name, ["EROFS"] * 6 + [True], wanted)
            code = os.path.join(self.store, "functions", name, "1", "code")
            self.assertEqual(os.listdir(code), ["app.py"])

    def test_node(self):
        self.deploy("js", "--deps", "none", runtime="nodejs", files={"app.js": _CHANGES_JS})
        self.check("js", "EROFS", FROM_OWN_IMAGE)

    def test_without_an_image(self):
        self.deploy("cold", "--no-image", files={"app.py": _CHANGES.replace("{thread}", "False")})
        self.check("cold", ["EROFS"] * 6 + [True], ("cold",))


class StandbyCodeTest(CodeTest):
    """The same where copies stand by, restored before anybody asked for them."""

    standby = "2"


class TemporaryTest(FunctionsTest):
    """Each instance has a /tmp and a /var/tmp of its own, and a /dev/shm."""

    def check_own(self, name, count=3):
        """So many instances at a time, each in the middle of writing its file."""
        calls = []
        for number in range(count):
            fifo, began = self.path(f"{name}.{number}.fifo"), self.path(f"{name}.{number}.began")
            os.mkfifo(fifo)
            calls.append((self.begin_invoke(name, {"n": str(number), "began": began, "fifo": fifo}), fifo))
            waiting.until(lambda path=began: os.path.exists(path), "in work", SECONDS)
        for _ in _FOLDERS:
            for number, (_, fifo) in enumerate(calls):
                began = self.path(f"{name}.{number}.began")
                waiting.until(lambda path=began: os.path.exists(path), "in work", SECONDS)
                os.unlink(began)
                with open(fifo, "w", encoding="ascii"):
                    pass
        for call, fifo in calls:
            self.assertEqual(self.end_invoke(call), ["output"])
            os.unlink(fifo)

    def end_instances(self, name):
        for pid in self.runtimes():
            os.kill(pid, signal.SIGKILL)
        self.wait_for_no_instance(name)

    def check_nothing_on_the_machine(self):
        for folder in _FOLDERS:
            self.assertFalse(os.path.exists(folder + "/output"))

    def test_copies_of_images(self):
        self.deploy("writes", "--deps", "none", "--timeout", "60s", files={"app.py": _WRITES.format(module="")})
        self.check_own("writes")  # of its dependencies
        self.wait_for_image("writes")
        self.end_instances("writes")
        self.check_own("writes")  # of its own
        self.assertIn(self.invoke("writes", {"n": "last"})[1]["start_level"], ("running", *FROM_OWN_IMAGE))
        self.check_nothing_on_the_machine()

    def test_copies_of_templates(self):
        self.deploy("writes", "--deps", "none", "--timeout", "60s", files={"app.py": _WRITES.format(module="")})
        level, starts = "", 0
        while level != "template":
            self.assertLess(starts, 50, level)
            found, how = self.invoke("writes", {"n": str(starts)})
            self.assertEqual(found, ["output"], how)
            level, starts = how["start_level"], starts + 1
            self.end_instances("writes")
        self.check_own("writes")
        self.check_nothing_on_the_machine()

    def test_where_it_is_found_out_what_a_function_imports(self):
        """What others have put into the machine's /tmp is not seen, and nothing is left there."""
        for folder in ("/tmp", "/dev/shm"):
            planted, left = (f"{folder}/rekindle-{what}-{os.getpid()}" for what in ("planted", "left"))
            self.addCleanup(lambda *paths: [os.unlink(path) for path in paths if os.path.exists(path)], planted, left)
            with open(planted, "w", encoding="ascii"):
                pass
            deployed = self.deploy("loads", "--replace", files={
                "app.py": f"import os\nassert not os.path.exists({planted!r}), 'it is seen'\nopen({left!r}, 'x').close()\n"
                          f"def handler(event, context):\n    return [{left!r}, {planted!r}][os.path.exists({planted!r})]\n"})
            self.assertEqual(deployed.get("warnings", []), [])
            self.assertFalse(os.path.exists(left))
            self.assertEqual(self.invoke("loads")[0], left)

    def test_where_dependencies_are_loaded(self):
        """On top of an image there is."""
        planted = f"/tmp/rekindle-planted-{os.getpid()}"
        self.addCleanup(os.unlink, planted)
        with open(planted, "w", encoding="ascii"):
            pass
        with tempfile.TemporaryDirectory(prefix="rekindle", dir="/usr/lib/python3/dist-packages") as folder:
            module = os.path.basename(folder)
            with open(os.path.join(folder, "__init__.py"), "w", encoding="ascii") as file:
                file.write(f"import os\nseen = os.path.exists({planted!r})\n")
            self.deploy("loads", "--deps", module, files={
                "app.py": f"import {module}\ndef handler(event, context):\n    return {module}.seen\n"})
            seen, how = self.invoke("loads")
            self.assertIn(how["start_level"], ("dependency-memory", "dependency-disk"))
            self.assertFalse(seen)

    def test_cold_starts(self):
        folder = self.code("own", {"bootstrap": _BOOTSTRAP})
        os.chmod(os.path.join(folder, "bootstrap"), 0o755)
        self.deploy("own", runtime="provided", handler="any", code=folder)
        self.assertEqual([self.invoke("own")[0] for _ in range(2)], [[], ["/tmp", "/dev/shm"]])
        self.end_instances("own")
        self.assertEqual(self.invoke("own")[0], [])
        self.check_nothing_on_the_machine()

    def test_without_an_image(self):
        files = {"app.py": "import os\n\n\ndef handler(event, context):\n    return os.getpid()\n"}
        deployed = self.deploy("plain", "--no-image", files=files)
        self.assertFalse(deployed.get("warnings"), deployed)
        pids = set()
        for _ in range(3):  # an image is made after the first calls
            value, answer = self.invoke("plain")
            self.assertEqual(answer["start_level"], "cold")
            pids.add(value)
            self.end_instances("plain")
        self.assertEqual(len(pids), 3)
        about = self.function("plain")
        self.assertEqual((about["state"], about.get("problem", "")), ("ready", ""))
        self.assertEqual((about.get("dependency_image", ""), about.get("function_image", "")), ("", ""))
        self.assertEqual(self.references(), [])
        self.assertTrue(self.deploy("plain", "--no-image", "--replace", files=files)["unchanged"])

    def test_it_is_bounded(self):
        self.deploy("fills", "--deps", "none", "--memory", "256M", "--timeout", "60s", files={"app.py": _FILL})
        for folder in ("/tmp", "/dev/shm"):
            for mib, answer in ((127, None), (129, "No space left on device")):
                self.assertEqual(self.invoke("fills", {"folder": folder, "mib": mib})[0], answer, folder)
                self.end_instances("fills")

    def test_what_is_left_there_on_loading_is_in_each(self):
        module = "open('/tmp/cache', 'w').write('loaded')"
        self.deploy("caches", "--deps", "none", files={"app.py": _WRITES.format(module=module)})
        read = {"open": "/tmp/cache"}
        self.assertEqual(self.invoke("caches", read)[0], "loaded")
        self.wait_for_image("caches")
        self.end_instances("caches")
        answer, how = self.invoke("caches", read)
        self.assertEqual((answer, how["start_level"] in FROM_OWN_IMAGE), ("loaded", True), how)


class ConnectedTest(FunctionsTest):
    """Functions that connect when they are loaded."""

    def setUp(self):
        super().setUp()
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        # Shut down, its accept ends.
        self.addCleanup(listener.close)
        self.addCleanup(listener.shutdown, socket.SHUT_RDWR)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    @staticmethod
    def _echo(connection):
        with connection:
            while data := connection.recv(64):
                connection.sendall(data)

    def end_instances(self, name):
        for pid in self.runtimes():
            os.kill(pid, signal.SIGKILL)
        self.wait_for_no_instance(name)

    def check_works_without_image(self, name):
        self.assertEqual(self.invoke(name)[0], "x")
        problem = waiting.until(lambda: self.function(name).get("problem"), "its image refused", SECONDS)
        self.assertIn(f"127.0.0.1:{self.port}", problem)
        self.assertIn("register_after_restore", problem)
        for _ in range(2):
            self.end_instances(name)
            answer, how = self.invoke(name)
            self.assertEqual(answer, "x")
            self.assertTrue(how["start_level"].startswith("dependency-"), how)
        self.assertFalse(self.function(name).get("function_image"))
        self.assertEqual(self.cli.run("fn", "logs", name).out.count("register_after_restore"), 1)

    def test_it_starts_from_its_dependencies(self):
        self.deploy("connects", "--deps", "none", files={"app.py": _CONNECTS.format(port=self.port, callback="")})
        self.check_works_without_image("connects")

    def test_node(self):
        files = {"app.mjs": _CONNECTS_JS.format(port=self.port)}
        self.deploy("connects", "--deps", "none", runtime="nodejs", files=files)
        self.check_works_without_image("connects")

    def test_who_connects_again_has_an_image(self):
        callback = _CALLBACK.format(port=self.port)
        self.deploy("again", "--deps", "none", files={"app.py": _CONNECTS.format(port=self.port, callback=callback)})
        self.assertEqual(self.invoke("again")[0], "x")
        self.wait_for_image("again")
        self.end_instances("again")
        answer, how = self.invoke("again")
        self.assertEqual(answer, "x")
        self.assertIn(how["start_level"], FROM_OWN_IMAGE)


if __name__ == "__main__":
    unittest.main()
