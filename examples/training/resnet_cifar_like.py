#!/usr/bin/env python3
"""Trains a small ResNet on pictures of CIFAR's shape, which worker processes make and augment, on the CPU.

    python3 examples/training/resnet_cifar_like.py --out DIR [--steps N] [--workers N] [--step-log FILE] [--hook]

The pictures are drawn from their number; the augmentation from the random state of the worker, which lives as long as
the training. It knows nothing of checkpoints. Two undisturbed runs with the same options write the same metrics.jsonl
and weights.pt, bit for bit. Needs python3-torch.
"""

import random
import sys

import numpy
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from run_log import RunLog, make_deterministic, options

# channels of the first stage, blocks in each of three, batch, pictures
SIZES = {"tiny": (8, 1, 8, 256), "small": (16, 2, 32, 2048), "large": (32, 5, 64, 16384)}
CLASSES = 10


class GeneratedPictures(Dataset):
    """3 x 32 x 32: the class gives the pattern, the number all else."""

    def __init__(self, count):
        self._count = count

    def __len__(self):
        return self._count

    def __getitem__(self, number):
        label = number % CLASSES
        drawn = numpy.random.default_rng(number)
        y, x = numpy.mgrid[0:32, 0:32] / 32
        wave = numpy.sin((label + 1) * (x * drawn.uniform(1, 2) + y) * 3 + drawn.uniform(0, 6))
        colours = drawn.uniform(0.5, 1, 3)[:, None, None]
        picture = torch.from_numpy((wave * colours + drawn.normal(0, 0.3, (3, 32, 32))).astype("float32"))
        return augmented(picture), label


def augmented(picture):
    """Shifted, mirrored and blotted at random, by three generators."""
    if random.random() < 0.5:
        picture = picture.flip(2)
    down, right = numpy.random.randint(-4, 5, 2)
    picture = picture.roll((int(down), int(right)), (1, 2))
    top, left = torch.randint(0, 24, (2,)).tolist()
    picture[:, top : top + 8, left : left + 8] = 0
    return picture


def seed_worker(_number):
    """torch has its own seed in each worker; the others would all be alike."""
    seed = torch.initial_seed() % (1 << 32)
    random.seed(seed)
    numpy.random.seed(seed)
    torch.set_num_threads(1)


class ResidualBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        inner = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(inner)) + self.shortcut(x))


def resnet(channels, blocks):
    layers = [nn.Conv2d(3, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    inputs = channels
    for stage in range(3):
        outputs = channels << stage
        for block in range(blocks):
            layers.append(ResidualBlock(inputs, outputs, 2 if stage > 0 and block == 0 else 1))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


def endless(loader):
    """Batches of one epoch after the other."""
    while True:
        yield from loader


def main():
    parser = options(__doc__.splitlines()[0], SIZES)
    parser.add_argument("--workers", type=int, default=2, help="processes that make pictures")
    arguments = parser.parse_args()
    make_deterministic(arguments.seed, arguments.threads)
    log = RunLog(arguments)
    channels, blocks, batch, pictures = SIZES[arguments.size]
    model = resnet(channels, blocks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=arguments.steps + 1)
    loader = DataLoader(
        GeneratedPictures(pictures),
        batch_size=batch,
        shuffle=True,
        drop_last=True,
        num_workers=arguments.workers,
        persistent_workers=arguments.workers > 0,
        worker_init_fn=seed_worker,
    )
    for step, (images, labels) in zip(range(1, arguments.steps + 1), endless(loader)):
        rate = schedule.get_last_lr()[0]
        optimizer.zero_grad(set_to_none=True)
        outputs = model(images)
        loss = functional.cross_entropy(outputs, labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        right = (outputs.argmax(1) == labels).float().mean().item()
        log.step(step, loss=loss.item(), accuracy=right, learning_rate=rate)
    log.finish(model)
    return 0


if __name__ == "__main__":
    sys.exit(main())
