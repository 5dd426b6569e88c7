"""Jobs in containers: captured from the node, and restored into other containers."""

import os
import signal
import subprocess
import unittest

from harness import freezer, jobs, procfs, waiting
from harness.case import MIB, shell
from harness.cli import FAILED, NOT_FOUND, NOT_PERMITTED, UNSUPPORTED, USAGE
from harness.containers import Container
from harness.containers_case import BELOW_INIT, PLACEHOLDER, SERVICE, ContainersCase
from harness.gpu_sim import GpuSim, step_in

NOBODY = 65534


class ContainerTest(ContainersCase):
    def test_into_another_container(self):
        before = os.listdir("/dev/shm")
        one, job = self.start_service()
        number = procfs.namespace_pid(job)
        self.checkpoint(job, "box:1")
        self.wait_for_steps()
        went_before = self.output("one")
        one.end()
        two = self.start("two", PLACEHOLDER)
        restored = self.restore("box:1", "--into", two.first())
        self.assertEqual(procfs.namespace_pid(restored), number)
        self.wait_for_steps()
        came_back = self.output("two")
        self.assert_went_on(went_before + came_back, number)
        self.assertLessEqual(int(came_back[0][0]), int(went_before[-1][0]))
        # It belongs to the container in all that is counted, and ends with it.
        with open(f"/proc/{restored}/cgroup", encoding="ascii") as file:
            groups = file.read()
        self.assertIn(two.name, groups)
        self.assertNotIn(one.name, groups)
        self.assertIn(restored, two.pids())
        # And once more, out of that one.
        self.checkpoint(restored, "box:2", "--stop")
        waiting.for_exit(restored)
        two.end()
        three = self.start("three", PLACEHOLDER)
        again = self.restore("box:2", "--into", three.first())
        self.wait_for_steps()
        self.assert_went_on(went_before + came_back + self.output("three"), number)
        three.end()
        waiting.until(lambda: not procfs.alive(again), "it ends with its container")
        self.assertEqual(os.listdir("/dev/shm"), before)
        self.assert_store_whole(["box:1", "box:2"])

    def test_by_a_daemon(self):
        daemon = self.start_daemon()
        root, nobody = self.make_cli(host=daemon.host), self.make_cli(host=daemon.host, uid=NOBODY)
        one, job = self.start_service()
        number = procfs.namespace_pid(job)
        self.checkpoint(job, "box:1", "--stop", cli=root)
        one.end()
        two = self.start("two", PLACEHOLDER)
        refused = nobody.run("restore", "box:1", "--into", two.first(), "--detach")
        self.assert_refused(refused, NOT_PERMITTED, "administrators", "--into")
        restored = self.restore("box:1", "--into", two.first(), "--name", "boxed", cli=root)
        self.wait_for_steps()
        self.assert_went_on(self.output("one") + self.output("two"), number)
        listed = self.succeed("ps", cli=root)["jobs"]
        self.assertEqual([(entry["pid"], entry["name"]) for entry in listed], [(restored, "boxed")])
        two.end()
        waiting.until(lambda: not self.succeed("ps", cli=root)["jobs"], "the job's end is noticed")

    def test_output_into_a_pipe(self):
        ours, theirs = os.pipe()
        self.addCleanup(os.close, ours)
        one, job = self.start_service()
        self.checkpoint(job, "box:1", "--stop")
        one.end()
        with os.fdopen(theirs, "wb") as pipe:
            two = self.start("two", PLACEHOLDER, pipe)
        self.restore("box:1", "--into", two.first())
        self.wait_for_steps()
        line = os.read(ours, 4096).decode("ascii").splitlines()[0].split(maxsplit=4)
        self.assert_went_on([*self.output("one"), line], int(line[1]))


