"""A decoder-only transformer in a few plain operations, the same on CPU and GPU and deterministic on both."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.before_mlp = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x, mask):
        batch, length, width = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1)) * (q.shape[-1] ** -0.5) + mask
        attended = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(attended)
        return x + self.down(nn.functional.gelu(self.up(self.before_mlp(x))))


class Transformer(nn.Module):
    def __init__(self, layers, width, vocabulary, length):
        super().__init__()
        # Of one-hot rows: an embedding's backward is not deterministic everywhere, nor can each be captured in a graph.
        self.tokens = nn.Linear(vocabulary, width, bias=False)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64)) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("vocabulary", torch.arange(vocabulary), persistent=False)
        self.register_buffer("mask", torch.full((length, length), -1e9).triu(1), persistent=False)

    def forward(self, tokens):
        length = tokens.shape[1]
        one_hot = (tokens.unsqueeze(-1) == self.vocabulary).to(self.positions.dtype)
        x = self.tokens(one_hot) + self.positions[:length]
        for block in self.blocks:
            x = block(x, self.mask[:length, :length])
        return self.head(self.last(x))


def initialise(model, seed):
    """Random weights, the same for the same seed on the same kind of device."""
    device = next(model.parameters()).device
    generator = torch.Generator(device=device).manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.02, generator=generator)
    return model
