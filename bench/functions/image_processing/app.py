"""Flips, turns, filters, greys and shrinks a picture, and writes what comes of it as JPEG."""

import hashlib
import os
import tempfile

from PIL import Image, ImageFilter

INPUTS = os.environ.get("FUNCTION_INPUTS", "/tmp/function-inputs")


def variants(image):
    yield "flipped-left-right", image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    yield "flipped-top-bottom", image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    yield "rotated-90", image.transpose(Image.Transpose.ROTATE_90)
    yield "rotated-180", image.transpose(Image.Transpose.ROTATE_180)
    yield "blurred", image.filter(ImageFilter.BLUR)
    yield "contour", image.filter(ImageFilter.CONTOUR)
    yield "sharpened", image.filter(ImageFilter.SHARPEN)
    yield "grey", image.convert("L")
    yield "thumbnail", image.resize((128, 128))


def handler(event, context):
    path = os.path.join(INPUTS, event.get("image", "photo.jpg"))
    digest = hashlib.sha256()
    written = {}
    with Image.open(path) as image, tempfile.TemporaryDirectory() as folder:
        size = list(image.size)
        for name, variant in variants(image):
            target = os.path.join(folder, name + ".jpg")
            variant.save(target)
            written[name] = os.path.getsize(target)
            digest.update(variant.tobytes())
    return {"size": size, "written": written, "digest": digest.hexdigest()}