class GpuTest(ContainersCase):
    """A job that uses a (simulated) GPU, in a container without Rekindle's helper, or any right to a driver's API."""

    BYTES = 32 * MIB

    def setUp(self):
        super().setUp()
        self.sim = GpuSim(self.data, name="gpu")
        self.addCleanup(self.sim.stop)
        self.environment.update(self.sim.environment)
        self.cli = self.make_cli(store=self.store)

    def step(self):
        return step_in(os.path.join(self.data, "state"))

    def wait_for_steps(self, more=3):
        target = self.step() + more
        waiting.until(lambda: self.step() >= target, "steps of the job")

    def start_job(self, name, *options):
        variables = ["REKINDLE_GPU_SIM=/data/gpu.sock", "LD_LIBRARY_PATH=/bin-of-rekindle/gpu_sim"]
        program = ["/bin-of-rekindle/gpu_vector_job", "--state-file", "/data/state", "--bytes", str(self.BYTES), *options]
        container = self.start(name, [*PLACEHOLDER, "/usr/bin/env", *variables, *program])
        self.wait_for_steps()
        return container, max(container.pids(), key=procfs.namespace_pid)

    def assert_back(self, restored):
        self.assertEqual(procfs.namespace_pid(restored), 300)
        self.wait_for_steps()
        listed = self.succeed("gpu", "ps")["jobs"]
        self.assertEqual([(entry["pid"], entry["state"]) for entry in listed], [(restored, "running")])

    def test_into_another_container(self):
        one, job = self.start_job("one", "--step-ms", "2")
        taken = self.checkpoint(job, "gpu:1", "--stop")
        self.assertGreaterEqual(taken["gpu_bytes"], self.BYTES)
        one.end()
        two = self.start("two", PLACEHOLDER)
        self.assert_back(self.restore("gpu:1", "--into", two.first()))

    def test_its_threads_stand_still_while_its_memory_moves(self):
        """It would die of a synchronize that meets its memory away."""
        one, job = self.start_job("one", "--step-ms", "50", "--first-call", "stream")
        for call in ("checkpoint", "restore"):
            self.sim.inject(call, "--delay-ms", 300)
        self.checkpoint(job, "gpu:1")
        self.wait_for_steps()
        self.checkpoint(job, "gpu:2", "--stop")
        one.end()
        two = self.start("two", PLACEHOLDER)
        self.assert_back(self.restore("gpu:2", "--into", two.first()))


class RollbackTest(ContainersCase):
    """What the job wrote after the image it does not find when it comes back."""

    def number_of(self, line):
        return int(line[0])

    def dry_run(self, *options):
        files = self.succeed("restore", "box:1", "--rollback", "append", "--dry-run", *options)["files"]
        return {file["path"]: file for file in files}

    def test_a_file_on_a_volume(self):
        one, job = self.start_service()
        self.checkpoint(job, "box:1")
        self.wait_for_steps()
        one.end()
        written = self.steps()
        left = self.dry_run()["/data/steps"]  # on the machine, where that is another file
        self.assertEqual(left["action"], "left")
        self.assertIn("--into", left["why"])
        two = self.start("two", PLACEHOLDER)
        planned = self.dry_run("--into", two.first())["/data/steps"]
        self.assertEqual(planned["action"], "truncated", planned)
        self.assertEqual(self.steps(), written)
        self.restore("box:1", "--into", two.first(), "--rollback", "append")
        self.wait_for_steps(len(written))
        self.assertEqual([self.number_of(line) for line in self.steps()], list(range(len(self.steps()))))
        self.assertEqual({line[3] for line in self.steps()}, {"True"})

    def test_a_file_of_the_containers_own(self):
        inside = "/var/tmp/steps"
        one = self.start("one", [*BELOW_INIT, inside])
        path = os.path.join(one.root, inside[1:])
        waiting.until(lambda: len(self.steps(path)) >= 5, "steps of the job")
        self.checkpoint(self.find_job(one), "box:1", "--stop")
        written = self.steps(path)
        one.end()
        two = self.start("two", PLACEHOLDER)
        refused = self.cli.run("restore", "box:1", "--into", two.first(), "--detach")
        self.assert_refused(refused, FAILED, inside, "--rollback append")
        self.restore("box:1", "--into", two.first(), "--rollback", "append")
        path = os.path.join(two.root, inside[1:])
        waiting.until(lambda: len(self.steps(path)) >= len(written) + 5, "steps of the job")
        self.assertEqual(self.steps(path)[: len(written)], written)
        self.assertEqual([self.number_of(line) for line in self.steps(path)], list(range(len(self.steps(path)))))


