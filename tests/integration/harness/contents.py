"""What a memory_job holds, and what the export of its image holds: compared byte by byte."""

import hashlib
import os
import shutil

PAGE = 4096


class Content:
    """The noise of a memory_job as it is now. Only `touch` changes it, so it is what a capture finds."""

    def __init__(self, pid, memory):
        self._bytes = memory.read("bytes")
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
            file.seek(_largest_anonymous_mapping(pid, self._bytes))
            noise = file.read(self._bytes)
        if len(noise) != self._bytes:
            raise OSError(f"only {len(noise)} of {self._bytes} bytes of process {pid} could be read")
        self._first_page = noise[:PAGE]
        self._digest = hashlib.sha256(noise).digest()

    def is_in(self, export):
        """`export`, a CRIU image directory, holds exactly these bytes, at one place."""
        for name in os.listdir(export):
            if not name.startswith("pages-"):
                continue
            with open(os.path.join(export, name), "rb") as file:
                pages = file.read()
            at = pages.find(self._first_page)
            if at >= 0 and at % PAGE == 0:
                return hashlib.sha256(memoryview(pages)[at : at + self._bytes]).digest() == self._digest
        return False


def _largest_anonymous_mapping(pid, wanted):
    """The kernel puts it below what is there already, and may join the two: it begins the mapping."""
    best = (0, 0)
    with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        for line in file:
            fields = line.split()
            begin, end = (int(number, 16) for number in fields[0].split("-"))
            if len(fields) == 5 and fields[1].startswith("rw"):
                best = max(best, (end - begin, begin))
    if best[0] < wanted:
        raise OSError(f"process {pid} has no anonymous mapping of {wanted} bytes")
    return best[1]


def fingerprint(export):
    """Of a folder: the names and the bytes of all its files."""
    digest = hashlib.sha256()
    for name in sorted(os.listdir(export)):
        with open(os.path.join(export, name), "rb") as file:
            digest.update(name.encode() + b"\0" + hashlib.sha256(file.read()).digest())
    return digest.hexdigest()


class TakenImage:
    """An image that a test took, and what an export of it must hold, now and for ever."""

    def __init__(self, reference, content):
        self.reference = reference
        self.digest = None  # as the command told it
        self._content = content
        self._first_export = None

    def problem_of(self, export):
        """What is wrong with this export, or None. Removes the folder."""
        try:
            if not self._content.is_in(export):
                return f"the export of {self.reference} does not hold what its job held"
            now = fingerprint(export)
            if self._first_export is None:
                self._first_export = now
            if now != self._first_export:
                return f"the export of {self.reference} differs from the first one"
            return None
        finally:
            shutil.rmtree(export)
