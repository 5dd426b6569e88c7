"""Trains a small network, deterministically. Every step goes to STEP_LOG: number and digest of all tensors.

    torch_training.py STEP_LOG [STEPS]

Two runs of the same number of steps write the same log, so a restored run can be held against one that nobody
touched. The network and a table of embeddings make it a process of about 350 MB with several threads.
"""

import hashlib
import os
import sys

import torch

BATCH, TOKENS, VOCABULARY, WIDTH = 8, 16, 8000, 512


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = torch.nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = torch.nn.Linear(WIDTH, 256)

    def forward(self, tokens):
        return self.head(self.lstm(self.embed(tokens))[0])


def digest_of(net, optimizer):
    sha = hashlib.sha256()
    for _, tensor in sorted(net.state_dict().items()):
        sha.update(tensor.detach().contiguous().numpy().tobytes())
    for state in optimizer.state_dict()["state"].values():
        for key in sorted(state):
            value = state[key]
            sha.update(value.numpy().tobytes() if torch.is_tensor(value) else repr(value).encode())
    sha.update(torch.get_rng_state().numpy().tobytes())
    return sha.hexdigest()


def main():
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 1 << 30
    torch.manual_seed(7)
    torch.set_num_threads(4)
    torch.use_deterministic_algorithms(True)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    for step in range(1, steps + 1):
        tokens = torch.randint(0, VOCABULARY, (BATCH, TOKENS))
        optimizer.zero_grad()
        loss = net(tokens).square().mean()
        loss.backward()
        optimizer.step()
        os.write(log, f"{step} {digest_of(net, optimizer)}\n".encode())


if __name__ == "__main__":
    main()
