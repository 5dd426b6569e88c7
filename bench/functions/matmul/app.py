"""Multiplies two square matrices."""

import hashlib

import numpy as np


def handler(event, context):
    n = int(event.get("n", 256))
    generator = np.random.Generator(np.random.PCG64(int(event.get("seed", 1))))
    # Whole numbers: their products and sums are exact, in whatever order the library adds them up.
    a = generator.integers(0, 1000, (n, n)).astype(np.float64)
    b = generator.integers(0, 1000, (n, n)).astype(np.float64)
    product = np.matmul(a, b)
    return {"n": n, "trace": float(product.trace()), "digest": hashlib.sha256(product.tobytes()).hexdigest()}
