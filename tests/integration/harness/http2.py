"""A client of the daemon's that does what none does that uses a library."""

import os
import socket

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
ACK, END_STREAM, _END_HEADERS = 1, 1, 4


class Connection:
    """HTTP/2, as far as it takes to see what the daemon answers."""

    _HEADER = 9

    def __init__(self, path, uid=0, window=None):
        """`window`: how many bytes of each answer the daemon may send before more are asked for; None: the usual one."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        os.seteuid(uid)
        try:
            self._socket.connect(path)
        finally:
            os.seteuid(0)
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self._input = self._socket.makefile("rb")
        initial_window_size = (4).to_bytes(2, "big")
        self.send(SETTINGS, payload=b"" if window is None else initial_window_size + window.to_bytes(4, "big"))

    def close(self):
        self._input.close()
        self._socket.close()

    def send(self, kind, flags=0, stream=0, payload=b""):
        head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
        self._socket.sendall(head + payload)

    def call(self, stream, path, message=b""):
        """Without a compressed header field, and with this message (protobuf's), or, of None, none yet."""

        def text(value):
            return bytes([len(value)]) + value.encode("ascii")

        fields = b"\x83\x86\x04" + text(path) + b"\x01" + text("localhost")
        for name, value in (("content-type", "application/grpc"), ("te", "trailers")):
            fields += b"\x00" + text(name) + text(value)
        self.send(HEADERS, _END_HEADERS, stream, fields)
        if message is not None:
            self.send(DATA, END_STREAM, stream, b"\0" + len(message).to_bytes(4, "big") + message)

    def receive(self):
        """The kind of the next frame, its flags, stream and payload."""
        header = self._input.read(self._HEADER)
        if len(header) < self._HEADER:
            raise EOFError("the daemon has ended the connection")
        return header[3], header[4], int.from_bytes(header[5:], "big"), self._input.read(int.from_bytes(header[:3], "big"))
