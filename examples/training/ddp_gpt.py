#!/usr/bin/env python3
"""Trains the GPT of char_gpt.py data-parallel: torch.distributed with gloo, several processes on this machine.

    python3 examples/training/ddp_gpt.py --out DIR [--processes N] [--steps N] [--step-log FILE] [--hook]
    torchrun --nproc_per_node N examples/training/ddp_gpt.py --out DIR [...]

Started by itself it is its own launcher: it starts the processes, and when one fails it ends the others and fails. Rank 0
writes metrics, events and weights. It knows nothing of checkpoints. Needs python3-torch.
"""

import datetime
import os
import socket
import subprocess
import sys

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from char_gpt import SIZES, CharGpt, TextBatches, learning_rate_factor
from run_log import RunLog, make_deterministic, options

# A peer that was away for a while, with all others, is not lost.
PATIENCE = datetime.timedelta(days=30)


def parse():
    parser = options(__doc__.splitlines()[0], SIZES)
    parser.set_defaults(threads=1)
    parser.add_argument("--processes", type=int, default=4)
    return parser.parse_args()


def launch(processes):
    """Returns the exit status of the first that failed, 0 when all ended well."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    workers = {}
    for rank in range(processes):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        worker = subprocess.Popen([sys.executable, *sys.argv], env=environment)
        workers[worker.pid] = rank
    failed = 0
    while workers:
        pid, status = os.wait()
        rank = workers.pop(pid)
        status = os.waitstatus_to_exitcode(status)
        if status != 0 and failed == 0:
            failed = status if status > 0 else 128 - status
            print(f"rank {rank} (process {pid}) ended with {status}; ending the others", file=sys.stderr, flush=True)
            for other in workers:
                os.kill(other, 9)
    return failed


def train(arguments):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", timeout=PATIENCE)
    rank = distributed.get_rank()
    # Each has other batches and another dropout; DistributedDataParallel gives all the weights of rank 0.
    make_deterministic(arguments.seed + rank, arguments.threads)
    log = RunLog(arguments) if rank == 0 else None
    width, layers, heads, context, batch = SIZES[arguments.size]
    model = DistributedDataParallel(CharGpt(width, layers, heads, context), broadcast_buffers=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate_factor(arguments.steps))
    batches = TextBatches(context, batch)
    loss_of = torch.nn.CrossEntropyLoss()
    for step in range(1, arguments.steps + 1):
        rate = schedule.get_last_lr()[0]
        optimizer.zero_grad(set_to_none=True)
        rows = batches.next()
        loss = loss_of(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        schedule.step()
        mean = loss.detach().clone()
        distributed.all_reduce(mean)
        if log:
            log.step(step, loss=mean.item() / distributed.get_world_size(), learning_rate=rate)
    distributed.barrier()
    if log:
        log.finish(model.module)
    distributed.destroy_process_group()
    return 0


def main():
    arguments = parse()
    if "RANK" not in os.environ:
        return launch(arguments.processes)
    return train(arguments)


if __name__ == "__main__":
    sys.exit(main())