class RefusedTest(ContainersCase):
    def test_the_first_process(self):
        one = self.start("one", ["/usr/bin/python3", "-B", SERVICE])
        self.wait_for_steps()
        for options in ([], ["--stop"]):
            refused = self.cli.run("ckpt", one.first(), "-t", "box:1", *options)
            self.assert_refused(refused, FAILED, "first of a PID namespace", "--init", "shareProcessNamespace")
        self.wait_for_steps()

    def test_with_the_machines_pids(self):
        one = self.start("one", BELOW_INIT, pids=Container.MACHINE)
        self.wait_for_steps()
        job = min(pid for pid in one.pids() if procfs.command_line(pid).startswith("/usr/bin/python3"))
        refused = self.cli.run("ckpt", job, "-t", "box:1")
        self.assert_refused(refused, UNSUPPORTED, "shares the machine's PIDs", "--pid=host", "PIDs of its own")
        other, _ = self.start_memory_job(MIB)
        self.checkpoint(other.pid, "x:1", "--stop")
        refused = self.cli.run("restore", "x:1", "--into", one.first(), "--detach")
        self.assert_refused(refused, USAGE, "no container", "--pid=host")
        self.wait_for_steps()

    def test_the_machines_own_from_a_container(self):
        """Which has the machine's PIDs, and a / of its own."""
        job, memory = self.start_memory_job(MIB)
        inside = (
            'set -e; mkdir "$0"; mount -t tmpfs none "$0"; for each in /*; do [ -d "$each" ] || continue; '
            'mkdir "$0$each"; mount --rbind "$each" "$0$each"; done; exec chroot "$0" "$@"'
        )
        prefix = ["unshare", "--mount", "sh", "-c", inside, self.path("root")]
        refused = self.cli.run("ckpt", job.pid, "-t", "x:1", prefix=prefix)
        self.assert_refused(refused, UNSUPPORTED, str(job.pid), "machine's own", "this Rekindle is in a container")
        memory.wait_for_tick()
        self.checkpoint(job.pid, "x:1", "--stop")

    def test_cgroups_that_are_out_of_reach(self):
        """A Rekindle that is in a container itself, without the machine's cgroups."""
        one, job = self.start_service()
        self.checkpoint(job, "box:1", "--stop")
        one.end()
        two = self.start("two", PLACEHOLDER)
        hierarchy = freezer.hierarchies()[0][0]
        group = os.path.join(hierarchy, f"rekindle-it-{os.getpid()}-ours")
        os.mkdir(group)
        self.addCleanup(os.rmdir, group)
        bind = 'mount --bind "$0" "$1" && shift && exec "$@"'
        for prefix in (
            ["unshare", "--mount", "sh", "-c", 'umount -R -l /sys/fs/cgroup && exec "$@"', "sh"],  # not mounted
            ["unshare", "--mount", "sh", "-c", bind, group, hierarchy],  # its own alone
        ):
            for options in ([], ["--rollback", "append", "--dry-run"]):
                refused = self.cli.run("restore", "box:1", "--into", two.first(), "--detach", *options, prefix=prefix)
                self.assert_refused(refused, FAILED, str(two.first()), two.name, "/sys/fs/cgroup", "--cgroupns host")
            self.assertEqual(two.pids(), [two.first()])
        self.restore("box:1", "--into", two.first())
        self.wait_for_steps()

    def test_a_paused_place(self):
        one, job = self.start_service()
        self.checkpoint(job, "box:1", "--stop")
        one.end()
        two = self.start("two", PLACEHOLDER)
        two.pause()
        try:
            refused = self.cli.run("restore", "box:1", "--into", two.first(), "--detach")
        finally:
            two.resume()
        self.assert_refused(refused, FAILED, str(two.first()), "paused", "docker unpause")
        self.restore("box:1", "--into", two.first())
        self.wait_for_steps()

    def test_a_client_with_other_pids(self):
        """Of a container that has the daemon's socket: what it calls 1 is nobody's business but its own."""
        daemon = self.start_daemon()
        cli = self.make_cli(host=daemon.host)
        job = self.succeed("run", "--detach", "--name", "named", "--", "/bin/sleep", "1000", cli=cli)["job"]["pid"]
        inside = ["unshare", "--pid", "--fork", "--kill-child"]
        group = ["group", "ckpt", "g:1", "--member", job]
        for command in (["ckpt", job, "-t", "x:1"], ["stop", job], ["gpu", "park", job], group):
            self.assert_refused(cli.run(*command, prefix=inside), FAILED, str(job), "container", "by its name")
        self.assertTrue(procfs.alive(job))
        self.succeed("ckpt", "named", "-t", "x:1", cli=cli, prefix=inside)
        refused = cli.run("restore", "x:1", "--into", job, "--detach", prefix=inside)
        self.assert_refused(refused, FAILED, str(job), "container")
        self.succeed("stop", "named", cli=cli, prefix=inside)
        waiting.until(lambda: not procfs.alive(job), "the job's end")

    def test_a_client_outside_the_daemons_container(self):
        self.daemon_prefix = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
        daemon = self.start_daemon()
        self.addCleanup(daemon.kill)  # what runs it takes no SIGTERM
        cli = self.make_cli(host=daemon.host)
        job = self.succeed("run", "--detach", "--name", "named", "--", "/bin/sleep", "1000", cli=cli)["job"]["pid"]
        group = ["group", "ckpt", "g:1", "--member", job]
        for command in (["ckpt", job, "-t", "x:1"], ["stop", job], ["gpu", "park", job], group):
            refused = cli.run(*command)
            self.assert_refused(refused, FAILED, str(job), "outside rekindled's container", "by its name")
        self.assertEqual([one["name"] for one in self.succeed("ps", cli=cli)["jobs"]], ["named"])

    def test_places_that_are_none(self):
        one, job = self.start_service()
        self.checkpoint(job, "box:1")
        # Where it still runs.
        refused = self.cli.run("restore", "box:1", "--into", one.first(), "--detach")
        self.assert_refused(refused, FAILED, "its own PIDs", str(procfs.namespace_pid(job)), "in the container")
        refused = self.cli.run("restore", "box:1", "--into", os.getpid(), "--detach")
        self.assert_refused(refused, USAGE, "no container")
        ended = jobs.Started(["/bin/true"], self.path("true.log"))
        ended.reap()
        refused = self.cli.run("restore", "box:1", "--into", ended.pid, "--detach")
        self.assert_refused(refused, NOT_FOUND, str(ended.pid))
        for option in (["--clone"], ["--log", self.path("log")]):
            refused = self.cli.run("restore", "box:1", "--into", one.first(), "--detach", *option)
            self.assert_refused(refused, USAGE, "--into", "--clone and --log")
        self.wait_for_steps()

    def test_a_container_without_its_files(self):
        one, job = self.start_service()
        self.checkpoint(job, "box:1", "--stop")
        one.end()
        os.rename(os.path.join(self.data, "steps"), os.path.join(self.data, "moved"))
        two = self.start("two", PLACEHOLDER)
        refused = self.cli.run("restore", "box:1", "--into", two.first(), "--detach")
        self.assert_refused(refused, FAILED, "/data/steps is gone")
        self.assertEqual(two.pids(), [two.first()])
        os.rename(os.path.join(self.data, "moved"), os.path.join(self.data, "steps"))
        self.restore("box:1", "--into", two.first())
        self.wait_for_steps()

    def test_a_container_that_is_too_small(self):
        one, job = self.start_service()
        self.checkpoint(job, "box:1", "--stop")
        one.end()
        two = self.start("two", PLACEHOLDER, memory=16 * MIB)
        refused = self.cli.run("restore", "box:1", "--into", two.first(), "--detach")
        self.assert_refused(refused, FAILED, "of memory", "limits of cgroups")
        self.assertEqual(two.pids(), [two.first()])
        two.end()
        three = self.start("three", PLACEHOLDER, memory=256 * MIB)
        self.restore("box:1", "--into", three.first())
        self.wait_for_steps()

    def test_a_user_namespace(self):
        subprocess.run(["unshare", "--user", "true"], check=True)
        with subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "sleep", "infinity"]
        ) as parent:
            jobs.waited_elsewhere.add(parent.pid)
            self.addCleanup(parent.wait)
            self.addCleanup(parent.kill)
            child = waiting.until(lambda: procfs.descendants(parent.pid), "a process in it")[0]
            job, _ = self.start_memory_job(MIB)
            self.checkpoint(job.pid, "x:1", "--stop")
            refused = self.cli.run("restore", "x:1", "--into", child, "--detach")
            self.assert_refused(refused, UNSUPPORTED, "user namespace")
            parent.kill()


