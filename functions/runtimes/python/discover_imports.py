#!/usr/bin/python3
"""Says what a Python function imports, by importing its handler in a process of its own.

    discover_imports.py --code DIR --handler app.handler [--layer DIR]... [--opt DIR]... [--time-limit SECONDS]

Prints one JSON object:

  ok                 whether the handler was imported and is there
  error              null, or errorType, errorMessage and stackTrace, with the types and messages of AWS Lambda:
                     Runtime.ImportModuleError, Runtime.UserCodeSyntaxError, Runtime.HandlerNotFound,
                     Runtime.MalformedHandlerName, Runtime.BuiltInModuleConflict, Runtime.ExitError (the import ended
                     the process), Sandbox.Timedout (it took longer than the limit), or the name of the exception.
                     Where it was ended at the limit, or by a signal such as that of a segmentation fault, stackTrace
                     says what it did then
  installed          packages of the machine, each with name, version, file, distributions (name and version of what
                     was installed; several where they share a namespace and can't be told apart), modules (how many
                     of it are loaded) and asked_for (whether the function's own code names it in an import)
  layers, code       the same, of what lies in the layers and in the code directory
  imports            what the function's own code names in imports and is a module of an installed package, unless that
                     has values drawn at random that are not renewed, or loads one that has: an image of it would have
                     the functions of all owners have them in common
  layer_imports      the same, of what lies in the layers
  unrenewed          generators of random numbers of the function's own that instances of one image would have in
                     common, in words, unless it has registered something to be done after a restore
  drawn              values that were drawn at random meanwhile and that instances of one image would have in common, in
                     words; those of the function's own code unless it has registered something, see above
  standard_library   names of the standard library's modules, outermost alone
  generated          names of modules that other modules have made up, with no file
  python, seconds, resident_bytes, threads, output
                     the interpreter's version, how long the import took, what the process then was like, and the end
                     of what it wrote

What counts is what is loaded when the import is over. Imports inside the handler, and those that happen when it is
first called (such as when a pickled model is read), are NOT seen. An import of several modules that fails half-way
gives what was loaded until then; a process that ends or is stopped gives none.

The import runs the function's code with the rights of whoever calls this program, which is no sandbox: it ends the
process at the time limit and ends whatever it has forked, and no more. (Killed with SIGKILL itself, it takes the
importing process along, but not what that has forked.) The code gets the caller's environment, LAMBDA_TASK_ROOT and
_HANDLER. No compiled files are written to the code directory. The interpreter is the one that runs this program, 3.9
or newer.

Exit status: 0 when ok, 1 when not, 2 when it was called wrongly.
"""

import argparse
import ast
import collections
import ctypes
import importlib.metadata
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import time
import traceback

DEFAULT_TIME_LIMIT = 60.0
_PROBE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "import_probe.py")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_OUTPUT_BYTES = 16 << 10
_REPORT_BYTES = 64 << 20
_TRACE_BYTES = 64 << 10
_TRACE_SECONDS = 2.0
_KILL_SECONDS = 10.0
_OPT = "layer:"  # how import_probe.py is given it
_OTHERS = ""  # who has drawn and is not known: it may have been any
_NOT_STANDARD = ("site-packages", "dist-packages")


# --- running the probe


_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option, argument):
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}: {os.strerror(ctypes.get_errno())}")


