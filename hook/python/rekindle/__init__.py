"""Rekindle's runtime hook: hold a program when it is ready, and wake up as one of many copies.

    import rekindle

    @rekindle.register_after_restore
    def reconnect():
        ...

    load_everything()
    rekindle.ready()   # without `rekindle run --hold` this returns at once
    serve()

A job that `rekindle run` supervises says how far it is, and when an image is cheap; elsewhere that does nothing:

    for step in range(total):
        train(step)
        rekindle.progress(step + 1, total)
        rekindle.checkpoint_here()

Needs nothing but Python's standard library and librekindle_hook.so, which is looked for only when the process is
really to be held or supervised: in $REKINDLE_HOOK_LIBRARY, beside this package, and in the lib folders above it.
"""

import os
import sys

__all__ = [
    "CONTINUED", "NOT_HELD", "RESTORED", "Channel", "HookError", "Instance", "channel", "checkpoint_here",
    "instance", "progress", "ready", "register_after_restore", "register_before_checkpoint",
    "register_before_snapshot", "unrenewed", "unsafe_to_fork",
]

NOT_HELD = "not held"
CONTINUED = "continued"
RESTORED = "restored"


class _Path(list):
    """Where submodules are: here, and in other folders `rekindle` of sys.path, where what is generated from
    rekindle/v1/*.proto lies. Looked at only for modules that are not here."""

    def __iter__(self):
        yield from list.__iter__(self)
        for folder in sys.path:
            if isinstance(folder, str):
                yield os.path.join(folder or os.curdir, "rekindle")


__path__ = _Path(__path__)

_LIBRARY = "librekindle_hook.so"
_MESSAGE_LIMIT = 65536

# What a supervised job needs of the library.
_SUPERVISION = (
    "rekindle_progress", "rekindle_checkpoint_due", "rekindle_checkpoint_step", "rekindle_checkpoint_leave",
)

# enum rekindle_event
_CONTINUED, _RESTORED, _TEMPLATE, _FORK, _FORKED, _CLOSED, _INTERRUPTED = range(1, 8)

_before_snapshot = []
_after_restore = []
_before_checkpoint = []
_bindings = None
_supervised = None  # the library, False when nobody supervises this process, None before the first call

#: Who this copy is, or None in a process that is none.
instance = None


class HookError(OSError):
    """The process could not be parked, or was woken wrongly."""


class Instance:
    """Who this copy is: `id`, `name`, and the `environment` (a dict) it was given, already in os.environ."""

    def __init__(self, id, name, environment):
        self.id = id
        self.name = name
        self.environment = environment

    def __repr__(self):
        return "rekindle.Instance(id=%r, name=%r)" % (self.id, self.name)


class Channel:
    """This copy's control channel: packets, each a JSON object."""

    def __init__(self, fd):
        self._fd = fd

    def fileno(self):
        return self._fd

    def send(self, message):
        """Sends a dict, as JSON, or a str or bytes as they are."""
        if isinstance(message, dict):
            import json
            message = json.dumps(message)
        data = message.encode() if isinstance(message, str) else bytes(message)
        if not 0 < len(data) <= _MESSAGE_LIMIT:
            raise ValueError("a message has 1 to %d bytes, this one has %d" % (_MESSAGE_LIMIT, len(data)))
        if b"\0" in data:
            raise ValueError("a message has no NUL")
        _bindings.send(data)

    def receive(self):
        """Waits for a message and returns it as a dict; None when the other end is gone."""
        import json
        try:
            data = os.read(self._fd, _MESSAGE_LIMIT)
        except ConnectionResetError:  # it is gone, and has not read all; what it sent before is still there
            data = os.read(self._fd, _MESSAGE_LIMIT)
        return json.loads(data) if data else None


def register_before_snapshot(func, *args, **kwargs):
    """Has func(*args, **kwargs) called before the process parks, the last registered first. A decorator too."""
    _before_snapshot.append((func, args, kwargs))
    return func


def register_after_restore(func, *args, **kwargs):
    """Has func(*args, **kwargs) called in each copy, the first registered first. A decorator too."""
    _after_restore.append((func, args, kwargs))
    return func


def register_before_checkpoint(func, *args, **kwargs):
    """Has func(*args, **kwargs) called by checkpoint_here() when an image is about to be taken, the last registered
    first: to let go of what need not be in it, such as caches. A decorator too.
    """
    _before_checkpoint.append((func, args, kwargs))
    return func


