"""Whether a store gave back what it was given."""

import hashlib
import os
import re
import struct

from protobuf_wire import varint

PAGE = 4096
# `rekindle export` sets timers again that had run out, which CRIU would lose: same length, other bytes.
MENDED_BY_REKINDLE = {"files.img"}


def differences(given, got, ours):
    """(files that differ between the two folders, files that differ on purpose). `ours`: got by
    `rekindle export`, whose pages are compared by their addresses, since a pages image may order them as it
    likes.
    """
    names, others = set(os.listdir(given)), set(os.listdir(got))
    wrong, mended = sorted(names ^ others), []
    by_pagemap = {}
    if ours:
        by_pagemap = pages_by_pagemap(given)
        if set(by_pagemap) != set(pages_by_pagemap(got)):
            return ["pagemap-*.img"], []
    handled = set(by_pagemap) | {f"pages-{number}.img" for number in by_pagemap.values()}
    for pagemap in by_pagemap:
        if memory_digest(given, pagemap) != memory_digest(got, pagemap):
            wrong.append(f"pages of {pagemap}")
    for name in sorted((names & others) - handled):
        with open(os.path.join(given, name), "rb") as one, open(os.path.join(got, name), "rb") as other:
            if not same_bytes(one, other):
                on_purpose = ours and name in MENDED_BY_REKINDLE and same_size(one, other)
                (mended if on_purpose else wrong).append(name)
    return wrong, mended


def same_size(one, other):
    return os.fstat(one.fileno()).st_size == os.fstat(other.fileno()).st_size


def same_bytes(one, other):
    while True:
        left, right = one.read(1 << 20), other.read(1 << 20)
        if left != right:
            return False
        if not left:
            return True


def pages_by_pagemap(folder):
    """{pagemap file: number of its pages image}"""
    found = {}
    for name in os.listdir(folder):
        if re.fullmatch(r"pagemap-.*\.img", name):
            found[name] = pagemap_records(os.path.join(folder, name))[0][1]
    return found


def pagemap_records(path):
    """CRIU's format: two magics, then records with their length before them. The first has the number of the
    pages image (field 1); the others an address (1), a number of pages (2, or 5 in newer ones) and flags (4).
    """
    with open(path, "rb") as file:
        content = file.read()
    records, at = [], 8
    while at < len(content):
        length = struct.unpack_from("<I", content, at)[0]
        records.append(varint_fields(content[at + 4 : at + 4 + length]))
        at += 4 + length
    return records


def varint_fields(message):
    fields, at = {}, 0
    while at < len(message):
        key, at = varint(message, at)
        if key & 7:
            raise ValueError("a pagemap record has a field that is no number")
        fields[key >> 3], at = varint(message, at)
    return fields


def memory_digest(folder, pagemap):
    """Of every page's address, flags and content, in the order of the addresses."""
    head, *entries = pagemap_records(os.path.join(folder, pagemap))
    runs, offset = [], 0
    for entry in entries:
        pages, flags = entry.get(5) or entry[2], entry.get(4, 4)
        present = bool(flags & 4)
        runs.append((entry.get(1, 0), pages, flags, offset if present else None))
        offset += pages * PAGE if present else 0
    digest = hashlib.sha256()
    path = os.path.join(folder, f"pages-{head[1]}.img")
    with open(path, "rb") as file:
        if offset > os.fstat(file.fileno()).st_size:
            raise ValueError(f"{path} is shorter than {pagemap} says")
        for address, pages, flags, offset in sorted(runs, key=lambda run: run[0]):
            for page in range(pages):
                digest.update(struct.pack("<QQ", address + page * PAGE, flags))
                if offset is not None:
                    digest.update(os.pread(file.fileno(), PAGE, offset + page * PAGE))
    return digest.digest()
