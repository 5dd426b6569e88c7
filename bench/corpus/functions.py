"""Ten functions that share libraries, each ready for its next call and waiting for it.

functions.py one READY NUMBER: function NUMBER in a process of its own, which imports what it needs.
functions.py forked FOLDER: all ten, forked from one process that has imported all libraries; the process
ID of each is put into FOLDER/ready.NUMBER.
"""

import importlib
import os
import signal
import sys

SETS = [
    ["numpy"],
    ["numpy", "pandas"],
    ["sklearn"],
    ["pandas", "sklearn"],
    ["torch"],
    ["torch", "numpy"],
    ["torch", "pandas"],
    ["torch", "sklearn"],
    ["numpy", "sklearn"],
    ["torch", "pandas", "sklearn"],
]
MODULES = {
    "numpy": ["numpy"],
    "pandas": ["pandas"],
    "sklearn": ["sklearn.ensemble", "sklearn.linear_model", "sklearn.datasets"],
    "torch": ["torch"],
}


def load(libraries):
    for library in libraries:
        for module in MODULES[library]:
            importlib.import_module(module)


def work_numpy(seed):
    import numpy

    random = numpy.random.default_rng(seed)
    matrix = random.normal(size=(256, 256))
    return numpy.linalg.eigvalsh(matrix @ matrix.T)


def work_pandas(seed):
    import numpy
    import pandas

    random = numpy.random.default_rng(seed)
    table = pandas.DataFrame(
        {
            "shop": random.integers(0, 50, 20000),
            "item": [f"item-{number}" for number in random.integers(0, 500, 20000)],
            "price": random.gamma(2.0, 10.0, 20000),
        }
    )
    return table.groupby(["shop", "item"])["price"].agg(["mean", "count"]).sort_values("mean")


def work_sklearn(seed):
    from sklearn.datasets import make_classification
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    rows, labels = make_classification(2000, 20, random_state=seed)
    forest = RandomForestClassifier(20, random_state=seed).fit(rows, labels)
    return forest, LogisticRegression(max_iter=200).fit(rows, labels)


def work_torch(seed):
    import torch

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))
    with torch.no_grad():
        return model, model(torch.randn(64, 256))


WORK = {"numpy": work_numpy, "pandas": work_pandas, "sklearn": work_sklearn, "torch": work_torch}


def serve(number, ready):
    """Never returns."""
    state = [WORK[library](number) for library in SETS[number]]
    with open(ready + ".new", "w", encoding="ascii") as file:
        file.write(str(os.getpid()))
    os.rename(ready + ".new", ready)
    while state:
        signal.pause()


def main():
    if sys.argv[1] == "one":
        number = int(sys.argv[3])
        load(SETS[number])
        serve(number, sys.argv[2])
    load(MODULES)
    for number in range(len(SETS)):
        if os.fork() == 0:
            os.setsid()  # CRIU dumps a tree whose session is its own
            serve(number, os.path.join(sys.argv[2], f"ready.{number}"))
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
