"""Layers of functions, and virtual environments: kept once for each user, and loaded once, into an image of his."""

import os
import shutil
import signal
import subprocess
import sys
import unittest

from harness import procfs, waiting
from harness.cli import FAILED, NOT_PERMITTED, USAGE
from harness.functions import FROM_OWN_IMAGE, SECONDS, FunctionsTest

CAP_SYS_RESOURCE = 24
MAY_CAPTURE_OTHERS = procfs.has_capability(CAP_SYS_RESOURCE)
# Where CRIU may not capture another user's process, root has to be one of the two users.
ALICE, BOB = 65533 if MAY_CAPTURE_OTHERS else 0, 65534
VERSION = "{}.{}".format(*sys.version_info[:2])
_MEBIBYTES = 64

# What is drawn when it is loaded is the same wherever that load was shared. From the kernel's files: a library that draws
# in another way is warned of.
_LIBRARY = f"""import os

with open("/proc/sys/kernel/random/uuid", encoding="ascii") as file:
    TOKEN = file.read()
VERSION = {{version}}
LOADED_AS = os.getuid()
with open("/dev/urandom", "rb") as file:
    BULK = file.read({_MEBIBYTES} << 20)
"""
_APP = """import os
import their_library


def handler(event, context):
    return {"name": NAME, "token": their_library.TOKEN, "version": their_library.VERSION, "uid": os.getuid(),
            "loaded_as": their_library.LOADED_AS, "file": their_library.__file__}
"""
_ADDED = """import os
import extra_library


def handler(event, context):
    return [extra_library.TOKEN, os.environ.get('FROM_PTH')]
"""


class LayersTest(FunctionsTest):
    def setUp(self):
        super().setUp()
        self.alice = self.make_cli(host=self.daemon.host, uid=ALICE)
        self.bob = self.make_cli(host=self.daemon.host, uid=BOB)
        self.venv = self.environment_of("venv")
        self.install("their_library.py", _LIBRARY.format(version=1))

    def environment_of(self, name):
        path = self.path(name)
        subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", path], check=True)
        return path

    def packages(self, environment=None):
        return os.path.join(environment or self.venv, "lib", "python" + VERSION, "site-packages")

    def install(self, name, text, environment=None):
        path = os.path.join(self.packages(environment), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="ascii") as file:
            file.write(text)

    def deploy_app(self, name, *options, cli=None, text=_APP, venv=True):
        code = {"app.py": f"NAME = {name!r}\n" + text}
        given = ("--venv", self.venv) if venv else ()
        return self.deploy(name, *given, *options, files=code, cli=cli or self.alice)

    def layers(self, uid=ALICE):
        folder = os.path.join(self.store, "functions", ".layers", str(uid))
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []

    def layer_images(self, cli=None):
        return [image for image in self.succeed("deps", "ls", cli=cli)["images"] if image.get("layers")]

    def end_instances(self, name):
        for pid in self.runtimes():
            os.kill(pid, signal.SIGKILL)
        self.wait_for_no_instance(name)

    def answer(self, name, cli=None):
        """From an image."""
        answer, about = self.invoke(name, cli=cli or self.alice)
        self.assertNotEqual(about["start_level"], "cold")
        return answer


