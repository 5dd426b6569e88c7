"""What modules, and functions, have in their /tmp, /var/tmp and /dev/shm once they are loaded is in each instance, its own."""

import contextlib
import os
import signal
import tempfile
import unittest

from harness import procfs, waiting
from harness.cli import FAILED
from harness.functions import FROM_OWN_IMAGE, SECONDS, FunctionsTest

ALICE = 12345
_CAP_SYS_RESOURCE = 24
_MODULES = "/usr/lib/python3/dist-packages"
_FROM_DEPENDENCIES = ("dependency-template", "dependency-memory", "dependency-disk")

# Each has `change(text)`, which returns what was there before.
_DELETED = """import tempfile

_file = tempfile.TemporaryFile(dir={folder!r})
_file.write(b"loaded")
_file.flush()


def change(text):
    _file.seek(0)
    before = _file.read().decode()
    _file.seek(0)
    _file.truncate()
    _file.write(text.encode())
    _file.flush()
    return before
"""
_MAPPED = """import mmap
import os

_fd = os.open({folder!r} + "/mapped", os.O_RDWR | os.O_CREAT | os.O_EXCL)
os.truncate(_fd, 3 * 4096)
_memory = mmap.mmap(_fd, 3 * 4096, flags=mmap.{kind})
_memory[4096:4102] = b"loaded"
os.close(_fd)
os.unlink({folder!r} + "/mapped")


def change(text):
    before = bytes(_memory[4096:5000]).rstrip(b"\\0").decode()
    _memory[4096:5000] = text.encode().ljust(904, b"\\0")
    return before
"""
_LEFT = """import os

_path = {folder!r} + "/rekindle-it/left"
os.mkdir(os.path.dirname(_path))
os.chmod(os.path.dirname(_path), 0o1777)
with open(_path, "w") as file:
    file.write("loaded")
os.chmod(_path, 0o666)
os.utime(_path, (1, 7))
os.symlink("left", _path + ".link")
{more}

def change(text):
    with open(_path + ".link") as file:
        before = file.read()
    info = os.stat(_path)
    if before == "loaded":
        assert (info.st_mode & 0o7777, info.st_mtime) == (0o666, 7), info
    with open(_path, "w") as file:
        file.write(text)
    return before
"""
_OPEN = """import fcntl

_file = open({folder!r} + "/open", "w+")
fcntl.flock(_file, fcntl.LOCK_EX)
_file.write("loaded")
_file.flush()


def change(text):
    _file.seek(0)
    before = _file.read()
    with open({folder!r} + "/open") as file:
        assert file.read() == before
    _file.seek(0)
    _file.truncate()
    _file.write(text)
    _file.flush()
    return before
"""
_LISTENS = """import os
import socket

os.mkdir("/tmp/rekindle-it")
_path = "/tmp/rekindle-it/socket"
_listener = socket.socket(socket.AF_UNIX)
_listener.bind(_path)
_listener.listen()
_last = "loaded"


def change(text):
    global _last
    client = socket.socket(socket.AF_UNIX)
    client.connect(_path)
    client.sendall(_last.encode())
    server, _ = _listener.accept()
    _last = text
    return server.recv(1000).decode()
"""
_SEMAPHORE = """import multiprocessing

_semaphore = multiprocessing.Semaphore(7)


def change(text):
    taken = 0
    while _semaphore.acquire(False):
        taken += 1
    return "loaded" if taken == 7 else str(taken)
"""
# Another process finds it by its name.
_NAMED = """import subprocess
from multiprocessing import shared_memory

_memory = shared_memory.SharedMemory(create=True, size=60 << 20)
_memory.buf[:] = b"x" * (60 << 20)
_memory.buf[:10] = b"loaded    "


def change(text):
    read = subprocess.run(["head", "-c", "11", "/dev/shm/" + _memory.name], stdout=subprocess.PIPE, check=True)
    _memory.buf[:10] = text.encode().ljust(10)
    assert read.stdout.endswith(b"x")
    return read.stdout[:10].decode().rstrip()
"""
# Compiled code that was unpacked.
_UNPACKED = """import ctypes
import os
import shutil

_path = "/tmp/rekindle-it.so"
shutil.copy({library!r}, _path)
_library = ctypes.CDLL(_path)
_last = "loaded"


def change(text):
    global _last
    assert _library.getpid() == os.getpid()
    assert ctypes.CDLL(_path).getpid() == os.getpid()
    before, _last = _last, text
    return before
"""
# It takes a while to load: so instances are started from an image of its own once there is one.
_HANDLER = """import os
import time

import {module}

time.sleep(0.3)


def handler(event, context):
    before = {module}.change(event["text"])
    if "fifo" in event:
        open(event["began"], "w").close()
        open(event["fifo"]).read()
    return before
"""
_NODE = """
const fs = require('fs');
fs.writeFileSync('/tmp/left', 'loaded');
const open = fs.openSync('/tmp/deleted', 'w+');
fs.writeSync(open, 'loaded', 0);
fs.unlinkSync('/tmp/deleted');

exports.change = (text) => {
  const buffer = Buffer.alloc(100);
  const before = buffer.toString('utf8', 0, fs.readSync(open, buffer, 0, 100, 0));
  const left = fs.readFileSync('/tmp/left', 'utf8');
  fs.writeFileSync('/tmp/left', text);
  fs.ftruncateSync(open);
  fs.writeSync(open, text, 0);
  return before === left ? before : before + ' and ' + left;
};
"""
_NODE_HANDLER = """
const fs = require('fs');
const module_ = require('{module}');
for (const until = Date.now() + 300; Date.now() < until;) {{
}}

exports.handler = async (event) => {{
  const before = module_.change(event.text);
  if (event.fifo) {{
    fs.writeFileSync(event.began, '');
    await fs.promises.readFile(event.fifo);
  }}
  return before;
}};
"""
_READS = """
with open("/tmp/read", "w") as file:
    file.write("loaded")
_file = open("/tmp/read")
"""
_WORKS_THERE = """import os

os.mkdir("/tmp/folder")
_folder = os.open("/tmp/folder", os.O_RDONLY | os.O_DIRECTORY)
"""
_MUCH = """import os

os.mkdir("/tmp/cache")
with open("/tmp/cache/much", "wb") as file:
    file.write(bytes({mib} << 20))


def change(text):
    return str(os.path.getsize("/tmp/cache/much"))
"""


