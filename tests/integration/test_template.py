"""Templates: a parked copy from which others are forked, each in a sandbox of its own."""

import os
import signal
import urllib.request

from harness import jobs, procfs, waiting
from harness.cli import FAILED, NOT_FOUND, USAGE
from harness.clones import CloneTest
from harness.held_copies import STANDBY_COPIES, HeldCopiesTest

_MOST_STARTS = 12

_ENDS_AT_ONCE = """
vast = bytearray(512 << 20)
ready = rekindle.ready
def ends():
    ready()
    os._exit(0)
rekindle.ready = ends
"""


class TemplateTest(HeldCopiesTest):
    """One template, and copies of it."""

    def setUp(self):
        super().setUp()
        self.instances = set()  # all that were started

    def make_template(self, name="tpl", extra=""):
        self.prepare(name, extra)
        return self.succeed("template", "up", name + ":1", "--name", name)

    def start(self, *options, template="tpl"):
        started = self.succeed("template", "start", template, "--detach", *options)
        self.running.append(started)
        self.instances.add(started["instance"])
        return started


class ForkTest(TemplateTest):
    """With a daemon that forks when it is asked."""

    def test_copies_have_sandboxes_of_their_own(self):
        up = self.make_template()
        self.assertEqual(up["refusal"], "")
        started = [self.start("--env", f"WHO={number}", "--name", f"copy-{number}") for number in range(6)]
        answers = [self.answer_of(one) for one in started]
        for number, (one, answer) in enumerate(zip(started, answers)):
            self.assertTrue(one["forked"], one)
            self.assertEqual(answer["pid"], self.root)
            self.assertEqual(procfs.namespace_pid(one["job"]["pid"]), self.root)
            # The one that forked it has the number before it, and may not have been collected yet.
            self.assertEqual([pid for pid in answer["seen"] if pid != self.root - 1], [1, self.root])
            self.assertTrue(answer["kept"])
            self.assertEqual(answer["who"], str(number))
            self.assertEqual(answer["name"], f"copy-{number}")
        self.assertEqual(len({answer["random"] for answer in answers}), len(answers))
        spaces = {os.readlink(f"/proc/{one['job']['pid']}/ns/pid") for one in started}
        self.assertEqual(len(spaces), len(started))
        for init in self.inits():
            waiting.until(lambda init=init: len(self.pids_inside(init)) <= 2, "only an init and a job are in a sandbox")
        listed = self.succeed("template", "ls")["templates"]
        self.assertEqual([(entry["name"], int(entry["copies"])) for entry in listed], [("tpl", 6)])

    def test_copies_outlive_the_template(self):
        up = self.make_template()
        started = self.start()
        self.answer_of(started)
        self.succeed("template", "down", "tpl")
        waiting.until(lambda: not procfs.alive(up["pid"]), "the template is gone")
        self.assertTrue(procfs.alive(started["job"]["pid"]))
        result = self.cli.run("template", "start", "tpl", "--detach")
        self.assertEqual(result.code, 3, str(result))
        os.kill(started["job"]["pid"], signal.SIGTERM)
        self.wait_for_end(started["job"]["pid"])
        self.wait_for_no_sandbox()
        waiting.until(lambda: not self.pid_namespaces_left(), "no init of the template's sandboxes is left")

    def pid_namespaces_left(self):
        return [pid for pid in self.inits() if self.root in self.pids_inside(pid)]

    @staticmethod
    def pids_inside(init):
        space = os.readlink(f"/proc/{init}/ns/pid")
        inside = []
        for pid in procfs.all_pids():
            try:
                if os.readlink(f"/proc/{pid}/ns/pid") == space:
                    inside.append(procfs.namespace_pid(pid))
            except OSError:
                continue
        return inside

    def test_exit_status_and_limits(self):
        self.make_template()
        result = self.cli.run("template", "start", "tpl", "--env", "LEAVE=7")
        self.assertEqual(result.code, 7, str(result))
        started = self.start("--memory", "256M", "--processes", "20", "--cpus", "1")
        self.answer_of(started)
        with open(f"/proc/{started['job']['pid']}/cgroup", encoding="ascii") as file:
            self.assertIn("/rekindle/", file.read())

    def test_limits_that_a_fork_does_not_fit_in(self):
        self.make_template()
        result = self.cli.run("template", "start", "tpl", "--detach", "--processes", "1")
        self.assert_refused(result, FAILED, "forking a copy", "limit of 1: ", "--processes")
        result = self.cli.run("template", "start", "tpl", "--detach", "--memory", "64K")
        self.assert_refused(result, USAGE, "64.0 KiB", "--memory")
        # The template is as it was, and so little more will do.
        started = self.start("--processes", "2", "--memory", "64M")
        self.assertTrue(started["forked"], started)
        self.assertTrue(self.answer_of(started)["kept"])

    def test_what_fork_cannot_copy_is_cloned(self):
        up = self.make_template("many", extra="import threading\n"
                                "threading.Thread(target=threading.Event().wait, daemon=True).start()")
        self.assertIn("thread", up["refusal"])
        started = self.start(template="many")
        self.assertFalse(started.get("forked", False))
        self.assertTrue(self.answer_of(started)["kept"])

    def test_copies_are_counted_with_the_clones(self):
        self.daemon.stop()
        port = jobs.free_port()
        self.daemon_arguments = (*self.daemon_arguments, "--metrics", f"127.0.0.1:{port}")
        self.restart_daemon()
        self.make_template()
        for _ in range(2):
            self.answer_of(self.start())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            counted = [line for line in answer.read().decode().splitlines() if line.startswith("rekindle_clones_total")]
        self.assertEqual(counted, ['rekindle_clones_total{result="done"} 2', 'rekindle_clones_total{result="failed"} 0'])

    def test_image_that_clones_are_made_of_is_kept(self):
        self.make_template("many", extra="import threading\n"
                           "threading.Thread(target=threading.Event().wait, daemon=True).start()")
        pruned = self.succeed("prune", "--all", "--keep-label", "no=such")
        self.assertEqual(pruned.get("removed", 0), 0)
        self.assertEqual([entry["reasons"] for entry in pruned["images"]], [["template 'many' is up from it"]])
        self.succeed("rm", "many:1")
        # Why there was no fork is not lost over why there is no clone.
        result = self.cli.run("template", "start", "many", "--detach")
        self.assert_refused(result, NOT_FOUND, "thread", "clone of its image many:1")

    def test_needs_the_hook(self):
        job = self.start_job(["/bin/sleep", "1000"], "plain")
        self.take_image(job, "plain:1")
        result = self.cli.run("template", "up", "plain:1")
        self.assertEqual(result.code, 1, str(result))
        self.assertIn("--hold", str(result))
        self.wait_for_no_sandbox()

    def test_killed_template_is_forgotten(self):
        up = self.make_template()
        again = ("template", "up", "tpl:1", "--name", "tpl")
        self.assert_refused(self.cli.run(*again), 1, "'tpl' is up", "--name")
        os.kill(up["pid"], signal.SIGKILL)
        waiting.until(lambda: not procfs.alive(up["pid"]), "the template is gone")
        result = self.cli.run("template", "start", "tpl", "--detach")
        self.assert_refused(result, NOT_FOUND, "'tpl' has ended", "template up tpl:1 --name tpl")
        waiting.until(lambda: self.succeed("template", "ls").get("templates", []) == [], "the template is off the list")
        self.assertNotEqual(self.succeed(*again)["pid"], up["pid"])


