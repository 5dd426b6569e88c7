"""Keys of the daemon's session (keyrings(7)) are not for those whose programs it runs: whoever has the keyring may read
them, as any user.
"""

import ctypes
import os
import platform
import signal
import unittest

from harness import jobs, waiting
from harness.functions import FunctionsTest

ALICE = 65533
_NAME = "rekindle-test-key-of-the-daemon"
_KEYCTL, _ADD_KEY = (250, 248) if platform.machine() == "x86_64" else (219, 217)
_JOIN_SESSION_KEYRING, _SEARCH, _SESSION = 1, 10, -3

# Whether this process has the key.
_HAS_KEY = f"""import ctypes, os, sys

def has_key():
    return ctypes.CDLL(None).syscall({_KEYCTL}, {_SEARCH}, ctypes.c_long({_SESSION}), b"user", b"{_NAME}", 0) > 0
"""
_APP = _HAS_KEY + """
def handler(event, context):
    return {"has": has_key(), "pid": os.getpid(), "space": os.readlink("/proc/self/ns/pid"), "uid": os.getuid()}
"""
# Makes a file of the name that is written to its FIFO, which says whether it has the key.
_LOOKS = _HAS_KEY + """
while True:
    with open(sys.argv[1]) as fifo:
        name = fifo.read()
    with open(name + ".new", "w") as out:
        out.write(str(has_key()))
    os.rename(name + ".new", name)
"""


def _syscall(*arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(*arguments)
    if result < 0:
        raise unittest.SkipTest(f"keys can't be used here: {os.strerror(ctypes.get_errno())}")
    return result


class KeyringTest(FunctionsTest):
    def setUp(self):
        _syscall(_KEYCTL, _JOIN_SESSION_KEYRING, None)
        _syscall(_ADD_KEY, b"user", _NAME.encode(), b"secret", ctypes.c_size_t(6), ctypes.c_long(_SESSION))
        super().setUp()
        self.alice = self.make_cli(host=self.daemon.host, uid=ALICE)

    def test_functions(self):
        for name, options in (("cold", ("--no-image",)), ("copied", ())):
            self.deploy(name, *options, files={"app.py": _APP}, cli=self.alice)
            levels = set()
            for _ in range(6):  # from an image, and from a template
                seen, how = self.invoke(name, cli=self.alice)
                self.assertEqual(seen["uid"], ALICE)
                self.assertFalse(seen["has"], how)
                levels.add(how["start_level"])
                os.kill(self.process_of(seen), signal.SIGKILL)
                self.wait_for_no_instance(name)
            self.assertEqual("cold" in levels, name == "cold", levels)

    def looking(self):
        fifo = self.path("fifo")
        os.mkfifo(fifo)
        os.mkdir(self.path("seen"))
        for path in (fifo, self.path("seen")):
            os.chmod(path, 0o777)
        return [jobs.PYTHON, "-c", _LOOKS, fifo]

    def seen_by_job(self, name):
        path = self.path("seen/" + name)
        with open(self.path("fifo"), "w", encoding="ascii") as file:
            file.write(path)
        waiting.until(lambda: os.path.exists(path), "the job has looked")
        with open(path, encoding="ascii") as file:
            return file.read()

    def test_jobs_of_users(self):
        self.succeed("run", "--detach", "--name", "keys", "--", *self.looking(), cli=self.alice)
        self.addCleanup(self.alice.run, "stop", "keys", "--grace", "1s")
        self.assertEqual(self.seen_by_job("started"), "False")

    def test_what_is_restored(self):
        job = self.start_job(self.looking())
        self.assertEqual(self.seen_by_job("before"), "True", "it has the session of the test")
        self.checkpoint(job.pid, "keys:one", "--stop")
        job.reap()
        self.restore("keys:one")
        self.assertEqual(self.seen_by_job("after"), "False")


if __name__ == "__main__":
    unittest.main()
