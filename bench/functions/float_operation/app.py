"""Sines, cosines and square roots of n numbers."""

import hashlib
import math


def handler(event, context):
    n = int(event.get("n", 100_000))
    sines = cosines = roots = 0.0
    for i in range(n):
        sines += math.sin(i)
        cosines += math.cos(i)
        roots += math.sqrt(i)
    digest = hashlib.sha256(repr((sines, cosines, roots)).encode()).hexdigest()
    return {"n": n, "digest": digest}