class Loaded(FunctionsTest):
    @contextlib.contextmanager
    def module(self, source, folder=_MODULES, file="__init__.py"):
        """The name of a module of the machine's."""
        with tempfile.TemporaryDirectory(prefix="rekindle", dir=folder) as place:
            os.chmod(place, 0o755)
            with open(os.path.join(place, file), "w", encoding="utf-8") as out:
                out.write(source)
            yield os.path.basename(place)

    def build(self, module):
        """The image's name."""
        self.succeed("deps", "build", module, "--runtime", "python")
        return next(image["reference"] for image in self.succeed("deps", "ls")["images"] if image["modules"] == [module])

    def setUp(self):
        super().setUp()
        self.before = self.names()

    def names(self):
        """In the machine's folders."""
        return {
            folder: {name for name in os.listdir(folder) if not name.startswith("rekindle-restore-")}
            for folder in ("/tmp", "/var/tmp", "/dev/shm")}

    def end_instances(self, name):
        for pid in self.runtimes():
            os.kill(pid, signal.SIGKILL)
        self.wait_for_no_instance(name)

    def check_each_has_its_own(self, name, levels, cli=None):
        """Two at a time, and one after them."""
        fifo, began = self.path(name + ".fifo"), self.path(name + ".began")
        os.mkfifo(fifo)
        os.chmod(fifo, 0o666)
        call = self.begin_invoke(name, {"text": "first", "fifo": fifo, "began": began}, cli=cli)
        waiting.until(lambda: os.path.exists(began) or call.poll() is not None, "in work", SECONDS)
        before, how = self.invoke(name, {"text": "second"}, cli=cli)
        self.assertEqual((before, how["start_level"] in levels), ("loaded", True), how)
        with open(fifo, "w", encoding="ascii"):
            pass
        self.assertEqual(self.end_invoke(call), "loaded")
        os.unlink(fifo)
        os.unlink(began)
        self.end_instances(name)
        before, how = self.invoke(name, {"text": "third"}, cli=cli)
        self.assertEqual((before, how["start_level"] in levels), ("loaded", True), how)
        self.assertEqual(self.names(), self.before)


