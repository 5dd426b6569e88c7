"""Functions whose libraries, which their images have loaded, are upgraded."""

import json
import os
import shutil
import signal
import subprocess
import sysconfig
import unittest

from harness import jobs, procfs, waiting
from harness.functions import FROM_OWN_IMAGE, SECONDS, FunctionsTest

# Where an administrator installs modules.
PACKAGES = sysconfig.get_path("purelib", "posix_local")
MODULE = "rekindle_test_library"
# A module that maps data, as the C library does its locales.
MAPPED = f"""
import ctypes, os
_data = os.open("{PACKAGES}/data.bin", os.O_RDONLY)
SIZE = os.fstat(_data).st_size
_mmap = ctypes.CDLL(None).mmap
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
_mmap.restype = ctypes.c_void_p
assert _mmap(None, SIZE, 1, 2, _data, 0) != ctypes.c_void_p(-1).value
os.close(_data)


def value():
    return SIZE
"""
APP = f"import {MODULE}\ndef handler(event, context):\n    return {MODULE}.value()\n"
UPGRADED = "import json\ndef handler(event, context):\n    return hasattr(json, 'rekindle_test')\n"
NATIVE = f"""
import ctypes
value = ctypes.CDLL("{PACKAGES}/lib{MODULE}.so").value
"""