class SharedTest(LayersTest):
    def test_two_functions_share_a_copy_and_what_is_loaded(self):
        first = self.deploy_app("one")
        self.assertEqual(first["warnings"], [])
        self.assertEqual(first["result"]["dependencies"], ["their_library"])
        second = self.deploy_app("two")
        self.assertEqual(second["warnings"], [])
        reference = first["result"]["dependency_image"]
        self.assertEqual(second["result"]["dependency_image"], reference)
        self.assertTrue(reference.startswith(f"deps/u{ALICE}/python:their_library-"), reference)
        digests = first["result"]["layers"]
        self.assertEqual((len(digests), second["result"]["layers"], self.layers()), (1, digests, digests))
        self.assertEqual(os.listdir(os.path.join(self.store, "functions", "one", "1")), ["code"])

        one, two = self.answer("one"), self.answer("two")
        self.assertEqual((one["name"], two["name"]), ("one", "two"))
        self.assertEqual(one["token"], two["token"], "loaded once")
        self.assertEqual((one["uid"], one["loaded_as"]), (ALICE, ALICE))
        self.assertIn(f"/.layers/{ALICE}/{digests[0]}/", one["file"])
        # What it has drawn is stored once: the functions' own images have none of it.
        images = self.layer_images(self.alice)
        self.assertEqual([(image["reference"], image["owner_uid"], sorted(image["used_by"])) for image in images],
                         [(reference, ALICE, ["one", "two"])])
        self.assertGreater(int(images[0]["unique_bytes"]), _MEBIBYTES << 20)
        for name in ("one", "two"):
            self.wait_for_image(name)
            self.assertLess(int(self.stats(name)["image_unique_bytes"]), _MEBIBYTES << 19)
        for name in ("one", "two"):
            self.end_instances(name)
            answer, about = self.invoke(name, cli=self.alice)
            self.assertIn(about["start_level"], FROM_OWN_IMAGE)
            self.assertEqual(answer["token"], one["token"])
        # And of the system's modules nothing is loaded twice: it lies on the image that all share.
        self.assertIn("deps/python:bare", self.references())

    def test_another_user_shares_nothing(self):
        self.deploy_app("hers")
        deployed = self.deploy_app("his", cli=self.bob)
        if MAY_CAPTURE_OTHERS:
            self.assertEqual(deployed["warnings"], [])
            self.assertTrue(deployed["result"]["dependency_image"].startswith(f"deps/u{BOB}/"))
        else:
            self.assertIn("CAP_SYS_RESOURCE", deployed["warnings"][0])
            self.assertEqual(deployed["result"]["dependency_image"], "deps/python:bare")
        hers, his = self.answer("hers"), self.answer("his", self.bob)
        self.assertNotEqual(hers["token"], his["token"])
        self.assertEqual((his["uid"], his["loaded_as"]), (BOB, BOB))
        self.assertEqual(self.layers(ALICE), self.layers(BOB))  # the same digest, in folders of their own
        # Neither sees the other's, nor removes it.
        self.assertEqual([image["owner_uid"] for image in self.layer_images(self.bob)], [BOB] * MAY_CAPTURE_OTHERS)
        self.assertEqual(len(self.layer_images()), 1 + MAY_CAPTURE_OTHERS)
        theirs = self.function("hers")["dependency_image"]
        self.assert_refused(self.bob.run("deps", "rm", theirs), NOT_PERMITTED, "administrator")
        self.assert_refused(self.alice.run("deps", "rm", theirs), FAILED, "is used by function 'hers'")
        closed = subprocess.run(["/usr/bin/ls", os.path.dirname(hers["file"])], user=BOB, group=BOB, extra_groups=[],
                                capture_output=True, check=False)  # fmt: skip
        self.assertNotEqual(closed.returncode, 0)

    def test_what_the_machine_has_lies_below(self):
        text = "import decimal\n" + _APP
        deployed = self.deploy_app("mixed", "--deps", "their_library,decimal", text=text)
        self.assertEqual(deployed["warnings"], [])
        self.assertEqual(deployed["result"]["dependencies"], ["decimal", "their_library"])
        self.assertIn("deps/python:decimal", self.references())
        self.answer("mixed")
        # One of fewer modules starts from it, too.
        self.assertEqual(self.deploy_app("fewer")["result"]["dependency_image"],
                         deployed["result"]["dependency_image"])

    def test_a_layer_that_hides_a_module_of_the_image_below(self):
        """All that is loaded then is what would be without an image."""
        self.install("secrets.py", "WHOSE = 'layer'\n")
        self.install("their_library.py", "import secrets\n" + _LIBRARY.format(version=1))
        self.succeed("deps", "build", "secrets", "decimal", "--runtime", "python")
        text = "import decimal, secrets\n" + _APP.replace("NAME", "(secrets.WHOSE, their_library.secrets.WHOSE)")
        deployed = self.deploy_app("hides", "--deps", "decimal,auto", text=text)
        self.assertEqual(deployed["warnings"], [])
        self.assertEqual(self.answer("hides")["name"], ["layer", "layer"])


# Tries to change what it has of its layer, and what lies beside that.
_CHANGES = '''import errno
import os
import their_library


def outcome(change, *arguments):
    try:
        change(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "changed"


def handler(event, context):
    path = their_library.__file__
    new = os.path.join(os.path.dirname(path), "new")
    return sorted({outcome(open, path, "a"), outcome(open, new, "w"), outcome(os.mkdir, new), outcome(os.unlink, path),
                   outcome(os.chmod, path, 0o666), outcome(os.utime, path), their_library.WHEN_LOADED})
'''
_LIBRARY_CHANGES = '''
try:
    open(__file__, "a")
    WHEN_LOADED = "changed"
except OSError as error:
    WHEN_LOADED = {30: "EROFS"}[error.errno]
'''