class ModuleTest(Loaded):
    """That are loaded into a dependency image."""

    def check(self, source, changed="second"):
        with self.module(source) as module:
            self.deploy("f", "--deps", module, files={"app.py": _HANDLER.format(module=module)})
            self.check_each_has_its_own("f", _FROM_DEPENDENCIES + FROM_OWN_IMAGE)
            self.wait_for_image("f")
            self.end_instances("f")
            self.check_each_has_its_own("f", FROM_OWN_IMAGE)
            if changed:
                self.assertEqual(self.invoke("f", {"text": "fourth"})[0], "third")
            self.assertFalse(self.function("f").get("problem"))

    def test_deleted_files_that_are_open(self):
        for folder in ("/tmp", "/var/tmp", "/dev/shm"):
            with self.subTest(folder):
                self.check(_DELETED.format(folder=folder))
                self.succeed("fn", "rm", "f")

    def test_deleted_files_that_are_mapped(self):
        for folder in ("/tmp", "/dev/shm"):
            for kind in ("MAP_SHARED", "MAP_PRIVATE"):
                with self.subTest(folder=folder, kind=kind):
                    self.check(_MAPPED.format(folder=folder, kind=kind))
                    self.succeed("fn", "rm", "f")

    def test_files_that_lie_there(self):
        for folder in ("/tmp", "/var/tmp", "/dev/shm"):
            with self.subTest(folder):
                self.check(_LEFT.format(folder=folder, more=""))
                self.succeed("fn", "rm", "f")

    def test_open_files(self):
        for folder in ("/tmp", "/dev/shm"):
            with self.subTest(folder):
                self.check(_OPEN.format(folder=folder))
                self.succeed("fn", "rm", "f")

    def test_sockets(self):
        self.check(_LISTENS)

    def test_semaphores(self):
        self.check(_SEMAPHORE, changed=None)

    def test_libraries_that_were_unpacked(self):
        with open("/proc/self/maps", encoding="ascii") as maps:
            library = next(line.split()[-1] for line in maps if "/libc.so" in line or "/libc-" in line)
        self.check(_UNPACKED.format(library=library))

    def test_others_find_nothing_and_are_in_nobodys_way(self):
        """Who has put files of these names into the machine's folders."""
        planted = ["/tmp/open", "/var/tmp/open", "/dev/shm/open"] + [f"/tmp/#{n}.cr.1.ghost" for n in range(1, 20)]
        for path in planted:
            with open(path, "w", encoding="ascii") as file:
                file.write("planted")
            self.addCleanup(os.unlink, path)
            os.chown(path, ALICE, ALICE)
        self.before = self.names()
        self.check(_DELETED.format(folder="/tmp"))
        self.succeed("fn", "rm", "f")
        self.check(_OPEN.format(folder="/tmp"))
        for path in planted:
            with open(path, encoding="ascii") as file:
                self.assertEqual(file.read(), "planted")
            self.assertEqual(os.stat(path).st_uid, ALICE)

    def test_of_others(self):
        """Instances that run as their owner, who gets what root has left for him: it were his, had he loaded it."""
        alice = self.make_cli(host=self.daemon.host, uid=ALICE)
        os.chmod(self.directory, 0o777)
        secret = "with open('/tmp/secret', 'w') as file:\n    os.chmod('/tmp/secret', 0o600)\n"
        for source in (_LEFT.format(folder="/tmp", more=secret), _DELETED.format(folder="/tmp") + "import os\n" + secret):
            with self.subTest(source), self.module(source) as module:
                files = {"app.py": _HANDLER.format(module=module).replace(
                    "    before =", "    assert os.stat('/tmp/secret').st_uid == os.getuid() and os.access('/tmp/secret', os.R_OK)\n"
                    "    before =")}
                self.deploy("f", "--deps", module, files=files, cli=alice)
                self.check_each_has_its_own("f", _FROM_DEPENDENCIES + FROM_OWN_IMAGE, cli=alice)
                if procfs.has_capability(_CAP_SYS_RESOURCE):
                    self.wait_for_image("f")
                    self.end_instances("f")
                    self.check_each_has_its_own("f", FROM_OWN_IMAGE, cli=alice)
                self.succeed("fn", "rm", "f", cli=alice)

    def test_modules_on_top_of_others(self):
        with self.module(_LEFT.format(folder="/tmp", more="")) as below, \
                self.module(_LEFT.format(folder="/dev/shm", more=f"import {below}")) as module:
            self.succeed("deps", "build", below, "--runtime", "python")
            self.succeed("deps", "build", below, module, "--runtime", "python")
            for name in (below, module):
                with self.subTest(name):
                    self.deploy(name, "--deps", f"{below},{module}", files={"app.py": _HANDLER.format(module=name)})
                    self.check_each_has_its_own(name, _FROM_DEPENDENCIES + FROM_OWN_IMAGE)

    def test_copies_by_hand(self):
        with self.module(_LEFT.format(folder="/tmp", more="")) as module:
            up = self.succeed("template", "up", self.build(module), "--name", "t")
            root = f"/proc/{up['pid']}/root"
            for folder in ("/tmp", "/var/tmp"):
                with open(f"{root}{folder}/rekindle-it/left", encoding="ascii") as file:
                    self.assertEqual(file.read(), "loaded")
            self.assertTrue(os.path.islink(root + "/tmp/rekindle-it/left.link"))
            self.succeed("template", "down", "t")

    def test_after_the_daemon_was_killed(self):
        with self.module(_LEFT.format(folder="/tmp", more="")) as module:
            self.deploy("f", "--deps", module, files={"app.py": _HANDLER.format(module=module)})
            self.check_each_has_its_own("f", _FROM_DEPENDENCIES + FROM_OWN_IMAGE)
            self.wait_for_image("f")
            self.daemon.kill()
            self.restart_daemon()
            self.check_each_has_its_own("f", FROM_OWN_IMAGE)

    def test_too_much(self):
        with self.module(_MUCH.replace("{mib}", "33")) as module:
            refused = self.cli.run("deps", "build", module, "--runtime", "python")
            self.assert_refused(refused, FAILED, "/tmp/cache", "33.0 MiB", "32.0 MiB", module)
            deployed = self.deploy("f", "--deps", module, files={"app.py": _HANDLER.format(module=module)})
            self.assertIn("/tmp/cache", deployed["warnings"][0])
            self.assertIn("starts from nothing", deployed["warnings"][0])
            self.assertEqual(self.invoke("f", {"text": ""})[0], str(33 << 20))
        self.assertEqual(self.names(), self.before)


