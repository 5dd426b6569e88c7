"""What was drawn at random while this process was watched, and copies of it have in common: values, by the module that
had them drawn when it was loaded. Of what the interpreter draws in C, such as the seed of a random.Random(), nothing is
seen.

A copy starts here, so nothing is imported that the program has not loaded itself.
"""

import os
import sys

_MOST_TRACED = 1000  # tracing a call takes longer than to draw
_MOST_KEPT = 256
# Of these functions the caller is who draws.
_DRAWING = ("os", "random", "secrets", "uuid", __name__)
# What these draw when they are loaded is drawn anew in each copy (randomness.py), or is used up by then.
_RENEWED = ("numpy.random", "multiprocessing.process", "billiard.process")
_NAMING = ("asgiref.local",)  # what these draw are names within the process
_WITHOUT_VALUE = ("getstate", "setstate")
OTHERS = ""  # in a module's place: of whom it is not known

_real_urandom = os.urandom
_watching = False
_seeded = False
_random = None  # the module, once its functions are watched
_replaced = {}  # of those, by name
_traced = 0
_found = {}  # (module, what): the modules that were being loaded, innermost first


def watch():
    """From now on, until as much has been traced again: os.urandom(), and what draws from it, as random.SystemRandom,
    secrets and uuid do.
    """
    global _watching, _traced
    _watching = True
    _traced = 0
    os.urandom = _urandom
    _put_into_random(_real_urandom, _urandom)


def watch_numbers():
    """The functions of module random, too, if it is loaded by now. They are slower then."""
    global _random
    random = sys.modules.get("random")
    if _random is not None or not is_of_library(random):
        return
    generator, names = getattr(random, "_inst", None), getattr(random, "__all__", None)
    if generator is None or names is None or getattr(getattr(random, "__spec__", None), "_initializing", False):
        return
    _random = random
    for name in names:
        real = getattr(random, name, None)
        if getattr(real, "__self__", None) is generator and name not in _WITHOUT_VALUE:
            own = _seeding(real) if name == "seed" else _noting(name, real)
            _replaced[name] = real, own
            setattr(random, name, own)


def is_of_library(module):
    """Is it Python's own, and not a program's of the same name?"""
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and os.path.dirname(file) == os.path.dirname(os.__file__)


def end():
    """What was found stays. What modules have taken meanwhile (from os import urandom) goes on as what it stands for."""
    global _watching, _random
    _watching = False
    if os.urandom is _urandom:
        os.urandom = _real_urandom
    _put_into_random(_urandom, _real_urandom)
    for name, (real, own) in _replaced.items():
        if getattr(_random, name, None) is own:
            setattr(_random, name, real)
    _replaced.clear()
    _random = None


def _put_into_random(present, new):
    random = sys.modules.get("random")
    if getattr(random, "_urandom", None) is present:
        random._urandom = new


def drawn():
    """[(module, what, the modules that were being loaded, innermost first)], sorted."""
    return sorted((module, what, chain) for (module, what), chain in list(_found.items()) if not _is_renewed(module))


def in_words(module, what):
    return "%s: %s" % ("others" if module == OTHERS else module, what)


def _is_renewed(module):
    if module == "bson.objectid":
        return can_renew_objectid(sys.modules.get(module))
    return any(module == name or module.startswith(name + ".") for name in _RENEWED)


def can_renew_objectid(module):
    kind = getattr(module, "ObjectId", None)
    return isinstance(getattr(kind, "_ObjectId__random", None), bytes) and isinstance(getattr(kind, "_inc", None), int)


def _noting(name, real):
    def draw(*args, **kwargs):
        if _watching and not _seeded:
            _note("random." + name)
        return real(*args, **kwargs)

    return _named(draw, name)


def _seeding(real):
    def seed(a=None, *args, **kwargs):
        global _seeded
        _seeded = a is not None  # then the program wants the same numbers
        return real(a, *args, **kwargs)

    return _named(seed, "seed")


def _named(function, name):
    """So that it can be pickled."""
    function.__module__, function.__name__, function.__qualname__ = "random", name, name
    return function


def _urandom(size):
    if _watching:
        _note("os.urandom")
    return _real_urandom(size)


def _note(what):
    """To look must never be the program's misfortune."""
    try:
        _look(what, sys._getframe(1).f_back)
    except Exception:  # of a module that is not like others
        pass


def _look(what, frame):
    global _traced
    if _traced >= _MOST_TRACED or len(_found) >= _MOST_KEPT:
        _found.setdefault((OTHERS, "more than the %d draws that are looked at" % _MOST_TRACED), [])
        return
    _traced += 1
    inner, chain = None, []
    while frame is not None:
        module, function = frame.f_globals.get("__name__"), frame.f_code.co_name
        if function == "<module>":
            chain.append(str(module))
        elif inner is None and module in _DRAWING:
            what = "random.SystemRandom" if module == "random" and what == "os.urandom" else \
                what if module == "random" else "%s.%s" % (module, function)
        if inner is None and module not in _DRAWING:
            inner = str(module)
        frame = frame.f_back
    by = chain[0] if chain else inner or OTHERS
    if inner not in _NAMING:
        _found.setdefault((by, what), chain)