class CompiledTest(LayersTest):
    def test_no_start_compiles_what_a_layer_has(self):
        """Nobody has compiled it, as `uv` does not; one file is no Python at all."""
        self.install("broken_library.py", "this is no Python\n")
        shutil.rmtree(os.path.join(self.packages(), "__pycache__"), ignore_errors=True)
        text = _APP + ("\n\ndef compiled(event, context):\n    spec = their_library.__spec__\n"
                       "    with open(spec.cached, 'rb') as file:\n"
                       "        content = file.read()\n"
                       "    return [spec.cached, os.stat(spec.cached).st_uid, spec.origin.encode() in content]\n")
        code = self.code("app", {"app.py": "NAME = 'app'\n" + text})
        deployed = self.deploy("app", "--venv", self.venv, code=code, handler="app.compiled", cli=self.alice)
        self.assertEqual(deployed["warnings"], [])
        (path, owner, names_its_source) = self.invoke("app", cli=self.alice)[0]
        self.assertIn(f"/.layers/{ALICE}/{self.layers()[0]}/", path)
        self.assertEqual((owner, names_its_source), (0, True))
        # It is no other layer than one that was compiled before, and counts with all that it takes.
        self.deploy("again", "--venv", self.venv, code=code, handler="app.compiled", cli=self.alice)
        self.assertEqual(len(self.layers()), 1)
        source = os.path.getsize(os.path.join(self.packages(), "their_library.py"))
        self.assertGreater(int(self.function("app")["code_bytes"]), source + os.path.getsize(path))


_OWNER, _OTHER = 65533, 65534  # of what needs no image
_READS_ONE = """
import os, sys
try:
    os.listdir(sys.argv[1]) if os.path.isdir(sys.argv[1]) else open(sys.argv[1], "rb").read()
    print("done", end="")
except PermissionError:
    print("closed", end="")
"""
_CHANGES_ONE = """
import os, sys
path = sys.argv[1]
ways = [lambda: os.chmod(path, 0o777), lambda: os.rename(path, path + ".away"), lambda: os.chown(path, os.getuid(), -1)]
if os.path.isdir(path):
    ways.append(lambda: os.mkdir(os.path.join(path, "new")))
else:
    ways += [lambda: open(path, "ab"), lambda: os.truncate(path, 1 << 40), lambda: os.unlink(path)]
for way in ways:
    try:
        way()
        sys.exit(print("changed", end=""))
    except PermissionError:
        pass
print("closed", end="")
"""


def as_user(uid, program, path):
    return subprocess.run([sys.executable, "-I", "-c", program, path], user=uid, group=uid, extra_groups=[],
                          capture_output=True, check=True, text=True).stdout  # fmt: skip


class ReadOnlyTest(LayersTest):
    def contents(self):
        found = {}
        for folder, _, names in os.walk(os.path.join(self.store, "functions", ".layers")):
            for name in names:
                path = os.path.join(folder, name)
                info = os.lstat(path)
                with open(path, "rb") as file:
                    found[path] = file.read(), info.st_mode, info.st_mtime_ns
        return found

    def test_no_function_changes_what_others_have(self):
        self.install("their_library.py", _LIBRARY.format(version=1) + _LIBRARY_CHANGES)
        self.deploy_app("cold", "--no-image", text=_CHANGES)
        before = self.contents()
        self.assertEqual(self.invoke("cold", cli=self.alice)[0], ["EROFS"])
        self.assertEqual(self.deploy_app("one", text=_CHANGES)["warnings"], [])
        # Of its own images there may be a template before the next start.
        seen, wanted = set(), ({"dependency-memory", "dependency-disk"}, {*FROM_OWN_IMAGE})
        for _ in range(200):
            answer, about = self.invoke("one", cli=self.alice)
            self.assertEqual(answer, ["EROFS"], about)
            seen.add(about["start_level"])
            if all(seen & levels for levels in wanted):
                break
            self.end_instances("one")
        self.assertTrue(all(seen & levels for levels in wanted), seen)
        self.assertEqual(self.contents(), before)

    def test_nor_do_its_owners_other_processes(self):
        owner = self.make_cli(host=self.daemon.host, uid=_OWNER)
        for options in ((), ("--replace",)):
            self.deploy_app("one", "--no-image", *options, text=f"{_APP}# {len(options)}", cli=owner)
        self.assertEqual(self.invoke("one", cli=owner)[0]["uid"], _OWNER)
        tried = []
        for top in (self.path("store/functions/one/2"), self.path(f"store/functions/.layers/{_OWNER}")):
            for folder, _, names in os.walk(top):
                if os.path.basename(folder) != str(_OWNER):  # which is passed through, and not listed
                    tried += [folder, *(os.path.join(folder, name) for name in names)]
        self.assertTrue(any(path.endswith("/app.py") for path in tried), tried)
        self.assertTrue(any(path.endswith("/their_library.py") for path in tried), tried)
        self.assertTrue(any(path.endswith(".pyc") for path in tried), tried)
        for path in tried:
            self.assertEqual(as_user(_OWNER, _CHANGES_ONE, path), "closed", path)
            self.assertEqual(as_user(_OTHER, _READS_ONE, path), "closed", path)
            self.assertEqual(as_user(_OWNER, _READS_ONE, path), "done", path)


