"""Standard output and error as logs: line by line, and the root logger's format as on Lambda."""

import logging
import os
import sys
import time

request_id = ""


class _Handler(logging.Handler):
    def emit(self, record):
        try:
            record.aws_request_id = request_id
            # Behind a traceback, too.
            sys.stdout.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)


def install():
    # A child's output comes to the same place, so nothing may wait here for long.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    formatter = logging.Formatter(
        "[%(levelname)s]\t%(asctime)s.%(msecs)03dZ\t%(aws_request_id)s\t%(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = _Handler()
    handler.setFormatter(formatter)
    logging.getLogger().addHandler(handler)


def set_level():
    """As the function's environment has it, which a copy gets late."""
    level = os.environ.get("AWS_LAMBDA_LOG_LEVEL", "").upper()
    name = {"TRACE": "DEBUG", "FATAL": "CRITICAL", "WARN": "WARNING"}.get(level, level)
    if name in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
        logging.getLogger().setLevel(name)


def flush():
    """A line that has not ended belongs to the invocation that wrote it all the same."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # the function has closed or replaced it
            pass
