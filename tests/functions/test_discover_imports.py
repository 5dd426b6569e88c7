"""discover_imports.py: what it finds, and what it says of handlers that do not import."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "..", "..", "functions", "runtimes", "python", "discover_imports.py")
LIMIT_SECONDS = 60


class DiscoverImportsTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="rekindle-imports.", dir="/var/tmp")
        self.addCleanup(folder.cleanup)
        self.root = os.path.realpath(folder.name)
        self.code = os.path.join(self.root, "code")
        os.mkdir(self.code)

    def write(self, path, text):
        path = os.path.join(self.code, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(text))
        return path

    def run_program(self, *arguments):
        return subprocess.run(
            [sys.executable, "-B", PROGRAM, *arguments], capture_output=True, text=True, timeout=LIMIT_SECONDS
        )

    def discover(self, source, *arguments, handler="app.handler"):
        self.write("app.py", source)
        files = self.files()
        done = self.run_program("--code", self.code, "--handler", handler, *arguments)
        self.assertEqual(done.stderr, "")
        self.assertEqual(self.files(), files, "the code directory has changed")
        result = json.loads(done.stdout)
        self.assertEqual(done.returncode, 0 if result["ok"] else 1)
        self.assertEqual(result["ok"], result["error"] is None)
        return result

    def files(self):
        return sorted(os.path.join(place, name) for place, _, names in os.walk(self.code) for name in names)

    def assert_error(self, result, kind, message):
        self.assertFalse(result["ok"])
        self.assertEqual((result["error"]["errorType"], result["error"]["errorMessage"]), (kind, message))

    def entry(self, result, kind, name):
        entries = {entry["name"]: entry for entry in result[kind]}
        self.assertIn(name, entries)
        return entries[name]

    # What it finds.

    def test_installed_package(self):
        result = self.discover("import numpy.linalg\ndef handler(event, context): pass\n")
        self.assertTrue(result["ok"])
        numpy = self.entry(result, "installed", "numpy")
        self.assertRegex(numpy["version"], r"^\d+\.\d+")
        self.assertEqual(numpy["distributions"], [{"name": "numpy", "version": numpy["version"]}])
        self.assertTrue(numpy["file"].endswith("/numpy/__init__.py") and os.path.exists(numpy["file"]), numpy["file"])
        self.assertGreater(numpy["modules"], 20)
        self.assertTrue(numpy["asked_for"])
        self.assertGreater(result["resident_bytes"], 10 << 20)
        self.assertGreaterEqual(result["threads"], 1)
        self.assertEqual(result["python"], ".".join(map(str, sys.version_info[:3])))

    def test_package_that_another_brings(self):
        result = self.discover("import pandas\ndef handler(event, context): pass\n")
        self.assertTrue(self.entry(result, "installed", "pandas")["asked_for"])
        self.assertFalse(self.entry(result, "installed", "numpy")["asked_for"])
        self.assertEqual(
            self.entry(result, "installed", "dateutil")["distributions"][0]["name"], "python-dateutil"
        )
        result = self.discover("import pandas, numpy\ndef handler(event, context): pass\n")
        self.assertTrue(self.entry(result, "installed", "numpy")["asked_for"], "it was loaded already, and named")

    def test_standard_library(self):
        result = self.discover("import json, wave\nimport xml.dom.minidom\ndef handler(event, context): pass\n")
        self.assertLessEqual({"json", "wave", "xml"}, set(result["standard_library"]))
        self.assertEqual(result["installed"], [])
        nothing = self.discover("def handler(event, context): pass\n")
        self.assertEqual((nothing["installed"], nothing["standard_library"]), ([], []), "nothing of our own is counted")

    def test_the_hook_is_found_and_is_the_runtimes(self):
        result = self.discover("""
            from snapshot_restore_py import register_before_snapshot
            import numpy, rekindle
            def handler(event, context): pass
        """)
        self.assertIsNone(result["error"])
        self.assertEqual(result["imports"], ["numpy"], "what comes after it is found, and it is no dependency")
        # The function's own package of this name hides it.
        self.write("snapshot_restore_py.py", "mine = True\n")
        result = self.discover("from snapshot_restore_py import mine\ndef handler(event, context): pass\n")
        self.assertIsNone(result["error"])
        self.assertEqual([entry["name"] for entry in result["code"]], ["app", "snapshot_restore_py"])

    def test_generators_that_instances_would_share(self):
        result = self.discover("""
            import random, numpy
            rng = numpy.random.default_rng(7)
            draws = {"own": random.Random()}
            def handler(event, context): pass
        """)
        self.assertEqual(result["unrenewed"],
                         ["app.draws: random.Random", "app.rng: numpy.random._generator.Generator"])
        renewing = self.discover("""
            import random, snapshot_restore_py
            rng = random.Random()
            snapshot_restore_py.register_after_restore(rng.seed)
            def handler(event, context): pass
        """)
        self.assertEqual(renewing["unrenewed"], [])

    def test_generators_of_libraries_and_objects_that_answer_for_others_are_left_alone(self):
        beside = os.path.join(self.root, "beside")
        os.mkdir(beside)
        with open(os.path.join(beside, "library.py"), "w", encoding="utf-8") as file:
            file.write("import random\nrng = random.Random()\n")
        result = self.discover(f"""
            import random, sys
            sys.path.append({beside!r})
            import library
            class Lazy:
                @property
                def __class__(self):
                    raise SystemExit(3)
            lazy = Lazy()
            class Draws:
                shared = random.Random()
                def __init__(self):
                    self.rng = random.Random()
            draws = Draws()
            system = random.SystemRandom()
            def handler(event, context): pass
        """)
        self.assertIsNone(result["error"])
        self.assertEqual(result["unrenewed"], ["app.Draws: random.Random", "app.draws: random.Random"])

    def test_what_ends_it_after_it_was_loaded_is_no_failure(self):
        result = self.discover("""
            import os, random
            random.SystemRandom = type("Ends", (type,), {"__subclasscheck__": lambda *_: os._exit(3)})("E", (), {})
            rng = random.Random()
            def handler(event, context): pass
        """)
        self.assertIsNone(result["error"])
        self.assertEqual(result["unrenewed"], [])

    def test_values_that_were_drawn(self):
        source = """
            import random, secrets, uuid
            import snapshot_restore_py
            SEED = random.randint(1, 9)
            TOKEN = secrets.token_hex(8)
            def instance_id():
                return uuid.uuid4()
            ID = instance_id()
            def handler(event, context): pass
        """
        result = self.discover(source)
        self.assertEqual(result["drawn"], ["app: random.randint", "app: secrets.token_hex", "app: uuid.uuid4"])
        renewing = self.discover(source + "    snapshot_restore_py.register_after_restore(handler)\n")
        self.assertIsNone(renewing["error"])
        self.assertEqual(renewing["drawn"], [])
        seeded = self.discover("""
            import random
            random.seed(7)
            FIRST = random.random()
            def handler(event, context): pass
        """)
        self.assertEqual(seeded["drawn"], [], "it wants the same")

    def test_modules_of_its_own_may_be_called_as_those_of_python(self):
        self.write("random.py", "def pick():\n    return 4\n")
        result = self.discover("import random, json\nPICKED = random.pick()\ndef handler(event, context): pass\n")
        self.assertIsNone(result["error"])
        self.assertEqual([entry["name"] for entry in result["code"]], ["app", "random"])

    def test_after_too_many_draws_no_library_counts_as_clean(self):
        result = self.discover("""
            import os
            for _ in range(1001):
                os.urandom(1)
            import numpy
            def handler(event, context): pass
        """)
        self.assertIsNone(result["error"])
        self.assertEqual(result["imports"], [])
        self.assertIn("others: more than the 1000 draws that are looked at", result["drawn"])

    def test_libraries_that_draw_are_no_imports(self):
        with tempfile.TemporaryDirectory(prefix="rk", dir="/usr/lib/python3/dist-packages") as folder:
            package = os.path.basename(folder)
            for name, text in (("__init__.py", ""), ("clean.py", "import json\n"),
                               ("ids.py", "import os\nNODE = os.urandom(6)\n"),
                               ("client.py", "from . import ids\n")):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)
            result = self.discover(f"""
                import numpy, {package}.client, {package}.ids, {package}.clean
                def handler(event, context): pass
            """)
            self.assertIsNone(result["error"])
            self.assertEqual(result["imports"], ["numpy", f"{package}.clean"])
            self.assertEqual(result["drawn"], [f"{package}.ids: os.urandom"])

    def test_libraries_draw_nothing_that_is_told(self):
        result = self.discover("""
            import asyncio, concurrent.futures, email.mime.multipart, http.client, multiprocessing.pool, ssl, tempfile
            import numpy, pandas, requests, scipy.stats, sklearn.ensemble, torch, torch.multiprocessing
            import boto3
            bucket = boto3.client("s3", region_name="eu-central-1")
            table = boto3.resource("dynamodb", region_name="eu-central-1")
            session = requests.Session()
            def handler(event, context): pass
        """)
        self.assertIsNone(result["error"])
        self.assertEqual(result["drawn"], [])
        self.assertIn("torch", result["imports"])

    def test_libraries_have_none_that_instances_would_share(self):
        result = self.discover("""
            import random, secrets, tempfile, uuid
            import numpy, pandas
            def handler(event, context): pass
        """)
        self.assertEqual(result["unrenewed"], [])

    def test_python_3_9_has_no_list_of_its_modules(self):
        older = os.path.join(self.root, "older")
        os.mkdir(older)
        with open(os.path.join(older, "sitecustomize.py"), "w", encoding="utf-8") as file:
            file.write("import sys\ndel sys.stdlib_module_names\n")
        with unittest.mock.patch.dict(os.environ, PYTHONPATH=older):
            result = self.discover("import json, numpy\ndef handler(event, context): pass\n")
        self.assertIsNone(result["error"])
        self.assertIn("json", result["standard_library"])
        self.assertEqual(result["imports"], ["numpy"])

    def test_own_code(self):
        self.write("parts/__init__.py", "")
        self.write("parts/one.py", "import pyaes\n")
        result = self.discover("from parts import one\ndef handler(event, context): pass\n")
        self.assertEqual([entry["name"] for entry in result["code"]], ["app", "parts"])
        self.assertEqual(self.entry(result, "code", "parts")["modules"], 2)
        self.assertTrue(self.entry(result, "installed", "pyaes")["asked_for"], "by a part of the code")

    def test_package_within_the_code_directory_hides_the_installed(self):
        vendored = self.write("pyaes/__init__.py", "__version__ = '0.1'\n")
        self.write("pyaes-0.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: pyaes\nVersion: 0.1\n")
        result = self.discover("import pyaes\ndef handler(event, context): pass\n")
        self.assertEqual(result["installed"], [])
        entry = self.entry(result, "code", "pyaes")
        self.assertEqual((entry["file"], entry["version"]), (vendored, "0.1"))
        self.assertEqual(entry["distributions"], [{"name": "pyaes", "version": "0.1"}])

    def test_package_of_the_same_name_as_an_installed_one(self):
        self.write("pyaes.py", "__version__ = '0.2'\n")
        result = self.discover("import pyaes\ndef handler(event, context): pass\n")
        entry = self.entry(result, "code", "pyaes")
        self.assertEqual((entry["version"], entry["distributions"]), ("0.2", []))

    def test_code_that_is_named_like_the_standard_library(self):
        self.write("json.py", "raise RuntimeError('this is not the one that the report needs')\n")
        self.write("wave.py", "")
        result = self.discover("import wave\ndef handler(event, context): pass\n")
        self.assertTrue(result["ok"])
        self.assertEqual([entry["name"] for entry in result["code"]], ["app", "wave"])

    def test_namespace_package(self):
        self.write("shared/here/__init__.py", "")
        result = self.discover("from shared import here\ndef handler(event, context): pass\n")
        self.assertTrue(self.entry(result, "code", "shared.here")["asked_for"])

    def test_layer(self):
        layer = os.path.join(self.root, "layer")
        self.write(os.path.join(layer, "extra.py"), "import pyaes\n")
        result = self.discover("import extra\ndef handler(event, context): pass\n", "--layer", layer)
        self.assertEqual(self.entry(result, "layers", "extra")["file"], os.path.join(layer, "extra.py"))
        self.assertFalse(self.entry(result, "installed", "pyaes")["asked_for"], "by the layer, not by the code")

    def test_layers_as_in_opt_and_what_the_code_asks_them_for(self):
        above, below = (os.path.join(self.root, name) for name in ("above", "below"))
        packages = "python/lib/python{}.{}/site-packages".format(*sys.version_info[:2])
        self.write(os.path.join(above, "pyvenv.cfg"), "version = any\n")
        self.write(os.path.join(above, packages, "inner.pth"), "inner\nimport sys; sys.was_run = True\n")
        self.write(os.path.join(above, packages, "inner/by_pth.py"), "import only_below\n")
        for layer, name in ((above, packages + "/both"), (below, "python/both"), (below, "python/only_below")):
            self.write(os.path.join(layer, name + ".py"), "")
        self.write(os.path.join(below, packages, "ignored.pth"), "import sys; sys.was_ignored = True\n")
        code = ("import json, sys, both, by_pth\nassert sys.was_run and not hasattr(sys, 'was_ignored')\n"
                "def handler(event, context): pass\n")
        result = self.discover(code, "--opt", above, "--opt", below)
        self.assertTrue(result["ok"], result["error"])
        self.assertEqual((result["layer_imports"], result["imports"]), (["both", "by_pth"], []))
        self.assertEqual(self.entry(result, "layers", "both")["file"], os.path.join(above, packages, "both.py"))
        self.assertFalse(self.entry(result, "layers", "only_below")["asked_for"], "by the layer, not by the code")

    def test_handler_in_a_package(self):
        self.write("parts/deep/work.py", "import pyaes\ndef run(event, context): pass\n")
        result = self.discover("", handler="parts/deep/work.run")
        self.assertTrue(result["ok"], result["error"])
        self.entry(result, "installed", "pyaes")
        self.assert_error(
            self.discover("", handler="parts/deep/play.run"),
            "Runtime.ImportModuleError",
            "Unable to import module 'parts/deep/play': No module named 'parts.deep.play'",
        )

    def test_imports_inside_the_handler_are_not_seen(self):
        result = self.discover("def handler(event, context):\n    import pyaes\n")
        self.assertTrue(result["ok"])
        self.assertEqual(result["installed"], [])

    def test_optional_package_that_is_missing(self):
        result = self.discover(
            """
            try:
                import no_such_package
            except ImportError:
                import pyaes
            def handler(event, context): pass
            """
        )
        self.assertTrue(result["ok"])
        self.assertEqual([entry["name"] for entry in result["installed"]], ["pyaes"])

    def test_environment(self):
        result = self.discover(
            """
            import os
            print(os.environ["LAMBDA_TASK_ROOT"], os.environ["_HANDLER"], os.getcwd())
            def handler(event, context): pass
            """
        )
        self.assertEqual(result["output"], f"{self.code} app.handler {self.code}\n")

    # Handlers that do not import, with Lambda's errors.

    def test_missing_package(self):
        result = self.discover("import pyaes\nimport no_such_package\n")
        message = "Unable to import module 'app': No module named 'no_such_package'"
        self.assert_error(result, "Runtime.ImportModuleError", message)
        self.assertIn("import no_such_package", result["error"]["stackTrace"][0])
        self.entry(result, "installed", "pyaes")

    def test_missing_module(self):
        result = self.discover("", handler="other.handler")
        self.assert_error(
            result, "Runtime.ImportModuleError", "Unable to import module 'other': No module named 'other'"
        )

    def test_syntax_error(self):
        result = self.discover("import pyaes\ndef handler(event, context:\n")
        self.assertEqual(result["error"]["errorType"], "Runtime.UserCodeSyntaxError")
        self.assertRegex(result["error"]["errorMessage"], r"^Syntax error in module 'app': .*\(app\.py, line 2\)$")
        self.assertIn("def handler(event, context:", result["error"]["stackTrace"][0])

    def test_missing_handler(self):
        result = self.discover("import pyaes\n")
        self.assert_error(result, "Runtime.HandlerNotFound", "Handler 'handler' missing on module 'app'")

    def test_malformed_handler(self):
        result = self.discover("", handler="app")
        self.assertEqual(result["error"]["errorType"], "Runtime.MalformedHandlerName")

    def test_builtin_module(self):
        result = self.discover("", handler="time.sleep")
        self.assert_error(
            result, "Runtime.BuiltInModuleConflict", "Cannot use built-in module time as a handler module"
        )

    def test_exception(self):
        result = self.discover("def work():\n    raise KeyError('gone')\nwork()\n")
        self.assert_error(result, "KeyError", "'gone'")
        trace = result["error"]["stackTrace"]
        self.assertEqual(len(trace), 2)
        self.assertIn(os.path.join(self.code, "app.py"), trace[0])
        self.assertIn("in work", trace[1])

    # Imports that do not come back.

    def test_infinite_loop(self):
        result = self.discover("import pyaes\nprint('before', flush=True)\nwhile True: pass\n", "--time-limit", "5")
        self.assert_error(result, "Sandbox.Timedout", "Task timed out after 5.00 seconds: 'app' was being imported")
        self.assertEqual(result["output"], "before\n")
        self.assert_trace(result, ("app.py", 3, "<module>"))

    def assert_trace(self, result, *frames):
        """Outermost first."""
        expected = [f'  File "{os.path.join(self.code, file)}", line {line}, in {name}' for file, line, name in frames]
        self.assertEqual([entry.splitlines()[0] for entry in result["error"]["stackTrace"]], expected)

    def test_import_that_waits(self):
        self.write("parts/store.py", "import os\nreader, writer = os.pipe()\ndef connect():\n    os.read(reader, 1)\n")
        result = self.discover("import parts.store\nparts.store.connect()\n", "--time-limit", "5")
        self.assertEqual(result["error"]["errorType"], "Sandbox.Timedout")
        self.assert_trace(result, ("app.py", 2, "<module>"), ("parts/store.py", 4, "connect"))

    def test_import_that_waits_and_takes_no_signals(self):
        result = self.discover(
            "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGABRT])\nwhile True: pass\n",
            "--time-limit", "5",
        )  # fmt: skip
        self.assertEqual(result["error"]["errorType"], "Sandbox.Timedout")
        self.assertEqual(result["error"]["stackTrace"], [])

    def test_crash(self):
        result = self.discover("import os\nos.abort()\n")
        self.assert_error(result, "Runtime.ExitError", "Runtime exited with error: signal: aborted")
        self.assert_trace(result, ("app.py", 2, "<module>"))

    def test_infinite_output(self):
        result = self.discover("while True: print('x' * 1000)\n", "--time-limit", "5")
        self.assertEqual(result["error"]["errorType"], "Sandbox.Timedout")
        self.assertLessEqual(len(result["output"]), 16384)

    def test_exit(self):
        for source, reason in (
            ("import sys\nsys.exit(3)\n", "Runtime exited with error: exit status 3"),
            ("import sys\nsys.exit('no')\n", "Runtime exited with error: exit status 1"),
            ("import sys\nsys.exit()\n", "Runtime exited without providing a reason"),
            ("import os\nos._exit(4)\n", "Runtime exited with error: exit status 4"),
            ("import os\nos._exit(0)\n", "Runtime exited without providing a reason"),
            ("import os\nos.kill(os.getpid(), 9)\n", "Runtime exited with error: signal: killed"),
        ):
            with self.subTest(source):
                self.assert_error(self.discover(source), "Runtime.ExitError", reason)

    def test_threads_that_do_not_end(self):
        result = self.discover(
            """
            import threading
            threading.Thread(target=threading.Event().wait).start()
            def handler(event, context): pass
            """
        )
        self.assertTrue(result["ok"])
        self.assertEqual(result["threads"], 2)

    # Imports that fork.

    def assert_ended(self, pid_file):
        with open(pid_file, encoding="ascii") as file:
            pids = [int(line) for line in file]
        self.assertTrue(pids)
        for pid in pids:
            self.assertFalse(os.path.exists(f"/proc/{pid}"), f"process {pid} goes on")

    def test_fork_whose_child_goes_on_with_the_import(self):
        pid_file = os.path.join(self.root, "pids")
        result = self.discover(
            f"""
            import os
            if os.fork() == 0:
                with open({pid_file!r}, "w") as file:
                    print(os.getpid(), file=file)
                import pyaes
            else:
                os.wait()
            def handler(event, context): pass
            """
        )
        self.assertTrue(result["ok"], result["error"])
        self.assertEqual(result["installed"], [], "what the child imports is not what the function does")
        self.assert_ended(pid_file)

    DAEMON = """
        import os, signal
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                with open({pid_file!r}, "w") as file:
                    print(os.getpid(), file=file)
                os.write(writer, b"x")
                while True:
                    {does}
            os._exit(0)
        os.read(reader, 1)
        {then}
        def handler(event, context): pass
        """

    def test_daemon_is_ended(self):
        pid_file = os.path.join(self.root, "pids")
        for does in ("signal.pause()", "os.write(1, b'x' * 4096)"):
            with self.subTest(does):
                result = self.discover(self.DAEMON.format(pid_file=pid_file, does=does, then=""))
                self.assertTrue(result["ok"], result["error"])
                self.assert_ended(pid_file)

    def test_daemon_is_ended_when_the_import_is_stopped(self):
        pid_file = os.path.join(self.root, "pids")
        source = self.DAEMON.format(pid_file=pid_file, does="signal.pause()", then="signal.pause()")
        result = self.discover(source, "--time-limit", "5")
        self.assertEqual(result["error"]["errorType"], "Sandbox.Timedout")
        self.assert_ended(pid_file)

    def test_daemon_is_ended_when_the_program_is_stopped(self):
        pid_file, told = os.path.join(self.root, "pids"), os.path.join(self.root, "told")
        os.mkfifo(told)
        then = f"open({told!r}, 'w').close(); signal.pause()"
        self.write("app.py", self.DAEMON.format(pid_file=pid_file, does="signal.pause()", then=then))
        program = subprocess.Popen(
            [sys.executable, "-B", PROGRAM, "--code", self.code, "--handler", "app.handler"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.addCleanup(program.kill)
        with open(told, encoding="ascii") as file:
            file.read()
        program.send_signal(signal.SIGTERM)
        self.assertEqual(program.wait(LIMIT_SECONDS), 128 + signal.SIGTERM)
        self.assert_ended(pid_file)

    def test_import_is_ended_when_the_program_is_killed(self):
        told = os.path.join(self.root, "told")
        os.mkfifo(told)
        self.write("app.py", f"import signal\nfile = open({told!r}, 'wb', 0)\nfile.write(b'x')\nsignal.pause()\n")
        program = subprocess.Popen(
            [sys.executable, "-B", PROGRAM, "--code", self.code, "--handler", "app.handler"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        with open(told, "rb", buffering=0) as file:
            self.assertEqual(file.read(1), b"x")
            program.kill()
            self.assertEqual(select.select([file], [], [], LIMIT_SECONDS)[0], [file], "the import goes on")
            self.assertEqual(file.read(1), b"")

    # How it is called.

    def test_bad_usage(self):
        for arguments, message in (
            (["--handler", "app.handler"], "--code"),
            (["--code", self.code], "--handler"),
            (["--code", "/no/such", "--handler", "app.handler"], "/no/such is no directory"),
            (["--code", self.code, "--handler", "app.handler", "--layer", "/no/such"], "/no/such is no directory"),
            (["--code", self.code, "--handler", "app.handler", "--time-limit", "0"], "0 is no number of seconds"),
        ):
            with self.subTest(arguments):
                done = self.run_program(*arguments)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn(message, done.stderr)

    def test_help_says_what_is_not_seen(self):
        done = self.run_program("--help")
        self.assertEqual(done.returncode, 0)
        self.assertIn("Imports inside the handler", done.stdout)


if __name__ == "__main__":
    unittest.main()
