"""A small convolutional network in the manner of SqueezeNet: few weights, many layers."""

import torch
from torch import nn

CLASSES = 1000
SIDE = 227


class Fire(nn.Module):
    """Squeezes the channels, then widens them in two ways side by side."""

    def __init__(self, channels, squeezed, widened):
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.narrow = nn.Conv2d(squeezed, widened, 1)
        self.wide = nn.Conv2d(squeezed, widened, 3, padding=1)

    def forward(self, x):
        x = torch.relu(self.squeeze(x))
        return torch.cat((torch.relu(self.narrow(x)), torch.relu(self.wide(x))), 1)


class SmallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 3, stride=2), nn.ReLU(), nn.MaxPool2d(3, stride=2),
            Fire(64, 16, 64), Fire(128, 16, 64), nn.MaxPool2d(3, stride=2),
            Fire(128, 32, 128), Fire(256, 32, 128), nn.MaxPool2d(3, stride=2),
            Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256),
        )  # fmt: skip
        self.classes = nn.Conv2d(512, CLASSES, 1)

    def forward(self, x):
        return self.classes(self.features(x)).mean((2, 3))