class TemplateStandbyTest(TemplateTest):
    """With a daemon that forks ahead of time."""

    daemon_arguments = ()

    def start_until_one_stood_by(self, *options, template="tpl"):
        """Those before it are ended."""
        for _ in range(_MOST_STARTS):
            started = self.start(*options, template=template)
            self.assertTrue(started["forked"], started)
            self.assertTrue(self.answer_of(started)["kept"])
            if self.stood_by(started):
                return started
            # While it runs: what it touched is to be learned for those that stand by.
            self.wait_for_standbys(self.templates())
            self.end(started)
        self.fail(f"none of {_MOST_STARTS} starts had a copy that stood by\n{self.records()}")

    def templates(self):
        """Their spaces: they have the PID of their copies."""
        return {self.space(entry["pid"]) for entry in self.succeed("template", "ls")["templates"]}

    def test_one_is_taken(self):
        self.make_template()
        self.end(self.start_until_one_stood_by())
        started = [self.start_until_one_stood_by("--name", f"copy-{i}", "--env", f"WHO={i}") for i in range(3)]
        answers = [self.answer_of(one) for one in started]
        for number, (one, answer) in enumerate(zip(started, answers)):
            name = f"copy-{number}"
            self.assertEqual((answer["pid"], answer["parent"]), (self.root, 1))
            self.assertEqual((answer["name"], answer["host"], answer["who"]), (name, name, str(number)))
            self.assertEqual(one["job"]["name"], name)
        self.assertEqual(len({answer["random"] for answer in answers}), len(answers))
        self.assertEqual(len({self.space(one["job"]["pid"]) for one in started}), len(started))
        self.assertEqual(len(self.wait_for_standbys(self.templates())), STANDBY_COPIES)
        # What stands by has not run, and is no job.
        self.assertEqual(set(os.listdir(self.answers)), self.instances)
        self.assertEqual(len(self.succeed("ps")["jobs"]), len(started) + 1)

    def test_copies_that_end_at_once(self):
        """None of them is there long enough to show all that it touches."""
        self.make_template(extra=_ENDS_AT_ONCE)
        for _ in range(_MOST_STARTS * 4):
            started = self.start()
            self.assertTrue(started["forked"], started)
            self.wait_for_end(started["job"]["pid"])
            self.running.remove(started)
            if self.stood_by(started):
                return
        self.fail(f"no copy stood by\n{self.records()}")

    def test_limits_hold(self):
        self.make_template()
        limits = ("--memory", "64M", "--processes", "6")
        self.end(self.start_until_one_stood_by(*limits))
        started = self.start_until_one_stood_by(*limits, "--env", "CHILDREN=20")
        children = self.answer_of(started)["children"]
        self.assertGreater(children, 0)
        self.assertLess(children, 6)

    def test_the_next_template_has_the_pages_of_its_own_copies(self):
        """What was learned of one template is of no use to another, whose memory lies elsewhere."""
        for number in range(2):
            name = f"tpl{number}"
            self.make_template(name, extra=f"more = bytearray(os.urandom({number + 1} << 20))")
            self.end(self.start_until_one_stood_by(template=name))
            self.succeed("template", "down", name)
            waiting.until(lambda: not self.restored_copies(), "nothing is left of the template")

    def test_taken_down(self):
        self.make_template()
        running = self.start_until_one_stood_by()
        copies = self.wait_for_standbys(self.templates())
        self.succeed("template", "down", "tpl")
        self.wait_until_gone(copies)
        self.assertTrue(procfs.alive(running["job"]["pid"]))
        self.end(running)
        self.wait_for_no_sandbox()

    def test_one_is_killed(self):
        self.make_template()
        self.end(self.start_until_one_stood_by())
        copies = self.wait_for_standbys(self.templates())
        for _, root in copies:
            os.kill(root, signal.SIGKILL)
        self.wait_until_gone(copies)
        started = self.start("--env", "WHO=next")
        self.assertEqual(self.answer_of(started)["who"], "next")

    def test_daemon_killed(self):
        self.make_template()
        running = self.start_until_one_stood_by()
        copies = self.wait_for_standbys(self.templates())
        self.daemon.kill()
        self.wait_until_gone(copies)
        self.assertTrue(procfs.alive(running["job"]["pid"]))
        self.restart_daemon()
        self.end(running)


