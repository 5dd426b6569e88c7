"""(c) Python with numpy, pandas and scikit-learn; answers with a prediction on a small table."""

import answer
import numpy
import pandas
import sklearn.linear_model

generator = numpy.random.Generator(numpy.random.PCG64(5))
table = pandas.DataFrame(generator.normal(size=(2000, 8)), columns=list("abcdefgh"))
model = sklearn.linear_model.LinearRegression().fit(table[list("abcdefg")], table["h"])
EXPECTED = float(model.predict(table[list("abcdefg")].head(4)).sum())


def first_response():
    got = float(model.predict(table[list("abcdefg")].head(4)).sum())
    if got != EXPECTED:
        raise RuntimeError(f"predicted {got}, not {EXPECTED}")


first_response()
answer.serve(first_response)
