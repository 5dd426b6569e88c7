"""The Python package of the hook, in processes that are woken over the control channel as if they were restored."""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

from parked import RESTORED, SECONDS, receive, wait_until_parked, wake

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(HERE, "..", "..", "hook", "python")

# What AWS's package offers, for a program that has brought it along.
BROUGHT_ALONG = """
_before, _after = [], []
def register_before_snapshot(func, *args, **kwargs):
    _before.append((func, args, kwargs))
    return func
def register_after_restore(func, *args, **kwargs):
    _after.append((func, args, kwargs))
    return func
def get_before_snapshot():
    return _before
def get_after_restore():
    return _after
"""

OBJECTID = """
import os, threading
from random import SystemRandom
_MAX_COUNTER_VALUE = 0xFFFFFF
def _random_bytes():
    return os.urandom(5)
class ObjectId:
    _pid = os.getpid()
    _inc_lock = threading.Lock()
    _inc = SystemRandom().randint(0, _MAX_COUNTER_VALUE)
    __random = _random_bytes()
    @classmethod
    def _random(cls):
        if os.getpid() != cls._pid:
            cls._pid = os.getpid()
            cls.__random = _random_bytes()
        return cls.__random
    def parts(self):
        with ObjectId._inc_lock:
            inc = ObjectId._inc
            ObjectId._inc = (inc + 1) % (_MAX_COUNTER_VALUE + 1)
        return [ObjectId._random().hex(), inc]
"""


class HeldProgram:
    def __init__(self, text, *path):
        self.process = subprocess.Popen(
            [sys.executable, "-B", "-c", textwrap.dedent(text)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join([*path, PACKAGE]), "REKINDLE_HOLD": "1",
                 "REKINDLE_HOOK_LIBRARY": os.environ["REKINDLE_HOOK_LIBRARY"]},
        )
        wait_until_parked(self.process)

    def wake(self, message):
        """Sends it, and returns what the program prints, as JSON."""
        with wake(self.process, message):
            out, _ = self.process.communicate(timeout=SECONDS)
        if self.process.returncode != 0:
            raise AssertionError("the program ended with %d" % self.process.returncode)
        return json.loads(out)


def run(text, *path):
    """The program's answer after it was woken as a copy."""
    return HeldProgram(text, *path).wake(RESTORED)


def has(module):
    return subprocess.run([sys.executable, "-c", "import " + module], check=False, capture_output=True).returncode == 0


class GeneratedModulesTest(unittest.TestCase):
    """What protoc makes of rekindle/v1/*.proto lies in a package of the hook's name."""

    PROGRAM = """
        import importlib.util, json, os, sys
        folder = os.environ["GENERATED"]
        if os.environ["WHEN"] == "before":
            sys.path.insert(0, folder)
        import rekindle
        if os.environ["WHEN"] == "after":
            sys.path.append(folder)
        found = importlib.util.find_spec("rekindle.v1.rekindle_pb2")
        own = importlib.util.find_spec("rekindle.randomness")
        missing = importlib.util.find_spec("rekindle.absent")
        print(json.dumps([found and found.origin, own and own.origin, missing, rekindle.ready()]))
        """

    @unittest.skipUnless(shutil.which("protoc"), "protoc is not installed")
    def test_beside_the_hook(self):
        with tempfile.TemporaryDirectory(prefix="rk-generated.") as folder:
            protos = os.path.join(PACKAGE, "..", "..", "proto")
            names = [os.path.join("rekindle", "v1", name)
                     for name in os.listdir(os.path.join(protos, "rekindle", "v1")) if name.endswith(".proto")]
            subprocess.run(["protoc", "-I", protos, "--python_out=" + folder, *names], check=True, cwd=protos)
            for when in ("before", "after"):
                with self.subTest(when=when):
                    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": PACKAGE, "GENERATED": folder, "WHEN": when}
                    done = subprocess.run([sys.executable, "-B", "-c", textwrap.dedent(self.PROGRAM)], check=False,
                                          capture_output=True, text=True, env=environment, timeout=SECONDS)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    found, own, missing, ready = json.loads(done.stdout)
                    self.assertEqual(found, os.path.join(folder, "rekindle", "v1", "rekindle_pb2.py"))
                    self.assertEqual(os.path.realpath(own), os.path.realpath(os.path.join(PACKAGE, "rekindle",
                                                                                        "randomness.py")))
                    self.assertIsNone(missing)
                    self.assertEqual(ready, "not held")


