"""New random states for a copy, and what can't be given one.

A copy starts here, so nothing is imported that the program has not loaded itself.
"""

import os
import sys

_drawn_keys = {}  # by _renew_multiprocessing(), for each of:
_PROCESSES = ("multiprocessing.process", "billiard.process")
# multiprocessing's, and those that are made after it.
_SEMAPHORES = ("multiprocessing.synchronize", "loky.backend.synchronize",
               "joblib.externals.loky.backend.synchronize")  # fmt: skip


def _loaded(name):
    """The module if the program has it. What is None in sys.modules is not to be had."""
    return sys.modules.get(name)


def prepare():
    """Goes the way of renew() with generators that nobody uses, so that what is done on a first use is in the image."""
    from rekindle import draws

    if draws.is_of_library(_loaded("random")):
        _loaded("random").Random()
    if _loaded("numpy.random"):
        _loaded("numpy.random").RandomState()
    if _loaded("torch"):
        _loaded("torch").Generator().seed()
    if _loaded("uuid") and getattr(_loaded("uuid"), "_generate_time_safe", None):
        # Of libuuid, which has it drawn once; later Python would start programs to find it.
        _loaded("uuid").getnode()


def renew():
    """Seeds the generators that belong to modules rather than to the program. OpenSSL's are the C library's."""
    from rekindle import draws  # by prepare() already

    if draws.is_of_library(_loaded("random")):
        _loaded("random").seed()
    if _loaded("tempfile"):
        # Its generator notices a fork by the PID, which copies have in common.
        _loaded("tempfile")._name_sequence = None
    for name in _SEMAPHORES:
        if _loaded(name):
            _renew_names(_loaded(name))
    if _loaded("uuid"):
        _renew_uuid(_loaded("uuid"))
    if _loaded("bson.objectid"):
        _renew_objectid(_loaded("bson.objectid"))
    for name in _PROCESSES:
        if _loaded(name):
            _renew_multiprocessing(name, _loaded(name))
    if _loaded("numpy.random"):
        _renew_numpy(_loaded("numpy.random"))
    if _loaded("torch"):
        _renew_torch(_loaded("torch"))


def _renew_uuid(uuid):
    """The node of uuid1(), where there was no hardware address to take: those that were drawn have the group bit. And
    the clock sequence: Python draws one for each, libuuid keeps that, and the node, where nobody can change them.
    """
    node = getattr(uuid, "_node", None)
    if node is not None and node >> 40 & 1:
        uuid._node = int.from_bytes(os.urandom(6), "big") | 1 << 40
    if hasattr(uuid, "_generate_time_safe"):
        uuid._generate_time_safe = None


def _renew_objectid(objectid):
    """MongoDB's IDs, beside the time: what each process draws, and a counter. They notice a fork by the PID."""
    from rekindle import draws  # by prepare() already

    if not draws.can_renew_objectid(objectid):
        return
    kind = objectid.ObjectId
    lock = getattr(kind, "_inc_lock", None)
    if lock is not None:
        lock.acquire()
    try:
        kind._ObjectId__random = os.urandom(len(kind._ObjectId__random))
        kind._inc = int.from_bytes(os.urandom(3), "big")
    finally:
        if lock is not None:
            lock.release()


def _renew_names(synchronize):
    """Of semaphores: these notice a fork by the PID, too."""
    names = getattr(getattr(synchronize, "SemLock", None), "_rand", None)
    if names is not None:
        synchronize.SemLock._rand = type(names)()


def _renew_multiprocessing(name, process):
    """The password of its Managers and Listeners (or of billiard's, a fork of it), who unpickle what those say who know it. What the program has set
    stays: what is drawn has 32 bytes. So does what is shared with processes that were made before the image.
    """
    current, known = process.current_process(), _drawn_keys.get(name)
    drawn = len(current.authkey) == 32 if known is None else current.authkey == known
    if not drawn or process._children or current._parent_pid is not None:
        return
    _drawn_keys[name] = os.urandom(32)
    current.authkey = _drawn_keys[name]


def _renew_numpy(numpy_random):
    try:
        numpy_random.seed()
    except RuntimeError:  # the program has put another generator there, which can't be seeded again
        numpy_random.set_bit_generator(type(numpy_random.get_bit_generator())())


def _renew_torch(torch):
    seed = torch.default_generator.seed()
    cuda = sys.modules.get("torch.cuda")
    if cuda is None:
        return
    if cuda.is_initialized():
        cuda.seed_all()
    elif getattr(cuda, "_queued_calls", None) and _seed_is_queued(cuda):
        # The program has seeded before CUDA was there; the last seed in the queue holds. Slow: torch keeps a stack
        # trace with it.
        cuda.manual_seed_all(seed)


def _seed_is_queued(cuda):
    tracker = getattr(cuda, "_lazy_seed_tracker", None)
    return tracker is None or bool(getattr(tracker, "manual_seed_all_cb", None) or getattr(tracker, "call_order", None))


