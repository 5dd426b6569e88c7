"""How the jobs of start_figures.py get ready: the same for a cold start and for copies of all kinds."""

import os
import signal

import rekindle


def serve(first_response):
    """Parks when it is to be held. `first_response` runs before the job says that it is up: on its control
    channel, or, after a cold start, on the descriptor that it was given."""
    rekindle.register_after_restore(first_response)
    if rekindle.ready() == rekindle.NOT_HELD:
        first_response()
        os.write(int(os.environ["ANSWER_FD"]), b'{"type":"up"}')
    while True:
        signal.pause()
