"""`rekindle doctor` where something is missing that clones, templates and the pager need."""

import os
import shutil
import stat
import unittest

from harness import forbid_call, freezer
from harness.case import MIB, RekindleTest
from harness.cli import BINARIES, DONE, UNSUPPORTED, binary

_FOR_CLONES = ("programs", "userfaultfd_events", "sandbox", "namespaces", "cgroups", "open_files", "pidfd_getfd")


class DoctorTest(RekindleTest):
    def examine(self, prefix=(), code=DONE):
        """The checks by name."""
        result = self.cli.run("doctor", prefix=prefix)
        self.assertEqual(result.code, code, str(result))
        checks = {check["name"]: check for check in result.data["checks"]}
        self.assertEqual(len(checks), len(result.data["checks"]), "a name is there twice")
        for check in checks.values():
            self.assertTrue(check["result"] == "ok" or check["cure"], check)
        return checks

    def assert_found(self, check, result, *words):
        self.assertEqual(check["result"], result, check)
        for word in words:
            self.assertIn(word, check["detail"] + " " + check["cure"])

    def test_all_is_there(self):
        checks = self.examine()
        for name in (*_FOR_CLONES, "cgroups_of_others"):
            self.assert_found(checks[name], "ok")

    def test_few_descriptors(self):
        few = self.examine(["prlimit", "--nofile=1100:1100"])["open_files"]
        self.assert_found(few, "warning", "1100", "LimitNOFILE")
        fewer = self.examine(["prlimit", "--nofile=1000:1000"])["open_files"]
        self.assert_found(fewer, "warning", "1000", "hook", "LimitNOFILE")

    def test_no_cgroups(self):
        hidden = 'umount -R -l /sys/fs/cgroup && exec "$@"'
        checks = self.examine(["unshare", "--mount", "sh", "-c", hidden, "sh"])
        self.assert_found(checks["cgroups"], "warning", "'memory'", "--processes")
        self.assert_found(checks["cgroups_of_others"], "warning", "--into", "--cgroupns host")

    def test_a_cgroup_namespace(self):
        """Below which other containers' cgroups have no names, although all is mounted."""
        group = os.path.join(freezer.hierarchies()[0][0], f"rekindle-it-{os.getpid()}-ours")
        os.mkdir(group)
        self.addCleanup(os.rmdir, group)
        move = 'echo $$ >"$0/cgroup.procs" && exec unshare --cgroup "$@"'
        check = self.examine(["sh", "-c", move, group])["cgroups_of_others"]
        self.assert_found(check, "warning", "--into", "--cgroupns host")

    def test_no_rights(self):
        checks = self.examine(["setpriv", "--bounding-set=-sys_admin,-sys_ptrace"], UNSUPPORTED)
        self.assert_found(checks["sandbox"], "warning", "Operation not permitted", "cap_sys_admin")
        self.assert_found(checks["userfaultfd_events"], "warning", "Operation not permitted", "userfaultfd")

    def test_no_io_uring(self):
        """As with kernel.io_uring_disabled=2: all works, by other means."""
        forbidden = forbid_call.prefix("io_uring_setup")
        check = self.examine(forbidden)["io_uring"]
        self.assert_found(check, "warning", "Operation not permitted", "none needed", "io_uring_disabled")
        job, memory = self.start_memory_job(64 * MIB)
        digest = memory.digest()
        self.succeed("ckpt", job.pid, "-t", "plain:1", "--stop", prefix=forbidden)
        job.reap()
        pidfile = self.path("restored.pid")
        self.succeed("restore", "plain:1", "--detach", "--pidfile", pidfile, prefix=forbidden)
        with open(pidfile, encoding="ascii") as file:
            pid = int(file.read())
        self.kill_job_at_end(pid)
        memory.wait_for_tick()
        self.assertEqual(memory.digest(), digest)
        self.assert_store_whole(["plain:1"])

    def test_programs_that_are_missing(self):
        for missing, result, code in (
            (("rekindle-pager",), "warning", DONE),
            (("rekindle-sandbox", "rekindle-dump-gate"), "missing", UNSUPPORTED),
        ):
            folder = self.path("bin-" + missing[0])
            os.mkdir(folder)
            programs = ("rekindle-sandbox", "rekindle-pager", "rekindle-dump-gate")
            for name in (*programs, "rekindle-criu-preload.so", "rekindle-criu-restore.so"):
                if name not in missing:
                    shutil.copy(os.path.join(BINARIES, name), folder)
            # Beside itself it looks for them.
            copy = shutil.copy(binary("rekindle"), folder)
            instead = f'shift; exec {copy} "$@"'
            checks = self.examine(["sh", "-c", instead, "sh"], code)
            self.assert_found(checks["programs"], result, *missing, "install")

    def test_the_runtime_folder_is_for_everybody_who_calls(self):
        """Whoever needed it before the daemon had it for himself, and users' functions could not reach their socket."""
        os.makedirs(self.runtime, exist_ok=True)
        os.chmod(self.runtime, 0o700)
        self.start_daemon()
        self.assertEqual(stat.S_IMODE(os.stat(self.runtime).st_mode), 0o755)


if __name__ == "__main__":
    unittest.main()
