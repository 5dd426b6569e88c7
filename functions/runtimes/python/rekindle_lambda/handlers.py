"""Finding the function: its code folder, its layers, and `module.function`."""

import importlib.machinery
import os
import sys
import time

from rekindle_lambda import layers
from rekindle_lambda.faults import Fault


_first = []  # folders of the function's that are in the path
# Of the standard library and the hook, which goes on working with them by these names.
_OF_THE_HOOK = frozenset(("multiprocessing", "random", "rekindle", "tempfile", "uuid"))


def add_layers():
    """Folders with the contents of layers, as they lie in /opt on Lambda; later ones hide earlier ones."""
    for layer in [name for name in os.environ.get("REKINDLE_LAYERS", "").split(":") if name]:
        for folder in reversed(layers.folders_of(layer)):
            _put_first(folder)
        programs = os.path.join(layer, "bin")
        search = os.environ.get("PATH", "")
        if os.path.isdir(programs) and programs not in search.split(":"):
            os.environ["PATH"] = programs + ":" + search if search else programs


def enter(runtimes):
    """Makes this process the function's: where it is, what its time zone is, what it imports from. `runtimes`: names of
    modules that would be loaded without any dependencies, too.
    """
    add_layers()
    # Python has read it when it started; a copy gets its own afterwards.
    for folder in reversed([name for name in os.environ.get("PYTHONPATH", "").split(":") if name]):
        if folder not in sys.path:
            _put_first(folder)
    root = os.environ.get("LAMBDA_TASK_ROOT")
    if root:
        try:
            os.chdir(root)
        except OSError as error:
            raise Fault("Runtime.ImportModuleError",
                        "Unable to enter the function's code folder %s (LAMBDA_TASK_ROOT): %s" %
                        (root, error.strerror)) from None
        _put_first(root)
    _forget_others(runtimes)
    if "TZ" in os.environ:
        time.tzset()


def load(spec):
    """The handler that `spec` (module.function, folder/module.function) names. Raises Fault, or what the module
    raises.
    """
    module_name, dot, function_name = spec.rpartition(".")
    if not dot:
        raise Fault("Runtime.MalformedHandlerName",
                    "Bad handler '%s': not enough values to unpack (expected 2, got 1)" % spec)
    dotted = module_name.replace("/", ".")
    if dotted.split(".")[0] in sys.builtin_module_names:
        raise Fault("Runtime.BuiltInModuleConflict", "Cannot use built-in module %s as a handler module" % module_name)
    try:
        __import__(dotted)
    except SyntaxError as error:
        raise Fault("Runtime.UserCodeSyntaxError", "Syntax error in module '%s': %s" % (module_name, error),
                    ['  File "%s" Line %s\n    %s' % (error.filename, error.lineno, error.text)]) from None
    except ImportError as error:
        raise Fault("Runtime.ImportModuleError", "Unable to import module '%s': %s" % (module_name, error)) from None
    except ValueError as error:  # an empty part, as in "a..b.handler"
        if dotted in sys.modules or "" not in dotted.split("."):
            raise
        raise Fault("Runtime.ImportModuleError", "Unable to import module '%s': %s" % (module_name, error)) from None
    try:
        return getattr(sys.modules[dotted], function_name)
    except AttributeError:
        raise Fault("Runtime.HandlerNotFound",
                    "Handler '%s' missing on module '%s'" % (function_name, module_name)) from None


def _forget_others(runtimes):
    """The function gets what it would get without an image, and on Lambda. The dependencies keep those that they have
    loaded.
    """
    for name in hidden(runtimes):
        for gone in [other for other in sys.modules if other == name or other.startswith(name + ".")]:
            del sys.modules[gone]


def hidden(runtimes):
    """Of modules that came with the dependencies: those in whose place the path, which is the function's now, has
    others (a secrets.py in the code folder). `runtimes`: as of enter().
    """
    loaded = {name for name in sys.modules if "." not in name} - runtimes - _OF_THE_HOOK
    names = set()
    for folder in _first:
        try:
            files = os.listdir(folder)
        except OSError:  # it may be closed to that
            continue
        names.update(loaded.intersection(file.partition(".")[0] for file in files))
    others = []
    for name in sorted(names):
        present = getattr(sys.modules[name], "__spec__", None)
        found = importlib.machinery.PathFinder.find_spec(name)
        # The path comes after what is built into the interpreter. A folder without __init__.py has no origin.
        if present is None or present.origin in ("built-in", "frozen") or found is None or found.origin is None:
            continue
        if found.origin != present.origin:
            others.append(name)
    return others


def _put_first(folder):
    if folder in _first:
        _first.remove(folder)
    if folder in sys.path:
        sys.path.remove(folder)
    if not os.path.isdir(folder):
        return
    sys.path.insert(0, folder)
    _first.append(folder)
    # What an earlier look at the same name has found there, or not found.
    sys.path_importer_cache.pop(folder, None)
