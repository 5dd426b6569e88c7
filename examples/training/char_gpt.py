#!/usr/bin/env python3
"""Trains a small GPT that continues a text, character by character, on the CPU.

    python3 examples/training/char_gpt.py --out DIR [--steps N] [--size tiny|small|large] [--step-log FILE] [--hook]

It knows nothing of checkpoints (but for --save-every and --resume, which do by hand what Rekindle does without its help).
Two undisturbed runs with the same options write the same metrics.jsonl and weights.pt, bit for bit, so one that was
killed and brought back can be compared with one that was not. Needs python3-torch.
"""

import math
import os
import random
import sys
import time

import numpy
import torch
from torch import nn
from torch.nn import functional

from run_log import RunLog, make_deterministic, options

# width, layers, heads, context, batch. With AdamW, large is a process of about 1 GiB.
SIZES = {"tiny": (32, 2, 2, 32, 8), "small": (128, 4, 4, 64, 16), "large": (768, 7, 12, 8, 16)}
TEXT = "/usr/share/common-licenses/GPL-3"  # every Debian has it
VOCABULARY = 128
WARM_UP_STEPS = 20


class Projection(nn.Conv1d):
    """A linear layer, written as GPT-2 has it: as convolutions torch gives it to oneDNN, and Debian's BLAS is slow."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs, 1)

    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.inputs, self.output = Projection(width, 3 * width), Projection(width, width)

    def forward(self, x, mask):
        rows, length, width = x.shape
        q, k, v = self.inputs(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]) + mask).softmax(-1)
        mixed = functional.dropout(weights, 0.1, self.training) @ v
        return self.output(mixed.transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(Projection(width, 4 * width), nn.GELU(), Projection(4 * width, width), nn.Dropout(0.1))

    def forward(self, x, mask):
        x = x + self.attention(self.before_attention(x), mask)
        return x + self.mlp(self.before_mlp(x))


class CharGpt(nn.Module):
    def __init__(self, width, layers, heads, context):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.randn(context, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), Projection(width, VOCABULARY)
        self.register_buffer("mask", torch.full((context, context), -math.inf).triu(1), persistent=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x))

    def loss(self, batch):
        """`batch`: rows of one character more than the context."""
        return functional.cross_entropy(self(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


class TextBatches:
    """Random pieces of the text. Draws from the generators of numpy and Python, so that their state matters."""

    def __init__(self, context, batch, path=TEXT):
        with open(path, encoding="ascii", errors="replace") as file:
            text = file.read()
        self._text = torch.tensor([min(ord(character), VOCABULARY - 1) for character in text])
        self._context, self._batch = context, batch

    def next(self):
        starts = numpy.random.randint(0, len(self._text) - self._context - 1, self._batch)
        rows = torch.stack([self._text[start : start + self._context + 1] for start in starts])
        rows[random.randrange(self._batch), random.randrange(self._context)] = ord("?")  # noise
        return rows


def learning_rate_factor(steps):
    """Warm-up, then a cosine to a tenth."""

    def factor(step):
        if step < WARM_UP_STEPS:
            return (step + 1) / WARM_UP_STEPS
        return 0.55 + 0.45 * math.cos(math.pi * min(1.0, (step - WARM_UP_STEPS) / max(1, steps - WARM_UP_STEPS)))

    return factor


class Trainer:
    def __init__(self, arguments):
        width, layers, heads, context, batch = SIZES[arguments.size]
        self.model = CharGpt(width, layers, heads, context)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, learning_rate_factor(arguments.steps))
        self.batches = TextBatches(context, batch)
        self.step_number = 0
        self._checkpoint = os.path.join(arguments.out, "checkpoint.pt")

    def step(self):
        self.step_number += 1
        rate = self.schedule.get_last_lr()[0]
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model.loss(self.batches.next())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        return {"loss": loss.item(), "gradient_norm": norm.item(), "learning_rate": rate}

    # What a program must do for itself without Rekindle.

    def save(self):
        state = {
            "step": self.step_number,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "random": (torch.get_rng_state(), numpy.random.get_state(), random.getstate()),
        }
        torch.save(state, self._checkpoint + ".new")
        os.replace(self._checkpoint + ".new", self._checkpoint)

    def load(self):
        state = torch.load(self._checkpoint)
        self.step_number = state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["random"][0])
        numpy.random.set_state(state["random"][1])
        random.setstate(state["random"][2])


def main():
    parser = options(__doc__.splitlines()[0], SIZES)
    parser.add_argument("--save-every", type=float, metavar="SECONDS", help="save OUT/checkpoint.pt, by torch.save")
    parser.add_argument("--resume", action="store_true", help="go on from OUT/checkpoint.pt")
    arguments = parser.parse_args()
    make_deterministic(arguments.seed, arguments.threads)
    log = RunLog(arguments)
    trainer = Trainer(arguments)
    if arguments.resume:
        trainer.load()
    saved = time.monotonic()
    while trainer.step_number < arguments.steps:
        metrics = trainer.step()
        log.step(trainer.step_number, **metrics)
        if arguments.save_every and time.monotonic() - saved >= arguments.save_every:
            saved = time.monotonic()
            trainer.save()
    log.finish(trainer.model)
    return 0


if __name__ == "__main__":
    sys.exit(main())
