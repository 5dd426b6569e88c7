"""Leases of model servers whose memory grows, of which images are taken, and after restarts of the daemon."""

import contextlib
import os
import signal
import unittest
import urllib.request

from harness import jobs, procfs, waiting
from harness.cli import DONE, FAILED, USAGE
from harness.gpu_case import GpuTest
from harness.gpu_sim import FIRST, MIB


class LeaseTest(GpuTest):
    ROOM = ((FIRST, "NVIDIA H200", 160 * MIB),)  # a context has 8 MiB

    def setUp(self):
        super().setUp()
        self.sim.stop()
        self.sim = self.start_sim(gpus=self.ROOM)
        self.start()

    def start(self, *options):
        self.daemon = self.start_daemon(*options)
        self.cli = self.make_cli(host=self.daemon.host)

    def start_parked(self, name, size):
        server = self.start_vector_job(name, bytes=size)
        self.succeed("gpu", "park", server.pid)
        return server

    def use(self, server, *options):
        """Gives the bytes that the lease tells."""
        lease = self.succeed("gpu", "lease", server.pid, *options)
        self.succeed("gpu", "release", server.pid)
        return int(lease["bytes"])

    def is_parked(self, server):
        return self.gpu_job(server.pid)["parked"]

    @contextlib.contextmanager
    def image_under_way(self, server, reference):
        """The server's device memory is out, and CRIU stands still in the middle; it goes on at the end."""
        self.sim.inject("checkpoint", "--delay-ms", 2000, "--when", "after", pid=server.pid, nth=1)
        capture = self.cli.start("ckpt", server.pid, "-t", reference)
        waiting.until(lambda: self.used_bytes() == 0, "device memory is out")
        (criu,) = [pid for pid in procfs.descendants(self.daemon.pid) if "criu dump" in procfs.command_line(pid)]
        os.kill(criu, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(criu, signal.SIGCONT)
            taken = self.cli.finish(capture)
        self.assertEqual(taken.code, DONE, str(taken))
        self.assertEqual(taken.data.get("warnings", []), [], str(taken))


class ImageTest(LeaseTest):
    def is_under_way(self, call):
        return any(entry["call"] == call and entry["result"] is None for entry in self.sim.calls())

    def test_nobody_takes_the_room_of_a_job_of_which_an_image_is_taken(self):
        other = self.start_parked("other", 64 * MIB)
        for options, why in ((("--pin",), "pinned"), ((), "leased 1 time")):
            with self.subTest(options=options):
                server = self.start_vector_job("server" + why[:3], bytes=100 * MIB)
                self.succeed("gpu", "lease", server.pid, *options)
                with self.image_under_way(server, f"server:{why[:3]}"):
                    result = self.cli.run("gpu", "lease", other.pid, "--timeout", "0.5")
                    self.assert_refused(result, FAILED, str(server.pid), why, "108.0 MiB")
                    # By who asks no daemon, likewise.
                    alone = self.make_cli(store=self.store)
                    result = alone.run("gpu", "resume", other.pid, env={"REKINDLE_GPU_ROOM_TIMEOUT": "0"})
                    self.assert_refused(result, FAILED, str(server.pid), "108.0 MiB")
                self.assert_runs(server)
                self.assertTrue(self.is_parked(other))
                self.kill(server)
        self.use(other)

    def test_a_lease_of_a_job_of_which_an_image_is_taken_waits(self):
        other = self.start_parked("other", 64 * MIB)
        server = self.start_vector_job("server", bytes=100 * MIB)
        self.use(server)
        with self.image_under_way(server, "server:1"):
            result = self.cli.run("gpu", "lease", server.pid, "--timeout", "0.5")
            self.assert_refused(result, FAILED, "no lease", "image")
            self.assertEqual(result.data["error"]["code"], "DEADLINE_EXCEEDED")
            waiting_for_it = self.cli.start("gpu", "lease", server.pid, "--timeout", "60")
        self.assertEqual(self.cli.finish(waiting_for_it).code, DONE)
        self.assert_runs(server)
        self.succeed("gpu", "release", server.pid)
        # What it has is still known.
        self.use(other)
        self.assertTrue(self.is_parked(server))

    def test_a_lease_in_each_state_of_an_image(self):
        server = self.start_vector_job("server", bytes=100 * MIB)
        self.use(server)
        for call in ("lock", "checkpoint", "restore", "unlock"):
            with self.subTest(call=call):
                self.sim.inject(call, "--delay-ms", 1000, nth=1)
                capture = self.cli.start("ckpt", server.pid, "-t", f"server:{call}")
                waiting.until(lambda: self.is_under_way(call), f"{call} under way")
                self.use(server, "--timeout", "60")
                taken = self.cli.finish(capture)
                self.assertEqual(taken.code, DONE, str(taken))
                self.assert_runs(server)

    def test_leases_all_the_time_while_images_are_taken(self):
        server = self.start_vector_job("server", bytes=16 * MIB)
        for number in range(2):
            capture = self.cli.start("ckpt", server.pid, "-t", f"server:{number}")
            while capture.poll() is None:
                self.use(server)
            taken = self.cli.finish(capture)
            self.assertEqual(taken.code, DONE, str(taken))
        self.assert_runs(server)


class KnownTest(LeaseTest):
    """What the daemon knows of jobs that may make room."""

    def test_a_server_that_has_grown_makes_room_for_all_that_it_has(self):
        other = self.start_parked("other", 64 * MIB)
        server = self.start_vector_job("server", bytes=8 * MIB, grow_bytes=100 * MIB)
        self.use(server)
        with open(server.state_file + ".grow", "w", encoding="ascii"):
            pass
        waiting.until(lambda: self.used_bytes() > 100 * MIB, "the server has grown")
        self.use(server)
        self.succeed("gpu", "lease", server.pid)
        result = self.cli.run("gpu", "lease", other.pid, "--timeout", "0.2")
        self.assert_refused(result, FAILED, f"job {server.pid} has 116.0 MiB")
        self.succeed("gpu", "release", server.pid)
        self.use(other)
        self.assertTrue(self.is_parked(server))
        self.use(server)
        self.assert_runs(server)

    def test_a_lease_tells_what_its_server_has_by_now(self):
        server = self.start_vector_job("server", bytes=8 * MIB, grow_bytes=100 * MIB)
        first = self.use(server)
        with open(server.state_file + ".grow", "w", encoding="ascii"):
            pass
        waiting.until(lambda: self.use(server) == first + 100 * MIB, "the server has grown")
        self.assert_runs(server)

    def test_jobs_without_lasting_leases_make_room_after_a_restart(self):
        other = self.start_parked("other", 64 * MIB)
        held = self.start_vector_job("held", bytes=100 * MIB)
        holder = self.cli.start("gpu", "lease", held.pid, "--hold")
        self.assertIn("seconds", holder.stdout.readline())
        holder.send_signal(signal.SIGINT)
        self.assertEqual(self.cli.finish(holder).code, DONE)
        for kill in (False, True):
            with self.subTest(kill=kill):
                (self.daemon.kill if kill else self.daemon.stop)()
                self.start()
                self.use(other, "--timeout", "10")
                self.assertTrue(self.is_parked(held))
                # Known by this alone from here on.
                self.succeed("gpu", "park", other.pid)
                self.succeed("gpu", "resume", held.pid)

    def test_a_job_that_was_parked_elsewhere_and_resumed_here_makes_room(self):
        other = self.start_parked("other", 64 * MIB)
        server = self.start_vector_job("server", bytes=100 * MIB)
        self.succeed("gpu", "park", server.pid, cli=self.make_cli(store=self.store))
        self.succeed("gpu", "resume", server.pid)
        self.daemon.kill()
        self.start()
        self.use(other, "--timeout", "10")
        self.assertTrue(self.is_parked(server))

    def test_a_lease_of_a_process_keeps_the_tree_that_it_is_part_of(self):
        other = self.start_parked("other", 100 * MIB)
        tree = self.start_tree_job(1, bytes=64 * MIB)
        (child,) = (pid for pid in procfs.descendants(tree.pid) if self.gpu_job(pid))
        self.use(tree)
        self.succeed("gpu", "lease", child)
        result = self.cli.run("gpu", "lease", other.pid, "--timeout", "0.2")
        self.assert_refused(result, FAILED, "no lease")
        self.assert_refused(self.cli.run("gpu", "park", tree.pid), FAILED, f"job {child}", "leased")
        self.succeed("gpu", "release", child)
        self.succeed("gpu", "lease", tree.pid, "--pin")
        self.assert_refused(self.cli.run("gpu", "park", child), FAILED, f"job {tree.pid}", "pinned")
        tree.wait_for_steps()
        self.succeed("gpu", "release", tree.pid, "--unpin")
        self.succeed("gpu", "release", tree.pid)
        self.use(other, "--timeout", "10")
        self.use(tree)
        tree.wait_for_steps()

    def test_the_host_memory_of_the_dead_is_free(self):
        self.daemon.stop()
        self.start("--gpu-host-memory", str(100 * MIB))
        first = self.start_parked("first", 64 * MIB)
        self.kill(first)
        self.start_parked("second", 64 * MIB)


class MetricsTest(LeaseTest):
    def setUp(self):
        super().setUp()
        self.daemon.stop()
        self.port = jobs.free_port()
        self.start("--gpu-host-memory", str(200 * MIB), "--metrics", f"127.0.0.1:{self.port}")

    def metrics(self):
        """Of leases, without the prefix of their names."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        prefix = "rekindle_gpu_"
        return {name[len(prefix) :]: float(value) for name, value in
                (line.rsplit(" ", 1) for line in lines if line.startswith(prefix))}  # fmt: skip


class LeaseMetricsTest(MetricsTest):
    def assert_metrics(self, **expected):
        found = self.metrics()
        self.assertEqual({name: found.get(name) for name in expected}, expected)

    def assert_parked_bytes(self, mib):
        self.assertEqual(self.metrics()["parked_bytes"] // MIB, mib)

    def test_leases(self):
        self.assert_metrics(leases_given_total=0, lease_waiters=0, parked_limit_bytes=200 * MIB)
        first = self.start_parked("first", 64 * MIB)
        second = self.start_parked("second", 100 * MIB)
        self.assert_metrics(**{'jobs{state="parked"}': 2, 'jobs{state="resident"}': 0})
        self.assert_parked_bytes(72 + 108)
        self.succeed("gpu", "lease", first.pid, "--pin")
        self.assert_metrics(**{
            'jobs{state="parked"}': 1, 'jobs{state="resident"}': 1, "jobs_leased": 1, "jobs_pinned": 1,
            'leases{kind="lasting"}': 1, 'leases{kind="held"}': 0, "leases_given_total": 1, "resumes_total": 1,
        })  # fmt: skip
        self.assert_parked_bytes(108)
        self.assert_refused(self.cli.run("gpu", "lease", second.pid), FAILED, "pinned")
        self.succeed("gpu", "release", first.pid, "--unpin")
        self.assert_refused(self.cli.run("gpu", "lease", second.pid, "--timeout", "0.2"), FAILED, "leased")
        self.assert_metrics(**{
            'leases_not_given_total{reason="refused"}': 1, 'leases_not_given_total{reason="timeout"}': 1,
            "jobs_pinned": 0, "evictions_total": 0,
        })  # fmt: skip
        waits = self.cli.start("gpu", "lease", second.pid, "--hold", "--timeout", "60")
        waiting.until(lambda: self.metrics()["lease_waiters"] == 1, "it waits")
        self.succeed("gpu", "release", first.pid)
        self.assertIn("seconds", waits.stdout.readline())
        self.assert_metrics(**{
            'leases{kind="lasting"}': 0, 'leases{kind="held"}': 1, "evictions_total": 1, "lease_waiters": 0,
            "leases_given_total": 2, "job_deaths_total": 0, "move_failures_total": 0,
        })  # fmt: skip
        self.assertGreaterEqual(self.metrics()["lease_waits_total"], 1)
        waits.send_signal(signal.SIGINT)
        self.assertEqual(self.cli.finish(waits).code, DONE)
        waiting.until(lambda: self.metrics()['leases{kind="held"}'] == 0, "its end is seen")
        self.kill(first)
        self.succeed("gpu", "park", second.pid)
        self.start_parked("third", 64 * MIB)
        self.assert_metrics(job_deaths_total=1)
        self.assert_parked_bytes(108 + 72)


class IdTest(MetricsTest):
    def take(self, server, *options):
        return self.succeed("gpu", "lease", server.pid, *options)["lease_id"]

    def release(self, server, lease_id=None):
        return self.cli.run("gpu", "release", server.pid, *(("--lease-id", lease_id) if lease_id else ()))

    def test_a_release_ends_its_own_lease_alone(self):
        server = self.start_parked("server", 64 * MIB)
        first, second = self.take(server, "--with-id"), self.take(server, "--with-id")
        self.assertNotEqual(first, second)
        self.assertEqual(self.take(server), "", "of one that asks for none")
        entry = self.gpu_job(server.pid)
        self.assertEqual((entry["leases"], set(entry["lease_ids"])), (3, {first, second}))
        self.assertEqual(self.release(server, first).data["leases"], 2)
        # It comes once more, and late.
        third = self.take(server, "--with-id")
        self.assert_refused(self.release(server, first), FAILED, first, "has ended")
        self.assertEqual(self.gpu_job(server.pid)["leases"], 3)
        # Who knows of no IDs ends none of those.
        self.assertEqual(self.release(server).data["leases"], 2)
        self.assert_refused(self.release(server), FAILED, "--lease-id")
        # Over a restart likewise.
        self.daemon.kill()
        self.start()
        entry = self.gpu_job(server.pid)
        self.assertEqual((entry["leases"], set(entry["lease_ids"])), (2, {second, third}))
        self.assertEqual(self.release(server, third).data["leases"], 1)
        self.assert_refused(self.cli.run("gpu", "park", server.pid), FAILED, "leased")
        self.assertEqual(self.release(server, second).data["leases"], 0)
        self.assert_refused(self.release(server, second), FAILED, "has ended")
        self.succeed("gpu", "park", server.pid)

    def test_a_lease_that_is_asked_for_again(self):
        """As after an answer that was lost: under an ID of the client's it is taken once, whoever waits meanwhile."""
        server = self.start_parked("server", 64 * MIB)
        other = self.start_parked("other", 100 * MIB)
        for _ in range(2):
            self.assertEqual(self.take(server, "--lease-id", "request-1"), "request-1")
        waits = self.cli.start("gpu", "lease", other.pid, "--timeout", "60")
        waiting.until(lambda: self.metrics()["lease_waiters"] == 1, "it waits")
        self.assertEqual(self.take(server, "--lease-id", "request-1", "--timeout", "5"), "request-1")
        entry = self.gpu_job(server.pid)
        self.assertEqual((entry["leases"], entry["lease_ids"]), (1, ["request-1"]))
        self.daemon.kill()
        self.cli.finish(waits)
        self.start()
        self.assertEqual(self.take(server, "--lease-id", "request-1"), "request-1")
        self.assertEqual(self.gpu_job(server.pid)["leases"], 1)
        self.assertEqual(self.release(server, "request-1").data["leases"], 0)
        self.assert_refused(self.release(server, "request-1"), FAILED, "has ended")

    def test_what_is_asked_for(self):
        server = self.start_parked("server", 64 * MIB)
        for arguments in (
            ("lease", server.pid, "--hold", "--with-id"),
            ("lease", server.pid, "--hold", "--lease-id", "x"),
            ("lease", server.pid, "--with-id", "--lease-id", "x"),
            ("release", server.pid, "--unpin", "--lease-id", "x"),
        ):
            self.assertEqual(self.cli.run("gpu", *arguments).code, USAGE)
        for bad in ("a b", "x" * 65, "é"):
            self.assertEqual(self.cli.run("gpu", "lease", server.pid, "--lease-id", bad).code, USAGE)
        lease = self.cli.run("gpu", "lease", server.pid, "--with-id", json_output=False)
        self.assertRegex(lease.out, f"`rekindle gpu release {server.pid} --lease-id [0-9a-f-]+`")


class GoneCallerTest(MetricsTest):
    """Whoever asked for a lease has gone before the answer."""

    def gone_while_resumed(self, server, *options):
        self.sim.inject("restore", "--delay-ms", 1500, pid=server.pid, nth=1)
        caller = self.cli.start("gpu", "lease", server.pid, *options)
        waiting.until(lambda: any(c["call"] == "restore" and c["result"] is None for c in self.sim.calls()), "on its way")
        return caller

    def end(self, caller):
        caller.kill()
        caller.communicate()

    def test_neither_its_lease_nor_its_pin_stays(self):
        for options in ((), ("--hold",)):
            with self.subTest(options):
                server = self.start_parked("server" + "".join(options), 64 * MIB)
                self.end(self.gone_while_resumed(server, "--pin", *options))
                self.assert_no_lease(server)
                self.succeed("gpu", "park", server.pid)
                self.kill(server)

    def test_nor_of_one_that_waits(self):
        server = self.start_parked("server", 64 * MIB)  # with the other one within the budget: else it is refused at once
        busy = self.start_vector_job("busy", bytes=100 * MIB)
        self.succeed("gpu", "lease", busy.pid)
        caller = self.cli.start("gpu", "lease", server.pid, "--pin")
        waiting.until(lambda: self.metrics()["lease_waiters"] == 1, "it waits")
        self.end(caller)
        waiting.until(lambda: self.metrics()["lease_waiters"] == 0, "it has gone")
        self.succeed("gpu", "release", busy.pid)
        self.assert_lease(server, 0, False)
        self.assertTrue(self.is_parked(server))

    def test_nor_of_one_whose_state_is_asked(self):
        """The job is on its GPU: nothing is moved and nothing waited for."""
        for signal_number in (signal.SIGKILL, signal.SIGINT):
            with self.subTest(signal_number):
                server = self.start_vector_job(f"server{signal_number}", bytes=16 * MIB)
                self.use(server)
                self.sim.inject("state", "--delay-ms", 700, pid=server.pid, nth=1)
                caller = self.cli.start("gpu", "lease", server.pid, "--pin")
                waiting.until(lambda: any(call["call"] == "state" for call in self.under_way()), "its state is asked")
                caller.send_signal(signal_number)
                caller.communicate()
                self.assert_no_lease(server)
                self.kill(server)

    def test_a_lease_that_was_asked_for_again_stays(self):
        """The first one has gone by the time that it is given, the second one is told of it."""
        server = self.start_parked("server", 64 * MIB)
        caller = self.gone_while_resumed(server, "--lease-id", "request-1")
        again = self.cli.start("gpu", "lease", server.pid, "--lease-id", "request-1")
        self.end(caller)
        self.assertEqual(self.cli.finish(again).code, DONE)
        self.assert_lease(server, 1, False)
        self.assertEqual(self.gpu_job(server.pid)["lease_ids"], ["request-1"])
        self.succeed("gpu", "release", server.pid, "--lease-id", "request-1")
        self.assert_lease(server, 0, False)

    def test_a_pin_of_somebody_else_stays(self):
        server = self.start_parked("server", 64 * MIB)
        caller = self.gone_while_resumed(server, "--pin")
        other = self.cli.start("gpu", "lease", server.pid, "--pin")
        self.end(caller)
        self.assertEqual(self.cli.finish(other).code, DONE)
        self.assert_lease(server, 1, True)

    def assert_no_lease(self, server):
        self.assert_lease(server, 0, False)
        self.daemon.kill()
        self.start()
        self.assert_lease(server, 0, False)

    def assert_lease(self, server, leases, pinned):
        def told():
            entry = self.gpu_job(server.pid)
            return not self.under_way() and (entry["leases"], entry["pinned"]) == (leases, pinned)

        waiting.until(told, f"{leases} leases, pinned: {pinned}")

    def under_way(self):
        """Without those of a caller that was killed in them: they have no end."""
        return [call for call in self.sim.calls() if call["result"] is None and procfs.alive(call["caller"])]


if __name__ == "__main__":
    unittest.main()
