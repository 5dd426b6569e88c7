"""(d) Python with torch and a model; answers with one run of the model."""

import answer
import torch

torch.set_num_threads(1)
torch.manual_seed(5)
# The vocabulary's table is large, and a response looks at a few rows of it: so are models that serve text.
vocabulary = torch.nn.Embedding(220_000, 128)
network = torch.nn.LSTM(128, 256)
head = torch.nn.Linear(256, 16)
words = torch.arange(0, 220_000, 220_000 // 16).view(-1, 1)


def run():
    with torch.no_grad():
        return head(network(vocabulary(words))[0]).sum().item()


EXPECTED = run()


def first_response():
    got = run()
    if got != EXPECTED:
        raise RuntimeError(f"the model says {got}, not {EXPECTED}")


answer.serve(first_response)