def channel():
    """This copy's Channel, or None in a process that has none."""
    if _bindings is None:
        return None
    fd = _bindings.waiting.rekindle_channel()
    return Channel(fd) if fd >= 0 else None


def progress(step, total=None):
    """Says how far a supervised job is: `rekindle ps` and `top` show it, and that it does not hang. To be called at
    each step, as often as it likes: most calls write nothing. Never raises because of the daemon.
    """
    hook = _supervised if _supervised is not None else _find_supervised()
    if hook:
        hook.holding.rekindle_progress(max(int(step), 0), max(int(total), 0) if total is not None else 0)


def checkpoint_here(force=False):
    """A good moment for an image, such as the end of a step. Returns NOT_HELD at once unless an image is due, or
    `force` asks for one; else CONTINUED when it was taken, RESTORED in the job that was brought back from it, and
    NOT_HELD when none came in time (30 s, or $REKINDLE_BOUNDARY_SECONDS, which begin anew as long as the daemon says
    that it is storing the image). Before it waits it calls what was given to register_before_checkpoint(), and has torch
    give back the GPU memory that it keeps for later; no other registered function is called.
    """
    hook = _supervised if _supervised is not None else _find_supervised()
    if not hook:
        return NOT_HELD
    device_caches = _device_caches()
    if (_before_checkpoint or device_caches) and (force or hook.holding.rekindle_checkpoint_due()):
        for func, args, kwargs in reversed(_before_checkpoint):
            func(*args, **kwargs)
        if device_caches:
            device_caches.empty_cache()
    try:
        event = _INTERRUPTED
        while event == _INTERRUPTED:
            event = hook.waiting.rekindle_checkpoint_step(1 if force else 0)
    except BaseException:  # what a signal's handler raised
        hook.waiting.rekindle_checkpoint_leave()
        raise
    return {_CONTINUED: CONTINUED, _RESTORED: RESTORED}.get(event, NOT_HELD)


def unsafe_to_fork():
    """Why this process can't be a template (a str), or None when it can."""
    return _load().unsafe_to_fork()


def unrenewed():
    """What copies of this process would have in common although it ought to be random: a list of str. Takes a while;
    see rekindle.randomness.
    """
    from rekindle import randomness

    return randomness.unrenewed()


def ready():
    """Parks the process until it is woken. Returns NOT_HELD, CONTINUED or RESTORED (then `instance` tells more).

    In a template it returns in the copies alone. Raises HookError when the process can't be parked; what a callback
    raises goes to the caller.
    """
    global instance
    if not _is_held():
        return NOT_HELD
    hook = _load()
    from rekindle import randomness  # not on the way up of a copy

    for func, args, kwargs in reversed(_registered(_before_snapshot, "get_before_snapshot")):
        func(*args, **kwargs)
    hook.holding.rekindle_run_before_snapshot()
    device_caches = _device_caches()
    if device_caches:
        device_caches.empty_cache()
    randomness.prepare()
    hook.holding.rekindle_has_after_restore(1 if _registered(_after_restore, "get_after_restore") else 0)
    _flush_output()
    parked = hook.waiting.rekindle_park() == 0
    os.environ.pop("REKINDLE_HOLD", None)  # as the library does, which remembers it
    if not parked:
        raise hook.error()
    try:
        event = _INTERRUPTED
        while event == _INTERRUPTED:
            event = hook.waiting.rekindle_wait()
    except BaseException:  # what a signal's handler raised
        hook.waiting.rekindle_unpark()
        raise
    if event == _TEMPLATE:
        event = _serve_as_template(hook)
    if event == _CONTINUED:
        return CONTINUED
    if event != _RESTORED:
        raise hook.error()
    instance = hook.instance()
    os.environ.update(instance.environment)
    if "TZ" in instance.environment:
        import time

        time.tzset()
    hook.waiting.rekindle_renew()
    randomness.renew()
    hook.holding.rekindle_run_after_restore()
    for func, args, kwargs in _registered(_after_restore, "get_after_restore"):
        func(*args, **kwargs)
    hook.waiting.rekindle_up()
    return RESTORED