class SnapStartTest(unittest.TestCase):
    PROGRAM = """
        import json, rekindle
        from snapshot_restore_py import register_after_restore, register_before_snapshot
        order = []
        @register_before_snapshot
        def before_1():
            order.append("before 1")
        register_before_snapshot(order.append, "before 2")
        register_after_restore(lambda *a, **k: order.append([a, k]), 3, word="w")
        @register_after_restore
        def after_2():
            order.append("after 2")
        register_after_restore(after_2)
        rekindle.register_after_restore(order.append, "ours")
        rekindle.ready()
        print(json.dumps(order))
        """

    def test_order(self):
        self.assertEqual(run(self.PROGRAM),
                         ["before 2", "before 1", [[3], {"word": "w"}], "after 2", "after 2", "ours"])

    def test_the_package_that_a_program_brings_along(self):
        with tempfile.TemporaryDirectory(prefix="rk-snapstart.") as folder:
            with open(os.path.join(folder, "snapshot_restore_py.py"), "w", encoding="ascii") as file:
                file.write(BROUGHT_ALONG)
            order = run(self.PROGRAM, folder)
        self.assertEqual([entry for entry in order if entry != "ours"],
                         ["before 2", "before 1", [[3], {"word": "w"}], "after 2", "after 2"])
        self.assertEqual(order.count("ours"), 1)

    def test_going_on_is_no_restore(self):
        self.assertEqual(HeldProgram(self.PROGRAM).wake({"type": "continue"}), ["before 2", "before 1"])

    def test_registries(self):
        self.assertEqual(run("""
            import json, rekindle, snapshot_restore_py
            def function(*_, **__):
                return 1
            assert snapshot_restore_py.register_before_snapshot(function, 1, k=2) is function
            snapshot_restore_py.register_after_restore(function)
            rekindle.ready()
            same = [(f is function, a, k) for f, a, k in snapshot_restore_py.get_before_snapshot()]
            print(json.dumps([same, len(snapshot_restore_py.get_after_restore()), function()]))
            """), [[[True, [1], {"k": 2}]], 1, 1])


