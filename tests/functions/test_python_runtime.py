"""Parts of the Python runtime, without a server that runs functions."""

import logging
import os
import socket
import subprocess
import sys
import tempfile
import unittest

RUNTIME = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "functions", "runtimes", "python")


def run(program, **environment):
    """What it writes."""
    done = subprocess.run([sys.executable, "-B", "-c", program], env={**os.environ, "PYTHONPATH": RUNTIME, **environment},
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout


class PythonRuntimeTest(unittest.TestCase):
    def test_a_function_whose_sockets_have_a_default_timeout(self):
        """The next event may be longer in coming."""
        program = ("import socket; socket.setdefaulttimeout(1); from rekindle_lambda.api import RuntimeApi; "
                   "api = RuntimeApi(); api._connect(); print(api._socket.gettimeout())")  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="rekindle-runtime.") as folder, \
                socket.socket(socket.AF_UNIX) as unix, socket.create_server(("127.0.0.1", 0)) as tcp:  # fmt: skip
            unix.bind(os.path.join(folder, "socket"))
            unix.listen()
            for name, address in (("REKINDLE_RUNTIME_SOCKET", unix.getsockname()),
                                  ("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:%d" % tcp.getsockname()[1])):  # fmt: skip
                with self.subTest(address):
                    self.assertEqual(run(program, **{name: address}), "None\n")

    def test_what_is_logged_behind_a_traceback_begins_a_line(self):
        lines = run("""
import logging
from rekindle_lambda import logs
logs.install()
try:
    1 / 0
except ZeroDivisionError:
    logging.exception("failed")
logging.warning("next")
""").split("\n")
        levels = [line.split("\t")[0] for line in lines if line.startswith("[")]
        self.assertEqual(levels, ["[%s]" % logging.getLevelName(level) for level in (logging.ERROR, logging.WARNING)])
        self.assertIn("ZeroDivisionError: division by zero", lines)
        self.assertEqual(lines[-1], "")


if __name__ == "__main__":
    unittest.main()
