"""The functions of bench/functions: each does its work, and does the same in every process."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
FUNCTIONS = os.path.join(HERE, "..", "..", "bench", "functions")
LIMIT_SECONDS = 120


def function_names():
    return sorted(entry.name for entry in os.scandir(FUNCTIONS) if os.path.exists(os.path.join(entry, "app.py")))


class BenchFunctionsTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.inputs = cls.make_inputs()

    @classmethod
    def make_inputs(cls):
        folder = tempfile.TemporaryDirectory(prefix="rekindle-functions.", dir="/var/tmp")
        cls.addClassCleanup(folder.cleanup)
        subprocess.run(
            [sys.executable, "-B", os.path.join(FUNCTIONS, "make_inputs.py"), folder.name],
            check=True, timeout=LIMIT_SECONDS,
        )  # fmt: skip
        return folder.name

    def invoke(self, name, events):
        """The results of the events, one after the other in a fresh process."""
        folder = tempfile.TemporaryDirectory(prefix="rekindle-functions.", dir="/var/tmp")
        self.addCleanup(folder.cleanup)
        done = subprocess.run(
            [sys.executable, "-B", os.path.join(HERE, "invoke.py"), os.path.join(FUNCTIONS, name), "app.handler"],
            input=json.dumps(events), capture_output=True, text=True, timeout=LIMIT_SECONDS,
            env={**os.environ, "FUNCTION_INPUTS": self.inputs, "TMPDIR": folder.name},
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(os.listdir(folder.name), [], "temporary files stay behind")
        return json.loads(done.stdout)

    def check(self, name, **changes):
        """Invokes a function with its typical event, with none, and with each of the changes; twice all. Returns the
        typical event's result."""
        with open(os.path.join(FUNCTIONS, name, "event.json"), encoding="utf-8") as file:
            typical = json.load(file)
        events = [typical, {}, typical] + [{**typical, key: value} for key, value in changes.items()]
        first, second = self.invoke(name, events), self.invoke(name, events)
        self.assertEqual(first, second, "two processes, two results")
        self.assertEqual(first[0], first[1], "the typical event is not what the handler does by default")
        self.assertEqual(first[0], first[2], "a second request has another result")
        for result in first:
            self.assertRegex(result["digest"], "^[0-9a-f]{64}$")
        digests = [result["digest"] for result in first[2:]]
        self.assertEqual(len(set(digests)), len(digests), f"the results do not depend on {sorted(changes)}")
        return first[0]

    def test_every_function_has_a_test(self):
        self.assertEqual([name for name in function_names() if not hasattr(self, "test_" + name)], [])

    def test_every_function_is_in_the_table(self):
        with open(os.path.join(FUNCTIONS, "README.md"), encoding="utf-8") as file:
            rows = re.findall(r"^\| \[`(\w+)`\]\((\w+)/app\.py\) \|.*\| `(\{.*\})` \|$", file.read(), re.MULTILINE)
        self.assertEqual(sorted(name for name, _, _ in rows), function_names())
        for name, folder, event in rows:
            self.assertEqual(name, folder)
            with open(os.path.join(FUNCTIONS, name, "event.json"), encoding="utf-8") as file:
                self.assertEqual(json.loads(event), json.load(file), name)

    def test_inputs_are_the_same_every_time(self):
        again = self.make_inputs()
        names = sorted(os.listdir(self.inputs))
        self.assertEqual(sorted(os.listdir(again)), names)
        for name in names:
            with open(os.path.join(self.inputs, name), "rb") as one, open(os.path.join(again, name), "rb") as other:
                self.assertTrue(one.read() == other.read(), f"{name} differs")

    def test_float_operation(self):
        self.check("float_operation", n=100_001)

    def test_pyaes(self):
        self.check("pyaes", length=501, iterations=21, seed=2)

    def test_chameleon(self):
        self.check("chameleon", rows=201, columns=21)

    def test_matmul(self):
        self.check("matmul", n=255, seed=2)

    def test_linpack(self):
        self.check("linpack", n=499, seed=2)

    def test_image_processing(self):
        result = self.check("image_processing", image="second.jpg")
        self.assertEqual(result["size"], [1280, 960])
        self.assertEqual(len(result["written"]), 9)

    def test_video_processing(self):
        result = self.check("video_processing", video="faces.avi", frames=39)
        self.assertEqual((result["frames"], result["size"]), (40, [640, 360]))

    def test_face_detection(self):
        result = self.check("face_detection", video="video.avi", frames=39)
        # One face in every frame, and a second in every other.
        self.assertEqual(result["frames"], 40)
        self.assertAlmostEqual(result["faces"], 60, delta=10)

    def test_logistic_regression_training(self):
        result = self.check("logistic_regression_training", rows=1000)
        self.assertGreater(result["right"], 0.6 * result["rows"])

    def test_logistic_regression_serving(self):
        result = self.check("logistic_regression_serving", texts=["awful stale bad terrible worst", "wonderful"])
        self.assertGreaterEqual(result["scores"][0], 3)

    def test_rnn_serving(self):
        result = self.check("rnn_serving", language="Czech", starts=["Z"], longest=6)
        for start, name in zip(["A", "Mac", "Qu"], result["names"], strict=True):
            self.assertTrue(name.startswith(start), name)
            self.assertLessEqual(len(name), 20)

    def test_cnn_serving(self):
        result = self.check("cnn_serving", image="second.jpg", top=6)
        self.assertEqual(len(set(result["classes"])), 5)


if __name__ == "__main__":
    unittest.main()
