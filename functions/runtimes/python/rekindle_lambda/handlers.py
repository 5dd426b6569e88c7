"""Finding the function: its code folder, its layers, and `module.function`."""

import os
import sys
import time

from rekindle_lambda.faults import Fault


def add_layers():
    """Folders with the contents of layers, as they lie in /opt on Lambda; later ones hide earlier ones."""
    for layer in [name for name in os.environ.get("REKINDLE_LAYERS", "").split(":") if name]:
        python = os.path.join(layer, "python")
        for folder in (python, "%s/lib/python%d.%d/site-packages" % (python, *sys.version_info[:2])):
            _put_first(folder)
        programs = os.path.join(layer, "bin")
        search = os.environ.get("PATH", "")
        if os.path.isdir(programs) and programs not in search.split(":"):
            os.environ["PATH"] = programs + ":" + search if search else programs


def enter():
    """Makes this process the function's: where it is, what its time zone is, what it imports from."""
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


def _put_first(folder):
    if folder in sys.path:
        sys.path.remove(folder)
    if not os.path.isdir(folder):
        return
    sys.path.insert(0, folder)
    # What an earlier look at the same name has found there, or not found.
    sys.path_importer_cache.pop(folder, None)
