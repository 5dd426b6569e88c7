"""Supervised jobs whose files need more than an end that is cut off: databases, folders that are gone."""

import os
import shutil
import signal
import sqlite3
import unittest

from harness import jobs, locks, waiting
from test_supervision import SupervisedTest, lines_of

# Writes the numbers from 0 on; {file} is a Python expression of what it has open besides.
_COUNT = """
import mmap, sys, time
other = {file}
with open(sys.argv[1], "a", buffering=1) as numbers:
    for number in range(100000):
        numbers.write(str(number) + "\\n")
        time.sleep(0.02)
"""

# The byte of X-shm which whoever uses the log has locked (UNIX_SHM_DMS of SQLite's os_unix.c).
_IN_USE = 128


class DatabaseTest(SupervisedTest):
    def start_writer(self, count, *options):
        self.database = self.path("rows.db")
        self.succeed("run", "--name", "job", "--detach", "--every", "300ms", "--restarts", "5", *options, "--",
                     jobs.PYTHON, jobs.workload("database_writer.py"), self.database, str(count),
                     self.numbers, cli=self.remote)  # fmt: skip

    def ask(self, question):
        connection = sqlite3.connect(self.database, timeout=30)
        try:
            return [row[0] for row in connection.execute(question)]
        finally:
            connection.close()

    def kill_after_an_image(self, restart):
        self.wait_for_image(self.state()["checkpoints"])
        rows = len(lines_of(self.numbers))
        waiting.until(lambda: len(lines_of(self.numbers)) > rows + 50, "more rows", 60)
        self.kill_job()
        self.wait_for(lambda job: job["supervised"]["restarts"] == restart, "a restart")

    def test_it_is_put_back_with_its_log_and_index(self):
        self.start_writer(2000)
        for restart in (1, 2, 3):
            self.kill_after_an_image(restart)
            # It has its lock on the index, without which whoever opens the database would begin with an empty one.
            self.assertFalse(locks.range_is_free(self.database + "-shm", _IN_USE, 1))
            self.ask("select count(*) from numbers")
        self.wait_for_end()
        self.assertEqual(self.state()["restarts"], 3, self.state())
        self.assertEqual(self.ask("pragma integrity_check"), ["ok"])
        self.assertEqual(self.ask("select number from numbers order by rowid"), list(range(2000)))

    def test_it_is_left_with_its_log_and_index_where_a_part_is(self):
        self.start_writer(1500, "--ignore-path", self.path("rows.db"))
        self.kill_after_an_image(1)
        self.wait_for_end()
        self.assertEqual(self.state()["restarts"], 1, self.state())
        self.assertEqual(sorted(set(self.ask("select number from numbers"))), list(range(1500)))


class FolderTest(SupervisedTest):
    def start_with(self, file):
        self.folder = self.path("folder")
        os.mkdir(self.folder)
        os.chmod(self.folder, 0o750)
        self.data = os.path.join(self.folder, "data")
        with open(self.data, "wb") as data:
            data.write(b"x" * 8192)
        self.succeed("run", "--name", "job", "--detach", "--every", "300ms", "--restarts", "3", "--",
                     jobs.PYTHON, "-c", _COUNT.format(file=file), self.numbers, self.data, cli=self.remote)  # fmt: skip
        waiting.until(lambda: lines_of(self.numbers), "it counts", 30)
        self.wait_for_image(self.state()["checkpoints"] + 1)  # the image of now may be one of before

    def assert_goes_on(self):
        self.wait_for(lambda job: job["supervised"]["restarts"] == 1, "a restart")
        at = len(lines_of(self.numbers))
        waiting.until(lambda: len(lines_of(self.numbers)) > at, "more lines", 30, 0.02)
        self.assertNotIn("could not be brought back from", self.daemon.log_text())

    def test_one_of_a_mapped_file_is_made_again(self):
        """As a JVM has one, /tmp/hsperfdata_USER/PID."""
        self.start_with("(lambda file: mmap.mmap(file.fileno(), 0))(open(sys.argv[2], 'r+b'))")
        shutil.rmtree(self.folder)
        self.kill_job()
        self.assert_goes_on()
        self.assertEqual(os.path.getsize(self.data), 8192)
        self.assertEqual(os.stat(self.folder).st_mode & 0o7777, 0o750)

    def test_one_that_comes_back_is_waited_for(self):
        self.start_with("open(sys.argv[2])")
        pid = self.job()["pid"]
        os.rename(self.folder, self.folder + ".away")
        os.kill(pid, signal.SIGKILL)
        waiting.until(lambda: "can't be brought back yet" in self.daemon.log_text(), "an attempt", 30, 0.02)
        self.assertIn("make that folder, or mount what it lies on", self.state()["last_error"])
        os.rename(self.folder + ".away", self.folder)
        self.assert_goes_on()


if __name__ == "__main__":
    unittest.main()
