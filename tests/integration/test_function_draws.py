"""No two requests get the same value that ought to be unique, or their function's owner was told."""

import os
import signal
import tempfile

from harness.functions import FROM_OWN_IMAGE, FunctionsTest

# As libraries for IDs have it: bytes are drawn ahead.
_AHEAD = """const crypto = require('crypto');

const pool = %s;
let used = pool.length;

exports.id = () => {
  if (used + 16 > pool.length) {
    crypto.%s(pool);
    used = 0;
  }
  used += 16;
  return Buffer.from(pool.subarray(used - 16, used)).toString('hex');
};
"""
_NODE_APP = """const uuids = require('uuids');
const shorts = require('shorts');
const crypto = require('crypto');

const instance = [uuids.id(), shorts.id()];
const key = crypto.randomBytes(32).toString('hex');

exports.handler = async () => ({ instance, key, ids: [uuids.id(), shorts.id()] });
"""
_NODE_FILES = {
    "node_modules/uuids/index.js": _AHEAD % ("new Uint8Array(256)", "randomFillSync"),
    "node_modules/shorts/index.js": _AHEAD % ("Buffer.allocUnsafe(21 * 128)", "randomFillSync"),
}
# As bson/objectid.py has it: drawn when it is loaded, and again when the PID has changed.
_OBJECTID = """import os
import threading
from random import SystemRandom


class ObjectId:
    _pid = os.getpid()
    _inc_lock = threading.Lock()
    _inc = SystemRandom().randint(0, 0xFFFFFF)
    __random = os.urandom(5)

    def __init__(self):
        with ObjectId._inc_lock:
            self.parts = [ObjectId.__random.hex(), ObjectId._inc]
            ObjectId._inc = (ObjectId._inc + 1) % 0x1000000
"""
_OBJECTID_APP = """from bson.objectid import ObjectId


def handler(event, context):
    return ObjectId().parts
"""
_LIBRARY = """import os

NODE = os.urandom(6).hex()
"""


class DrawsTest(FunctionsTest):
    def end_instances(self, name):
        for pid in self.runtimes():
            os.kill(pid, signal.SIGKILL)
        self.wait_for_no_instance(name)

    def two_from_image(self, name):
        """What two instances answer that start from its own image."""
        self.invoke(name)
        self.wait_for_image(name)
        answers = []
        for _ in range(2):
            self.end_instances(name)
            answer, told = self.invoke(name)
            self.assertIn(told["start_level"], FROM_OWN_IMAGE)
            answers.append(answer)
        return answers

    def log_of(self, name):
        folder = os.path.join(self.path("logs"), "functions", name)
        texts = []
        for file in self.log_files(name):
            with open(os.path.join(folder, file), encoding="utf-8", errors="replace") as log:
                texts.append(log.read())
        return "\n".join(texts)


class NodeDrawsTest(DrawsTest):
    def test_ids_from_pools_differ_and_what_stays_is_told(self):
        deployed = self.deploy("ids", runtime="nodejs", files={**_NODE_FILES, "app.js": _NODE_APP})
        self.assertEqual(len(deployed["warnings"]), 1, str(deployed["warnings"]))
        for named in ("app.js: randomBytes", "app.js: randomFillSync by uuids", "by shorts", "registerAfterRestore"):
            self.assertIn(named, deployed["warnings"][0])
        one, two = self.two_from_image("ids")
        self.assertEqual([one["instance"], one["key"]], [two["instance"], two["key"]], "that was drawn when it was loaded")
        for number in range(2):
            self.assertNotEqual(one["ids"][number], two["ids"][number])
        self.assertIn("app.js: randomBytes", self.log_of("ids"))

    def test_who_draws_in_the_handler_or_renews_is_told_nothing(self):
        files = {**_NODE_FILES, "app.js": "const uuids = require('uuids');\nexports.handler = async () => uuids.id();\n"}
        self.assertEqual(self.deploy("late", runtime="nodejs", files=files)["warnings"], [])
        one, two = self.two_from_image("late")
        self.assertNotEqual(one, two)
        files["app.js"] = ("const crypto = require('crypto');\nlet id = crypto.randomUUID();\n"
                           "require('rekindle').registerAfterRestore(() => { id = crypto.randomUUID(); });\n"
                           "exports.handler = async () => id;\n")
        self.assertEqual(self.deploy("renews", runtime="nodejs", files=files)["warnings"], [])
        one, two = self.two_from_image("renews")
        self.assertNotEqual(one, two)


