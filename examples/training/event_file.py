"""TensorBoard's event files, as far as scalars need them: protocol buffers in the framing of TFRecord files."""

import os
import socket
import struct
import time

_POLYNOMIAL = 0x82F63B78  # of CRC-32C, reversed
_MASK = 0xA282EAD8


def _table():
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        yield value


_TABLE = tuple(_table())


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _masked_crc(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bytes_field(number, value):
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _scalar_event(step, tag, value):
    """Event { wall_time = 1, step = 2, summary = 5 { value = 1 { tag = 1, simple_value = 2 } } }"""
    summary = _bytes_field(1, _bytes_field(1, tag.encode()) + struct.pack("<Bf", 2 << 3 | 5, value))
    return struct.pack("<Bd", 1 << 3 | 1, time.time()) + _varint(2 << 3) + _varint(step) + _bytes_field(5, summary)


class EventWriter:
    """Keeps its file open. Records stay in memory until every `flush_every`-th, as TensorBoard's own writer does it."""

    def __init__(self, directory, flush_every=10):
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}"
        self._file = open(os.path.join(directory, name), "wb")
        self._flush_every, self._unflushed = flush_every, 0
        # Event { wall_time = 1, file_version = 3 }
        self._write(struct.pack("<Bd", 1 << 3 | 1, time.time()) + _bytes_field(3, b"brain.Event:2"))

    def add_scalar(self, tag, value, step):
        self._write(_scalar_event(step, tag, value))

    def close(self):
        self._file.close()

    def _write(self, event):
        length = struct.pack("<Q", len(event))
        self._file.write(length + struct.pack("<I", _masked_crc(length)) + event + struct.pack("<I", _masked_crc(event)))
        self._unflushed += 1
        if self._unflushed >= self._flush_every:
            self._file.flush()
            self._unflushed = 0
