"""Images and clones of workloads/memory_writer, which writes all of its memory."""

import os

from harness import jobs, waiting


class Writer:
    """One image of it. Clones are told apart by their host names."""

    def __init__(self, test, megabytes, kind="anonymous", name="writer"):
        self.test, self.reference = test, f"{name}:parked"
        self.directory = test.path(name)
        os.mkdir(self.directory)
        job = test.start_job([jobs.program("memory_writer"), self.directory, str(megabytes), kind], name)
        waiting.until(lambda: self.told("ready"), "the writer parked", 60)
        test.take_image(job, self.reference)

    def tell(self, name):
        with open(os.path.join(self.directory, name), "w", encoding="ascii"):
            pass

    def told(self, name):
        return os.path.exists(os.path.join(self.directory, name))

    def go(self, host, greedy=False):
        """Lets this clone write all of its memory; a greedy one then takes more than it may."""
        if greedy:
            self.tell("greedy." + host)
        self.tell("go." + host)

    def wait_for_written(self, host):
        waiting.until(lambda: self.told("written." + host), f"{host} wrote its memory", 60)

    def check(self):
        """Lets all that have written their memory look whether it still is what they wrote."""
        self.tell("check")

    def result(self, host):
        """What the clone said of its memory; None: nothing yet."""
        try:
            with open(os.path.join(self.directory, "result." + host), encoding="ascii") as file:
                return file.read().strip() or None
        except FileNotFoundError:
            return None

    def wait_for_ok(self, host, pid, seconds=120):
        """Until the clone has ended well; returns its digest."""
        self.test.wait_for_end(pid, seconds)
        result = self.result(host)
        self.test.assertIsNotNone(result, f"{host} ended and said nothing\n{self.test.records()}")
        self.test.assertTrue(result.startswith("ok "), f"{host}: {result}")
        return result.split()[1]
