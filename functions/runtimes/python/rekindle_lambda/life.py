"""From start to end: the dependencies, the first image, the function, the second image, invocations."""

import gc
import os
import sys

from rekindle_lambda import faults, handlers, logs, payloads
from rekindle_lambda.api import ApiError, Refused, RuntimeApi
from rekindle_lambda.context import LambdaContext

# What AWS's runtime exits with when snapshot callbacks fail.
_BEFORE_SNAPSHOT_FAILED = 64
_AFTER_RESTORE_FAILED = 65

# At the first ready point it goes from the environment.
_held = os.environ.get("REKINDLE_HOLD") == "1"
_DRAWN = "drawn: "  # in the list of loaded files, before what is none
_MOST_LOGGED = 8
_runtimes = frozenset(sys.modules)
_loading = False  # the function


def run():
    logs.install()
    try:
        _watched(_held, _load_dependencies)
        _park("REKINDLE_DEPS")
        while "REKINDLE_MORE_DEPS" in os.environ:
            os.environ["REKINDLE_DEPS"] = os.environ.pop("REKINDLE_MORE_DEPS")
            _watched(_held, _load_dependencies)
            _park("REKINDLE_DEPS")
        if _held:
            _keep_channel_from_children()
        for_image = os.environ.get("REKINDLE_FUNCTION_IMAGE") == "1"
        handler = _watched(_held and for_image, _load_function)
        if for_image:
            _log_drawn()
            _park("REKINDLE_FUNCTION_IMAGE")
            _enter_again()
        # Nothing is connected before the last restore, and the address is the copy's.
        _serve(RuntimeApi(), handler)
    except ApiError as error:
        logs.flush()
        sys.exit("rekindle: %s" % error)


def _load_dependencies():
    handlers.add_layers()
    # Modules on top of others that an image has: of the same name there must be one alone.
    if _held and (others := handlers.hidden(_runtimes)):
        sys.exit("rekindle: layers have modules of their own of names that are loaded already: %s" % ", ".join(others))
    for name in [part.strip() for part in os.environ.get("REKINDLE_DEPS", "").split(",")]:
        if not name:
            continue
        try:
            __import__(name)
        except Exception as error:
            sys.exit("rekindle: the dependency %s (REKINDLE_DEPS) can't be imported: %s: %s" %
                     (name, type(error).__name__, error))
    _tell_loaded_files()


def _draws():
    """Of the hook; None where that is not to be had, which _park() says."""
    try:
        from rekindle import draws
    except ImportError:
        return None
    return draws


def _watched(for_image, load):
    """What load() returns. What it has drawn at random is seen only where copies would have it in common: instances that
    load for themselves are not slowed down.
    """
    draws = _draws() if for_image else None
    if draws is None:
        return load()
    draws.watch()
    try:
        return load()
    finally:
        draws.end()


def _drawn():
    draws = _draws()
    return [] if draws is None else [draws.in_words(module, what) for module, what, _ in draws.drawn()]


def _log_drawn():
    """For who makes the image, who tells the function's owner."""
    found = _drawn()
    if found:
        os.write(2, ("rekindle: %s%s\n" % (_DRAWN, "; ".join(found[:_MOST_LOGGED]))).encode("utf-8", "replace"))


def _tell_loaded_files():
    """Who makes an image wants to know when an upgrade has changed one of them, and what its copies have in common."""
    path = os.environ.pop("REKINDLE_LOADED_FILES", None)
    if path is None:
        return
    names = set()
    for module in list(sys.modules.values()):
        # As it lies there: a module may load others when it is asked for something.
        try:
            name = object.__getattribute__(module, "__dict__").get("__file__")
        except AttributeError:
            continue
        if isinstance(name, str):
            names.add(name)
    with open(path, "wb") as file:
        file.write(b"\0".join(map(os.fsencode, sorted(names) + [_DRAWN + what for what in _drawn()])))