class PlaceTest(ContainersCase):
    """What becomes of a container that is a place for a job."""

    # It says when it is ready, and what signal came; then it ends, or not.
    CATCHING = (
        "import os, signal, sys\n"
        "def say(what): open(os.path.join('/data', sys.argv[1] + what), 'w').close()\n"
        "def caught(*_):\n"
        "    say('.told')\n"
        "    if sys.argv[2] == 'ends': os._exit(0)\n"
        "signal.signal(signal.SIGTERM, caught)\n"
        "say('.ready')\n"
        "while True: signal.pause()\n"
    )

    def said(self, what):
        return os.path.exists(os.path.join(self.data, what))

    def capture_service(self):
        one, job = self.start_service()
        self.checkpoint(job, "box:1", "--stop")
        one.end()

    def exit_of(self, first):
        """The exit code of a container's first process. Its namespace ends when all in it are collected."""

        def collected():
            for pid in procfs.children_by_parent().get(os.getpid(), []):
                if procfs.state(pid) != "Z" or pid in jobs.waited_elsewhere:
                    continue
                if pid == first:
                    return [os.waitstatus_to_exitcode(jobs.reap(pid))]
                jobs.reap(pid)
            return None

        return waiting.until(collected, "the container's end")[0]

    def kernel_tells_of_others(self):
        return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2]) >= (6, 15)

    def test_it_ends_as_the_job_does(self):
        self.capture_service()
        two = self.start("two", PLACEHOLDER)
        first = two.first()
        restored = self.restore("box:1", "--into", first)
        self.wait_for_steps()
        self.assertTrue(procfs.alive(first))
        os.kill(restored, signal.SIGTERM)
        expected = 128 + signal.SIGTERM if self.kernel_tells_of_others() else 255
        self.assertEqual(self.exit_of(first), expected)

    def test_it_ends_as_a_daemons_job_does(self):
        daemon = self.start_daemon()
        cli = self.make_cli(host=daemon.host)
        self.capture_service()
        two = self.start("two", PLACEHOLDER)
        first = two.first()
        restored = self.restore("box:1", "--into", first, cli=cli)
        self.wait_for_steps()
        os.kill(restored, signal.SIGINT)  # Python's exit status for it is a death by it
        expected = 128 + signal.SIGINT if self.kernel_tells_of_others() else 255
        self.assertEqual(self.exit_of(first), expected)

    def test_who_is_told_of_no_job_stays(self):
        """A process that is no place would die of it; and what is refused is no job."""
        self.capture_service()
        two = self.start("two", PLACEHOLDER)
        two.execute(["/bin/sleep", "1000"])
        other = two.find("sleep 1000")
        restored = self.restore("box:1", "--into", other)
        self.wait_for_steps()
        jobs.kill_tree(restored)
        self.assertTrue(procfs.alive(other))
        self.assertTrue(procfs.alive(two.first()))
        two.end()
        three = self.start("three", PLACEHOLDER)
        os.rename(os.path.join(self.data, "steps"), os.path.join(self.data, "moved"))
        refused = self.cli.run("restore", "box:1", "--into", three.first(), "--detach")
        self.assert_refused(refused, FAILED, "/data/steps is gone")
        os.rename(os.path.join(self.data, "moved"), os.path.join(self.data, "steps"))
        self.assertTrue(procfs.alive(three.first()))
        self.restore("box:1", "--into", three.first())
        self.wait_for_steps()

    def test_all_in_it_are_told_to_end(self):
        """Also by one that does not end."""
        two = self.start("two", PLACEHOLDER)
        for name, then in (("stubborn", "goes on"), ("second", "ends")):
            two.execute(["/usr/bin/python3", "-c", self.CATCHING, name, then])
            waiting.until(lambda: self.said(name + ".ready"), "it ready")  # pylint: disable=cell-var-from-loop
        first = two.first()
        stubborn = two.find("stubborn goes on")
        os.kill(first, signal.SIGTERM)
        waiting.until(lambda: self.said("stubborn.told") and self.said("second.told"), "both told")
        self.assertTrue(procfs.alive(first))
        os.kill(stubborn, signal.SIGKILL)
        self.assertEqual(self.exit_of(first), 0)

    def test_where_others_share_its_pids(self):
        """As in a pod: it ends what came back in it, and no other container's processes."""
        self.capture_service()
        pod = self.start("pod", PLACEHOLDER)
        pod.execute(["/usr/bin/python3", "-c", self.CATCHING, "other", "ends"])
        waiting.until(lambda: self.said("other.ready"), "it ready")
        other = pod.find("other ends")
        two = self.start("two", PLACEHOLDER, pids=pod.first())
        first = two.first()
        self.assertNotEqual(procfs.namespace_pid(first), 1)
        restored = self.restore("box:1", "--into", first)
        self.wait_for_steps()
        os.kill(first, signal.SIGTERM)
        self.assertEqual(self.exit_of(first), 0)
        waiting.until(lambda: not procfs.alive(restored), "the job's end")
        self.assertFalse(self.said("other.told"))
        self.assertTrue(procfs.alive(other))