class ChangeTest(LayersTest):
    def test_changed_contents_are_another_layer_and_the_old_one_goes(self):
        before = self.deploy_app("one")["result"]
        self.deploy_app("two")
        old = self.answer("one")
        # What Python compiles beside the sources is no change.
        os.makedirs(os.path.join(self.packages(), "__pycache__"), exist_ok=True)
        self.install("__pycache__/their_library.other.pyc", "x")
        self.assertTrue(self.deploy_app("one", "--replace")["unchanged"])
        self.install("their_library.py", _LIBRARY.format(version=2))
        after = self.deploy_app("one", "--replace")["result"]
        self.assertNotEqual(after["layers"], before["layers"])
        self.assertNotEqual(after["dependency_image"], before["dependency_image"])
        self.assertEqual(self.answer("one")["version"], 2)
        self.assertEqual((self.answer("two")["version"], self.answer("two")["token"]), (1, old["token"]))
        self.assertEqual(self.layers(), sorted(before["layers"] + after["layers"]))
        self.deploy_app("two", "--replace")
        self.assertEqual(self.answer("two")["token"], self.answer("one")["token"])
        self.assertNotIn(before["dependency_image"], self.references())
        waiting.until(lambda: self.layers() == after["layers"], "the old layer has gone", SECONDS)

    def test_with_the_last_function_all_of_it_goes(self):
        image = self.deploy_app("one")["result"]["dependency_image"]
        self.deploy_app("two")
        self.answer("one")
        self.succeed("fn", "rm", "one", cli=self.alice)
        self.assertEqual(len(self.layers()), 1)
        self.assertIn(image, self.references())
        self.succeed("fn", "rm", "two", cli=self.alice)
        self.assertNotIn(image, self.references())
        waiting.until(lambda: self.layers() == [], "the layer has gone", SECONDS)
        self.assertEqual(os.listdir(os.path.join(self.store, "functions")), [".lock"])

    def test_settings_keep_it(self):
        before = self.deploy_app("one")["result"]
        token = self.answer("one")["token"]
        shutil.rmtree(self.venv)
        after = self.succeed("fn", "set", "one", "--memory", "600M", cli=self.alice)["result"]
        self.assertEqual((after["layers"], after["dependency_image"]), (before["layers"], before["dependency_image"]))
        self.assertEqual(self.answer("one")["token"], token)

    def test_other_layers_for_the_code_that_is_deployed(self):
        """What is not named stays, whatever has become of its folder; no code is copied but where that is named, too."""
        text = "import only_here\n" + _APP.replace('"uid"', '"here": only_here.VALUE, "uid"')
        for name in ("first", "second"):
            os.makedirs(self.path(name) + "/python")
            with open(self.path(name) + "/python/only_here.py", "w", encoding="ascii") as file:
                file.write(f"VALUE = {name!r}\n")
        before = self.deploy_app("one", "--layer", self.path("first"), text=text)
        self.assertEqual((before["warnings"], self.answer("one")["here"]), ([], "first"))
        code = before["result"]["spec"]["code"]
        shutil.rmtree(self.venv)
        shutil.move(code, code + ".away")
        set_ = ("fn", "set", "one")
        after = self.succeed(*set_, "--layer", self.path("second"), cli=self.alice)
        self.assertEqual((after["warnings"], after["result"]["revision"]), ([], 2))
        self.assertEqual(after["result"]["dependencies"], ["only_here", "their_library"])
        answer = self.answer("one")
        self.assertEqual((answer["here"], answer["version"]), ("second", 1))
        self.assertTrue(self.succeed(*set_, "--layer", self.path("second"), cli=self.alice)["unchanged"])

        # With other code: the virtual environment is to be there again.
        shutil.move(code + ".away", code)
        with open(code + "/app.py", "a", encoding="ascii") as file:
            file.write("    # another\n")
        refused = self.alice.run(*set_, "--code", code, "--layer", self.path("first"))
        self.assert_refused(refused, FAILED, self.venv)
        self.environment_of("venv")
        self.install("their_library.py", _LIBRARY.format(version=2))
        self.succeed(*set_, "--code", code, "--layer", self.path("first"), cli=self.alice)
        answer = self.answer("one")
        self.assertEqual((answer["here"], answer["version"]), ("first", 2))

        self.install("their_library.py", _LIBRARY.format(version=3))
        self.succeed(*set_, "--no-layers", "--venv", self.venv, "--force", cli=self.alice)
        self.assertEqual(len(self.function("one")["layers"]), 1)
        self.assertIn("only_here", self.failed("one")["errorMessage"])
        with open(self.path("second") + "/python/their_library.py", "w", encoding="ascii") as file:
            file.write("TOKEN = LOADED_AS = 'layer'\nVERSION = 4\n")
        self.succeed(*set_, "--no-layers", "--layer", self.path("second"), cli=self.alice)
        answer = self.answer("one")
        self.assertEqual((answer["here"], answer["version"]), ("second", 4))
        refused = self.alice.run(*set_, "--layer", self.path("none"))
        self.assert_refused(refused, FAILED, self.path("none"))
        self.assertEqual(self.function("one")["spec"]["layers"], [self.path("second")])

    def test_a_daemon_that_is_started_anew(self):
        deployed = self.deploy_app("one")["result"]
        token = self.answer("one")["token"]
        self.daemon.kill()
        # As a daemon that was killed leaves them.
        place = os.path.join(self.store, "functions", ".layers")
        left = os.path.join(place, str(ALICE), "0" * 64), os.path.join(place, "12345", "1" * 64)
        for folder in left:
            os.makedirs(folder)
        self.restart_daemon()
        self.alice = self.make_cli(host=self.daemon.host, uid=ALICE)
        waiting.until(lambda: (self.layers(), os.listdir(place)) == (deployed["layers"], [str(ALICE)]), "they have gone",
                      SECONDS)
        self.assertEqual(self.answer("one")["token"], token)
        self.assertEqual(self.deploy_app("two")["result"]["dependency_image"], deployed["dependency_image"])
        self.assertEqual(self.answer("two")["token"], token)

    def test_another_store_that_has_come_to_its_place_keeps_its_layers(self):
        """Of whose functions this daemon knows nothing."""
        theirs = self.deploy_app("theirs", "--deps", "none")["result"]["layers"]
        self.daemon.stop()
        other, own = self.store + ".other", self.store + ".own"
        os.rename(self.store, other)
        self.restart_daemon()
        self.alice = self.make_cli(host=self.daemon.host, uid=ALICE)
        self.install("their_library.py", _LIBRARY.format(version=2))
        self.deploy_app("own", "--deps", "none")
        os.rename(self.store, own)
        os.rename(other, self.store)
        built = self.succeed("deps", "build", "their_library", "--runtime", "python", "--venv", self.venv,
                             cli=self.alice)["result"]  # fmt: skip
        self.assertEqual(self.layers(), sorted(theirs + built["layers"]))
        self.succeed("deps", "rm", built["reference"], cli=self.alice)
        self.assertIn(theirs[0], self.layers())
        os.rename(self.store, other)
        os.rename(own, self.store)
        self.assertEqual(self.layers(), built["layers"])

    def test_an_image_that_was_removed_comes_back(self):
        image = self.deploy_app("one")["result"]["dependency_image"]
        first = self.answer("one")["token"]
        self.succeed("rm", image)
        self.end_instances("one")
        waiting.until(lambda: self.invoke("one", cli=self.alice)[1] and image in self.references(), "it is back",
                      SECONDS)
        waiting.until(lambda: self.function("one")["problem"] == "", "it is used", SECONDS)
        self.end_instances("one")
        self.assertNotEqual(self.answer("one")["token"], first)

    def test_an_upgrade_of_what_it_has_loaded(self):
        """Of the machine's: a module that a .pth file leads to."""
        outside = self.path("outside")
        os.mkdir(outside)
        os.chmod(outside, 0o755)
        module = os.path.join(outside, "editable.py")
        with open(module, "w", encoding="ascii") as file:
            file.write("VALUE = 1\n")
        self.install("editable.pth", outside + "\n")
        text = "import editable\n\n\ndef handler(event, context):\n    return editable.VALUE\n"
        deployed = self.deploy_app("one", text=text)
        self.assertEqual((deployed["warnings"], deployed["result"]["dependencies"]), ([], ["editable"]))
        self.assertEqual(self.answer("one"), 1)
        self.daemon.stop()
        with open(module, "w", encoding="ascii") as file:
            file.write("VALUE = 2222\n")
        self.restart_daemon()
        self.alice = self.make_cli(host=self.daemon.host, uid=ALICE)

        def seen():
            self.end_instances("one")
            answer, about = self.invoke("one", cli=self.alice)
            return answer == 2222 and about["start_level"] != "cold"

        waiting.until(seen, "the new one, from an image", SECONDS, 0.2)
        self.assertIn(f"{module} has changed", self.daemon.log_text())