def descendants():
    """PIDs of all that descend from this process."""
    children = collections.defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    children[int(file.read().rpartition(")")[2].split()[1])].append(int(name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    found, ahead = [], [os.getpid()]
    while ahead:
        below = children[ahead.pop()]
        found += below
        ahead += below
    return found


def end_descendants():
    """Kills and collects all that descend from this process, which is the subreaper of those who lost their parent."""
    deadline = time.monotonic() + _KILL_SECONDS
    while True:
        for pid in descendants():
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes that the import has started cannot be killed: {descendants()}")
        time.sleep(0.002)


def watch(process, output_fd, seconds):
    """Until the process has ended or its time is over: (whether it has ended, the end of what it wrote)."""
    output, deadline = b"", time.monotonic() + seconds
    pidfd = os.pidfd_open(process)
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    poller.register(output_fd, select.POLLIN)
    try:
        while True:
            left = deadline - time.monotonic()
            ready = {fd for fd, _ in poller.poll(left * 1000)} if left > 0 else set()
            if output_fd in ready:
                # All that a pipe holds, so nothing is missing when the process has ended.
                data = os.read(output_fd, 1 << 16)
                output = (output + data)[-_OUTPUT_BYTES:]
                if not data:
                    poller.unregister(output_fd)
            if pidfd in ready:
                return True, output
            if deadline <= time.monotonic():
                return False, output
    finally:
        os.close(pidfd)


def _prepare_probe():
    """In the child, before it becomes the probe."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def run_probe(handler, code, layers, seconds):
    """(the probe's report or None, its wait status or None at the time limit, the end of its output, what it did when a
    signal ended it)"""
    report_fd = os.memfd_create("import-report")
    trace_fd = os.memfd_create("import-trace")
    output_fd, output_end = os.pipe2(os.O_CLOEXEC)
    environment = {**os.environ, "LAMBDA_TASK_ROOT": code, "_HANDLER": handler}
    try:
        process = subprocess.Popen(
            [sys.executable, "-B", _PROBE, str(report_fd), str(trace_fd), handler, code, *layers],
            cwd=code, env=environment, stdin=subprocess.DEVNULL, stdout=output_end, stderr=output_end,
            pass_fds=[report_fd, trace_fd], start_new_session=True, preexec_fn=_prepare_probe,
        )  # fmt: skip
        os.close(output_end)
        try:
            ended, output = watch(process.pid, output_fd, seconds)
            status = os.waitpid(process.pid, 0)[1] if ended else None
            if not ended:
                os.kill(process.pid, signal.SIGABRT)  # it writes its trace then
                output = (output + watch(process.pid, output_fd, _TRACE_SECONDS)[1])[-_OUTPUT_BYTES:]
        finally:
            end_descendants()
            process.returncode = 0  # collected already
        report = read_report(report_fd)
        if report is not None and report["error"] is None:
            status = 0  # it was loaded; what came afterwards is no failure of that
        elif status != 0:
            report = None
        return report, status, output.decode("utf-8", "replace"), read_trace(trace_fd)
    finally:
        os.close(report_fd)
        os.close(trace_fd)
        os.close(output_fd)


def read_report(fd):
    if not 0 < os.fstat(fd).st_size <= _REPORT_BYTES:
        return None
    first, _, second = os.pread(fd, _REPORT_BYTES, 0).decode("utf-8", "replace").partition("\n")
    try:
        report = ast.literal_eval(first)
    except (ValueError, SyntaxError):
        return None
    try:
        report["unrenewed"], report["renews"] = ast.literal_eval(second)
    except (ValueError, SyntaxError):
        report["unrenewed"], report["renews"] = [], False  # it has not come so far
    return report


def read_trace(fd):
    """The frames that faulthandler has written, outermost first, without the probe's and those of the import machinery."""
    text = os.pread(fd, _TRACE_BYTES, 0).decode("utf-8", "replace")
    frames = [
        (file, int(line), name)
        for file, line, name in re.findall(r'^  File "(.*)", line (\d+) in (.*)$', text, re.MULTILINE)
        if file != _PROBE and not file.startswith("<frozen importlib")
    ]
    return frames[::-1]


# --- Lambda's errors


def exit_error(reason, frames=()):
    return error("Runtime.ExitError", reason, frames)


def error(kind, message, frames=()):
    trace = traceback.format_list([traceback.FrameSummary(*frame) for frame in frames])
    return {"errorType": kind, "errorMessage": message, "stackTrace": trace}


def exit_reason(status):
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"Runtime exited with error: signal: {(signal.strsignal(number) or str(number)).lower()}"
    return status_reason(os.WEXITSTATUS(status))


def status_reason(status):
    return f"Runtime exited with error: exit status {status}" if status else "Runtime exited without providing a reason"


def error_in(report, status, handler, seconds, trace):
    if status is None:
        module = handler.rpartition(".")[0]
        message = f"Task timed out after {seconds:.2f} seconds: '{module}' was being imported"
        return error("Sandbox.Timedout", message, trace)
    if report is None:
        return exit_error(exit_reason(status), trace)
    if report["error"] is None:
        return None
    kind, message, frames = report["error"]
    return exit_error(status_reason(message), frames) if kind == "exit" else error(kind, message, frames)


# --- what the modules belong to


def lies_in(file, folders):
    return file is not None and any(file.startswith(folder.rstrip("/") + "/") for folder in folders)


class Distributions:
    """What is installed in the folders of a search path."""

    def __init__(self, path):
        self._by_top_level = collections.defaultdict(list)
        seen = set()
        for distribution in importlib.metadata.distributions(path=path):
            name = distribution.metadata["Name"]
            key = re.sub("[-_.]+", "-", name or "").lower()
            # The first on the path hides the others of its name.
            if not key or key in seen:
                continue
            seen.add(key)
            for top_level in self._top_levels(distribution, name):
                self._by_top_level[top_level].append((name, distribution.version, str(distribution.locate_file(""))))

    @staticmethod
    def _top_levels(distribution, name):
        declared = (distribution.read_text("top_level.txt") or "").split()
        listed = {
            file.parts[0] if len(file.parts) > 1 else file.name.partition(".")[0]
            for file in distribution.files or ()
            if file.suffix in (".py", ".so")
        }
        return declared or listed or {name, name.replace("-", "_")}

    def of(self, package, file):
        """[{name, version}] of what can have brought `file`."""
        return [
            {"name": name, "version": version}
            for name, version, folder in self._by_top_level.get(package.partition(".")[0], ())
            if lies_in(file, [folder])
        ]


class Packages:
    """Which package a module belongs to: the outermost of its parents that is no mere namespace."""

    def __init__(self, modules):
        self._modules = modules
        by_name = {name: self._by_name(name) for name in modules}
        self._folders = {
            folder: package
            for package in set(by_name.values())
            for file, folders, _ in [modules.get(package, (None, None, None))]
            if file is not None
            for folder in folders or ()
        }
        self._packages = {name: self._by_folder(package) for name, package in by_name.items()}

    def __getitem__(self, name):
        return self._packages[name]

    def _by_name(self, name):
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            outer = ".".join(parts[:length])
            file, folders, _ = self._modules.get(outer, (None, None, None))
            if file is not None or folders is None:
                return outer
        return parts[0]

    def _by_folder(self, package):
        """Some extension modules are loaded under a name of their own, but lie in the package that they are part of."""
        file = self._modules.get(package, (None, None, None))[0]
        outermost, place = package, os.path.dirname(file) if file else "/"
        while place != os.path.dirname(place):
            outermost = self._folders.get(place, outermost)
            place = os.path.dirname(place)
        return outermost


def kind_of(package, modules, report, code, layers):
    file, folders, _ = modules.get(package, (None, None, None))
    place = file or (folders[0] + "/" if folders else None)
    if lies_in(place, [code]):
        return "code"
    if lies_in(place, layers):
        return "layers"
    top_level, names = package.partition(".")[0], report["standard_names"]
    if place is None:
        return "standard_library" if top_level in names else "generated"
    in_folder = lies_in(place, [report["standard_folder"]]) and not any(part in place for part in _NOT_STANDARD)
    return "standard_library" if in_folder else "installed"


def named(package, asked_for):
    return any(
        name == package or name.startswith(package + ".") or package.startswith(name + ".") for name in asked_for
    )


def sort_out(report, code, layers):
    """The lists that the program prints."""
    modules = {name: (file, folders, version) for name, file, folders, version in report["modules"]}
    packages = Packages(modules)
    counts = collections.Counter(packages[name] for name in modules)
    distributions = Distributions(report["path"])
    lists = _empty_lists()
    for package in sorted(counts):
        kind = kind_of(package, modules, report, code, layers)
        if kind in ("standard_library", "generated"):
            lists[kind].append(package)
            continue
        file, folders, version = modules.get(package, (None, None, None))
        place = file or (folders[0] if folders else None)
        brought_by = distributions.of(package, place)
        lists[kind].append({
            "name": package,
            "version": brought_by[0]["version"] if len(brought_by) == 1 else version,
            "file": place,
            "distributions": brought_by,
            "modules": counts[package],
            "asked_for": named(package, report["asked_for"]),
        })
    loads, drawing = loads_of(report), {module for module, _, _, _ in report["drawn"]}
    for list_name, kind in (("imports", "installed"), ("layer_imports", "layers")):
        names = {entry["name"] for entry in lists[kind]}
        lists[list_name] = [
            name for name in report["asked_for"]
            if name in modules and packages[name] in names
            and not (kind == "installed" and (_OTHERS in drawing or reaches(name, drawing, loads)))
        ]  # fmt: skip
    own = {name for name in modules if kind_of(packages[name], modules, report, code, layers) == "code"}
    lists["drawn"] = [
        words for module, _, words, _ in report["drawn"] if not (report["renews"] and module in own)
    ]  # fmt: skip
    return lists


def loads_of(report):
    """Which modules each one has named in imports, or has had loaded in another way when something was drawn."""
    loads = {importer: set(names) for importer, names in report["loads"].items()}
    for _, _, _, chain in report["drawn"]:
        for inner, outer in zip(chain, chain[1:]):
            loads.setdefault(outer, set()).add(inner)
    return loads


def reaches(name, wanted, loads):
    """Whether importing the module `name` loads one of these."""
    seen, ahead = set(), [name]
    while ahead:
        parts = ahead.pop().split(".")
        for length in range(1, len(parts) + 1):
            module = ".".join(parts[:length])
            if module in wanted:
                return True
            if module not in seen:
                seen.add(module)
                ahead += loads.get(module, ())
    return False


def _empty_lists():
    kinds = ("installed", "layers", "code", "standard_library", "generated", "imports", "layer_imports", "drawn")
    return {kind: [] for kind in kinds}


def discover(handler, code, layers=(), seconds=DEFAULT_TIME_LIMIT):
    """What main() prints, as a dict. Ends every descendant of the process: not for one that has others."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    code, layers = os.path.realpath(code), [_resolved(layer) for layer in layers]
    report, status, output, trace = run_probe(handler, code, layers, seconds)
    failure = error_in(report, status, handler, seconds, trace)
    figures = ("python", "seconds", "resident_bytes", "threads")
    return {
        "handler": handler,
        "code_directory": code,
        "ok": failure is None,
        "error": failure,
        **(sort_out(report, code, report["layer_folders"]) if report else _empty_lists()),
        "unrenewed": report["unrenewed"] if report else [],
        **{figure: report[figure] if report else None for figure in figures},
        "output": output,
    }


def _resolved(layer):
    prefix = _OPT if layer.startswith(_OPT) else ""
    return prefix + os.path.realpath(layer[len(prefix):])


def opt_folder(text):
    return _OPT + folder(text)


def folder(text):
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text} is no directory")
    return text


def positive(text):
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return value


def leave(number, _):
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--code", required=True, type=folder, metavar="DIR", help="the function's code directory")
    parser.add_argument("--handler", required=True, metavar="MODULE.FUNCTION", help="as Lambda takes it")
    parser.add_argument(
        "--layer", action="append", default=[], type=folder, metavar="DIR",
        help="a directory that is searched after the code's; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--opt", action="append", dest="layer", type=opt_folder, metavar="DIR",
        help="a directory with what a layer has in /opt, which is searched after those before it",
    )  # fmt: skip
    parser.add_argument("--time-limit", default=DEFAULT_TIME_LIMIT, type=positive, metavar="SECONDS")
    arguments = parser.parse_args()
    # So that what the import has started ends with us.
    signal.signal(signal.SIGTERM, leave)
    result = discover(arguments.handler, arguments.code, arguments.layer, arguments.time_limit)
    print(json.dumps(result, indent=2))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
