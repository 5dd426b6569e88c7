"""Makes up names in the manner of a language, letter by letter. The model is loaded at import."""

import hashlib
import json
import os

import torch

from model import LANGUAGES, LETTERS, NameGenerator

INPUTS = os.environ.get("FUNCTION_INPUTS", "/tmp/function-inputs")

model = NameGenerator()
model.load_state_dict(torch.load(os.path.join(INPUTS, "rnn.pt")))
model.eval()


def made_up(language, start, longest):
    name, hidden = "", model.no_hidden()
    letters = list(start)
    with torch.no_grad():
        while len(name) < longest:
            name += letters.pop(0)
            output, hidden = model(language, name[-1], hidden)
            if not letters:
                choice = int(output.argmax())
                if choice == len(LETTERS):
                    break
                letters.append(LETTERS[choice])
    return name


def handler(event, context):
    language = event.get("language", "Scottish")
    starts = event.get("starts", ["A", "Mac", "Qu"])
    if language not in LANGUAGES:
        raise ValueError(f"{language!r} is none of: {', '.join(LANGUAGES)}")
    names = [made_up(language, start, int(event.get("longest", 20))) for start in starts]
    digest = hashlib.sha256(json.dumps(names).encode())
    for weights in model.state_dict().values():
        digest.update(weights.numpy().tobytes())
    return {"language": language, "names": names, "digest": digest.hexdigest()}
