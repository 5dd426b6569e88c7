"""Talks to workloads/memory_job.c through the page that both map."""

import mmap
import struct

from harness import waiting

_FIELDS = (
    "ready",
    "ticks",
    "last_tick_ns",
    "largest_gap_ns",
    "gap_reset_request",
    "gap_resets",
    "touch_pages",
    "touch_request",
    "touches",
    "digest_request",
    "digests",
    "digest",
    "bytes",
    "rounds_of_noise",
)


class MemoryJob:
    """One running memory_job. Survives the job's death and return: the page is a file."""

    def __init__(self, status_path):
        self._file = waiting.until(lambda: _open_when_sized(status_path), f"{status_path} made by the job")
        self._page = mmap.mmap(self._file.fileno(), 4096)
        waiting.until(lambda: self.read("ready"), "memory filled", 120)

    def close(self):
        self._page.close()
        self._file.close()

    def read(self, field):
        return struct.unpack_from("<Q", self._page, 8 * _FIELDS.index(field))[0]

    def _write(self, field, value):
        struct.pack_into("<Q", self._page, 8 * _FIELDS.index(field), value)

    def _ask(self, request, answer):
        wanted = self.read(request) + 1
        self._write(request, wanted)
        waiting.until(lambda: self.read(answer) == wanted, f"answer to {request}", 60)

    def wait_for_tick(self, seconds=waiting.DEFAULT_SECONDS):
        """Until the job has run a little from now on."""
        before = self.read("ticks")
        waiting.until(lambda: self.read("ticks") > before + 2, "the job ticks", seconds, 0.0002)

    def reset_gap(self):
        self._ask("gap_reset_request", "gap_resets")

    def largest_gap_seconds(self):
        return self.read("largest_gap_ns") / 1e9

    def touch(self, pages):
        """Overwrites so many pages with new noise."""
        self._write("touch_pages", pages)
        self._ask("touch_request", "touches")

    def digest(self):
        self._ask("digest_request", "digests")
        return self.read("digest")


def _open_when_sized(path):
    try:
        file = open(path, "r+b")
    except FileNotFoundError:
        return None
    if file.seek(0, 2) >= 4096:
        return file
    file.close()
    return None
