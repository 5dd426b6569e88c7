"""Trains a classifier of product reviews from a table, and writes the model."""

import hashlib
import os
import re
import tempfile

import joblib
import pandas as pd
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

INPUTS = os.environ.get("FUNCTION_INPUTS", "/tmp/function-inputs")
NOT_LETTERS = re.compile("[^a-z]+")


def cleaned(text):
    return NOT_LETTERS.sub(" ", text.lower()).strip()


def handler(event, context):
    table = pd.read_csv(os.path.join(INPUTS, event.get("dataset", "reviews.csv")), nrows=int(event.get("rows", 2000)))
    vectorizer = TfidfVectorizer(min_df=10)
    features = vectorizer.fit_transform(table["Text"].apply(cleaned))
    model = LogisticRegression(max_iter=200).fit(features, table["Score"])
    with tempfile.TemporaryDirectory() as folder:
        target = os.path.join(folder, "model.joblib")
        joblib.dump(model, target)
        predicted = joblib.load(target).predict(features)
    # Labels and words, not coefficients: those differ in their last bits with the way that sums are split.
    digest = hashlib.sha256(" ".join(sorted(vectorizer.vocabulary_)).encode())
    digest.update(predicted.astype("int64").tobytes())
    return {
        "rows": len(table),
        "features": features.shape[1],
        "right": int((predicted == table["Score"]).sum()),
        "digest": digest.hexdigest(),
    }
