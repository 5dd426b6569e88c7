"""Images go from one store to another, through files, pipes and networks, and jobs go on from there."""

import array
import fcntl
import json
import os
import signal
import subprocess
import termios
import unittest

from harness import jobs, procfs, waiting
from harness.case import MIB, RekindleTest, shell
from harness.cli import DONE, FAILED, NO_STORE, NOT_FOUND, NOT_PERMITTED, USAGE, Cli, Daemon, binary, environment
from harness.clones import CloneTest
from harness.group_case import Exchange
from harness.nodes import NodesTest

_SIZE = 48 * MIB


class FileTest(RekindleTest):
    def setUp(self):
        super().setUp()
        self.there = self.make_cli(store=self.path("other/store"))
        os.mkdir(self.path("other"))

    def images_there(self):
        return sorted(image["reference"] for image in self.succeed("ls", cli=self.there).get("images", []))

    def test_job_goes_on_from_what_was_sent(self):
        job, memory = self.start_memory_job(_SIZE)
        self.checkpoint(job.pid, "job:1")
        memory.touch(50)
        digest = memory.digest()
        self.checkpoint(job.pid, "job:2", "--stop")
        job.reap()
        whole, changed = self.path("one"), self.path("two")
        first = self.succeed("export", "job:1", "--file", whole)
        second = self.succeed("export", "job:2", "--since", "job:1", "--file", changed)
        self.assertEqual(first["bytes"], os.path.getsize(whole))
        self.assertEqual(second["bytes"], os.path.getsize(changed))
        self.assertGreater(first["bytes"], _SIZE)  # noise
        self.assertLess(second["bytes"], _SIZE / 20)
        self.assertEqual(os.stat(whole).st_mode & 0o777, 0o600)

        early = self.there.run("import", "--file", changed)
        self.assert_refused(early, FAILED, "job:1", "whole")
        self.succeed("import", "--file", whole, cli=self.there)
        self.succeed("import", "--file", changed, cli=self.there)
        again = self.succeed("import", "--file", changed, cli=self.there)
        self.assertTrue(again["was_there"])
        taken = self.there.run("import", "--file", whole, "-t", "job:2")
        self.assert_refused(taken, FAILED, "job:2", "--replace")
        self.succeed("fsck", "--read", cli=self.there)
        # When it was taken the copy does not say.
        copied = self.there.run("inspect", "job:2", json_output=False).out
        self.assertRegex(copied, r"came +20[0-9-]+ .*\n *taken +on ")
        self.assertRegex(self.cli.run("inspect", "job:2", json_output=False).out, r"\n *taken +20[0-9-]+ .* on ")

        pid = self.restore("job:2", cli=self.there)
        self.assertEqual(pid, job.pid)
        self.assertEqual(memory.digest(), digest)

    def test_its_name_goes_along_and_not_that_of_another_with_its_digest(self):
        job, _ = self.start_memory_job(8 * MIB)
        self.checkpoint(job.pid, "a:1", "--stop", "--label", "of=a")
        job.reap()
        self.succeed("export", "a:1", "--file", self.path("first"))
        self.succeed("import", "--file", self.path("first"), "-t", "b:9")
        self.assertEqual(len({image["digest"] for image in self.succeed("ls")["images"]}), 1)
        sent = self.succeed("export", "a:1", "--file", self.path("second"))
        self.assertEqual(sent["image"]["reference"], "a:1")
        self.succeed("import", "--file", self.path("second"), cli=self.there)
        self.assertEqual(self.images_there(), ["a:1"])

    def test_an_export_to_standard_output_that_fails_writes_nothing_else_there(self):
        failed = self.cli.run("export", "none:1", "--file", "-")
        self.assertEqual((failed.code, failed.out), (NO_STORE, ""), str(failed))
        self.assertEqual(json.loads(failed.err)["error"]["exit_code"], NO_STORE)

    def test_an_export_to_a_link_writes_what_it_leads_to(self):
        job, _ = self.start_memory_job(8 * MIB)
        self.checkpoint(job.pid, "job:1", "--stop")
        job.reap()
        os.mkdir(self.path("elsewhere"))
        link, target = self.path("link"), self.path("elsewhere/image")
        os.symlink("elsewhere/image", link)
        for _ in range(2):  # first there is nothing yet
            sent = self.succeed("export", "job:1", "--file", link)
            self.assertEqual(os.readlink(link), "elsewhere/image")
            self.assertEqual(sent["bytes"], os.path.getsize(target))
            self.assertEqual(os.listdir(self.path("elsewhere")), ["image"])
        self.succeed("import", "--file", link, cli=self.there)

    def test_an_export_to_dev_stdout_is_one_to_standard_output(self):
        job, _ = self.start_memory_job(8 * MIB)
        self.checkpoint(job.pid, "job:1", "--stop")
        job.reap()
        link = self.path("stdout")  # as /dev/stdout is, which must not be lost
        os.symlink("/proc/self/fd/1", link)
        line = f"echo before; '{binary('rekindle')}' --json --store '{self.store}' export job:1 --file '{link}'"
        with open(self.path("second"), "wb") as file:
            subprocess.run(
                ["bash", "-c", line],
                env=environment(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                check=True,
            )
        with open(self.path("second"), "rb") as second, open(self.path("image"), "wb") as image:
            self.assertEqual(second.read(7), b"before\n")
            image.write(second.read())
        other = self.make_cli(store=self.path("other"))  # what is cut off, or followed by something, it refuses
        self.succeed("import", "--file", self.path("image"), cli=other)
        self.assert_store_whole(["job:1"], cli=other)
        self.assertEqual(os.readlink(link), "/proc/self/fd/1")

    def test_a_daemon_that_ends_in_the_middle_says_so(self):
        daemon = self.start_daemon("--standby", "0", "--grace", "0")
        remote = self.make_cli(host=daemon.host)
        job, _ = self.start_memory_job(_SIZE)
        self.checkpoint(job.pid, "job:1", "--stop", cli=remote)
        job.reap()
        fifo = self.path("fifo")
        os.mkfifo(fifo)
        child = remote.start("export", "job:1", "--file", fifo)
        with open(fifo, "rb", buffering=0) as pipe:
            waiting.until(lambda: bytes_in(pipe) > 0, "it is being sent")
            daemon.stop()
            while pipe.read(1 << 20):
                pass
        self.assert_refused(remote.finish(child), FAILED, daemon.host, "has ended")

    def test_through_a_pipe(self):
        job, memory = self.start_memory_job(_SIZE)
        self.checkpoint(job.pid, "job:1", "--stop")
        job.reap()
        line = (
            f"'{binary('rekindle')}' --store '{self.store}' export job:1 --file - | "
            f"'{binary('rekindle')}' --store '{self.path('other/store')}' import --file - -t copy:1"
        )

        def run():
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", line],
                env=environment(self.environment),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout

        self.assertIn("copy:1 taken in", run())
        # What is there already is read to its end: the other side's pipe must not break.
        self.assertIn("is here already", run())
        self.restore("copy:1", cli=self.there)
        memory.wait_for_tick()

    def test_what_is_cut_off_or_no_image_leaves_nothing(self):
        job, _ = self.start_memory_job(8 * MIB)
        self.checkpoint(job.pid, "job:1", "--stop")
        job.reap()
        whole, cut = self.path("whole"), self.path("cut")
        self.succeed("export", "job:1", "--file", whole)
        with open(whole, "rb") as source, open(cut, "wb") as target:
            target.write(source.read()[:-1000])
        self.assert_refused(self.there.run("import", "--file", cut), FAILED, "ends before")
        self.assert_refused(self.there.run("import", "--file", binary("rekindle")), USAGE, "no image of Rekindle's")
        self.assert_refused(self.there.run("import", "--file", self.path("nothing")), FAILED, "nothing")
        self.assert_refused(self.cli.run("export", "job:1", "--file", "/dev/full"), FAILED, "No space left")
        self.assert_refused(self.cli.run("export", "job:1", "--file", self.path("no/such")), FAILED, "no/such")
        self.assertEqual(self.images_there(), [])

    def test_an_interrupted_copy_goes_on_from_what_has_arrived(self):
        size = 128 * MIB
        self.environment["REKINDLE_COPY_PART"] = "8"
        cli = self.make_cli(store=self.store)
        job, memory = self.start_memory_job(size)
        self.checkpoint(job.pid, "job:1")
        digest = memory.digest()
        job.kill_tree()
        packs = self.path("other/store/packs")

        def a_part_is_there():
            return os.path.isdir(packs) and len(os.listdir(packs)) > 1

        # In the middle of the second part, or of a later one; first by a signal, then by no word at all.
        for number, code in ((signal.SIGINT, FAILED), (signal.SIGKILL, -signal.SIGKILL)):
            child = cli.start("copy", "job:1", "--to", self.path("other/store"), json_output=False)
            waiting.until(a_part_is_there, "a part", 60, 0.001)
            os.kill(child.pid, number)
            result = cli.finish(child)
            self.assertEqual(result.code, code, str(result))
            if number == signal.SIGINT:
                self.assertIn("stays for the next attempt, as copy-link/", result.err)
            self.assertTrue(all(name.startswith("copy-link/") for name in self.images_there()))
            self.assertTrue(self.images_there())
        # Nobody's newest image.
        self.assert_refused(self.there.run("inspect", "job"), NOT_FOUND)
        copied = self.succeed("copy", "job:1", "--to", self.path("other/store"), cli=cli)
        self.assertGreater(copied["bytes"], 8 * MIB)
        self.assertLess(copied["bytes"], size - 7 * MIB)
        self.assertEqual(self.images_there(), ["job:1"])
        self.succeed("gc", cli=self.there)
        self.succeed("fsck", "--read", cli=self.there)
        self.restore("job:1", cli=self.there)
        self.assertEqual(memory.digest(), digest)

    def test_a_part_that_was_damaged_is_sent_again(self):
        size = 64 * MIB
        self.environment["REKINDLE_COPY_PART"] = "8"
        cli = self.make_cli(store=self.store)
        job, _ = self.start_memory_job(size)
        self.checkpoint(job.pid, "job:1")
        job.kill_tree()
        packs = self.path("other/store/packs")
        child = cli.start("copy", "job:1", "--to", self.path("other/store"))
        waiting.until(lambda: os.path.isdir(packs) and len(os.listdir(packs)) > 1, "a part", 60, 0.001)
        os.kill(child.pid, signal.SIGKILL)
        cli.finish(child)
        self.assertTrue(self.images_there())
        self.succeed("gc", cli=self.there)
        for name in os.listdir(packs):
            with open(os.path.join(packs, name), "r+b") as file:
                file.seek(MIB)
                file.write(b"?" * 4096)
        self.assertEqual(self.there.run("fsck", "--read").code, FAILED)
        copied = self.succeed("copy", "job:1", "--to", self.path("other/store"), cli=cli)
        self.assertGreater(copied["bytes"], size)
        self.assertEqual(self.images_there(), ["job:1"])
        self.succeed("gc", cli=self.there)
        self.succeed("fsck", "--read", cli=self.there)

    def test_what_does_not_fit_leaves_no_parts(self):
        self.environment["REKINDLE_COPY_PART"] = "4"
        cli = self.make_cli(store=self.store)
        job, _ = self.start_memory_job(_SIZE)
        self.checkpoint(job.pid, "job:1")
        job.kill_tree()
        shell("mount", "-t", "tmpfs", "-o", f"size={_SIZE // 2}", "none", self.path("other"))
        self.addCleanup(shell, "umount", "--lazy", self.path("other"))
        refused = cli.run("copy", "job:1", "--to", self.path("other/store"))
        self.assert_refused(refused, FAILED, "copying job:1", "high-water mark")
        self.assertEqual(self.images_there(), [])
        self.assertEqual(os.listdir(self.path("other/store/packs")), [])

    def test_interrupted_import(self):
        """Somebody who never sends the rest."""
        fifo = self.path("fifo")
        os.mkfifo(fifo)
        child = self.there.start("import", "--file", fifo)
        with open(fifo, "wb", buffering=0) as pipe:
            pipe.write(b"rekindle-image1\n")
            waiting.until(lambda: bytes_in(pipe) == 0, "that it waits for more")
            os.kill(child.pid, signal.SIGINT)
            result = self.there.finish(child, 60)
        self.assertEqual(result.code, FAILED, str(result))
        self.assertIn("interrupted", result.message)

    def test_half_an_image_that_is_interrupted_leaves_nothing(self):
        job, _ = self.start_memory_job(_SIZE)
        self.checkpoint(job.pid, "job:1", "--stop")
        job.reap()
        whole, fifo, packs = self.path("whole"), self.path("fifo"), self.path("other/store/packs")
        self.succeed("export", "job:1", "--file", whole)
        with open(whole, "rb") as file:
            half = file.read()[: os.path.getsize(whole) // 2]
        os.mkfifo(fifo)
        child = self.there.start("import", "--file", fifo)
        with open(fifo, "wb", buffering=0) as pipe:
            pipe.write(half)
            waiting.until(lambda: os.path.isdir(packs) and os.listdir(packs), "that it has begun a pack")
            os.kill(child.pid, signal.SIGINT)
            result = self.there.finish(child, 60)
        self.assert_refused(result, FAILED, "interrupted", "nothing of it is left")
        self.assertEqual(os.listdir(packs), [])
        self.assertEqual(os.listdir(self.path("other/store/tmp")), [])
        self.assertEqual(self.images_there(), [])

    def test_a_sender_that_stalls_is_given_up(self):
        job, _ = self.start_memory_job(_SIZE)
        self.checkpoint(job.pid, "job:1", "--stop")
        job.reap()
        whole = self.path("whole")
        self.succeed("export", "job:1", "--file", whole)
        with open(whole, "rb") as file:
            half = file.read()[: os.path.getsize(whole) // 2]
        self.environment["REKINDLE_STREAM_TIMEOUT"] = "2"
        there = self.make_cli(store=self.path("other/store"))
        fifo = self.path("fifo")
        os.mkfifo(fifo)
        child = there.start("import", "--file", fifo)
        with open(fifo, "wb", buffering=0) as pipe:
            pipe.write(half)
            result = there.finish(child, 60)
        self.assert_refused(result, FAILED, fifo, "for 2s nothing came", "REKINDLE_STREAM_TIMEOUT")
        self.assertEqual(os.listdir(self.path("other/store/packs")), [])

        # A command that stands still itself: the daemon lets go.
        daemon = self.start_daemon()
        remote = self.make_cli(host=daemon.host, env={"REKINDLE_STREAM_TIMEOUT": "0"})
        child = remote.start("import", "--file", fifo, "-t", "again:1")
        with open(fifo, "wb", buffering=0) as pipe:
            pipe.write(half)
            waiting.until(lambda: bytes_in(pipe) == 0, "that it waits for more")
            os.kill(child.pid, signal.SIGSTOP)
            waiting.until(lambda: "nothing of it came" in daemon.log_text(), "that it is given up", 60, 0.2)
            self.succeed("rm", "job:1", cli=remote)
            self.assertEqual(int(self.succeed("gc", cli=remote).get("packs_in_use", 0)), 0)
            self.assertEqual(os.listdir(os.path.join(self.store, "packs")), [])
            os.kill(child.pid, signal.SIGCONT)
            result = remote.finish(child, 60)
        self.assertEqual(result.code, FAILED, str(result))
        self.assertIn("given up this call", result.message)


def bytes_in(pipe):
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


class OwnersTest(RekindleTest):
    def test_a_refusal_before_anything_was_sent(self):
        daemon = self.start_daemon()
        user = self.make_cli(host=daemon.host, uid=1000)
        os.chmod(self.directory, 0o777)
        fifo = self.path("fifo")
        os.mkfifo(fifo)
        os.chmod(fifo, 0o644)
        # Both ends, before the command: it may be refused and gone before another could open one.
        with open(fifo, "r+b", buffering=0):
            child = user.start("import", "--file", fifo)
            result = user.finish(child, 60)
        self.assert_refused(result, NOT_PERMITTED, "uid 1000")

    def test_users_may_take_their_images_away_and_bring_none(self):
        daemon = self.start_daemon()
        root = self.make_cli(host=daemon.host)
        user = self.make_cli(host=daemon.host, uid=1000)
        job, _ = self.start_memory_job(8 * MIB)
        self.checkpoint(job.pid, "job:1", "--stop", cli=root)
        job.reap()
        exported = self.path("exported")
        self.succeed("export", "job:1", "--file", exported, cli=root)
        os.chmod(exported, 0o644)
        os.chmod(self.directory, 0o777)
        self.assert_refused(user.run("export", "job:1", "--file", self.path("stolen")), NOT_PERMITTED, "job:1")
        self.assertFalse(os.path.exists(self.path("stolen")))
        self.assert_refused(user.run("import", "--file", exported, "-t", "mine:1"), NOT_PERMITTED, "uid 1000")


class ForOthersTest(CloneTest):
    def test_an_administrator_takes_one_in_for_its_user(self):
        root, user, other = (self.make_cli(host=self.daemon.host, uid=uid) for uid in (0, 1000, 1001))
        elsewhere = self.make_cli(store=self.path("elsewhere"))
        job, _ = self.start_memory_job(8 * MIB)
        self.checkpoint(job.pid, "job:1", "--stop", cli=elsewhere)
        job.reap()
        exported = self.path("exported")
        self.succeed("export", "job:1", "--file", exported, cli=elsewhere)
        self.assert_refused(
            root.run("import", "--file", exported, "--owner", "nobody-of-this-name"), NOT_FOUND, "nobody-of-this-name"
        )
        self.assert_refused(root.run("import", "--file", exported, "--owner", ""), USAGE, "--owner")
        self.assertEqual(self.succeed("ls", cli=root)["images"], [])
        taken = self.succeed("import", "--file", exported, "--owner", "1000", cli=root)["image"]
        self.assertEqual(taken["owner_uid"], 1000)
        options = ("--to", self.daemon.host, "-t", "job:2", "--owner", "1000")
        copied = self.succeed("copy", "job:1", *options, cli=elsewhere)["image"]
        self.assertEqual(copied["owner_uid"], 1000)
        self.assertEqual(
            [image["reference"] for image in self.succeed("ls", cli=user)["images"]], ["job:2", "job:1"]
        )
        self.assertEqual(self.succeed("ls", cli=other)["images"], [])
        # It was root's job, and to have its image makes nobody root.
        for options in ([], ["--clone"]):
            self.assert_refused(user.run("restore", "job:1", "--detach", *options), NOT_PERMITTED, "uid 0")
        self.assert_refused(user.run("template", "up", "job:1", "--name", "roots"), NOT_PERMITTED, "uid 0")
        self.succeed("rm", "job:1", "job:2", cli=user)


class FollowTest(RekindleTest):
    def test_supervised_job_outlives_its_node(self):
        """Node and store are lost; a copy of one of its last images is elsewhere."""
        daemon = self.start_daemon()
        cli = self.make_cli(host=daemon.host)
        status = self.path("status")
        self.succeed(
            "run", "--detach", "--name", "job", "--log", self.path("job.log"), "--every", "1s", "--keep", "8", "--",
            jobs.program("memory_job"), str(8 * MIB), status, cli=cli,
        )  # fmt: skip
        pid = next(job["pid"] for job in self.succeed("ps", cli=cli)["jobs"] if job["name"] == "job")
        self.kill_job_at_end(pid)
        self.addCleanup(daemon.kill)  # first: it would bring the job back
        other = self.path("other")
        there = self.make_cli(store=other)
        child = cli.start("copy", "job", "--to", other, "--follow", "--keep", "2", json_output=False)

        def copies():
            listed = there.run("ls")
            return [image["reference"] for image in listed.data.get("images", [])] if listed.code == DONE else []

        waiting.until(lambda: copies(), "the first copy", 60, 0.2)
        first = copies()[-1]
        waiting.until(lambda: copies() and first not in copies(), "that one is removed for newer ones", 90, 0.2)
        os.kill(child.pid, signal.SIGINT)
        result = cli.finish(child)
        self.assertEqual(result.code, DONE, str(result))
        self.assertLessEqual(len(copies()), 2)
        # All but the first were sent as what had changed.
        sent = [line for line in result.out.splitlines() if "copied to" in line]
        self.assertGreaterEqual(len(sent), 3, result.out)
        self.assertTrue(all("KiB for" in line or ": 0 B" in line for line in sent[1:]), result.out)

        daemon.kill()
        jobs.kill_tree(pid)
        self.succeed("fsck", "--read", cli=there)
        self.goes_on_supervised(other, copies()[0], pid)

    def goes_on_supervised(self, store, image, pid):
        environment_there = {"REKINDLE_RUNTIME_DIR": self.path("run-there"), "REKINDLE_LOG_DIR": self.path("logs-there")}
        folder = self.path("there")
        os.mkdir(folder)
        daemon = Daemon(folder, store, environment_there, ["--standby", "0"])
        self.addCleanup(daemon.stop)
        cli = Cli(host=daemon.host, env=environment_there)
        both = cli.run("run", "--from", image, "--every", "1s", "--", "true")
        self.assert_refused(both, USAGE, "image")
        self.assert_refused(cli.run("run", "--from", image), USAGE, "--every")
        self.assert_refused(cli.run("run", "--from", "none:1", "--every", "1s", "--detach"), NOT_FOUND, "none:1")
        self.assertEqual(self.succeed("ps", "--all", cli=cli)["jobs"], [])
        started = self.succeed("run", "--from", image, "--every", "1s", "--restarts", "3", "--detach", cli=cli)
        self.assertEqual((started["job"]["name"], started["job"]["pid"]), ("job", pid))
        self.addCleanup(daemon.kill)

        def supervised():
            return next(job for job in self.succeed("ps", "--all", cli=cli)["jobs"] if job["name"] == "job")["supervised"]

        waiting.until(lambda: supervised()["checkpoints"] >= 2, "images of its new life", 60, 0.2)
        os.kill(pid, signal.SIGKILL)
        waiting.until(lambda: supervised()["restarts"] == 1, "it is brought back", 60, 0.2)
        self.succeed("stop", "job", cli=cli)

    def test_the_newest_image_is_the_last_one_whatever_the_clock_said(self):
        job, _ = self.start_memory_job(4 * MIB)
        self.checkpoint(job.pid, "job:1")
        after = self.make_cli(store=self.store, env={"LD_PRELOAD": jobs.program("earlier_clock.so")})
        self.checkpoint(job.pid, "job:2", cli=after)
        images = self.succeed("ls")["images"]
        self.assertEqual([image["reference"] for image in images], ["job:2", "job:1"])
        self.assertLess(int(images[0]["created_unix_ns"]), int(images[1]["created_unix_ns"]))

        there = self.make_cli(store=self.path("there"))
        child = self.cli.start("copy", "job", "--to", self.path("there"), "--follow", json_output=False)
        waiting.until(lambda: (there.run("ls").data or {}).get("images"), "the first copy", 60, 0.2)
        os.kill(child.pid, signal.SIGINT)
        self.cli.finish(child)
        self.assertEqual([image["reference"] for image in self.succeed("ls", cli=there)["images"]], ["job:2"])

        self.succeed("prune", "job", "--keep-last", "1")
        self.assertEqual([image["reference"] for image in self.succeed("ls")["images"]], ["job:2"])

    def test_keep_removes_nothing_of_another_store(self):
        """Two nodes copy to one place, images of one name."""
        nodes = [self.make_cli(store=self.path(name)) for name in ("a", "b")]
        shared = self.make_cli(store=self.path("shared"))
        job, _ = self.start_memory_job(8 * MIB)
        self.checkpoint(job.pid, "job:b1", cli=nodes[1])
        self.succeed("copy", "job:b1", "--to", self.path("shared"), cli=nodes[1])
        self.checkpoint(job.pid, "job:a1", cli=nodes[0])
        child = nodes[0].start("copy", "job", "--to", self.path("shared"), "--follow", "--keep", "1")

        def copies():
            return sorted(image["reference"] for image in self.succeed("ls", cli=shared).get("images", []))

        waiting.until(lambda: "job:a1" in copies(), "the first copy", 60, 0.2)
        self.checkpoint(job.pid, "job:a2", cli=nodes[0])
        waiting.until(lambda: "job:a2" in copies() and "job:a1" not in copies(), "a newer one instead", 60, 0.2)
        os.kill(child.pid, signal.SIGINT)
        result = nodes[0].finish(child)
        self.assertEqual(result.code, DONE, str(result))
        self.assertEqual(copies(), ["job:a2", "job:b1"])

    def test_nothing_to_copy_yet_and_a_store_that_is_no_store(self):
        wrong = self.path("wrong")
        os.mkdir(wrong)
        with open(os.path.join(wrong, "file"), "w", encoding="ascii"):
            pass
        job, _ = self.start_memory_job(8 * MIB)
        self.checkpoint(job.pid, "job:1", "--stop")
        job.reap()
        self.assert_refused(self.cli.run("copy", "job:1", "--to", wrong), FAILED, wrong)
        self.assert_refused(self.cli.run("copy", "job:9", "--to", self.path("there")), NOT_FOUND, "job:9")

    def test_who_follows_a_name_that_is_not_there_is_told(self):
        def told():
            child = self.cli.start("copy", "aa", "--to", self.path("there"), "--follow", json_output=False)
            line = child.stderr.readline()
            os.kill(child.pid, signal.SIGINT)
            self.assertEqual(self.cli.finish(child).code, DONE)
            return line

        self.assertIn(f"there is no store at {self.store}", told())
        job, _ = self.start_memory_job(8 * MIB)
        self.checkpoint(job.pid, "a:1", "--stop")
        job.reap()
        self.assertIn("there is no image of aa yet", told())

    def test_nobody_gives_an_image_anothers_origin(self):
        job, _ = self.start_memory_job(8 * MIB)
        digest = self.checkpoint(job.pid, "job:1")["image"]["digest"]
        forged = self.cli.run("ckpt", job.pid, "-t", "job:2", "--label", f"rekindle.origin={digest}")
        self.assert_refused(forged, USAGE, "rekindle.origin", "choose another")


class NodesCopyTest(NodesTest):
    def copy(self, source, image, target):
        """By a command on the source's node, with the node's own certificate."""
        file = self.certificates.file
        result = source.cli.run(
            "copy", image, "--to", target.host, "--tls-ca", file("ca.pem"),
            "--tls-cert", file(source.name + ".pem"), "--tls-key", file(source.name + ".key"),
            prefix=source.namespace.prefix(),
        )  # fmt: skip
        self.assertEqual(result.code, DONE, str(result))
        return result.data

    def test_group_goes_on_where_its_images_were_copied_to(self):
        """Nodes b and c are gone for good."""
        exchange = Exchange(self)
        channel = self.path("channel")
        started = [
            exchange.start(self.b, "send", f"file:{channel}", "sender"),
            exchange.start(self.c, "receive", f"file:{channel}", "receiver"),
        ]
        for name in ("sender", "receiver"):
            waiting.until(lambda name=name: exchange.status(name).isdigit(), f"{name} begins")
        exchange.wait_for_progress("sender", "receiver")
        members = [(self.b, started[0].pid), (self.c, started[1].pid)]
        self.checkpoint_group("x:1", members)
        self.wait_until_settled()
        self.copy(self.b, "x/0:1", self.a)
        self.copy(self.c, "x/1:1", self.a)
        for job in started:
            job.kill_tree()
        self.b.stop()
        self.c.stop()
        data = self.succeed(
            "group", "restore", "x:1", "--map", f"{self.b.host}={self.a.host}", "--map", f"{self.c.host}={self.a.host}",
            cli=self.a.cli,
        )  # fmt: skip
        for member in data["members"]:
            self.kill_job_at_end(member["job"]["pid"])
        self.assertEqual([member["job"]["pid"] for member in data["members"]], [pid for _, pid in members])
        exchange.wait_for_progress("sender", "receiver")
        self.assertTrue(all(procfs.alive(pid) for _, pid in members))


if __name__ == "__main__":
    unittest.main()