def _flush_output():
    """What is buffered would be written by each copy."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # the program has closed or replaced it
            pass


def _is_held():
    if _bindings is not None:
        return bool(_bindings.holding.rekindle_held())
    return os.environ.get("REKINDLE_HOLD") == "1"


def _device_caches():
    """torch.cuda where it has a GPU's memory, else None. Its allocator keeps what was freed, and all that it keeps
    would be in the image.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _serve_as_template(hook):
    """Returns in the copies alone."""
    import gc
    from ctypes import pythonapi

    os.environ.update(hook.instance().environment)
    # A collection writes to every object that it looks at, and so would copy their pages in each copy.
    gc.collect()
    gc.freeze()
    while True:
        try:
            event = hook.waiting.rekindle_next_request()
        except BaseException:  # what a signal's handler raised: a template has nobody to hand it to
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        if event == _CLOSED:
            os._exit(0)
        if event != _FORK:
            continue
        pythonapi.PyOS_BeforeFork()
        event = hook.holding.rekindle_fork_child()
        if event == _FORKED:
            pythonapi.PyOS_AfterFork_Parent()
        else:
            pythonapi.PyOS_AfterFork_Child()
            return event


def _registered(own, getter):
    """Ours, and those of AWS's package where the program has brought it along."""
    package = sys.modules.get("snapshot_restore_py")
    theirs = getattr(package, getter)() if package is not None else own
    return list(own) if theirs is own else own + list(theirs)


class _Bindings:
    """The library, twice: `waiting` releases the interpreter's lock during a call, `holding` does not."""

    def __init__(self, path):
        import ctypes

        class Restored(ctypes.Structure):
            _fields_ = [("instance", ctypes.c_char_p), ("name", ctypes.c_char_p),
                        ("environment", ctypes.POINTER(ctypes.c_char_p))]

        self._ctypes = ctypes
        self.waiting = ctypes.CDLL(path, use_errno=True)
        self.holding = ctypes.PyDLL(path)
        self.waiting.rekindle_error.restype = ctypes.c_char_p
        self.waiting.rekindle_instance.restype = ctypes.POINTER(Restored)
        self.holding.rekindle_progress.argtypes = (ctypes.c_uint64, ctypes.c_uint64)
        self.holding.rekindle_progress.restype = None

    def error(self):
        return HookError(self._ctypes.get_errno(), os.fsdecode(self.waiting.rekindle_error()))

    def instance(self):
        restored = self.waiting.rekindle_instance().contents
        environment = {}
        for variable in restored.environment:
            if variable is None:
                break
            name, _, value = os.fsdecode(variable).partition("=")
            environment[name] = value
        return Instance(os.fsdecode(restored.instance), os.fsdecode(restored.name), environment)

    def send(self, data):
        if self.waiting.rekindle_send(data) != 0:
            error = self._ctypes.get_errno()
            raise OSError(error, os.fsdecode(self.waiting.rekindle_error()))

    def unsafe_to_fork(self):
        why = self._ctypes.create_string_buffer(2048)
        unsafe = self.waiting.rekindle_unsafe_to_fork(why, self._ctypes.c_size_t(len(why)))
        return os.fsdecode(why.value) if unsafe else None


def _candidates():
    named = os.environ.get("REKINDLE_HOOK_LIBRARY")
    if named:
        yield named
        return
    folder = os.path.dirname(os.path.abspath(__file__))
    yield os.path.join(folder, _LIBRARY)
    machine = getattr(sys.implementation, "_multiarch", None)
    while folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
        yield os.path.join(folder, _LIBRARY)
        if machine:
            yield os.path.join(folder, "lib", machine, _LIBRARY)
        yield os.path.join(folder, "lib", _LIBRARY)
        yield os.path.join(folder, "lib64", _LIBRARY)


def _load():
    global _bindings
    if _bindings is None:
        looked_at = []
        for path in _candidates():
            if os.path.exists(path):
                _bindings = _Bindings(path)
                break
            looked_at.append(path)
        else:
            raise HookError("%s is in none of these places: %s. Set REKINDLE_HOOK_LIBRARY to its path" %
                            (_LIBRARY, ", ".join(looked_at)))
    return _bindings


def _warn(what):
    import warnings

    try:
        warnings.warn(what, RuntimeWarning, stacklevel=4)
    except Warning:  # as python -W error has it
        print("rekindle: " + what, file=sys.stderr)


def _find_supervised():
    """Without the library a supervised job is none the worse, only less well known."""
    global _supervised
    _supervised = False
    if os.environ.get("REKINDLE_JOB_FILE"):
        try:
            hook = _load()
            for name in _SUPERVISION:
                getattr(hook.waiting, name)
            _supervised = hook
        except Exception as error:  # no ctypes, no library, or an older one
            _warn("this job's progress is not reported: %s" % error)
    return _supervised


if os.environ.get("REKINDLE_HOLD") == "1":
    from rekindle import draws

    draws.watch()  # what unrenewed() tells