class PythonDrawsTest(DrawsTest):
    def test_ids_of_mongodb_differ(self):
        files = {"app.py": _OBJECTID_APP, "bson/__init__.py": "", "bson/objectid.py": _OBJECTID}
        self.assertEqual(self.deploy("mongo", files=files)["warnings"], [])
        one, two = self.two_from_image("mongo")
        self.assertNotEqual(one[0], two[0])
        self.assertNotEqual(one[1], two[1])

    def test_what_was_drawn_when_it_was_loaded_is_told(self):
        files = {"app.py": "import secrets, uuid\nimport library\nINSTANCE = str(uuid.uuid4())\n"
                           "KEY = secrets.token_hex(16)\ndef handler(event, context):\n    return INSTANCE\n",
                 "library.py": _LIBRARY}
        deployed = self.deploy("draws", files=files)
        self.assertEqual(len(deployed["warnings"]), 1, str(deployed["warnings"]))
        for named in ("app: secrets.token_hex", "app: uuid.uuid4", "library: os.urandom", "register_after_restore",
                      "--no-image"):
            self.assertIn(named, deployed["warnings"][0])
        one, two = self.two_from_image("draws")
        self.assertEqual(one, two)
        self.assertEqual(self.deploy("alone", "--no-image", files=files)["warnings"], [])

    def test_without_discovery_its_log_tells(self):
        files = {"app.py": "import uuid\nINSTANCE = str(uuid.uuid4())\n"
                           "def handler(event, context):\n    return INSTANCE\n"}
        self.deploy("blind", "--deps", "none", files=files)
        self.invoke("blind")
        self.wait_for_image("blind")
        self.assertIn("drawn at random when it was loaded, by: app: uuid.uuid4", self.log_of("blind"))


class SharedDrawsTest(DrawsTest):
    """In the images that functions of all owners start from."""

    def setUp(self):
        super().setUp()
        installed = tempfile.TemporaryDirectory(prefix="rekindle", dir="/usr/lib/python3/dist-packages")
        self.addCleanup(installed.cleanup)
        self.library = os.path.basename(installed.name)
        for name, text in (("__init__.py", ""), ("ids.py", _LIBRARY), ("clean.py", "CLEAN = True\n")):
            with open(os.path.join(installed.name, name), "w", encoding="utf-8") as file:
                file.write(text)
        self.files = {"app.py": f"import {self.library}.ids, {self.library}.clean\ndef handler(event, context):\n"
                                f"    return {self.library}.ids.NODE\n"}

    def test_a_library_that_draws_is_left_out(self):
        told = f"{self.library}.ids: os.urandom"
        for name in ("first", "second"):
            deployed = self.deploy(name, files=self.files)
            self.assertIn(told, deployed["warnings"][0])
            self.assertEqual(deployed["result"]["dependencies"], [self.library + ".clean"])
        self.assertNotEqual(self.invoke("first")[0], self.invoke("second")[0])

    def test_an_image_that_has_it_is_told_of_and_serves_those_that_ask_for_it(self):
        named = f"{self.library}.clean,{self.library}.ids"
        deployed = self.deploy("asks", "--deps", named, files=self.files)
        self.assertEqual(len(deployed["warnings"]), 1, str(deployed["warnings"]))
        self.assertIn(f"{self.library}.ids: os.urandom", deployed["warnings"][0])
        self.assertIn("all functions that start from dependency image", deployed["warnings"][0])
        built = self.succeed("deps", "build", "--runtime", "python", *named.split(","))
        self.assertIn(f"{self.library}.ids: os.urandom", built["warnings"][0])
        theirs = self.function("asks")["dependency_image"]
        self.deploy("clean", "--deps", self.library + ".clean", files=self.files)
        self.assertNotEqual(self.function("clean")["dependency_image"], theirs)
        self.assertNotEqual(self.invoke("asks")[0], self.invoke("clean")[0])
