"""Tells what score goes with the text of a product review. The first request loads the model."""

import hashlib
import os
import re

import joblib
import pandas as pd
from sklearn.feature_extraction.text import TfidfVectorizer

INPUTS = os.environ.get("FUNCTION_INPUTS", "/tmp/function-inputs")
NOT_LETTERS = re.compile("[^a-z]+")
REVIEW = "The ambrosia arrived quickly, it was wonderful and I would buy it again."

models = {}


def cleaned(text):
    return NOT_LETTERS.sub(" ", text.lower()).strip()


def loaded(path):
    if path not in models:
        contents = joblib.load(path)
        vectorizer = TfidfVectorizer(vocabulary=contents["words"])
        vectorizer.idf_ = contents["weights"]
        models[path] = vectorizer, contents["model"]
    return models[path]


def handler(event, context):
    vectorizer, model = loaded(os.path.join(INPUTS, event.get("model", "reviews.joblib")))
    texts = event.get("texts", [REVIEW])
    table = pd.DataFrame({"Text": texts})
    features = vectorizer.transform(table["Text"].apply(cleaned))
    scores = [int(score) for score in model.predict(features)]
    digest = hashlib.sha256(model.coef_.tobytes() + vectorizer.idf_.tobytes())
    digest.update(repr((scores, features.indices.tolist())).encode())
    return {"scores": scores, "digest": digest.hexdigest()}
