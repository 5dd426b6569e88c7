"""What the examples write while they train, and their common options."""

import argparse
import hashlib
import json
import os
import random
import time

import numpy
import torch

from event_file import EventWriter


def options(description, sizes, default_size="small"):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--size", choices=list(sizes), default=default_size)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="of torch: the sums depend on their number")
    parser.add_argument("--out", metavar="DIR", required=True, help="metrics, events and weights go there")
    parser.add_argument("--step-log", metavar="FILE", help="step and time of day of each step are appended to it")
    parser.add_argument("--step-seconds", type=float, default=0, help="a step takes no less: for watching small models")
    parser.add_argument("--hook", action="store_true", help="tell Rekindle of each step, where its package is there")
    return parser


def make_deterministic(seed, threads):
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(threads)
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


class RunLog:
    """A line of metrics and some events for each step. Its files stay open until the end."""

    def __init__(self, arguments):
        os.makedirs(arguments.out, exist_ok=True)
        self._out, self._steps = arguments.out, arguments.steps
        self._metrics = open(os.path.join(arguments.out, "metrics.jsonl"), "a", encoding="ascii")
        self._events = EventWriter(arguments.out)
        self._step_log = open(arguments.step_log, "a", encoding="ascii") if arguments.step_log else None
        self._hook = _hook() if arguments.hook else None
        self._step_seconds, self._step_began = arguments.step_seconds, time.monotonic()

    def step(self, step, **metrics):
        """A boundary between two steps: nothing of a step is under way."""
        left = self._step_began + self._step_seconds - time.monotonic()
        time.sleep(max(0, min(left, self._step_seconds)))  # the clock of another machine may be far behind
        self._step_began = time.monotonic()
        self._metrics.write(json.dumps({"step": step, **metrics}) + "\n")
        self._metrics.flush()
        for tag, value in metrics.items():
            self._events.add_scalar(tag, value, step)
        if self._step_log:
            self._step_log.write(f"{step} {time.time():.6f}\n")
            self._step_log.flush()
        if self._hook:
            self._hook.progress(step, self._steps)
            self._hook.checkpoint_here()

    def finish(self, model):
        """Saves the weights and prints their digest."""
        path = os.path.join(self._out, "weights.pt")
        torch.save(model.state_dict(), path)
        with open(path, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        self._metrics.close()
        self._events.close()
        print(f"weights {digest}", flush=True)


def _hook():
    try:
        import rekindle
    except ImportError:
        return None
    return rekindle
