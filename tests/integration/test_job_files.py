"""Jobs whose files need more than an end that is cut off: databases, folders that are gone."""

import json
import os
import shutil
import signal
import sqlite3
import unittest

from harness import jobs, locks, waiting
from harness.case import RekindleTest
from harness.cli import DONE
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

# Stands between two transactions until `go-on` is there, makes {later} and dies in the midst of the next one; in a life
# that finds `again` it says what it finds. A cache of ten pages writes pages of a transaction before its end.
_TRANSACTIONS = """
import os, sqlite3, sys, time
os.chdir(sys.argv[1])
rows = sqlite3.connect("rows.db", isolation_level=None)
for words in ("pragma journal_mode=delete", "pragma cache_size=10",
              "create table rows (number integer primary key, filling text)", "create index fillings on rows (filling)"):
    rows.execute(words).fetchall()

def insert(begin, end):
    rows.execute("begin")
    rows.executemany("insert into rows values (?, ?)", ((number, str(number) * 60) for number in range(begin, end)))
    rows.execute("commit")

insert(0, 1000)
open("between", "w").close()
while not os.path.exists("go-on"):
    time.sleep(0.01)
if os.path.exists("again"):
    try:
        found = rows.execute("pragma integrity_check").fetchone() + rows.execute("select count(*) from rows").fetchone()
    except sqlite3.Error as error:
        found = (str(error),)
    with open("found.new", "w") as file:
        print(*found, file=file)
    os.rename("found.new", "found")
    sys.exit()
{later}
rows.execute("begin")
rows.execute("update rows set filling = 'z' || filling where number > 600 and number < 760")
open("within", "w").close()
time.sleep(3600)
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


class JournalTest(RekindleTest):
    """A database between two transactions in its image, whose job died in a later one: the journal of that is not its."""

    def file(self, name):
        return os.path.join(self.folder, name)

    def make(self, name):
        with open(self.file(name), "w", encoding="ascii"):
            pass

    def die_in_a_transaction(self, later, *options):
        self.folder = self.path("work")
        os.mkdir(self.folder)
        job = self.start_job([jobs.PYTHON, "-c", _TRANSACTIONS.format(later=later), self.folder])
        waiting.until(lambda: os.path.exists(self.file("between")), "it has its rows", 60)
        self.checkpoint(job.pid, "x:1", *options)
        self.make("go-on")
        waiting.until(lambda: os.path.exists(self.file("within")), "it is within a transaction", 60)
        os.kill(job.pid, signal.SIGKILL)
        job.reap()
        self.assertGreater(os.path.getsize(self.file("rows.db-journal")), 0)

    def roll_back(self, *options):
        result = self.cli.run("restore", "x:1", "--detach", *options)
        self.assertEqual(result.code, DONE, str(result))
        files = json.loads(result.out.splitlines()[0])["files"]
        return {os.path.basename(file["path"]): file for file in files}

    def assert_goes_on_as_it_was(self, mode):
        planned = self.roll_back("--rollback", mode, "--dry-run")
        self.assertEqual(planned["rows.db-journal"]["action"], "set_aside")
        self.assertTrue(os.path.exists(self.file("rows.db-journal")))
        table = self.cli.run("restore", "x:1", "--rollback", mode, "--dry-run", json_output=False).out
        self.assertRegex(table, "rows.db-journal +set aside")
        size = os.path.getsize(self.file("rows.db-journal"))
        os.unlink(self.file("go-on"))
        self.make("again")
        done = self.roll_back("--rollback", mode)
        self.assertEqual(done["rows.db"]["action"], "put_back")
        self.assertEqual(done["rows.db-journal"]["action"], "set_aside")
        self.assertEqual(os.path.getsize(done["rows.db-journal"]["tail_copy"]), size)
        self.assertFalse(os.path.exists(self.file("rows.db-journal")))
        self.make("go-on")
        waiting.until(lambda: os.path.exists(self.file("found")), "it tells what it finds", 60)
        with open(self.file("found"), encoding="ascii") as file:
            self.assertEqual(file.read(), "ok 1000\n")

    def test_all(self):
        self.die_in_a_transaction("insert(1000, 3000); rows.execute('delete from rows where number % 7 = 3')", "--file-contents")
        self.assert_goes_on_as_it_was("all")

    def test_one_that_became_shorter(self):
        self.die_in_a_transaction("rows.execute('delete from rows where number % 2 = 0'); rows.execute('vacuum')")
        self.assert_goes_on_as_it_was("append")


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