class ReadyTest(unittest.TestCase):
    def test_what_it_starts_is_not_held(self):
        self.assertEqual(run("""
            import json, os, subprocess, sys, rekindle
            rekindle.ready()
            program = [sys.executable, "-B", "-c", "import rekindle; print(rekindle.ready())"]
            answers = [subprocess.run(program, env=env, stdout=subprocess.PIPE, text=True, timeout=20).stdout.strip()
                       for env in (None, dict(os.environ))]
            read, write = os.pipe()
            if os.fork() == 0:
                os.write(write, rekindle.ready().encode())
                os._exit(0)
            answers.append(os.read(read, 100).decode())
            print(json.dumps(answers))
            """), ["not held"] * 3)

    def test_it_is_held_again(self):
        program = HeldProgram("""
            import json, rekindle
            print(rekindle.ready(), flush=True)
            print(json.dumps(rekindle.ready()))
            """)
        with wake(program.process, {"type": "continue"}):
            self.assertEqual(program.process.stdout.readline(), b"continued\n")
        wait_until_parked(program.process)
        self.assertEqual(program.wake({"type": "continue"}), "continued")

    def test_what_is_buffered_is_written_once(self):
        program = HeldProgram("""
            import json, rekindle
            print("loaded")
            rekindle.ready()
            print(json.dumps("ready"))
            """)
        self.assertTrue(select.select([program.process.stdout], [], [], SECONDS)[0], "written before it waits")
        self.assertEqual(program.process.stdout.readline(), b"loaded\n")
        self.assertEqual(program.wake(RESTORED), "ready")

    def test_modules_that_are_not_to_be_had(self):
        self.assertEqual(run("""
            import json, sys, rekindle
            for name in ("random", "numpy.random", "torch", "tempfile", "uuid", "multiprocessing.process"):
                sys.modules[name] = None
            rekindle.unrenewed()
            print(json.dumps(rekindle.ready()))
            """), "restored")

    def test_a_time_zone(self):
        self.assertEqual(HeldProgram("""
            import json, time, rekindle
            time.tzset()
            rekindle.ready()
            print(json.dumps([time.tzname[0], time.strftime("%Z")]))
            """).wake({**RESTORED, "environment": {"TZ": "ABC-5"}}), ["ABC", "ABC"])

    def test_a_channel_whose_other_end_is_gone(self):
        program = HeldProgram("""
            import json, signal, sys, rekindle
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            rekindle.ready()
            channel = rekindle.channel()
            channel.send({"type": "hello"})
            answers = [channel.receive(), channel.receive(), channel.receive()]
            for message in ({}, b"a\\0b"):
                try:
                    channel.send(message)
                except (BrokenPipeError, ValueError) as error:
                    answers.append(type(error).__name__)
            print(json.dumps(answers))
            """)
        with wake(program.process, RESTORED) as channel:
            self.assertEqual(receive(channel)["type"], "up")
            # It is not read when the channel is closed.
            select.select([channel], [], [], SECONDS)
            channel.send(b'{"type": "last"}')
        out, _ = program.process.communicate(timeout=SECONDS)
        self.assertEqual(program.process.returncode, 0)
        self.assertEqual(json.loads(out), [{"type": "last"}, None, None, "BrokenPipeError", "ValueError"])


