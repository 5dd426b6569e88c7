"""Paths are bytes, and need not be text; names, references and labels do."""

import os
import select
import unittest

from harness import procfs, waiting
from harness.cli import DONE, USAGE
from harness.clones import CloneTest

NO_TEXT = os.fsdecode(b"w\xe9")  # as of a machine whose names are in Latin-1


class PathBytesTest(CloneTest):
    embedded = True

    def setUp(self):
        super().setUp()
        self.folder = self.path(NO_TEXT)
        os.mkdir(self.folder)
        self.go = self.path("go")
        self.script = f"while ! test -e {self.go}; do echo line; sleep 0.05; done; echo finished"

    def inside(self, name):
        return os.path.join(self.folder, name)

    def let_end(self):
        with open(self.go, "w", encoding="ascii"):
            pass

    def take_image(self):
        job = self.start_job(["sh", "-c", self.script])
        waiting.until(lambda: os.path.exists(job.log) and os.path.getsize(job.log) > 0, "some output", 60)
        self.checkpoint(job.pid, "bytes:1", "--stop")
        job.reap()
        return job.pid

    def test_a_runtime_folder(self):
        self.cli = self.make_cli(store=self.store, env={"REKINDLE_RUNTIME_DIR": self.inside("run")})
        self.take_image()
        self.assertEqual(self.succeed("inspect", "bytes:1")["image"]["reference"], "bytes:1")
        pid = self.succeed("restore", "bytes:1", "--detach")["job"]["pid"]
        self.kill_job_at_end(pid)
        self.let_end()
        waiting.until(lambda: not procfs.alive(pid), "its end", 60)

    def test_output_of_a_restored_job(self):
        self.take_image()
        log, pidfile = self.inside("x.log"), self.inside("pid")
        self.succeed("restore", "bytes:1", "--detach", "--log", log, "--pidfile", pidfile)
        with open(pidfile, encoding="ascii") as file:
            pid = int(file.read())
        self.kill_job_at_end(pid)
        waiting.until(lambda: os.path.getsize(log) > 0, "some output", 60)
        self.let_end()
        waiting.until(lambda: not procfs.alive(pid), "its end", 60)

    def test_log_of_a_clone(self):
        self.take_image()
        log = self.inside("x.log")
        daemon = self.start_daemon("--standby", "0")
        remote = self.make_cli(host=daemon.host)
        command = remote.start("restore", "bytes:1", "--clone", "--log", log, json_output=False)
        waiting.until(lambda: os.path.exists(log) or command.poll() is not None, "the log", 60)
        self.let_end()
        result = remote.finish(command)
        self.assertEqual(result.code, DONE, str(result))
        self.assertTrue(os.path.exists(log))

    def test_an_image_that_goes_elsewhere_and_comes_back(self):
        self.take_image()
        files = self.inside("images")
        self.succeed("export", "bytes:1", "--criu", files)
        self.assertGreater(len(os.listdir(files)), 0)
        self.succeed("import", "--criu", files, "-t", "bytes:2")
        self.assertEqual(self.references(), ["bytes:1", "bytes:2"])

    def test_output_is_shown(self):
        result = self.cli.run("run", "--log", self.inside("at.log"), "--", "echo", "shown", json_output=False)
        self.assertEqual(result.code, DONE, str(result))
        self.assertEqual(result.out, "shown\n")
        self.assertNotIn("can't be shown", result.err)

    def test_output_of_a_supervised_job_is_shown(self):
        remote = self.make_cli(host=self.start_daemon("--standby", "0").host)
        start = ("run", "--name", "job", "--restarts", "1", "--detach", "--log", self.inside("at.log"), "--")
        self.succeed(*start, "sh", "-c", self.script, cli=remote)
        command = remote.start("attach", "job", json_output=False)
        waiting.until(lambda: select.select([command.stdout], [], [], 0)[0], "some output", 60)
        self.let_end()
        result = remote.finish(command)
        self.assertEqual(result.code, DONE, str(result))
        self.assertIn("finished", result.out)

    def test_names_have_to_be_text(self):
        job = self.start_job(["sleep", "1000"])
        name = os.fsdecode(b"caf\xe9")
        for words in (
            ("ckpt", job.pid, "-t", name + ":1"),
            ("ckpt", name, "-t", "bytes:1"),
            ("ckpt", job.pid, "-t", "bytes:1", "--label", "at=" + name),
            ("restore", name),
            ("run", "--name", name, "--", "true"),
            ("stop", name),
            ("rm", name),
            ("import", "--file", "/dev/null", "-t", name),
        ):
            with self.subTest(command=words[0]):
                result = self.cli.run(*words, json_output=False)
                self.assertEqual(result.code, USAGE, result.err)
                self.assertIn("'caf?", result.err)
                self.assertIn("is not UTF-8", result.err)
                self.assertNotIn("libprotobuf", result.err)


if __name__ == "__main__":
    unittest.main()