def unrenewed():
    """What this process holds, here and now, that copies of it will have in common: a list of str.

    In a process that is held also the modules that had values drawn since the hook was imported. Walks over all objects
    (a tenth of a second and more), so it is for a look during development or for a before-snapshot callback. It can't see into memory of C code; docs/hook.md lists what may be there.
    """
    found = []
    if sys.flags.hash_randomization:
        found.append("the seed of str and bytes hashes (sys.flags.hash_randomization): fixed when Python starts")
    else:
        found.append("the seed of str and bytes hashes: fixed by PYTHONHASHSEED")
    from rekindle import draws

    return found + sorted(generators()) + [draws.in_words(module, what) for module, what, _ in draws.drawn()]


def generators():
    """The program's own, by name where a module has them: a list of str."""
    import gc

    objects = _objects(gc)
    kinds = _kinds()
    own = _renewed_objects(objects)
    seen = {}
    for holder in objects:
        for thing in (holder, *gc.get_referents(holder)):
            if issubclass(type(thing), kinds) and id(thing) not in own:
                seen[id(thing)] = thing
    # A generator of numpy holds a bit generator, which is not news.
    for thing in list(seen.values()):
        inner = getattr(thing, "bit_generator", None) or getattr(thing, "_bit_generator", None)
        if inner is not None:
            seen.pop(id(inner), None)
    places = _places(seen)
    return [_describe(thing, places.get(number)) for number, thing in seen.items()]


_CONTAINERS = (dict, list, tuple, set, frozenset)
_MOST_LOOKED_AT = 50_000


def generators_of(modules):
    """Those that these modules have, also in containers, or in classes and objects of theirs, by the name that leads
    there: a sorted list of str. Quick: looks at so many objects and no more.
    """
    import gc
    from _collections import deque  # built in

    kinds, own = _kinds(), _renewed_objects()
    names = {module.__dict__.get("__name__") for module in modules}
    seen, found = set(own), {}
    pending = deque(
        (value, "%s.%s" % (module.__dict__.get("__name__"), attribute))
        for module in modules
        for attribute, value in list(module.__dict__.items())
        if isinstance(attribute, str)
    )
    while pending and len(seen) < _MOST_LOOKED_AT:
        thing, place = pending.popleft()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        # Not isinstance(): an object may answer that by loading what it stands for.
        kind = type(thing)
        if issubclass(kind, kinds):
            if not _has_no_state(kind):
                found[id(thing)] = (thing, place)
        elif kind in _CONTAINERS or _module_of(thing if issubclass(kind, type) else kind) in names:
            pending.extend((inner, place) for inner in gc.get_referents(thing))
    return sorted(_describe(thing, place) for thing, place in found.values())


def _module_of(kind):
    return type.__getattribute__(kind, "__dict__").get("__module__")


def _has_no_state(kind):
    return bool(_loaded("random")) and issubclass(kind, _loaded("random").SystemRandom)


def _objects(gc):
    """All that the collector knows. What was put aside (gc.freeze), as in copies of a template and of a function's
    image, it does not show: that is reached from what it does show, from modules and from stacks. To thaw it would put
    aside for ever, afterwards, whatever is there by then.
    """
    objects = gc.get_objects()
    if gc.get_freeze_count() == 0:
        return objects
    seen = {id(thing) for thing in objects}
    pending = [*objects, *sys.modules.values(), *sys._current_frames().values()]
    while pending:
        for thing in gc.get_referents(pending.pop()):
            if id(thing) not in seen and gc.is_tracked(thing) and thing is not pending:
                seen.add(id(thing))
                objects.append(thing)
                pending.append(thing)
    return objects


def _kinds():
    kinds = []
    for module, names in (
        ("random", ("Random",)),
        ("numpy.random", ("Generator", "RandomState", "BitGenerator")),
        ("torch", ("Generator",)),
    ):
        if _loaded(module):
            kinds += [getattr(_loaded(module), name) for name in names]
    return tuple(kinds)


def _renewed_objects(objects=()):
    """Those that renew() seeds, and those of `objects` that have no state or make names alone: their ids."""
    own = set()
    if _loaded("random"):
        random = _loaded("random")
        own.add(id(random._inst))
        own.update(id(thing) for thing in objects if _has_no_state(type(thing)))
    if _loaded("tempfile"):
        # Also of those that a library has left behind, as joblib does: they make names, and try others.
        sequences = _loaded("tempfile")._RandomNameSequence
        for thing in objects:
            if issubclass(type(thing), sequences):
                own.add(id(getattr(thing, "_rng", None)))
    if _loaded("numpy.random"):
        mtrand = _loaded("numpy.random").mtrand
        own.add(id(mtrand._rand))
        own.add(id(mtrand._rand._bit_generator))
    if _loaded("torch"):
        own.add(id(_loaded("torch").default_generator))
        own.update(id(generator) for generator in getattr(sys.modules.get("torch.cuda"), "default_generators", ()))
    return own


def _places(wanted):
    places = {}
    for name, module in list(sys.modules.items()):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in wanted:
                places.setdefault(id(value), name + "." + attribute)
    return places


def _describe(thing, place):
    kind = "%s.%s" % (type(thing).__module__, type(thing).__qualname__)
    return "%s: %s" % (place or "somewhere in memory", kind)
