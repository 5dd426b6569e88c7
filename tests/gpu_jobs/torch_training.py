#!/usr/bin/env python3
"""Trains a small transformer, and tells after each step what it did.

FILE holds one line per step, "STEP LOSS DIGEST": the digest covers all bits of the parameters and of the optimizer's
state. The lines depend on nothing but the options and the device, so those of a run that was captured and restored in
the middle must equal those of a run that was not. Readers see whole lines only.
"""

import argparse
import os
import time

# Before torch is loaded: cuBLAS is deterministic only so.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402

from tiny_transformer import Transformer, initialise  # noqa: E402

VOCABULARY = 256


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curve-file", metavar="FILE", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--step-ms", type=float, default=0, help="pause after each step")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cuda-graphs", action="store_true", help="each step is one replay of a captured graph")
    return parser.parse_args()


class Training:
    def __init__(self, options):
        self.options = options
        self.model = Transformer(options.layers, options.width, VOCABULARY, options.length).to(options.device)
        initialise(self.model, options.seed)
        arguments = {"capturable": True} if options.cuda_graphs else {}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, **arguments)
        self.batch = torch.zeros(options.batch, options.length + 1, dtype=torch.long, device=options.device)
        self.graph = self.capture() if options.cuda_graphs else None

    def next_batch(self):
        """Drawn from torch's own generator, whose state is part of the job. A pattern that can be learnt."""
        options = self.options
        first = torch.randint(0, VOCABULARY, (options.batch, 1))
        stride = torch.randint(1, 8, (options.batch, 1))
        self.batch.copy_((first + stride * torch.arange(options.length + 1)) % VOCABULARY)

    def forward_and_backward(self):
        logits = self.model(self.batch[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), self.batch[:, 1:].flatten())
        loss.backward()
        return loss

    def capture(self):
        # As torch asks for it: a few steps on a side stream first.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.next_batch()
                self.optimizer.zero_grad(set_to_none=True)
                self.forward_and_backward()
                self.optimizer.step()
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.loss = self.forward_and_backward()
            self.optimizer.step()
        return graph

    def step(self):
        self.next_batch()
        if self.graph is not None:
            self.graph.replay()
        else:
            self.optimizer.zero_grad(set_to_none=True)
            self.loss = self.forward_and_backward()
            self.optimizer.step()
        return self.loss.item()

    def digest(self):
        """Sums of all bits, weighted by tensor, on the device: exact in any order of summing."""
        tensors = list(self.model.parameters())
        for state in self.optimizer.state.values():
            tensors += [value for _, value in sorted(state.items()) if torch.is_tensor(value)]
        total = 0
        for number, tensor in enumerate(tensors):
            bits = tensor.detach().contiguous().view(-1).view(torch.int32).sum(dtype=torch.int64)
            total = (total * 31 + number + int(bits)) % (1 << 64)
        return total


def publish(path, lines):
    """In place: an image taken while a file to be renamed is open could not come back once it is gone."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(file, os.pwrite(file, "".join(lines).encode("ascii"), 0))
    finally:
        os.close(file)


def main():
    options = parse()
    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    training = Training(options)
    lines = []
    for step in range(1, options.steps + 1):
        loss = training.step()
        lines.append(f"{step} {loss:.9g} {training.digest():016x}\n")
        publish(options.curve_file, lines)
        time.sleep(options.step_ms / 1000)


if __name__ == "__main__":
    main()
