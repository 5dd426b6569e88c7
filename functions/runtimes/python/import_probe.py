"""The child of discover_imports.py: imports a handler and says what came in with it.

    import_probe.py REPORT_FD TRACE_FD HANDLER CODE_DIRECTORY [FOLDER...]

A FOLDER is searched after the code's, or, where it begins with "layer:", has what a layer has in /opt. Where it is when
a signal such as SIGABRT ends it, is written to TRACE_FD, in faulthandler's words.

It loads nothing of its own before the handler that an interpreter has not loaded, and nothing from files afterwards, where
the code could have put a json.py in the way: the report is a line that is a Python literal. A second such line has what
look_for_generators() says, if it came so far.
"""

import builtins  # every Python has these loaded when it starts, but for faulthandler, which lies in no file
import faulthandler
import os
import sys
import time

_real_import = builtins.__import__
_LAYER = "layer:"


class Refused(Exception):
    """A handler that Lambda refuses, by the type that it gives the error."""

    def __init__(self, kind, message, frames=()):
        super().__init__(message)
        self.kind, self.message, self.frames = kind, message, list(frames)


def record_imports(code, asked_for, loads, then):
    """Has every import statement in a file under `code` add what it names to `asked_for`, and every one at all to
    `loads`, by the module that it stands in; calls then() after each."""
    inside = code.rstrip("/") + "/"

    def recording_import(name, globals=None, locals=None, fromlist=(), level=0):
        content = globals or {}
        file, importer = content.get("__file__"), content.get("__name__")
        if level == 0 and isinstance(file, str) and file.startswith(inside):
            asked_for.add(name)
            asked_for.update(f"{name}.{part}" for part in fromlist or () if isinstance(part, str))
        if isinstance(importer, str):
            base = name if level == 0 else absolute(name, content.get("__package__"), level)
            loads.setdefault(importer, set()).update(
                (base, *(f"{base}.{part}" for part in fromlist or () if isinstance(part, str))))
        module = _real_import(name, globals, locals, fromlist, level)
        then()
        return module

    builtins.__import__ = recording_import


def absolute(name, package, level):
    outer = (package or "").split(".")
    return ".".join([*outer[:len(outer) - level + 1], *([name] if name else [])])


def frames_of(error):
    """[(file, line, function)] from the first frame that is not ours or the import machinery's."""
    frames, step = [], error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if code.co_filename != __file__ and not code.co_filename.startswith("<frozen importlib"):
            frames.append((code.co_filename, step.tb_lineno, code.co_name))
        step = step.tb_next
    return frames


def load(handler):
    """Imports the handler as Lambda's runtime for Python does, with its errors."""
    module_name, dot, function = handler.rpartition(".")
    if not dot:
        raise Refused(
            "Runtime.MalformedHandlerName",
            f"Bad handler '{handler}': not enough values to unpack (expected 2, got 1)",
        )
    if module_name.partition(".")[0] in sys.builtin_module_names:
        raise Refused(
            "Runtime.BuiltInModuleConflict", f"Cannot use built-in module {module_name} as a handler module"
        )
    try:
        dotted = module_name.replace("/", ".")
        builtins.__import__(dotted)
        module = sys.modules[dotted]
    except ImportError as error:
        message = f"Unable to import module '{module_name}': {error}"
        raise Refused("Runtime.ImportModuleError", message, frames_of(error)) from error
    except SyntaxError as error:
        message = f"Syntax error in module '{module_name}': {error}"
        where = [(str(error.filename), error.lineno or 0, "<module>")]
        raise Refused("Runtime.UserCodeSyntaxError", message, where) from error
    if not hasattr(module, function):
        raise Refused("Runtime.HandlerNotFound", f"Handler '{function}' missing on module '{module_name}'")


def error_of(handler):
    """Imports the handler: (type, message, frames) of what went wrong, or None."""
    try:
        load(handler)
    except Refused as refused:
        return refused.kind, refused.message, refused.frames
    except SystemExit as leaving:
        code = leaving.code
        status = 0 if code is None else code & 0xFF if isinstance(code, int) else 1
        # What discover_imports.py says of a process that has ended without a report.
        return "exit", status, frames_of(leaving)
    except BaseException as error:  # whatever the code raises is its author's to see
        return type(error).__name__, str(error), frames_of(error)
    return None


