#!/usr/bin/python3
"""Compiles the Python modules of a layer that are not compiled, into a folder beside it.

    compile_layer.py LAYER NAMED DESTINATION PROCESSES

The layer stays as it is. DESTINATION gets its folders with what would lie in their __pycache__. Tracebacks of the
modules name them below NAMED instead of LAYER. No code of the layer is run. One that is compiled already, as far as
Python would use that, is left out.

Exit status: 0; 1 when some could not be compiled, such as files that are no Python of this version.
"""

import concurrent.futures
import functools
import importlib.util
import os
import py_compile
import sys

_HASHED = 1  # its time does not matter


def is_compiled(source, compiled):
    try:
        with open(compiled, "rb") as file:
            header = file.read(16)
        info = os.stat(source)
    except OSError:
        return False
    if len(header) < 16 or header[:4] != importlib.util.MAGIC_NUMBER:
        return False
    flags, modified, size = (int.from_bytes(header[at : at + 4], "little") for at in (4, 8, 12))
    return bool(flags & _HASHED) or (modified, size) == (int(info.st_mtime) & 0xFFFFFFFF, info.st_size & 0xFFFFFFFF)


def sources_in(layer):
    for folder, folders, names in os.walk(layer):
        if "__pycache__" in folders:
            folders.remove("__pycache__")
        for name in names:
            path = os.path.join(folder, name)
            if name.endswith(".py") and os.path.isfile(path):
                if not is_compiled(path, importlib.util.cache_from_source(path)):
                    yield os.path.relpath(path, layer)


def compile_one(layer, named, destination, relative):
    source = os.path.join(layer, relative)
    compiled = os.path.relpath(importlib.util.cache_from_source(source), layer)
    try:
        py_compile.compile(source, os.path.join(destination, compiled), os.path.join(named, relative), doraise=True)
    except (py_compile.PyCompileError, OSError, ValueError, RecursionError, MemoryError) as error:
        print(f"{relative}: {error}", file=sys.stderr)
        return False
    return True


def main():
    layer, named, destination, processes = sys.argv[1:]
    os.mkdir(destination)
    one = functools.partial(compile_one, layer, named, destination)
    with concurrent.futures.ProcessPoolExecutor(int(processes)) as pool:
        return 0 if all(list(pool.map(one, sources_in(layer), chunksize=16))) else 1


if __name__ == "__main__":
    sys.exit(main())