class HeldJobTest(CloneTest):
    """`run --hold`, and what an image does to a held job."""

    def test_goes_on_after_its_image(self):
        answers = self.path("woken")
        program = self.path("held.py")
        with open(program, "w", encoding="utf-8") as file:
            file.write("import rekindle, signal\nhow = rekindle.ready()\n"
                       f"open({answers!r}, 'w').write(str(how))\nsignal.pause()\n")
        from harness.clones import HOOK_PYTHON, hook_library

        cli = self.make_cli(host=self.daemon.host,
                            env={"PYTHONPATH": HOOK_PYTHON, "REKINDLE_HOOK_LIBRARY": hook_library()})
        started = self.succeed("run", "--hold", "--detach", "--name", "held", "--", "/usr/bin/python3", "-B", program,
                               cli=cli)
        pid = started["job"]["pid"]
        self.addCleanup(lambda: procfs.alive(pid) and os.kill(pid, signal.SIGKILL))
        self.assertFalse(os.path.exists(answers))
        self.checkpoint("held", "held:1")
        waiting.until(lambda: os.path.exists(answers) and os.path.getsize(answers), "the job goes on")
        with open(answers, encoding="utf-8") as file:
            self.assertEqual(file.read(), "continued")
        result = self.cli.run("run", "--hold", "--detach", "--", "/bin/true")
        self.assertEqual(result.code, 1, str(result))
        self.assertIn("ready()", str(result))
