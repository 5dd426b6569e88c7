"""A recurrent network that says which letter follows in a name."""

import string

import torch
from torch import nn

LETTERS = string.ascii_letters + " .,;'-"
LANGUAGES = (
    "Arabic", "Chinese", "Czech", "Dutch", "English", "French", "German", "Greek", "Irish", "Italian", "Japanese",
    "Korean", "Polish", "Portuguese", "Russian", "Scottish", "Spanish", "Vietnamese",
)  # fmt: skip
HIDDEN = 128


class NameGenerator(nn.Module):
    """The last output means that the name has ended."""

    def __init__(self):
        super().__init__()
        inputs = len(LANGUAGES) + len(LETTERS) + HIDDEN
        self.to_hidden = nn.Linear(inputs, HIDDEN)
        self.to_output = nn.Linear(inputs, len(LETTERS) + 1)
        self.combine = nn.Linear(HIDDEN + len(LETTERS) + 1, len(LETTERS) + 1)

    def forward(self, language, letter, hidden):
        place = torch.zeros(1, len(LANGUAGES) + len(LETTERS))
        place[0, LANGUAGES.index(language)] = 1
        place[0, len(LANGUAGES) + LETTERS.index(letter)] = 1
        inputs = torch.cat((place, hidden), 1)
        hidden = torch.tanh(self.to_hidden(inputs))
        return self.combine(torch.cat((hidden, self.to_output(inputs)), 1)), hidden

    def no_hidden(self):
        return torch.zeros(1, HIDDEN)