def _park(point):
    """A point to take an image at. A callback that fails is reported as on Lambda."""
    if not _held:
        return
    try:
        import rekindle
    except ImportError as error:
        sys.exit("rekindle: REKINDLE_HOLD=1 needs the hook's package, which can't be imported: %s" % error)
    # A collection looks at every object, and so would fetch all of them into each copy.
    gc.collect()
    gc.freeze()
    before = rekindle.instance
    try:
        rekindle.ready()
    except rekindle.HookError as error:
        sys.exit("rekindle: at the ready point of %s: %s" % (point, error))
    except BaseException as error:
        described = faults.describe(error)
        faults.log(described)
        if rekindle.instance is before:
            _report(lambda api, *what: api.fail_init(*what), described, "Runtime.BeforeSnapshotError")
            sys.exit(_BEFORE_SNAPSHOT_FAILED)
        _report(lambda api, *what: api.fail_restore(*what), described, "Runtime.AfterRestoreError")
        sys.exit(_AFTER_RESTORE_FAILED)


def _keep_channel_from_children():
    """Its end says that this process is parked: one that the function has forked, such as a worker of a pool, and that
    goes on would keep it open.
    """
    import rekindle

    channel = rekindle.channel()

    def let_go():
        global _loading
        # Not the copies of a template, which have channels of their own.
        if channel is not None and _loading:
            _replace_by_nothing(channel.fileno())
        _loading = False

    os.register_at_fork(after_in_child=let_go)


def _replace_by_nothing(number):
    """The hook still knows the number: it must not become that of a file of the child's."""
    try:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # there can be no more descriptors
        os.close(number)
        return
    os.dup2(nothing, number, inheritable=False)
    os.close(nothing)


def _enter_again():
    """A copy that has stood by was in its folder before that was made read-only for it."""
    try:
        os.chdir(os.getcwd())
    except OSError:  # it is somewhere else, which it has removed, or may not enter
        pass


def _load_function():
    global _loading
    logs.set_level()
    _loading = True
    try:
        handlers.enter(_runtimes)
        spec = os.environ.get("_HANDLER")
        if not spec:
            raise faults.Fault("Runtime.MalformedHandlerName", "no handler is named: _HANDLER is not set")
        return handlers.load(spec)
    except Exception as error:
        described = faults.describe(error)
        faults.log(described)
        _report(lambda api, *what: api.fail_init(*what), described, described["errorType"])
        sys.exit(1)
    finally:
        _loading = False


def _report(post, described, error_type):
    """On a connection of its own: the process ends."""
    api = RuntimeApi()
    try:
        post(api, payloads.encode(described)[0], error_type)
    except Refused as error:
        sys.stderr.write("rekindle: %s\n" % error)
    finally:
        api.close()


def _serve(api, handler):
    while True:
        invocation = api.next()
        headers = invocation.headers
        request_id = logs.request_id = headers.get("lambda-runtime-aws-request-id", "")
        trace = headers.get("lambda-runtime-trace-id")
        if trace:
            os.environ["_X_AMZN_TRACE_ID"] = trace
        else:
            os.environ.pop("_X_AMZN_TRACE_ID", None)
        try:
            try:
                body, content_type = _invoke(handler, invocation)
            except Exception as error:
                described = faults.describe(error, request_id)
                faults.log(described)
                logs.flush()
                api.fail(request_id, payloads.encode(described)[0], described["errorType"])
            else:
                logs.flush()
                api.respond(request_id, body, content_type)
        except Refused as error:
            # The invocation is over for the server (its time is up, or the answer is too large); the next one is not.
            sys.stderr.write("rekindle: %s\n" % error)
        # Nothing of an invocation stays while the next one is waited for.
        del invocation, headers
        body = described = None


def _invoke(handler, invocation):
    headers = invocation.headers
    context = LambdaContext(
        headers,
        payloads.decode_header(headers.get("lambda-runtime-client-context"), "Client Context"),
        payloads.decode_header(headers.get("lambda-runtime-cognito-identity"), "Cognito Identity"),
    )
    return payloads.encode(handler(payloads.decode(invocation.body, headers.get("content-type")), context))