class UpgradeTest(FunctionsTest):
    def setUp(self):
        os.makedirs(PACKAGES, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", PACKAGES], check=True)
        self.addCleanup(subprocess.run, ["umount", "--lazy", PACKAGES], check=True)
        super().setUp()

    def install(self, name, content):
        """As package managers do: under another name first."""
        path = os.path.join(PACKAGES, name)
        with open(path + ".new", "wb") as file:
            file.write(content)
        os.rename(path + ".new", path)

    def install_python(self, value):
        self.install(MODULE + ".py", f"def value():\n    return {value}\n".encode())

    def install_native(self, value):
        source, library = self.path("library.c"), self.path("library.so")
        with open(source, "w", encoding="ascii") as file:
            file.write(f"int value(void) {{ return {value}; }}\n")
        subprocess.run(["gcc", "-shared", "-Wl,--build-id", "-o", library, source], check=True)
        with open(library, "rb") as file:
            self.install(f"lib{MODULE}.so", file.read())

    def digest(self, reference):
        return next(one["digest"] for one in self.succeed("ls")["images"] if one["reference"] == reference)

    def end_instance(self, name):
        for pid in self.runtimes():
            os.kill(pid, signal.SIGKILL)
        self.wait_for_no_instance(name)

    def wait_for_value(self, name, value):
        """From an image."""
        def seen():
            self.end_instance(name)
            answer, about = self.invoke(name)
            return answer == value and about["start_level"] != "cold"

        waiting.until(seen, f"{value} from an image", SECONDS, 0.2)

    def test_a_module(self):
        """Nothing but what it says would be another one: no start is refused."""
        self.install_python(1)
        reference = self.deploy("plain", "--deps", MODULE, files={"app.py": APP})["result"]["dependency_image"]
        self.assertEqual(self.invoke("plain")[0], 1)
        self.wait_for_image("plain")
        before = self.digest(reference)
        self.assertTrue(self.succeed("deps", "build", MODULE, "--runtime", "python")["unchanged"])
        self.daemon.stop()
        self.install_python(2222)
        self.restart_daemon()
        waiting.until(lambda: self.digest(reference) != before, "the image is made anew", SECONDS)
        self.assertIn(f"'{reference}' is made anew: {PACKAGES}/{MODULE}.py has changed", self.daemon.log_text())
        self.wait_for_value("plain", 2222)
        after = self.digest(reference)
        # Nothing else has changed.
        self.deploy("other", "--deps", MODULE, files={"app.py": APP})
        self.wait_for_value("other", 2222)
        self.assertEqual((self.digest(reference), self.daemon.log_text().count("is made anew")), (after, 1))

    def test_whoever_asks_for_the_image_gets_a_new_one(self):
        self.install_python(1)
        build = ("deps", "build", MODULE, "--runtime", "python")
        built = self.succeed(*build)
        before = self.digest(built["result"]["reference"])
        self.install_python(22)
        self.assertEqual((built["unchanged"], self.succeed(*build)["unchanged"]), (False, False))
        self.assertNotEqual(self.digest(built["result"]["reference"]), before)
        self.deploy("plain", "--deps", MODULE, files={"app.py": APP})
        self.assertEqual(self.invoke("plain")[0], 22)

    def test_what_an_image_is_to_lie_on(self):
        """It is made anew first, and functions that start from it go on with the new one."""
        bare = self.deploy("plain", "--deps", "none", files={"app.py": UPGRADED})["result"]["dependency_image"]
        self.assertEqual(self.invoke("plain")[0], False)
        self.wait_for_image("plain")
        before = self.digest(bare)
        self.install_python(1)
        upgraded = self.path("upgraded.py")
        shutil.copyfile(json.__file__, upgraded)
        with open(upgraded, "a", encoding="ascii") as file:
            file.write("rekindle_test = True\n")
        subprocess.run(["mount", "--bind", upgraded, json.__file__], check=True)
        self.addCleanup(subprocess.run, ["umount", "--lazy", json.__file__], check=True)
        self.succeed("deps", "build", MODULE, "--runtime", "python")
        self.assertNotEqual(self.digest(bare), before)
        self.wait_for_value("plain", True)
        self.assertEqual(self.function("plain")["problem"], "")

    def test_a_library_that_is_mapped(self):
        """Images are refused then. The first call is answered all the same, and later ones come from an image again."""
        self.install_native(1)
        self.install(MODULE + ".py", NATIVE.encode())
        self.deploy("native", "--deps", MODULE, files={"app.py": APP})
        self.assertEqual(self.invoke("native")[0], 1)
        self.wait_for_image("native")
        self.end_instance("native")
        self.assertIn(self.invoke("native")[1]["start_level"], FROM_OWN_IMAGE)
        self.install_native(2)
        # Templates are processes that have the old one.
        for pid in procfs.descendants(self.daemon.pid):
            if "bootstrap.py" in procfs.command_line(pid):
                os.kill(pid, signal.SIGKILL)
        self.wait_for_no_instance("native")
        self.assertEqual(self.invoke("native")[0], 2)
        self.wait_for_value("native", 2)
        self.assertEqual(self.function("native")["problem"], "")
        self.wait_for_image("native")
        self.end_instance("native")
        answer, about = self.invoke("native")
        self.assertEqual(answer, 2)
        self.assertIn(about["start_level"], FROM_OWN_IMAGE)

    def test_data_that_is_mapped(self):
        """Images are refused then, though nobody has noted it when they were made; those they lie on, too."""
        page = os.sysconf("SC_PAGE_SIZE")
        self.install("data.bin", bytes(page))
        self.install(MODULE + ".py", MAPPED.encode())
        self.succeed("deps", "build", MODULE, "--runtime", "python")
        self.deploy("mapped", "--deps", f"{MODULE},colorsys", files={"app.py": APP})
        self.assertEqual(self.invoke("mapped")[0], page)
        self.wait_for_image("mapped")
        self.daemon.stop()
        self.install("data.bin", bytes(2 * page))
        self.restart_daemon()
        self.assertEqual(self.invoke("mapped")[0], 2 * page)
        self.wait_for_value("mapped", 2 * page)
        self.assertEqual(self.function("mapped")["problem"], "")
        self.wait_for_image("mapped")

    def test_one_that_is_gone(self):
        """The function goes on as long as it can; the failure is told, and the image made when that is possible again."""
        self.install_python(1)
        reference = self.deploy("plain", "--deps", MODULE, files={"app.py": APP})["result"]["dependency_image"]
        self.daemon.stop()
        os.unlink(os.path.join(PACKAGES, MODULE + ".py"))
        self.restart_daemon()
        waiting.until(lambda: "could not be made anew" in self.daemon.log_text(), "it is told", SECONDS)
        self.assertIn(f"{MODULE}.py is not there any more", self.daemon.log_text())
        self.assertEqual(self.invoke("plain")[0], 1)
        self.assertIn(reference, self.references())

    def test_one_that_was_removed_comes_back_for_all_who_can_have_it(self):
        """The first of them needs a module that is not installed any more."""
        self.install_python(1)
        shared = self.deploy("a-needs-it", "--deps", f"json,{MODULE}", files={"app.py": APP})["result"]["dependency_image"]
        self.deploy("b-does-not", "--deps", "json", files={"app.py": UPGRADED})
        self.assertEqual(self.function("b-does-not")["dependency_image"], shared)
        self.daemon.stop()
        os.unlink(os.path.join(PACKAGES, MODULE + ".py"))
        self.restart_daemon()
        self.succeed("rm", shared)
        waiting.until(lambda: self.function("b-does-not")["dependency_image"] != shared, "it has another one", 3 * SECONDS)
        self.assertEqual(self.function("a-needs-it")["dependency_image"], shared)
        waiting.until(lambda: "for function 'a-needs-it': " in self.daemon.log_text(), "it is told", SECONDS)

    def test_a_clock_that_is_behind_the_files(self):
        """As after a start of the machine, before anybody has set it."""
        self.install_python(1)
        self.daemon.stop()
        self.environment["LD_PRELOAD"] = jobs.program("earlier_clock.so")
        self.restart_daemon()
        build = ("deps", "build", MODULE, "--runtime", "python")
        self.assertEqual([self.succeed(*build)["unchanged"] for _ in range(2)], [False, True])
        self.deploy("plain", "--deps", MODULE, files={"app.py": APP})
        self.assertNotEqual(self.invoke("plain")[1]["start_level"], "cold")


if __name__ == "__main__":
    unittest.main()