def new_modules(at_start, hook_folder):
    """[(name, file or None, folders of a package or None, __version__ or None)] of what was not there at the start,
    and of the packages it is in, but for the hook, which is part of the runtime."""
    loaded = {name: module for name, module in sys.modules.items() if isinstance(name, str)}
    new = {name for name in loaded if name not in at_start}
    new |= {name[:place] for name in new for place, letter in enumerate(name) if letter == "."}
    found = []
    for name in sorted(new.intersection(loaded)):
        module = loaded[name]
        # multiprocessing gives this program a second name.
        if module is loaded.get("__main__"):
            continue
        # Not getattr: a module may answer by importing more.
        content = getattr(module, "__dict__", None)
        if not isinstance(content, dict):
            continue
        file, version, path = content.get("__file__"), content.get("__version__"), content.get("__path__")
        if hook_folder is not None and isinstance(file, str) and file.startswith(hook_folder + "/"):
            continue
        try:
            folders = None if path is None else [str(folder) for folder in path]
        except TypeError:
            folders = None
        found.append((
            name,
            str(file) if isinstance(file, str) else None,
            folders,
            str(version) if isinstance(version, str) else None,
        ))
    return found


def of_the_hook(hook_folder, name):
    """What a file of the hook's defines. Read now, and not as a module: the function may have one of that name."""
    path = os.path.join(hook_folder, "rekindle", name + ".py")
    content = {"__name__": "rekindle." + name}
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), content)
    return content


def look_for_generators(hook_folder, code):
    """What says, later, which generators of random numbers instances of one image would have in common, those that
    modules in `code` have, and whether the function has something done in each instance; then there are none.
    """
    if hook_folder is None:
        return lambda: ([], False)
    content = of_the_hook(hook_folder, "randomness")

    def look():
        registered = getattr(sys.modules.get("snapshot_restore_py"), "get_after_restore", list)
        try:
            if getattr(sys.modules.get("rekindle"), "_after_restore", None) or registered():
                return [], True
            inside = code.rstrip("/") + "/"
            return content["generators_of"]([
                module
                for module in list(sys.modules.values())
                if type(module) is type(sys) and str(module.__dict__.get("__file__")).startswith(inside)
            ]), False
        except BaseException:  # of objects of the function's
            return [], False

    return look


def process_figures():
    """(resident bytes, threads)"""
    figures = {}
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            key, _, value = line.partition(":")
            figures[key] = value.split()
    return int(figures["VmRSS"][0]) * 1024, int(figures["Threads"][0])


def standard_names():
    """Names of the standard library's outermost modules. Python 3.9 has no list of those that lie in files."""
    if hasattr(sys, "stdlib_module_names"):
        return sorted(sys.stdlib_module_names)
    folder = os.path.dirname(os.__file__)
    return sorted({*sys.builtin_module_names, *(name.partition(".")[0] for name in os.listdir(folder))})


def main():
    from rekindle_lambda import hook, layers

    at_start = frozenset(sys.modules)
    report_fd, trace_fd, handler, code, *given = sys.argv[1:]
    faulthandler.enable(int(trace_fd), all_threads=False)
    ours, process = os.path.dirname(os.path.abspath(__file__)), os.getpid()
    sys.path[:] = [folder for folder in sys.path if folder != ours]
    sys.argv[:] = [""]
    layer_folders = [
        folder
        for name in given
        for folder in (layers.folders_of(name[len(_LAYER):]) if name.startswith(_LAYER) else [name])
    ]
    sys.path[:] = [code, *layer_folders, *(folder for folder in sys.path if folder not in layer_folders)]
    hook.add()
    generators = look_for_generators(hook.folder(), code)
    draws = of_the_hook(hook.folder(), "draws") if hook.folder() is not None else None
    asked_for, loads = set(), {}
    record_imports(code, asked_for, loads, draws["watch_numbers"] if draws is not None else lambda: None)
    if draws is not None:
        draws["watch"]()
    began = time.perf_counter()
    error = error_of(handler)
    seconds = time.perf_counter() - began
    if draws is not None:
        draws["end"]()
    builtins.__import__ = _real_import
    if os.getpid() != process:
        os._exit(0)  # the code has forked, and this is its child
    modules = new_modules(at_start, hook.folder())
    resident, threads = process_figures()
    report = {
        "error": error,
        "seconds": seconds,
        "resident_bytes": resident,
        "threads": threads,
        "modules": modules,
        "asked_for": sorted(asked_for),
        "loads": {importer: sorted(names) for importer, names in loads.items()},
        "drawn": [(module, what, draws["in_words"](module, what), chain) for module, what, chain in draws["drawn"]()]
        if draws is not None else [],
        "layer_folders": layer_folders,
        "path": [str(folder) for folder in sys.path],
        "standard_names": standard_names(),
        "standard_folder": os.path.dirname(os.__file__),
        "python": ".".join(map(str, sys.version_info[:3])),
    }
    with open(int(report_fd), "w", encoding="utf-8", errors="backslashreplace", closefd=False) as file:
        file.write(repr(report))
        file.flush()
        if error is None:
            file.write("\n" + repr(generators()))
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass  # the code's own affair
    # Not the interpreter's end: it would wait for threads that the code has started.
    os._exit(0)


# A process that multiprocessing spawns imports this file again, under another name.
if __name__ == "__main__":
    main()