class RandomnessTest(unittest.TestCase):
    def changed(self, setup, draw):
        """Whether a copy draws something else than the process that it comes from would have."""
        program = """
            import json, sys
            %s
            import rekindle
            rekindle.ready()
            loaded = set(sys.modules)
            print(json.dumps(str(%s)))
            """ % (setup, draw)
        going_on = HeldProgram(program).wake({"type": "continue"})
        again = HeldProgram(program).wake({"type": "continue"})
        self.assertEqual(again, going_on, "without the hook's doing it repeats")
        copies = [run(program) for _ in range(2)]
        self.assertEqual(len({going_on, *copies}), 3)

    def test_random(self):
        self.changed("import random; random.seed(1)", "random.random()")

    def test_numpy(self):
        if not has("numpy"):
            self.skipTest("there is no numpy")
        self.changed("import numpy; numpy.random.seed(1)", "numpy.random.random()")

    def test_torch(self):
        if not has("torch"):
            self.skipTest("there is no torch")
        self.changed("import torch; torch.manual_seed(1)", "float(torch.rand(1))")

    def test_nodes_of_uuids(self):
        node = run("""
            import json, uuid
            uuid._node = 1 << 40 | 5
            import rekindle
            rekindle.ready()
            print(json.dumps(uuid.uuid1().node))
            """)
        self.assertNotEqual(node, 1 << 40 | 5)
        self.assertTrue(node >> 40 & 1)
        address = run("""
            import json, uuid
            uuid._node = 5
            import rekindle
            rekindle.ready()
            print(json.dumps(uuid._node))
            """)
        self.assertEqual(address, 5, "a hardware address stays")

    def test_the_clock_sequence_of_uuids(self):
        """libuuid keeps it for as long as the process lives."""
        program = """
            import json, uuid
            first = uuid.uuid1()
            import rekindle
            rekindle.ready()
            drawn = [uuid.uuid1() for _ in range(5)]
            assert first.node >> 40 & 1 or {each.node for each in drawn} == {first.node}
            print(json.dumps([each.clock_seq for each in drawn]))
            """
        self.assertGreater(len(set(run(program) + run(program))), 1)

    def test_names_of_semaphores(self):
        self.changed("import multiprocessing.synchronize as s; s.SemLock._rand._rng_pid = __import__('os').getpid(); "
                     "s.SemLock._rand._rng = __import__('random').Random(1)", "next(s.SemLock._rand)")

    def test_the_key_of_multiprocessing(self):
        self.changed("import multiprocessing.process as mp; mp.current_process().authkey = bytes(32)",
                     "bytes(mp.current_process().authkey)")

    def test_a_key_of_multiprocessing_that_others_know_stays(self):
        for key, children in (("b'secret'", "set()"), ("bytes(32)", "{'a child'}")):
            self.assertEqual(run("""
                import json
                import multiprocessing.process as mp
                mp.current_process().authkey = %s
                mp._children = %s
                import rekindle
                rekindle.ready()
                print(json.dumps(bytes(mp.current_process().authkey) == %s))
                """ % (key, children, key)), True)

    def test_ids_of_mongodb(self):
        # As bson/objectid.py has it, in version 3 and later.
        with tempfile.TemporaryDirectory(prefix="rk-bson.") as folder:
            os.mkdir(os.path.join(folder, "bson"))
            for name, text in (("__init__.py", ""), ("objectid.py", OBJECTID)):
                with open(os.path.join(folder, "bson", name), "w", encoding="utf-8") as file:
                    file.write(text)
            before, after, named = run("""
                import json
                import rekindle
                from bson.objectid import ObjectId
                before, named = ObjectId().parts(), rekindle.unrenewed()[1:]
                rekindle.ready()
                print(json.dumps([before, ObjectId().parts(), named]))
                """, folder)
        self.assertNotEqual(before[0], after[0])
        self.assertNotIn(after[1], (before[1], before[1] + 1))
        self.assertEqual([len(bytes.fromhex(before[0])), len(bytes.fromhex(after[0]))], [5, 5])
        self.assertEqual(named, [], "it is renewed")

    def test_a_key_that_was_set_after_the_first_image_stays(self):
        # As a function's in an image of its dependencies, in which it was drawn.
        self.assertEqual(run("""
            import json
            import multiprocessing.process as mp
            import rekindle
            from rekindle import randomness
            rekindle.ready()
            drawn = bytes(mp.current_process().authkey)
            randomness.renew()
            again = bytes(mp.current_process().authkey)
            mp.current_process().authkey = bytes(32)
            randomness.renew()
            print(json.dumps([drawn == again, again == bytes(32), bytes(mp.current_process().authkey) == bytes(32)]))
            """), [False, False, True])

    def test_nothing_is_loaded_for_it(self):
        self.assertEqual(run("""
            import sys
            import rekindle
            from rekindle import randomness
            seen = []
            class Watch:
                def find_spec(self, name, *_):
                    seen.append(name)
            # The last thing before parking, and the last of the way up.
            prepare = randomness.prepare
            randomness.prepare = lambda: (prepare(), sys.meta_path.insert(0, Watch()))
            rekindle.register_after_restore(lambda: sys.meta_path.pop(0))
            rekindle.ready()
            import json
            print(json.dumps([seen, [name for name in ("random", "numpy", "tempfile") if name in sys.modules]]))
            """), [[], []])

    def test_what_is_not_renewed_is_named(self):
        named = run("""
            import json, random, tempfile
            import rekindle
            next(tempfile._get_candidate_names())
            left_behind = tempfile._RandomNameSequence()
            next(left_behind)
            kept = random.Random(1)
            hidden = [random.Random(2)]
            system = random.SystemRandom()
            found = rekindle.unrenewed()
            rekindle.ready()
            print(json.dumps(found))
            """)
        self.assertIn("hash", named[0])
        self.assertEqual(named[1:], ["__main__.kept: random.Random", "somewhere in memory: random.Random"])

    def test_who_drew_values_is_named(self):
        with tempfile.TemporaryDirectory(prefix="rk-draws.") as folder:
            with open(os.path.join(folder, "draws_when_loaded.py"), "w", encoding="utf-8") as file:
                file.write("import random, secrets, uuid\nKEY = secrets.token_bytes(32)\n"
                           "PORT = random.SystemRandom().randint(1, 9)\ndef new_id():\n    return uuid.uuid4()\n")
            named = run("""
                import json
                import rekindle
                import multiprocessing, numbers, tempfile
                import draws_when_loaded
                boot = draws_when_loaded.new_id()
                found = rekindle.unrenewed()
                rekindle.ready()
                print(json.dumps(found))
                """, folder)
        self.assertEqual(named[1:], ["__main__: uuid.uuid4", "draws_when_loaded: random.SystemRandom",
                                     "draws_when_loaded: secrets.token_bytes"])

    def test_watching_never_hurts_the_program(self):
        with tempfile.TemporaryDirectory(prefix="rk-draws.") as folder:
            with open(os.path.join(folder, "random.py"), "w", encoding="utf-8") as file:
                file.write("def pick():\n    return 4\n")
            named = run("""
                import _thread, json, os, sys
                raised = []
                sys.unraisablehook = lambda what: raised.append(repr(what.exc_value))
                import rekindle
                from rekindle import draws
                sys.path.insert(0, %r)
                sys.modules.pop("random", None)
                import random
                draws.watch_numbers()
                ended = _thread.allocate_lock()
                ended.acquire()
                class Size:
                    def __index__(self):
                        return 16
                    def __del__(self):
                        ended.release()
                _thread.start_new_thread(os.urandom, (Size(),))
                ended.acquire()
                drawn = draws.drawn()
                rekindle.ready()
                print(json.dumps([random.pick(), raised, [what for module, what, _ in drawn if module == draws.OTHERS]]))
                """ % folder)
        self.assertEqual(named, [4, [], ["os.urandom"]])

    def test_what_is_not_looked_at_is_told_and_each_load_is(self):
        told = run("""
            import json, os
            import rekindle
            from rekindle import draws
            for _ in range(1001):
                os.urandom(1)
            first = rekindle.unrenewed()[1:]
            draws.watch()
            exec(compile("import os\\nos.urandom(1)", "late.py", "exec"), {"__name__": "late"})
            found = [first, rekindle.unrenewed()[1:]]
            rekindle.ready()
            print(json.dumps(found))
            """)
        others = "others: more than the 1000 draws that are looked at"
        self.assertEqual(told, [[others, "__main__: os.urandom"], [others, "__main__: os.urandom", "late: os.urandom"]])

    def test_those_are_named_that_lie_among_frozen_objects(self):
        named = run("""
            import gc, json, random
            import rekindle
            kept = random.Random(1)
            hidden = [random.Random(2)]
            gc.freeze()
            frozen = gc.get_freeze_count()
            later = [[]]
            found = [rekindle.unrenewed()[1:], rekindle.unrenewed()[1:]]
            found += [0 < gc.get_freeze_count() <= frozen, any(one is later for one in gc.get_objects())]
            rekindle.ready()
            print(json.dumps(found))
            """)
        expected = ["__main__.kept: random.Random", "somewhere in memory: random.Random"]
        self.assertEqual(named, [expected, expected, True, True])

    def test_generators_of_numpy_are_named(self):
        if not has("numpy"):
            self.skipTest("there is no numpy")
        named = run("""
            import json, numpy
            import rekindle
            numpy.random.random()
            rng = numpy.random.default_rng()
            found = rekindle.unrenewed()
            rekindle.ready()
            print(json.dumps(found))
            """)
        self.assertEqual(named[1:], ["__main__.rng: numpy.random._generator.Generator",
                                     "__main__: random.SystemRandom"], "the generator, and its seed")


if __name__ == "__main__":
    unittest.main()