class NodeTest(LayersTest):
    def test_two_functions_share_what_is_loaded(self):
        layer = self.path("layer")
        package = layer + "/nodejs/node_modules/@their/library"
        os.makedirs(package)
        with open(package + "/index.js", "w", encoding="ascii") as file:
            file.write("exports.token = require('fs').readFileSync('/proc/sys/kernel/random/uuid', 'ascii');\n")
        code = {"app.js": "const library = require('@their/library');\nexports.handler = async () => library.token;\n"}
        tokens, images = set(), set()
        for name, deps in (("one", "auto"), ("two", "@their/library")):
            deployed = self.deploy(name, "--layer", layer, "--deps", deps, runtime="nodejs", files=code, cli=self.alice)
            self.assertEqual((deployed["warnings"], deployed["result"]["dependencies"]), ([], ["@their/library"]))
            images.add(deployed["result"]["dependency_image"])
            tokens.add(self.answer(name))
        self.assertEqual((len(tokens), len(images), len(self.layers())), (1, 1, 1))
        self.assertTrue(images.pop().startswith(f"deps/u{ALICE}/nodejs:"))


class EnvironmentTest(LayersTest):
    def test_files_pth_are_honoured(self):
        self.install("inner.pth", "inner\n")
        self.install("code.pth", "import os; os.environ['FROM_PTH'] = 'yes'\n")
        self.install("inner/extra_library.py", "TOKEN = open('/proc/sys/kernel/random/uuid').read()\n")
        for deps in ("auto", "extra_library", "none"):
            for number in (1, 2):
                deployed = self.deploy_app(f"added-{deps}-{number}", "--deps", deps, text=_ADDED)
                self.assertEqual(deployed["warnings"], [], deps)
                self.assertEqual(deployed["result"]["dependencies"], [] if deps == "none" else ["extra_library"])
            one, two = (self.answer(f"added-{deps}-{number}") for number in (1, 2))
            self.assertEqual((one[1], two[1]), ("yes", "yes"), deps)
            self.assertEqual(one[0] == two[0], deps != "none", deps)

    def test_as_a_layer_among_others(self):
        """Later ones hide earlier ones; that one with --venv is the last."""
        layer = self.path("layer")
        os.makedirs(layer + "/python")
        for name in ("their_library", "only_here"):
            with open(f"{layer}/python/{name}.py", "w", encoding="ascii") as file:
                file.write("TOKEN = VERSION = LOADED_AS = 'layer'\n")
        text = "import only_here\n" + _APP
        for options, version in ((("--layer", layer, "--venv", self.venv), 1),
                                 (("--layer", self.venv, "--layer", layer), "layer")):  # fmt: skip
            deployed = self.deploy_app("many", "--replace", *options, text=text, venv=False)
            self.assertEqual(deployed["warnings"], [])
            self.assertEqual(deployed["result"]["dependencies"], ["only_here", "their_library"])
            self.assertEqual(self.answer("many")["version"], version)

    def test_what_is_no_virtual_environment_of_this_python(self):
        code = self.code("app", {"app.py": _APP})

        def refused(*options, runtime="python", words):
            deploy = ("fn", "deploy", "refused", "--runtime", runtime, "--handler", "app.handler", "--code", code)
            self.assert_refused(self.alice.run(*deploy, *options), USAGE, *words)

        other = self.path("other")
        os.makedirs(other + "/lib/python3.4/site-packages")
        open(other + "/pyvenv.cfg", "w", encoding="ascii").close()
        refused("--venv", other, words=("virtual environment of Python 3.4", f"is Python {VERSION}", "-m venv"))
        refused("--layer", other, words=("virtual environment of Python 3.4",))
        refused("--venv", code, words=("no virtual environment", "pyvenv.cfg", "--layer"))
        refused("--venv", self.venv, runtime="nodejs", words=("virtual environments are Python's",))
        os.makedirs(self.path("flat/numpy-1.0.dist-info"))
        refused("--layer", self.path("flat"), words=("neither a layer nor a virtual environment", "--target"))
        self.assertEqual(self.layers(), [])

    def test_a_module_that_cannot_be_loaded_ahead(self):
        """The function is deployed all the same, and a warning says why it has no more of it."""
        early = "import os\nif 'LAMBDA_TASK_ROOT' not in os.environ:\n    raise ValueError('too early')\n"
        self.install("their_library.py", early + _LIBRARY.format(version=1))
        for deps in ("auto", "their_library"):
            deployed = self.deploy_app("late", "--deps", deps, "--replace")
            self.assertIn("their_library", deployed["warnings"][0])
            self.assertIn("too early", deployed["warnings"][0])
            self.assertEqual(deployed["result"]["dependency_image"], "deps/python:bare")
            self.assertEqual(self.answer("late")["version"], 1)
        missing = ("fn", "deploy", "missing", "--runtime", "python", "--handler", "app.handler", "--code",
                   self.code("missing", {"app.py": _APP}), "--venv", self.venv, "--deps", "no_such_module")
        self.assert_refused(self.alice.run(*missing), USAGE, "no_such_module")


