"""What each instance of a function has of its own, however it was started."""

import os
import signal
import socket
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
