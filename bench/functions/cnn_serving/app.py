"""Says which classes a picture most likely belongs to. The model is loaded at import."""

import hashlib
import os

import numpy as np
import torch
from PIL import Image

from model import SIDE, SmallNet

INPUTS = os.environ.get("FUNCTION_INPUTS", "/tmp/function-inputs")

model = SmallNet()
model.load_state_dict(torch.load(os.path.join(INPUTS, "cnn.pt")))
model.eval()


def pixels_of(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((SIDE, SIDE)))


def handler(event, context):
    pixels = pixels_of(os.path.join(INPUTS, event.get("image", "photo.jpg")))
    batch = torch.from_numpy(pixels.astype(np.float32).transpose(2, 0, 1) / 127.5 - 1).unsqueeze(0)
    with torch.no_grad():
        classes = model(batch)[0].topk(int(event.get("top", 5))).indices.tolist()
    digest = hashlib.sha256(repr(classes).encode() + pixels.tobytes())
    for weights in model.state_dict().values():
        digest.update(weights.numpy().tobytes())
    return {"classes": classes, "digest": digest.hexdigest()}