class LaterTest(LayersTest):
    """What could not be loaded ahead when it was deployed, for a reason that passes."""

    def deploy_without_room(self):
        """For the image, not for the code."""
        self.deploy("room", "--deps", "none")  # the bare image is there
        self.succeed("quota", "--store-max", str(8 << 20))
        deployed = self.deploy_app("late")
        self.assertIn("tried again in the background", deployed["warnings"][0])
        self.assertIn("8.0 MiB", deployed["warnings"][0])
        self.assertEqual(deployed["result"]["dependency_image"], "deps/python:bare")
        self.assertEqual(deployed["result"]["dependencies"], [])

    def wait_for_layers(self):
        image = waiting.until(lambda: self.layer_images(self.alice), "the image with its layers", SECONDS)[0]["reference"]
        waiting.until(lambda: self.function("late")["dependency_image"] == image, "it is the function's", SECONDS)
        self.assertEqual(self.function("late")["dependencies"], ["their_library"])
        self.assertEqual(self.function("late")["problem"], "")
        self.assertIn("'late' has its image with what it needs of its layers now", self.daemon.log_text())
        self.end_instances("late")
        first = self.answer("late")["token"]
        self.wait_for_image("late")
        self.end_instances("late")
        self.assertEqual(self.answer("late")["token"], first, "loaded once")

    def test_when_there_is_room(self):
        """Whoever makes another image wakes what waits for it."""
        self.deploy_without_room()
        problem = self.function("late")["problem"]
        for words in ("their_library", "tried again in the background: ", "8.0 MiB"):
            self.assertIn(words, problem)
        self.answer("late")
        self.succeed("quota", "--store-max", "none")
        self.succeed("deps", "build", "json", "--runtime", "python")
        self.wait_for_layers()

    def test_by_a_daemon_that_is_started_anew(self):
        self.deploy_without_room()
        self.daemon.stop()
        self.restart_daemon()
        self.alice = self.make_cli(host=self.daemon.host, uid=ALICE)
        waiting.until(lambda: "'late' has no image with what it needs of its layers still, and loads that by itself; it is "
                              "tried again in " in self.daemon.log_text(), "it was tried again", SECONDS)
        self.assertIn("8.0 MiB", self.function("late")["problem"])
        self.daemon.stop()
        self.succeed("quota", "--store-max", "none", cli=self.make_cli(store=self.store))
        self.restart_daemon()
        self.alice = self.make_cli(host=self.daemon.host, uid=ALICE)
        self.wait_for_layers()

    def test_by_other_settings(self):
        self.deploy_without_room()
        self.succeed("quota", "--store-max", "none")
        set_ = self.succeed("fn", "set", "late", "--memory", "600M", cli=self.alice)
        self.assertEqual((set_["warnings"], set_["result"]["dependencies"]), ([], ["their_library"]))
        self.assertTrue(set_["result"]["dependency_image"].startswith(f"deps/u{ALICE}/"))
        self.assertEqual(self.answer("late")["version"], 1)


