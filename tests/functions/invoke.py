"""Calls a Lambda handler for each event of a JSON list, in one process, and prints the list of its results as JSON.

    invoke.py CODE_DIRECTORY MODULE.FUNCTION < EVENTS
"""

import importlib
import json
import sys
import time

LIMIT_SECONDS = 60


class Context:
    """As much of Lambda's context object as its documentation promises to every function."""

    function_name = "function"
    function_version = "$LATEST"
    invoked_function_arn = "arn:aws:lambda:us-east-1:000000000000:function:function"
    memory_limit_in_mb = "512"
    log_group_name = "/aws/lambda/function"
    log_stream_name = "stream"
    identity = client_context = None

    def __init__(self, number):
        self.aws_request_id = f"00000000-0000-4000-8000-{number:012d}"
        self._deadline = time.monotonic() + LIMIT_SECONDS

    def get_remaining_time_in_millis(self):
        return max(0, int((self._deadline - time.monotonic()) * 1000))


def main():
    code, handler = sys.argv[1:]
    module, _, function = handler.rpartition(".")
    events = json.load(sys.stdin)
    sys.path[0] = code
    call = getattr(importlib.import_module(module), function)
    json.dump([call(event, Context(number)) for number, event in enumerate(events)], sys.stdout, allow_nan=False)


main()
