"""The same as job.c, in Python. IMPORT names modules to load before it is ready."""

import importlib
import os
import random
import socket
import sys
import tempfile
import threading
import time
import uuid

import rekindle

order = []
count = 0
memory = list(range(100_000))


@rekindle.register_before_snapshot
def note_a():
    order.append("A")


rekindle.register_before_snapshot(order.append, "B")
rekindle.register_after_restore(order.append, "C")


@rekindle.register_after_restore
def note_d():
    order.append("D")


def report(file):
    answer = {
        "type": "report", "instance": rekindle.instance.id, "name": rekindle.instance.name,
        "tag": os.environ.get("TAG", ""), "zone": time.strftime("%Z"), "order": "".join(order),
        "pid": os.getpid(), "session": os.getsid(0),
        "random": "%r %s %s %s" % (random.random(), os.urandom(8).hex(), uuid.uuid4(),
                                   next(tempfile._get_candidate_names())),
        "next": os.read(file, 4).decode(), "host": socket.gethostname(), "directory": os.getcwd(), "count": count,
        "digest": str(sum(memory)), "threads": threading.active_count(),
    }
    if "numpy" in sys.modules:
        import numpy
        answer["numpy"] = repr(numpy.random.random())
    if "ssl" in sys.modules:
        import ssl
        answer["ssl"] = ssl.RAND_bytes(16).hex()
    if "sklearn" in sys.modules:
        from sklearn.linear_model import LinearRegression
        answer["fit"] = round(float(LinearRegression().fit([[0], [1], [2]], [1, 3, 5]).predict([[10]])[0]), 6)
    if "torch" in sys.modules:
        import torch
        answer["torch"] = repr(float(torch.rand(1)))
    rekindle.channel().send(answer)


def main():
    global count
    for module in os.environ.get("IMPORT", "").split():
        importlib.import_module(module)
    if "ssl" in sys.modules:
        import ssl
        ssl.RAND_bytes(16)
    if "torch" in sys.modules:
        import torch
        torch.set_num_threads(1)
    if "sklearn.cluster" in sys.modules:
        # The first parallel loop is what makes OpenMP start its threads.
        from sklearn.cluster import KMeans
        KMeans(2, n_init=1).fit([[float(i)] for i in range(100)])
    file = os.open(sys.argv[1], os.O_RDONLY)
    os.read(file, 4)
    while True:
        event = rekindle.ready()
        if event != rekindle.RESTORED:
            print(event, "".join(order), flush=True)
            return 0
        channel = rekindle.channel()
        while True:
            message = channel.receive()
            if message is None:
                return 0
            if message["type"] == "report":
                report(file)
            elif message["type"] == "spoil":
                count += 1
                memory[:] = [~value for value in memory]
            elif message["type"] == "again":
                break
            elif message["type"] == "print":
                os.write(1, (rekindle.instance.id + "\n").encode())
                channel.send({})
            elif message["type"] == "exit":
                return 7


sys.exit(main())
