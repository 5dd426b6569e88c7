"""Functions that are deployed, replaced, called and removed all at once, by two users, under a killed daemon."""

import os
import random
import threading
import unittest

from harness import procfs, waiting
from harness.functions import SECONDS, FunctionsTest

CAP_SYS_RESOURCE = 24
ALICE, BOB = (65533, 65534) if procfs.has_capability(CAP_SYS_RESOURCE) else (0, 0)
_ROUNDS = 4
_APP = """def handler(event, context):
    return {version!r}
"""


class ChurnTest(FunctionsTest):
    def setUp(self):
        super().setUp()
        uids = {"alice": ALICE, "bob": BOB}
        self.users = {name: self.make_cli(host=self.daemon.host, uid=uid) for name, uid in uids.items()}

    def change(self, user, name, seed):
        """Goes on whatever becomes of each command: what they leave behind is what counts."""
        choose, cli = random.Random(seed), self.users[user]
        for number in range(_ROUNDS):
            version = f"{name} {number}"
            code = self.code(f"{name}-{number}", {"app.py": _APP.format(version=version)})
            images = ("--no-image",) if choose.random() < 0.5 else ("--deps", "none")
            cli.run("fn", "deploy", name, "--runtime", "python", "--handler", "app.handler", "--code", code,
                    "--replace", "--force", "--description", version, *images, seconds=300)  # fmt: skip
            if choose.random() < 0.3:
                cli.run("fn", "rm", name, seconds=300)

    def call(self, user, name, stop):
        while not stop.is_set():
            self.users[user].run("fn", "invoke", name, "--payload", "{}", seconds=300)

    def test_what_is_there_is_whole(self):
        stop = threading.Event()
        names = [(user, f"{user}-{number}") for user in self.users for number in range(2)]
        changing = [threading.Thread(target=self.change, args=(*name, seed)) for seed, name in enumerate(names)]
        calling = [threading.Thread(target=self.call, args=(*name, stop)) for name in names]
        for thread in changing + calling:
            thread.start()
        waiting.until(lambda: self.succeed("fn", "ls").get("functions"), "the first function", SECONDS)
        self.daemon.kill()
        self.restart_daemon()
        for thread in changing:
            thread.join()
        stop.set()
        for thread in calling:
            thread.join()
        functions = self.succeed("fn", "ls").get("functions", [])
        for function in functions:
            name = function["spec"]["name"]
            answer, _ = self.invoke(name, cli=self.users[name.split("-", maxsplit=1)[0]])
            self.assertEqual(answer, function["spec"]["description"])
        folder = os.path.join(self.store, "functions")
        present = {function["spec"]["name"] for function in functions}

        def left():
            beside = set(os.listdir(folder)) - present - {".lock"}
            return beside or [name for name in present if len(os.listdir(os.path.join(folder, name))) != 2]

        waiting.until(lambda: not left(), "nothing but a record and one revision of each", SECONDS)
        for owner in self.succeed("quota")["owners"]:
            mine = [int(function["code_bytes"]) for function in functions if function["owner_uid"] == owner["uid"]]
            self.assertEqual(int(owner.get("code_bytes", 0)), sum(mine))


if __name__ == "__main__":
    unittest.main()
