"""Functions of one name or one machine that are not one owner's: what somebody else has prepared, removed or deployed
meanwhile does not get into a function.
"""

import os
import unittest

from harness import waiting
from harness.functions import SECONDS, FunctionsTest
from harness.cli import DONE

ALICE, BOB = 65533, 65534

# Its import waits until the test lets it go on.
_SLOW = """import os
import time

while os.path.exists({path!r}):
    time.sleep(0.01)
import decimal


def handler(event, context):
    return "old"
"""
_QUICK = """def handler(event, context):
    return "new"
"""
_FAILS_FOR = """import os


def handler(event, context):
    open({path!r}, "a").write(repr(event) + "\\n")
    raise RuntimeError("again, please")
"""
_HOME = """import os
import site


def handler(event, context):
    return {"home": os.environ["HOME"], "user_site": site.ENABLE_USER_SITE, "keeps": os.path.exists(os.environ["HOME"])}
"""


class LateDeploymentTest(FunctionsTest):
    def deploy_slowly(self, cli=None, *options):
        """A deployment that goes on until `held` is removed. Returns when its code has been taken."""
        self.held = self.path("held")
        with open(self.held, "w", encoding="ascii"):
            pass
        folder = self.code("slow", {"app.py": _SLOW.format(path=self.held)})
        command = (cli or self.cli).start(
            "fn", "deploy", "name", "--runtime", "python", "--handler", "app.handler", "--code", folder, *options)
        waiting.until(lambda: self.function("name"), "its code taken", SECONDS)
        return command

    def let_go(self, command):
        os.unlink(self.held)
        result = (self.cli).finish(command)
        self.assertEqual(result.code, DONE, str(result))
        self.assertIn("no effect", result.out + result.err)

    def test_it_does_not_replace_what_was_deployed_meanwhile(self):
        command = self.deploy_slowly()
        self.deploy("name", "--replace", files={"app.py": _QUICK})
        self.assertEqual(self.invoke("name", None)[0], "new")
        self.let_go(command)
        self.assertEqual(self.invoke("name", None)[0], "new")
        self.wait_for_image("name")
        self.assertEqual(self.invoke("name", None)[0], "new")

    def test_nor_what_another_user_has_put_in_its_place(self):
        alice, bob = (self.make_cli(host=self.daemon.host, uid=uid) for uid in (ALICE, BOB))
        command = self.deploy_slowly(alice)
        self.succeed("fn", "rm", "name", cli=alice)
        self.deploy("name", files={"app.py": _QUICK}, cli=bob)
        self.let_go(command)
        self.assertEqual(self.invoke("name", None, cli=bob)[0], "new")

    def test_what_was_removed_does_not_come_back(self):
        command = self.deploy_slowly()
        self.succeed("fn", "rm", "name")
        self.let_go(command)
        self.assertIsNone(self.function("name"))
        self.assertNotEqual(self.cli.run("fn", "invoke", "name").code, DONE)


class EventTest(FunctionsTest):
    def test_an_event_is_for_the_owner_who_had_the_function(self):
        alice, bob = (self.make_cli(host=self.daemon.host, uid=uid) for uid in (ALICE, BOB))
        seen = self.path("seen")
        with open(seen, "w", encoding="ascii"):
            pass
        os.chmod(seen, 0o666)
        code = {"app.py": _FAILS_FOR.format(path=seen)}
        self.deploy("mail", files=code, cli=alice)
        self.succeed("fn", "invoke", "mail", "--async", "--payload", '{"of": "alice"}', cli=alice)
        waiting.until(lambda: os.path.getsize(seen), "the first attempt", SECONDS)
        self.succeed("fn", "rm", "mail", cli=alice)
        os.truncate(seen, 0)
        self.deploy("mail", files=code, cli=bob)
        waiting.until(lambda: "removed meanwhile" in self.daemon_log(), "the event dropped", SECONDS)
        self.assertEqual(os.path.getsize(seen), 0)

    def daemon_log(self):
        with open(self.daemon.log, encoding="utf-8", errors="replace") as file:
            return file.read()


class PreparedByOthersTest(FunctionsTest):
    def test_no_code_is_loaded_from_a_home(self):
        for options in ((), ("--deps", "json")):
            self.deploy("home", "--replace", *options, files={"app.py": _HOME})
            self.assertEqual(
                self.invoke("home", None)[0], {"home": "/nonexistent", "user_site": False, "keeps": False})

    def test_labels_make_no_dependency_image(self):
        job, _ = self.start_memory_job(1 << 20)
        self.succeed("ckpt", job.pid, "-t", "images/evil:1", "--label", "rekindle.deps.runtime=python",
                     "--label", "rekindle.deps.modules=json,decimal", "--label", "rekindle.deps.resident-bytes=1")
        listed = [image["reference"] for image in self.succeed("deps", "ls").get("images", [])]
        self.assertNotIn("images/evil:1", listed)
        self.deploy("victim", "--deps", "json", files={"app.py": _QUICK})
        self.assertNotEqual(self.function("victim")["dependency_image"], "images/evil:1")
        self.assertEqual(self.invoke("victim", None)[0], "new")


if __name__ == "__main__":
    unittest.main()