class BuildTest(LayersTest):
    def test_an_image_that_is_built_first(self):
        build = ("deps", "build", "their_library", "--runtime", "python", "--venv", self.venv)
        built = self.succeed(*build, cli=self.alice)
        reference = built["result"]["reference"]
        self.assertEqual((built["unchanged"], built["result"]["owner_uid"]), (False, ALICE))
        self.assertTrue(self.succeed(*build, cli=self.alice)["unchanged"])
        self.assertEqual(self.deploy_app("one")["result"]["dependency_image"], reference)
        self.assertTrue(self.answer("one")["token"])
        # It was asked for by itself, and stays.
        self.succeed("fn", "rm", "one", cli=self.alice)
        self.daemon.stop()
        self.restart_daemon()
        self.alice = self.make_cli(host=self.daemon.host, uid=ALICE)
        self.assertEqual([image["reference"] for image in self.layer_images(self.alice)], [reference])
        self.assertEqual(self.layers(), built["result"]["layers"])
        shown = self.alice.run("deps", "ls", json_output=False).out
        self.assertIn(f"uid {ALICE}: {self.layers()[0][:8]}", shown)
        self.succeed("deps", "rm", reference, cli=self.alice)
        self.assertEqual((self.layers(), self.layer_images()), ([], []))

    def test_one_that_functions_have_already_stays_from_then_on(self):
        reference = self.deploy_app("one")["result"]["dependency_image"]
        build = ("deps", "build", "their_library", "--runtime", "python", "--venv", self.venv)
        self.assertEqual(self.succeed(*build, cli=self.alice)["result"]["reference"], reference)
        self.assertTrue(self.succeed(*build, cli=self.alice)["unchanged"])
        self.answer("one")
        self.succeed("fn", "rm", "one", cli=self.alice)
        self.assertEqual([image["reference"] for image in self.layer_images(self.alice)], [reference])

    def test_pruning(self):
        """What functions start from stays; what goes takes its layer along."""
        used = self.deploy_app("one")["result"]
        other = self.environment_of("other")
        self.install("extra_library.py", "VALUE = 1\n", other)
        unused = self.succeed("deps", "build", "extra_library", "--runtime", "python", "--venv", other,
                              cli=self.alice)["result"]  # fmt: skip
        self.assertEqual(self.layers(), sorted(used["layers"] + unused["layers"]))
        pruned = self.succeed("prune", "--all", "--keep-label", "no=such")
        reasons = {image["image"]["reference"]: image.get("reasons") for image in pruned["images"]}
        self.assertEqual(reasons[used["dependency_image"]], ["function 'one' starts from it"])
        self.assertEqual(reasons[unused["reference"]], [])
        self.assertNotIn(unused["reference"], self.references())
        self.end_instances("one")
        self.answer("one")
        self.daemon.stop()
        self.restart_daemon()
        waiting.until(lambda: self.layers() == used["layers"], "the layer of what was pruned has gone", SECONDS)

    def test_the_owners_quota(self):
        """A layer counts once, and images with modules of it."""
        user, cli = (ALICE, self.alice) if MAY_CAPTURE_OTHERS else (BOB, self.bob)
        with open(os.path.join(self.packages(), "data"), "wb") as file:
            file.truncate(8 << 20)
        self.deploy_app("one", "--deps", "none", cli=cli)
        self.succeed("quota", "--owner", user, "--max", "12M")
        self.deploy_app("two", "--deps", "none", cli=cli)
        if MAY_CAPTURE_OTHERS:
            warned = self.deploy_app("three", cli=cli)["warnings"]
            self.assertIn("quota", warned[0])
            self.assertIn("their_library", warned[0])
        self.install("more.py", "")
        code = self.code("four", {"app.py": _APP})
        refused = cli.run("fn", "deploy", "four", "--runtime", "python", "--handler", "app.handler", "--code", code,
                          "--venv", self.venv, "--deps", "none")
        self.assert_refused(refused, FAILED, f"quota of uid {user}")


if __name__ == "__main__":
    unittest.main()