class TemplateTest(Loaded):
    def check(self, source, levels=("dependency-template", "template")):
        with self.module(source) as module:
            self.deploy("f", "--deps", module, files={"app.py": _HANDLER.format(module=module)})
            seen = set()
            for _ in range(60):
                before, how = self.invoke("f", {"text": "first"})
                self.assertEqual(before, "loaded", how)
                self.end_instances("f")
                seen.add(how["start_level"])
                if how["start_level"] == "template":
                    break
            self.assertIn("template", seen)
            self.check_each_has_its_own("f", ("template",))

    def test_files_that_lie_there(self):
        for folder in ("/tmp", "/dev/shm"):
            with self.subTest(folder):
                self.check(_LEFT.format(folder=folder, more=""))
                self.succeed("fn", "rm", "f")

    def test_open_files_are_no_templates(self):
        """A copy would have the template's file."""
        source = _OPEN.format(folder="/tmp").replace("fcntl.flock(_file, fcntl.LOCK_EX)\n", "")
        with self.module(source) as module:
            image = self.build(module)
            up = self.succeed("template", "up", image, "--name", "t")
            self.assertIn("/tmp/open", up["refusal"], up)

    def test_nor_is_what_only_reads_them(self):
        for source, name in ((_READS, "/tmp/read"), (_WORKS_THERE, "/tmp/folder")):
            with self.subTest(source), self.module(source) as module:
                image = self.build(module)
                up = self.succeed("template", "up", image, "--name", os.path.basename(name))
                self.assertIn(name, up["refusal"], up)


class FunctionTest(Loaded):
    """What the function itself leaves."""

    def check_python(self, source):
        with self.subTest(source):
            self.deploy("f", "--deps", "none", files={"app.py": _HANDLER.format(module="own"), "own.py": source})
            self.check_each_has_its_own("f", _FROM_DEPENDENCIES + FROM_OWN_IMAGE)
            self.wait_for_image("f")
            self.end_instances("f")
            self.check_each_has_its_own("f", FROM_OWN_IMAGE)
            self.succeed("fn", "rm", "f")

    def test_python(self):
        for source in (_LEFT.format(folder="/tmp", more=""), _DELETED.format(folder="/tmp"),
                       _OPEN.format(folder="/var/tmp"), _LEFT.format(folder="/dev/shm", more=""),
                       _DELETED.format(folder="/dev/shm"), _OPEN.format(folder="/dev/shm")):
            self.check_python(source)

    def test_shared_memory(self):
        """What is mapped, with and without a name, and more of it than an image takes of other files."""
        for source in (_MAPPED.format(folder="/dev/shm", kind="MAP_SHARED"), _NAMED, _SEMAPHORE):
            self.check_python(source)

    def test_too_much(self):
        files = {"app.py": _HANDLER.format(module="own"), "own.py": _MUCH.replace("{mib}", "49")}
        self.deploy("f", "--deps", "none", files=files)
        self.assertEqual(self.invoke("f", {"text": ""})[0], str(49 << 20))
        problem = waiting.until(lambda: self.function("f").get("problem"), "its image refused", SECONDS)
        self.assertIn("/tmp/cache", problem)
        self.assertIn("register_before_snapshot", problem)
        self.end_instances("f")
        self.assertEqual(self.invoke("f", {"text": ""})[0], str(49 << 20))
        self.assertEqual(self.cli.run("fn", "logs", "f").out.count("register_before_snapshot"), 1)

    def test_node(self):
        files = {"app.js": _NODE_HANDLER.format(module="./own.js"), "own.js": _NODE}
        self.deploy("f", "--deps", "none", runtime="nodejs", files=files)
        self.check_each_has_its_own("f", _FROM_DEPENDENCIES + FROM_OWN_IMAGE)
        self.wait_for_image("f")
        self.end_instances("f")
        self.check_each_has_its_own("f", FROM_OWN_IMAGE)


if __name__ == "__main__":
    unittest.main()
