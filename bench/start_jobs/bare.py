"""(b) Python, and nothing else."""

import answer


def first_response():
    return sorted(str(number) for number in range(10))


answer.serve(first_response)
