"""A language model in training. training.py STATUS: trains three steps, puts the number of steps done into
STATUS, and goes on with the next three at SIGUSR1.
"""

import os
import signal
import sys

import torch

WORDS, CONTEXT, BATCH, STEPS = 20000, 32, 8, 3


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, 128)
        self.layers = torch.nn.LSTM(128, 256, 2, batch_first=True)
        self.head = torch.nn.Linear(256, WORDS)

    def forward(self, words):
        return self.head(self.layers(self.embedding(words))[0])


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    torch.manual_seed(0)
    torch.set_num_threads(1)
    text = torch.randint(0, WORDS, (4_000_000,))
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    done = 0
    while True:
        for _ in range(STEPS):
            starts = torch.randint(0, len(text) - CONTEXT - 1, (BATCH,))
            batch = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
            guess = model(batch[:, :-1]).reshape(-1, WORDS)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(guess, batch[:, 1:].reshape(-1)).backward()
            optimizer.step()
            done += 1
        with open(sys.argv[1] + ".new", "w", encoding="ascii") as file:
            file.write(str(done))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        signal.sigwait({signal.SIGUSR1})


if __name__ == "__main__":
    main()
