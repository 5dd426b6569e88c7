"""Images and clones of clone_jobs/memory_juggler, which checks its own memory."""

import os
import subprocess

from harness import jobs, waiting


class Juggler:
    """One image of it. Clones are told apart by their host names."""

    def __init__(self, test, park="file", name="juggler", reference="juggler:parked", **options):
        self.test, self.reference = test, reference
        self.directory = test.path(name)
        os.mkdir(self.directory)
        self._arguments = ["--megabytes", str(options.pop("megabytes", 64)), "--seed", str(options.pop("seed", 1))]
        argv = [jobs.program("memory_juggler"), "--directory", self.directory, "--park", park, *self._arguments]
        for option, value in options.items():
            argv += ["--" + option, str(value)]
        if park == "hook":
            job = test.start_held(argv, name)
        else:
            job = test.start_job(argv, name)
            waiting.until(lambda: os.path.exists(self.file("ready")), "the juggler parked", 60)
        test.take_image(job, reference)

    def file(self, name):
        return os.path.join(self.directory, name)

    def go(self, milliseconds):
        """Clones that are parked at a file juggle for so long."""
        with open(self.file("go"), "w", encoding="ascii") as file:
            file.write(f"{milliseconds}\n")

    def forget(self):
        """What earlier clones wrote."""
        for name in os.listdir(self.directory):
            if name.startswith(("result.", "pages.")) or name in ("go", "end"):
                os.unlink(self.file(name))

    def end(self):
        """Lets clones that sleep go on."""
        with open(self.file("end"), "w", encoding="ascii"):
            pass

    def result(self, host):
        """What the clone said of its memory; None: nothing yet."""
        try:
            with open(self.file("result." + host), encoding="ascii", errors="replace") as file:
                return file.read().strip() or None
        except FileNotFoundError:
            return None

    def complaints(self):
        """Of all clones."""
        results = {name: self.result(name[len("result.") :]) for name in os.listdir(self.directory) if "result." in name}
        return [f"{name}: {text}" for name, text in results.items() if text and not text.startswith("ok ")]

    def wait_for_ok(self, host, pid, seconds=120):
        """Until the clone has ended well."""
        self.test.wait_for_end(pid, seconds)
        result = self.result(host)
        self.test.assertIsNotNone(result, f"{host} ended and said nothing\n{self.test.records()}")
        self.test.assertTrue(result.startswith("ok "), f"{host}: {result}\n{self.test.records()}")
        return result

    def lines(self, host):
        """How much a spinning clone has written."""
        try:
            return os.path.getsize(self.file("pages." + host))
        except FileNotFoundError:
            return 0

    def verify_lines(self, host):
        """Each line of a spinning clone is right; returns how many."""
        done = subprocess.run(
            [jobs.program("memory_juggler"), "--verify", self.file("pages." + host), *self._arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        self.test.assertEqual(done.returncode, 0, done.stderr)
        return int(done.stdout)

