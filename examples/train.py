#!/usr/bin/env python3
"""A small but real training job to checkpoint: an LSTM that learns to continue a text, byte by byte.

Prints one line a step: the step, the loss, and a digest of everything that the training depends on (weights, the
optimiser's moments, the state of the random generator). The same seed gives the same lines, so a job that was killed
and brought back can be compared with its own first life, line by line.

    python3 examples/train.py [--steps N] [--seed S] [--pause SECONDS] [--hidden UNITS]

SIGTERM ends it after the current step. Needs python3-torch.
"""

import argparse
import hashlib
import signal
import sys
import time

import torch
from torch import nn

TEXT = (
    "The job that was frozen does not know that it was frozen. It asks for the next step, and the next step comes. "
    "Weights, moments, random numbers, open files, sockets and threads are where they were, bit for bit. "
) * 40


class NextByte(nn.Module):
    def __init__(self, hidden: int):
        super().__init__()
        self.embedding = nn.Embedding(128, 64)
        self.lstm = nn.LSTM(64, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, 128)

    def forward(self, tokens):
        output, _ = self.lstm(self.embedding(tokens))
        return self.head(output)


def state_digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """SHA-256 over every tensor that decides how the training goes on."""
    sha = hashlib.sha256()
    for tensor in model.state_dict().values():
        sha.update(tensor.detach().contiguous().numpy())
    for state in optimizer.state_dict()["state"].values():
        for value in state.values():
            sha.update(value.numpy() if torch.is_tensor(value) else repr(value).encode())
    sha.update(torch.get_rng_state().numpy())
    return sha.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=0, help="stop after so many (0: never)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.2, help="seconds to wait after a step")
    parser.add_argument("--hidden", type=int, default=96)
    args = parser.parse_args()

    ending = []
    signal.signal(signal.SIGTERM, lambda *_: ending.append(True))

    torch.manual_seed(args.seed)
    torch.set_num_threads(2)
    text = torch.tensor(list(TEXT.encode("ascii")), dtype=torch.long)
    model = NextByte(args.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss_of = nn.CrossEntropyLoss()

    step = 0
    while not ending and (args.steps == 0 or step < args.steps):
        step += 1
        starts = torch.randint(0, len(text) - 65, (16,))
        batch = torch.stack([text[s : s + 65] for s in starts])
        optimizer.zero_grad()
        loss = loss_of(model(batch[:, :-1]).reshape(-1, 128), batch[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        print(f"step {step:5d}  loss {loss.item():.4f}  state {state_digest(model, optimizer)[:24]}", flush=True)
        time.sleep(args.pause)
    return 0


if __name__ == "__main__":
    sys.exit(main())
