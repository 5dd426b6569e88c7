"""Functions whose store has no room for a while, is away, was emptied, or is another one."""

import os
import shutil
import signal
import unittest

from harness import waiting
from harness.case import MIB, shell
from harness.cli import FAILED
from harness.functions import FROM_OWN_IMAGE, SECONDS, FunctionsTest


class FunctionStoreTest(FunctionsTest):
    def end_instances(self, name):
        for pid in self.runtimes():
            os.kill(pid, signal.SIGKILL)
        self.wait_for_no_instance(name)

    def begin(self, name="app"):
        """A function that has its own image, and no instance."""
        self.deploy(name, "--deps", "none")
        self.about(name)
        self.wait_for_image(name)
        self.end_instances(name)

    def assert_not_started(self, name, *words):
        self.assert_refused(self.cli.run("fn", "invoke", name), FAILED, f"no instance of function '{name}'", *words)

    def assert_from_own_image(self, name="app"):
        self.assertIn(self.invoke(name)[1]["start_level"], FROM_OWN_IMAGE)


class RoomTest(FunctionStoreTest):
    def test_an_image_for_which_there_is_no_room_is_taken_once_there_is(self):
        self.deploy("app", "--deps", "none")
        self.succeed("quota", "--store-max", "1M")
        self.about("app")
        problem = waiting.until(lambda: self.function("app")["problem"], "why there is no image", SECONDS)
        self.assertRegex(problem, r"\Aits image could not be made and is tried again after "
                                  r"\d\d:\d\d:\d\d: .*1\.0 MiB")
        self.succeed("quota", "--store-max", "none")

        def taken():
            self.end_instances("app")
            self.about("app")
            return self.function("app")["function_image"]

        waiting.until(taken, "its image", SECONDS)
        self.assertEqual(self.function("app")["problem"], "")


class SettingsRoomTest(FunctionStoreTest):
    def test_settings_need_no_room(self):
        self.deploy("app", "--no-image")
        self.succeed("quota", "--store-max", "1K")
        self.assertEqual(self.succeed("fn", "set", "app", "--memory", "512M")["result"]["revision"], 2)
        self.assert_refused(
            self.cli.run("fn", "deploy", "other", "--runtime", "python", "--handler", "app.handler", "--code",
                         self.code("other"), "--no-image"),
            FAILED, "there is no room for the code of function 'other': the store")


class DependencyRoomTest(FunctionStoreTest):
    def test_one_for_which_there_was_no_room_when_a_function_was_deployed(self):
        """It starts from nothing until there is; whoever makes another image wakes what waits for it."""
        self.succeed("quota", "--store-max", "300K")
        deployed = self.deploy("app", "--deps", "none")
        self.assertIn("starts from nothing until it can be built", deployed["warnings"][0])
        self.assertEqual(self.invoke("app", {"do": "self"})[1]["start_level"], "cold")
        self.assertIn("tried again in the background: ", self.function("app")["problem"])
        self.assertIn("300.0 KiB", self.function("app")["problem"])
        self.succeed("quota", "--store-max", "none")
        self.succeed("deps", "build", "json", "--runtime", "python")
        waiting.until(lambda: self.function("app").get("dependency_image"), "the image of its dependencies", SECONDS)
        self.end_instances("app")
        self.assertNotEqual(self.invoke("app", {"do": "self"})[1]["start_level"], "cold")
        self.assertEqual(self.function("app")["problem"], "")
        self.wait_for_image("app")


class AwayTest(FunctionStoreTest):
    def away(self):
        return f"the store at {self.store} is not there: is its file system mounted?"

    def test_it_starts_again_with_the_store(self):
        self.begin()
        elsewhere = self.store + ".away"
        os.rename(self.store, elsewhere)
        os.mkdir(self.store)  # as the folder in which it is mounted
        self.assert_not_started("app", self.away())
        self.assertIn(self.away().encode(), self.post("app", {}).body)
        self.assertEqual(os.listdir(self.store), [])
        os.rmdir(self.store)
        os.rename(elsewhere, self.store)
        self.assert_from_own_image()

    def test_something_is_mounted_over_it(self):
        self.begin()
        shell("mount", "-t", "tmpfs", "tmpfs", self.store)
        try:
            self.assert_not_started("app", self.away())
        finally:
            shell("umount", "--lazy", self.store)
        self.assert_from_own_image()

    def empty_store(self):
        """The daemon may be writing into it."""
        for name in os.listdir(self.store):
            path = os.path.join(self.store, name)
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.remove(path)
        return not os.listdir(self.store)

    def test_it_is_emptied_and_put_back(self):
        self.begin()
        shell("cp", "-a", self.store, self.store + ".backup")
        waiting.until(self.empty_store, "nothing is in the store")
        self.assert_not_started("app", self.away())
        shell("cp", "-a", self.store + ".backup/.", self.store)
        self.assert_from_own_image()
        # What is stored from now on is stored there.
        self.begin("other")
        own = self.function("other")["function_image"]
        alone = self.make_cli(store=self.store)
        self.assertIn(own, [one["reference"] for one in self.succeed("ls", cli=alone)["images"]])
        self.assert_store_whole(self.references(), cli=alone)

    def test_another_one_has_come_to_its_place(self):
        self.begin()
        # Out of the way first: the daemon may be writing into it.
        os.rename(self.store, self.store + ".gone")
        shutil.rmtree(self.store + ".gone", ignore_errors=True)
        self.assert_not_started("app", self.away())
        job, _ = self.start_memory_job(2 * MIB, "job")
        self.checkpoint(job.pid, "job:1", cli=self.make_cli(store=self.store))
        self.assert_not_started("app", "its code", "is gone", "deploy the function again with --replace")
        self.assertFalse(self.deploy("app", "--deps", "none", "--replace")["unchanged"])
        self.assertEqual(self.about("app")["calls"], 1)
        self.wait_for_image("app")
        self.end_instances("app")
        self.assert_from_own_image()


class MovedTest(FunctionStoreTest):
    def test_images_are_made_anew_where_it_lies_now(self):
        """Those of before work in the function's old folder."""
        self.begin()
        before = self.digest_of_image("app")
        self.daemon.stop()
        moved = self.path("moved")
        os.rename(self.store, moved)
        self.store = moved
        self.restart_daemon()

        def from_own_image():
            level = self.invoke("app")[1]["start_level"]
            self.end_instances("app")
            return level in FROM_OWN_IMAGE

        waiting.until(from_own_image, "a start from its own image", SECONDS)
        self.assertIn("the image of function 'app' is dropped", self.daemon.log_text())
        self.assertNotIn("could not be", self.daemon.log_text())
        self.assertNotIn(before, [one["digest"] for one in self.succeed("ls")["images"]])

    def digest_of_image(self, name):
        reference = self.function(name)["function_image"]
        return next(one["digest"] for one in self.succeed("ls")["images"] if one["reference"] == reference)


if __name__ == "__main__":
    unittest.main()