class BareContainerTest(ContainersCase):
    """Of a read-only image without /tmp, where CRIU can't try out what the kernel has."""

    KNOWN = "/run/criu.kdat"

    def forget_kernel(self):
        if os.path.exists(self.KNOWN):
            os.unlink(self.KNOWN)

    def check(self):
        one = self.start("one", BELOW_INIT, bare=True)
        self.wait_for_steps()
        job = self.find_job(one)
        number = procfs.namespace_pid(job)
        self.checkpoint(job, "box:1", "--stop")
        one.end()
        self.assertFalse(os.path.exists(os.path.join(one.root, "tmp")))
        two = self.start("two", PLACEHOLDER, bare=True)
        restored = self.restore("box:1", "--into", two.first())
        self.assertEqual(procfs.namespace_pid(restored), number)
        self.wait_for_steps()
        self.assert_went_on(self.output("one") + self.output("two"), number)

    def test_where_nothing_is_known_of_the_kernel(self):
        self.forget_kernel()
        self.check()

    def test_where_another_criu_has_found_out(self):
        self.forget_kernel()
        self.addCleanup(self.forget_kernel)
        with open(self.KNOWN, "wb") as file:
            file.write(b"another CRIU's".ljust(1 << 10))
        self.check()


class HostileContainerTest(ContainersCase):
    """Whoever has a container's files gets none of his code into a CRIU that has the node's rights."""

    def lay_traps(self, container):
        """What is run with more capabilities than containers have makes /data/caught."""
        source = self.path("trap.c")
        with open(source, "w", encoding="ascii") as file:
            file.write(
                '#include <fcntl.h>\n#include <sys/prctl.h>\n#include <linux/capability.h>\n'
                "__attribute__((constructor)) static void Look(void) {\n"
                "  if (prctl(PR_CAPBSET_READ, CAP_SYS_ADMIN) == 1) open(\"/data/caught\", O_CREAT | O_WRONLY, 0600);\n}\n"
            )
        library = os.path.join(container.root, "etc/libnss_trap.so.2")
        shell("gcc", "-shared", "-fPIC", "-o", library, source)
        os.makedirs(os.path.join(container.root, "etc/criu"))
        for path, content in (
            ("etc/ld.so.preload", "/etc/libnss_trap.so.2\n"),
            ("etc/criu/default.conf", "action-script /trap.sh\n"),
            ("trap.sh", "#!/bin/sh\nexec true\n"),
            ("run/criu.kdat", "nonsense" * 1000),
            ("etc/nsswitch.conf", "".join(f"{name}: trap\n" for name in ("passwd", "services", "protocols", "hosts"))),
        ):
            with open(os.path.join(container.root, path), "w", encoding="ascii") as file:
                file.write(content)
        os.chmod(os.path.join(container.root, "trap.sh"), 0o755)

    def test_nothing_of_it_is_run(self):
        one = self.make("one", BELOW_INIT)
        self.lay_traps(one)
        one.start()
        self.wait_for_steps()
        job = self.find_job(one)
        with open(f"/proc/{job}/maps", encoding="utf-8") as file:
            self.assertIn("libnss_trap.so", file.read())  # the container's own programs have it
        self.checkpoint(job, "box:1", "--stop")
        one.end()
        two = self.make("two", PLACEHOLDER)
        self.lay_traps(two)
        two.start()
        self.restore("box:1", "--into", two.first())
        self.wait_for_steps()
        self.assertNotIn("caught", os.listdir(self.data))
        # The trap is one: nsenter has the node's capabilities.
        shell("nsenter", "--target", str(two.first()), "--mount", "/usr/bin/true")
        self.assertIn("caught", os.listdir(self.data))


if __name__ == "__main__":
    unittest.main()
