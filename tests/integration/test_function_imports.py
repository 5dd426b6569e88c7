"""What is found out when a function is loaded, for its deployment and for its image."""

import json
import os
import signal
import socket
import urllib.request

from harness import jobs, waiting
from harness.functions import FROM_OWN_IMAGE, SECONDS, FunctionsTest

# Notes the network that it is loaded in.
_NOTES_NETWORK = """import os
with open({path!r}, "a") as file:
    file.write(os.readlink("/proc/self/ns/net") + "\\n")


def handler(event, context):
    return os.readlink("/proc/self/ns/net")
"""

_LISTENS = """import socket

listener = socket.create_server(("127.0.0.1", {port}))


def handler(event, context):
    return listener.getsockname()[1]
"""

_TAKES_ALL_MEMORY = """held = bytearray(500 << 20)


def handler(event, context):
    return len(held)
"""


class DiscoveryTest(FunctionsTest):
    """A deployment loads a handler once, as an instance would."""

    def test_the_hooks_packages(self):
        files = {"app.py": "from snapshot_restore_py import register_before_snapshot\nimport rekindle\nimport decimal\n"
                           "def handler(event, context):\n    return rekindle.NOT_HELD\n"}
        deployed = self.deploy("hooked", files=files)
        self.assertEqual(deployed["warnings"], [])
        self.assertNotIn("snapshot_restore_py", deployed["result"]["dependencies"])
        self.assertEqual(self.invoke("hooked")[0], "not held")
        files["app.py"] += "# once more\n"
        self.assertEqual(self.deploy("hooked", "--replace", files=files)["warnings"], [])

    def test_it_has_the_network_of_instances(self):
        ours = os.readlink("/proc/self/ns/net")
        for net in ("none", "own", "host"):
            path = self.path(net + ".networks")
            self.deploy(net, "--net", net, files={"app.py": _NOTES_NETWORK.format(path=path)})
            with open(path, encoding="ascii") as file:
                loaded_in = file.read().split()
            self.assertEqual(len(loaded_in), 1, "it was loaded once")
            self.assertEqual(loaded_in[0] == ours, net == "host", net)

    def test_a_port_that_another_has_is_free_in_its_own_network(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            files = {"app.py": _LISTENS.format(port=port)}
            deployed = self.deploy("listens", "--net", "own", files=files)
            self.assertEqual(deployed["warnings"], [])
            self.assertEqual(self.invoke("listens")[0], port)
            self.assertEqual(self.function("listens")["state"], "ready")

    def test_its_memory_limit_is_named(self):
        deployed = self.deploy("large", "--memory", "128M", files={"app.py": _TAKES_ALL_MEMORY})
        self.assertIn("Runtime.OutOfMemory: loading it took more than its memory limit of 128 MB",
                      deployed["warnings"][0])
        problem = self.function("large")["problem"]
        self.assertIn("memory limit of 128 MB", problem)

    def test_what_takes_longer_than_an_instance_may_is_warned_of(self):
        slow = {"app.py": "import time\ntime.sleep(1.1)\ndef handler(event, context):\n    return 1\n"}
        deployed = self.deploy("slow", "--start-timeout", "1s", files=slow)
        self.assertEqual(len(deployed["warnings"]), 1, str(deployed["warnings"]))
        self.assertRegex(deployed["warnings"][0],
                         r"\Aloading it took 1\.\d+ s, and an instance may take 1\.00 s .*--start-timeout")
        javascript = {"app.js": "const until = performance.now() + 1100;\nwhile (performance.now() < until);\n"
                                "exports.handler = async () => 1;\n"}
        deployed = self.deploy("slowjs", "--start-timeout", "1s", files=javascript, runtime="nodejs")
        self.assertIn("loading it took 1.", deployed["warnings"][0])

    def test_generators_that_instances_would_share_are_warned_of(self):
        files = {"app.py": "import random\nrng = random.Random()\n"
                           "def handler(event, context):\n    return rng.random()\n"}
        deployed = self.deploy("draws", files=files)
        self.assertIn("app.rng: random.Random", deployed["warnings"][0])
        files["app.py"] += "import snapshot_restore_py\nsnapshot_restore_py.register_after_restore(rng.seed)\n"
        self.assertEqual(self.deploy("draws", "--replace", files=files)["warnings"], [])

    def test_in_instances_they_are_named(self):
        files = {"app.py": "import random, rekindle\nrng = random.Random()\n"
                           "def handler(event, context):\n    return rekindle.unrenewed()[1:]\n"}
        self.deploy("names", "--deps", "none", files=files)
        self.invoke("names")
        self.wait_for_image("names")
        for pid in self.runtimes():
            os.kill(pid, signal.SIGKILL)
        self.wait_for_no_instance("names")
        named, told = self.invoke("names")
        self.assertIn(told["start_level"], FROM_OWN_IMAGE)
        self.assertEqual(named, ["app.rng: random.Random"])


class AloneTest(FunctionsTest):
    """A function that can be loaded once at a time."""

    def test_one_serves_and_fn_ls_says_so(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        self.deploy("alone", files={"app.py": _LISTENS.format(port=port)})
        self.assertEqual(self.invoke("alone")[0], port)
        problem = waiting.until(lambda: self.function("alone")["problem"], "why it has no image", SECONDS)
        self.assertIn("one serves, and a second could not be loaded beside it", problem)
        self.assertIn("--max-instances 1, or --net own", problem)
        self.assertIn("Address already in use", problem)
        self.assertEqual(self.function("alone")["state"], "ready")
        code = self.code("alone", {"app.py": _LISTENS.format(port=port) + "# another\n"})
        refused = self.cli.run("fn", "deploy", "alone", "--runtime", "python", "--handler", "app.handler", "--code",
                               code, "--replace")
        self.assertEqual(refused.code, 1, str(refused))
        self.assertIn("an instance of that one runs", str(refused))
        self.succeed("fn", "set", "alone", "--max-instances", "1")
        calls = [self.begin_invoke("alone", {}) for _ in range(3)]
        self.assertEqual([self.end_invoke(call) for call in calls], [port] * 3)
        self.assertNotIn("--max-instances", self.function("alone")["problem"])

    def test_its_first_call_is_not_in_the_way_of_its_image(self):
        """Nor the image in that of the call: it is loaded when the instance has been."""
        path = self.path("loads")
        app = ("import os, time\n"
               f"with open({path!r}, 'a') as file:\n"
               "    file.write(os.environ['AWS_LAMBDA_LOG_STREAM_NAME'].rpartition('-')[0] + ' begins\\n')\n"
               "time.sleep(0.5)\n"
               f"with open({path!r}, 'a') as file:\n"
               "    file.write(os.environ['AWS_LAMBDA_LOG_STREAM_NAME'].rpartition('-')[0] + ' ends\\n')\n"
               "def handler(event, context):\n    return 1\n")
        self.deploy("slow", "--deps", "none", files={"app.py": app})
        self.invoke("slow")
        self.wait_for_image("slow")
        with open(path, encoding="ascii") as file:
            loads = file.read().splitlines()
        self.assertEqual([line.split()[-1] for line in loads], ["begins", "ends"] * 2, str(loads))
        self.assertTrue(loads[0].startswith("slow-"), str(loads))


class ImageRemovalTest(FunctionsTest):
    def test_what_functions_start_from_is_warned_of(self):
        self.deploy("app", "--deps", "none")
        image = self.function("app")["dependency_image"]
        removed = self.succeed("rm", image)
        self.assertIn(f"image {image} was in use: function 'app' starts from it", removed["warnings"][0])
        self.assertIn("deps rm", json.dumps(removed))


class StartTimesTest(FunctionsTest):
    def test_they_are_a_histogram_among_the_metrics(self):
        port = jobs.free_port()
        self.daemon.stop()
        self.restart_daemon("--metrics", f"127.0.0.1:{port}")
        self.deploy("app", "--no-image")
        self.invoke("app")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SECONDS) as answer:
            lines = [line for line in answer.read().decode().splitlines() if "function_start_seconds" in line]
        self.assertIn("# TYPE rekindle_function_start_seconds histogram", lines)
        self.assertIn('rekindle_function_start_seconds_bucket{level="cold",le="+Inf"} 1', lines)
        self.assertIn('rekindle_function_start_seconds_count{level="cold"} 1', lines)
        bounds = [line.partition('le="')[2].partition('"')[0] for line in lines if "_bucket" in line]
        self.assertEqual((bounds[0], bounds[-2:]), ("0.005", ["30", "+Inf"]))
