"""A small server of the Lambda Runtime API, as the tests' other side, and a runtime running against it."""

import json
import os
import queue
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler

SECONDS = 60
ROOT = "/2018-06-01/runtime/"
ARN = "arn:aws:lambda:eu-central-1:123456789012:function:tested"
LARGEST_PAYLOAD = 6 * 1024 * 1024 + 1024


class Invocation:
    def __init__(self, payload, headers, seconds):
        self.id = str(uuid.uuid4())
        self.payload = payload
        self.deadline = time.time() + seconds
        self.headers = {
            "Lambda-Runtime-Aws-Request-Id": self.id,
            "Lambda-Runtime-Deadline-Ms": str(int(self.deadline * 1000)),
            "Lambda-Runtime-Invoked-Function-Arn": ARN,
            "Content-Type": "application/json",
            **headers,
        }
        self.over = threading.Event()
        self.given_up = False
        self.outcome = self.body = self.answer_headers = None

    def wait(self):
        """(outcome, body): `response` or `error`."""
        if not self.over.wait(SECONDS):
            raise TimeoutError("no answer to the invocation")
        return self.outcome, self.body

    def give_up(self):
        """Its time is over for the server: an answer is refused from now on."""
        self.given_up = True


class RuntimeApi:
    def __init__(self, address=("127.0.0.1", 0)):
        """`address`: a pair for TCP, a path for a Unix socket."""
        self.todo = queue.Queue()
        self.running = {}
        self.errors = queue.Queue()  # (path, headers, body) of init/error and restore/error
        self.refused = queue.Queue()  # paths
        self.connections = 0
        self.close_after_answer = False
        self.chunked = False
        self.drop_while_running = False  # as a server does that has idle connections closed
        base = socketserver.UnixStreamServer if isinstance(address, str) else socketserver.TCPServer
        self.server = type("Server", (_Server, base), {})(address, _Handler)
        self.server.api = self
        self.address = address if isinstance(address, str) else "%s:%d" % self.server.server_address
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close_now(self):
        """Who waits for an invocation is told the end."""
        self.todo.put(None)

    def close(self):
        self.close_now()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def begin(self, event=None, payload=None, headers=None, seconds=SECONDS):
        if payload is None:
            payload = json.dumps(event).encode()
        invocation = Invocation(payload, headers or {}, seconds)
        self.todo.put(invocation)
        return invocation

    def invoke(self, event=None, **options):
        """(outcome, the answer's JSON)."""
        outcome, body = self.begin(event, **options).wait()
        return outcome, json.loads(body)


class _Server(socketserver.ThreadingMixIn):
    daemon_threads = True

    def handle_error(self, request, client_address):
        # A runtime that is killed may leave unread what it was sent.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        self.disable_nagle_algorithm = not isinstance(self.server.server_address, str)
        super().setup()
        self.server.api.connections += 1

    def address_string(self):
        return "runtime"

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path != ROOT + "invocation/next":
            return self._answer(404, b"{}")
        invocation = self.server.api.todo.get()
        if invocation is None:
            self.server.api.todo.put(None)
            self.close_connection = True
            return None
        self.server.api.running[invocation.id] = invocation
        self.close_connection = self.server.api.drop_while_running
        return self._answer(200, invocation.payload, invocation.headers)

    def do_POST(self):
        api = self.server.api
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path in (ROOT + "init/error", ROOT + "restore/error"):
            api.errors.put((self.path[len(ROOT):], self.headers, json.loads(body)))
            return self._answer(202, b'{"status":"OK"}')
        _, _, rest = self.path.partition("invocation/")
        number, _, outcome = rest.partition("/")
        invocation = api.running.get(number)
        if invocation is None or invocation.given_up or outcome not in ("response", "error"):
            api.refused.put(self.path)
            return self._answer(400, b'{"errorType":"InvalidRequestID","errorMessage":"Invalid request ID"}')
        if len(body) > LARGEST_PAYLOAD:
            api.refused.put(self.path)
            return self._answer(413, b'{"errorType":"RequestEntityTooLarge"}')
        invocation.outcome, invocation.body, invocation.answer_headers = outcome, body, self.headers
        self._answer(202, b'{"status":"OK"}')
        return invocation.over.set()

    def _answer(self, status, body, headers=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            # http.server takes latin-1 only; the bytes are UTF-8.
            self.send_header(name, value.encode().decode("latin-1"))
        if self.server.api.close_after_answer:
            self.send_header("Connection", "close")
        if self.server.api.chunked:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for at in range(0, len(body), 1000):
                piece = body[at:at + 1000]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)


class Runtime:
    """A runtime's process; its output is in a file, as a function's log would be."""

    def __init__(self, argv, environment):
        self._log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", **environment},
        )

    def log(self):
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def wait(self):
        """Its exit status."""
        return self.process.wait(SECONDS)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()
