"""A job that tells what it finds around itself once it has woken up as a clone.

    clone_probe.py DIR hook|file [MODULE…]

It loads the modules and parks: through the hook, or until DIR/go is there. Then it writes DIR/report.HOST (HOST:
the name of the host it wakes up on), prints a line, and stays until DIR/exit.HOST or DIR/exit holds a number: its
exit status. SIGTERM ends it with 7.
"""

import importlib
import json
import os
import random
import signal
import socket
import sys
import time


def loopback_works():
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            with socket.create_connection(server.getsockname(), timeout=5):
                return True
    except OSError:
        return False


def read(path):
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def report(directory, host, memory):
    found = {
        "host": host,
        "pid": os.getpid(),
        "parent": os.getppid(),
        "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
        "interfaces": sorted(name for _, name in socket.if_nameindex()),
        "loopback": loopback_works(),
        "tag": os.environ.get("TAG"),
        "bound": read(os.path.join(directory, "bound", "word")),
        "random": random.random(),
        "digest": sum(memory),
        "descriptors": {name: os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if name < "3"},
    }
    if "rekindle" in sys.modules and sys.modules["rekindle"].instance:
        instance = sys.modules["rekindle"].instance
        found["instance"], found["name"] = instance.id, instance.name
    if "torch" in sys.modules:
        import torch

        torch.manual_seed(7)
        with torch.no_grad():
            found["torch"] = float(torch.nn.Linear(16, 4)(torch.ones(16)).sum())
    # In place, in one write: whoever reads it sees none or all of it.
    with open(os.path.join(directory, "report." + host), "w", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")


def main():
    directory, park = sys.argv[1], sys.argv[2]
    for module in sys.argv[3:]:
        importlib.import_module(module)
    memory = list(range(200_000))
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    if park == "hook":
        import rekindle

        if rekindle.ready() != rekindle.RESTORED:
            return 90
    else:
        with open(os.path.join(directory, "ready"), "w", encoding="ascii") as file:
            file.write("1")
        while not os.path.exists(os.path.join(directory, "go")):
            time.sleep(0.002)
    host = socket.gethostname()
    report(directory, host, memory)
    print("hello from", host, flush=True)
    while True:
        for name in ("exit." + host, "exit"):
            status = read(os.path.join(directory, name))
            if status:
                return int(status)
        time.sleep(0.005)


sys.exit(main())
