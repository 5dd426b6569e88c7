#!/usr/bin/python3
"""Makes what the functions read: pictures, videos, a table of reviews, models. The same bytes every time.

    make_inputs.py FOLDER

Nothing is downloaded: pictures and reviews are drawn from a fixed seed, and the models' weights too, but for the
classifier of reviews, which is trained on them. About 10 MB.
"""

import argparse
import csv
import importlib.util
import os
import random
import re

import cv2
import joblib
import numpy as np
import torch
from PIL import Image
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

HERE = os.path.dirname(os.path.abspath(__file__))
VIDEO_SIZE = (640, 360)
VIDEO_FRAMES = 40
REVIEWS = 4000
PRAISE = "wonderful delicious great love perfect excellent best fresh tasty happy recommend favorite".split()
BLAME = "awful stale bad hate broken terrible worst bland bitter angry refund disappointed".split()
OTHERS = (
    "the a and it was this i of to product ambrosia arrived quickly box tea coffee dog food bought again price taste "
    "order store shipping package bag month year would will cup sugar water morning family kitchen"
).split()


def random_generator(seed):
    return np.random.Generator(np.random.PCG64(seed))


def colours(height, width, seed):
    """Soft colours with a little noise, as in a photograph: uint8, height x width x 3."""
    generator = random_generator(seed)
    coarse = generator.integers(0, 256, (height // 80, width // 80, 3)).astype(np.uint8)
    soft = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    return np.clip(soft + generator.integers(-8, 9, soft.shape), 0, 255).astype(np.uint8)


def make_pictures(folder):
    for name, seed in (("photo.jpg", 1), ("second.jpg", 2)):
        Image.fromarray(colours(960, 1280, seed)).save(os.path.join(folder, name), quality=90)


def write_video(path, frames):
    out = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*"MJPG"), 20.0, VIDEO_SIZE)
    if not out.isOpened():
        raise OSError(f"{path} cannot be written as a video: this OpenCV has no encoder for MJPEG")
    for frame in frames:
        out.write(frame)
    out.release()


def moving_ball():
    width, height = VIDEO_SIZE
    background = colours(height, width, 3)
    for number in range(VIDEO_FRAMES):
        frame = background.copy()
        cv2.circle(frame, (40 + 14 * number, height // 2), 30, (40, 40, 220), -1)
        yield frame


def draw_face(frame, x, y, size):
    """Light skin, dark hair, brows, eyes, the shadow of a nose and a mouth: what the cascade looks for."""

    def ellipse(across, down, wide, high, colour):
        place = (x + int(across * size), y + int(down * size))
        cv2.ellipse(frame, place, (int(wide * size), int(high * size)), 0, 0, 360, colour, -1)

    ellipse(0, -0.1, 0.56, 0.72, (30, 40, 50))
    ellipse(0, 0, 0.46, 0.62, (170, 190, 225))
    for side in (-1, 1):
        ellipse(side * 0.19, -0.19, 0.13, 0.03, (40, 50, 60))
        ellipse(side * 0.19, -0.08, 0.12, 0.07, (90, 105, 130))
        ellipse(side * 0.19, -0.08, 0.05, 0.05, (20, 20, 20))
        ellipse(side * 0.07, 0.16, 0.04, 0.02, (90, 100, 130))
    ellipse(0, 0.05, 0.04, 0.13, (195, 212, 240))
    ellipse(0, 0.34, 0.18, 0.05, (70, 70, 150))


def passing_faces():
    width, height = VIDEO_SIZE
    for number in range(VIDEO_FRAMES):
        frame = np.full((height, width, 3), 150, np.uint8)
        draw_face(frame, 120 + 4 * number, 180, 130)
        if number % 2:
            draw_face(frame, 500, 130 + 3 * number, 110)
        yield cv2.GaussianBlur(frame, (9, 9), 0)


def make_reviews(folder):
    choice = random.Random(4)
    with open(os.path.join(folder, "reviews.csv"), "w", encoding="ascii", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["Id", "Score", "Text"])
        for number in range(REVIEWS):
            score = choice.randint(1, 5)
            words = choice.choices(OTHERS, k=choice.randint(20, 60))
            words += choice.choices(PRAISE, k=2 * score) + choice.choices(BLAME, k=12 - 2 * score)
            choice.shuffle(words)
            table.writerow([number, score, " ".join(words).capitalize() + "."])


def make_review_model(folder):
    with open(os.path.join(folder, "reviews.csv"), encoding="ascii", newline="") as file:
        rows = list(csv.DictReader(file))
    texts = [re.sub("[^a-z]+", " ", row["Text"].lower()).strip() for row in rows]
    vectorizer = TfidfVectorizer(min_df=10)
    model = LogisticRegression(max_iter=200)
    model.fit(vectorizer.fit_transform(texts), [int(row["Score"]) for row in rows])
    contents = {"words": vectorizer.vocabulary_, "weights": vectorizer.idf_, "model": model}
    joblib.dump(contents, os.path.join(folder, "reviews.joblib"))


def network_of(function, name):
    """The network that a function defines beside its handler, in model.py."""
    spec = importlib.util.spec_from_file_location(function + "_model", os.path.join(HERE, function, "model.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)()


def make_weights(path, network, seed, gain):
    generator = random_generator(seed)
    weights = {}
    for name, tensor in network.state_dict().items():
        # Biases stay small, or the output would be the same whatever goes in.
        scale = gain / tensor[0].numel() ** 0.5 if tensor.dim() > 1 else 0.05
        values = generator.standard_normal(tuple(tensor.shape)) * scale
        weights[name] = torch.from_numpy(values.astype(np.float32))
    # To a file object: given a path, torch writes the file's name into it.
    with open(path, "wb") as file:
        torch.save(weights, file)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage="make_inputs.py FOLDER"
    )
    parser.add_argument("folder", metavar="FOLDER", help="made if it is not there; what it has of these is replaced")
    folder = parser.parse_args().folder
    os.makedirs(folder, exist_ok=True)
    make_pictures(folder)
    write_video(os.path.join(folder, "video.avi"), moving_ball())
    write_video(os.path.join(folder, "faces.avi"), passing_faces())
    make_reviews(folder)
    make_review_model(folder)
    make_weights(os.path.join(folder, "rnn.pt"), network_of("rnn_serving", "NameGenerator"), 6, 3.0)
    make_weights(os.path.join(folder, "cnn.pt"), network_of("cnn_serving", "SmallNet"), 7, 2**0.5)


if __name__ == "__main__":
    main()
