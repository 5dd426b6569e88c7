"""The Lambda Runtime API's client: one kept connection, HTTP/1.1 written and read by hand.

http.client and what it imports take longer to load than most handlers take to run, and several writes a request.
"""

import os
import sys

# The module behind `socket`, which imports selectors and enum besides.
import _socket

_ROOT = "/2018-06-01/runtime/"
_AGENT = "rekindle-python/%d.%d.%d" % sys.version_info[:3]
_PIECE = 65536
_LONGEST_HEAD = 1 << 20


class ApiError(Exception):
    """The Runtime API is gone, or said what a runtime can't go on after."""


class Refused(Exception):
    """The Runtime API answered with a status that concerns one invocation alone."""


class Answer:
    __slots__ = ("body", "headers", "status")

    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers  # names in lower case
        self.body = body


class RuntimeApi:
    """Connects at its first request, to what the environment names then."""

    def __init__(self, environment=os.environ):
        path = environment.get("REKINDLE_RUNTIME_SOCKET")
        address = environment.get("AWS_LAMBDA_RUNTIME_API")
        if path:
            self._where, self._address, host = path, None, "localhost"
        elif address:
            self._where, self._address, host = address, _split(address), address
        else:
            raise ApiError("neither REKINDLE_RUNTIME_SOCKET nor AWS_LAMBDA_RUNTIME_API says where the Runtime API is")
        common = "Host: %s\r\nUser-Agent: %s\r\n" % (host, _AGENT)
        self._next = ("GET %sinvocation/next HTTP/1.1\r\n%s\r\n" % (_ROOT, common)).encode("latin-1")
        self._common = common
        self._socket = None
        self._rest = b""  # read past the end of the last answer

    def next(self):
        """Waits for an invocation."""
        answer = self._exchange(self._next, b"")
        if answer.status != 200:
            raise ApiError("the Runtime API at %s answered invocation/next with %d: %s" %
                           (self._where, answer.status, _text(answer.body)))
        return answer

    def respond(self, request_id, body, content_type):
        self._post("invocation/%s/response" % request_id, body, "Content-Type: %s\r\n" % content_type)

    def fail(self, request_id, body, error_type):
        self._post("invocation/%s/error" % request_id, body, _error_headers(error_type))

    def fail_init(self, body, error_type):
        self._post("init/error", body, _error_headers(error_type))

    def fail_restore(self, body, error_type):
        self._post("restore/error", body, _error_headers(error_type))

    def close(self):
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._rest = b""

    def _post(self, path, body, headers):
        head = "POST %s%s HTTP/1.1\r\n%s%sContent-Length: %d\r\n\r\n" % (_ROOT, path, self._common, headers, len(body))
        answer = self._exchange(head.encode("latin-1", "replace"), body)
        if 200 <= answer.status < 300:
            return
        what = "the Runtime API at %s answered %s with %d: %s" % (self._where, path, answer.status, _text(answer.body))
        raise (ApiError if answer.status >= 500 else Refused)(what)

    def _connect(self):
        try:
            if self._address is None:
                self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
                # Whatever default the function has set: the next event may be long in coming.
                self._socket.settimeout(None)
                self._socket.connect(self._where)
                return
            family, kind, protocol, _, address = _socket.getaddrinfo(*self._address, 0, _socket.SOCK_STREAM)[0]
            self._socket = _socket.socket(family, kind, protocol)
            self._socket.settimeout(None)
            self._socket.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            self._socket.connect(address)
        except OSError as error:
            self.close()
            raise ApiError("connecting to the Runtime API at %s: %s" % (self._where, error)) from error

    def _exchange(self, head, body):
        kept = self._socket is not None
        if not kept:
            self._connect()
        try:
            return self._ask(head, body)
        except _Closed:
            self.close()
            if kept:
                # Nothing was answered: the server had closed a connection that was idle for long. Should it have seen
                # the request after all, it refuses the second one.
                return self._exchange(head, body)
            raise ApiError("the Runtime API at %s closed the connection" % self._where) from None
        except OSError as error:
            self.close()
            raise ApiError("talking to the Runtime API at %s: %s" % (self._where, error)) from error

    def _ask(self, head, body):
        try:
            self._send(head, body)
        except (BrokenPipeError, ConnectionResetError):
            # It may have answered before it had read everything, as with a body that is too large.
            answer = self._read()
            self.close()
            return answer
        return self._read()

    def _send(self, head, body):
        if not body:
            self._socket.sendall(head)
            return
        sent = self._socket.sendmsg((head, body))
        if sent < len(head):
            self._socket.sendall(head[sent:])
            sent = len(head)
        if sent < len(head) + len(body):
            self._socket.sendall(memoryview(body)[sent - len(head):])

    def _read(self):
        data = self._rest
        end = data.find(b"\r\n\r\n")
        while end < 0:
            piece = self._receive() if data else self._receive_first()
            data = data + piece if data else piece
            end = data.find(b"\r\n\r\n")
            if end < 0 and len(data) > _LONGEST_HEAD:
                raise ApiError("the Runtime API at %s sent a head of more than %d bytes" % (self._where, _LONGEST_HEAD))
        lines = str(data[:end], "utf-8", "surrogateescape").split("\r\n")
        if not lines[0].startswith("HTTP/1.") or not lines[0][9:12].isdigit():
            raise ApiError("the Runtime API at %s does not speak HTTP/1: %r" % (self._where, lines[0][:80]))
        status = int(lines[0][9:12])
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        start = end + 4
        if 100 <= status < 200:
            self._rest = data[start:]
            return self._read()
        if "chunked" in headers.get("transfer-encoding", ""):
            body = self._read_chunks(data[start:])
        elif status in (204, 304):
            body, self._rest = b"", data[start:]
        elif "content-length" in headers:
            body = self._read_bytes(data, start, int(headers["content-length"]))
        else:
            body = self._read_to_end(data[start:])
        if headers.get("connection", "").lower() == "close":
            self.close()
        return Answer(status, headers, body)

    def _read_bytes(self, data, start, length):
        end = start + length
        if len(data) >= end:
            self._rest = data[end:]
            return data[start:end]
        body = bytearray(length)
        have = len(data) - start
        body[:have] = data[start:]
        view = memoryview(body)
        while have < length:
            count = self._socket.recv_into(view[have:])
            if not count:
                raise ConnectionError("it closed the connection within an answer")
            have += count
        self._rest = b""
        return body

    def _read_to_end(self, data):
        pieces = [data]
        while pieces[-1] or len(pieces) == 1:
            pieces.append(self._socket.recv(_PIECE))
        self.close()
        return b"".join(pieces)

    def _read_chunks(self, data):
        pieces = []
        while True:
            line, data = self._read_line(data)
            size = int(line.split(b";")[0], 16)
            if size == 0:
                while line:  # trailers
                    line, data = self._read_line(data)
                self._rest = data
                return b"".join(pieces)
            while len(data) < size + 2:
                data += self._receive()
            pieces.append(data[:size])
            data = data[size + 2:]

    def _read_line(self, data):
        while b"\r\n" not in data:
            data += self._receive()
        line, _, data = data.partition(b"\r\n")
        return line, data

    def _receive_first(self):
        try:
            piece = self._socket.recv(_PIECE)
        except ConnectionResetError:
            piece = b""
        if not piece:
            raise _Closed
        return piece

    def _receive(self):
        piece = self._socket.recv(_PIECE)
        if not piece:
            raise ConnectionError("it closed the connection within an answer")
        return piece


class _Closed(Exception):
    """Before the first byte of an answer."""


def _split(address):
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ApiError("AWS_LAMBDA_RUNTIME_API is %r, which is not HOST:PORT" % address)
    return host.strip("[]"), int(port)


def _error_headers(error_type):
    one_line = error_type.replace("\r", " ").replace("\n", " ")
    return "Content-Type: application/json\r\nLambda-Runtime-Function-Error-Type: %s\r\n" % one_line


def _text(body):
    return str(bytes(body[:500]), "utf-8", "replace")
