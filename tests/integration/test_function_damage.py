"""Functions whose images the disk has damaged: their callers hear of it, and they come from whole ones again."""

import json
import os
import signal
import subprocess
import sys
import unittest

from harness import procfs, waiting
from harness.functions import FROM_OWN_IMAGE, SECONDS, FunctionsTest

# Much of what it has loaded it touches when it is told to, and no instance has needed it to answer.
_APP = """import os

much = [os.urandom(1 << 20) for _ in range(200)]


def handler(event, context):
    if "read" in event:
        return sum(len(one) for one in much if max(one))
    return len(much)
"""


# The same of a library in a virtual environment.
_LIBRARY, _USES_LIBRARY = _APP.split("\n\n\n")
_USES_LIBRARY = "from much_library import much\n\n\n" + _USES_LIBRARY


class DamageTest(FunctionsTest):
    def setUp(self):
        super().setUp()
        self.daemon.stop()
        # What is larger than half of the cache is not kept in it.
        self.restart_daemon("--page-cache", "64M")

    def damage(self):
        """All that the packs have of pages."""
        found = 0
        for folder, _, names in os.walk(self.store):
            for name in names:
                if not name.endswith(".pack"):
                    continue
                found += 1
                with open(os.path.join(folder, name), "r+b") as file:
                    for offset in range(4096 + 1024, file.seek(0, 2), 2048):
                        file.seek(offset)
                        byte = file.read(1)
                        file.seek(offset)
                        file.write(bytes([byte[0] ^ 0x5A]))
        self.assertGreater(found, 0)

    def end_instances(self, name):
        for pid in self.runtimes():
            os.kill(pid, signal.SIGKILL)
        self.wait_for_no_instance(name)

    def end_templates(self):
        """They have all of their memory."""
        instances = self.runtimes()
        for pid in procfs.descendants(os.getpid()):
            if procfs.alive(pid) and pid not in instances and "bootstrap.py" in procfs.command_line(pid):
                os.kill(pid, signal.SIGKILL)

    def read_all(self, name):
        return json.loads(self.cli.run("fn", "invoke", name, "--payload", '{"read": 1}').data["payload"])

    def test_it_is_told_and_made_anew(self):
        self.deploy("app", "--deps", "none", "--timeout", "60s", files={"app.py": _APP})
        self.invoke("app")
        image = self.wait_for_image("app")
        for _ in range(3):
            self.end_instances("app")
            self.assertIn(self.invoke("app")[1]["start_level"], FROM_OWN_IMAGE)
        self.damage()
        self.end_templates()
        self.end_instances("app")
        told = self.read_all("app")
        if isinstance(told, dict):
            self.assertIn("Rekindle ended it: ", told["errorMessage"])
            self.assertIn("the instance was ended: ", self.cli.run("fn", "logs", "app").out)
            self.assertIn("of function 'app' was ended: ", self.daemon.log_text())
        else:  # something that it begins with was not in memory any more, and it was started from something else
            self.assertIn("the image of function 'app' is dropped, and made anew", self.daemon.log_text())

        def from_an_image():
            self.end_instances("app")
            result = self.cli.run("fn", "invoke", "app", "--payload", '{"read": 1}')
            return result.code == 0 and result.data["start_level"] in FROM_OWN_IMAGE

        waiting.until(from_an_image, "it comes from a whole image", 3 * SECONDS)
        self.assertEqual(self.function("app")["function_image"], image)
        self.assertIn("is made anew: it is damaged: ", self.daemon.log_text())
        self.assertEqual(self.invoke("app", {"read": 1})[0], 200 << 20)

    def test_one_with_modules_of_layers(self):
        venv = self.path("venv")
        subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", venv], check=True)
        packages = os.path.join(venv, "lib", "python{}.{}".format(*sys.version_info[:2]), "site-packages")
        with open(os.path.join(packages, "much_library.py"), "w", encoding="ascii") as file:
            file.write(_LIBRARY)
        deployed = {name: self.deploy(name, "--venv", venv, "--timeout", "60s", files={"app.py": _USES_LIBRARY})
                    for name in ("one", "two")}  # fmt: skip
        image = deployed["one"]["result"]["dependency_image"]
        self.assertTrue(image.startswith(f"deps/u{os.getuid()}/"), image)
        self.assertEqual(deployed["two"]["result"]["dependency_image"], image)
        built = self.succeed("inspect", image)["image"]["digest"]
        self.damage()
        self.end_templates()
        # From the image until it needs what is damaged, or from something else.
        told = self.read_all("one")
        if isinstance(told, dict):
            self.assertIn("Rekindle ended it: ", told["errorMessage"])
        else:
            self.assertEqual(told, 200 << 20)

        def made_anew():
            shown = self.cli.run("inspect", image)
            return shown.code == 0 and shown.data["image"]["digest"] != built

        waiting.until(made_anew, "it is made anew", 3 * SECONDS)
        self.assertIn(f"dependency image '{image}' is made anew: it is damaged: ", self.daemon.log_text())
        for name in deployed:
            def from_an_image(name=name):
                self.end_instances(name)
                result = self.cli.run("fn", "invoke", name, "--payload", '{"read": 1}')
                return result.code == 0 and result.data["start_level"] != "cold"

            waiting.until(from_an_image, f"{name} comes from a whole image", 3 * SECONDS)
            self.assertEqual(self.invoke(name, {"read": 1})[0], 200 << 20)
            self.assertEqual(self.function(name)["problem"], "")


if __name__ == "__main__":
    unittest.main()
