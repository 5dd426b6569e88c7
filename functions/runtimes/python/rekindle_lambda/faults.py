"""What goes wrong, in the shapes that AWS's runtime for Python gives it: the answer's JSON and the line in the log."""

import os
import sys
import traceback

_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
_INDENT = "\u00a0"  # plain spaces at the start of a line are lost in some viewers of logs


class Fault(Exception):
    """A failure of the runtime's own making, such as Runtime.ImportModuleError."""

    def __init__(self, error_type, message, trace=()):
        super().__init__(message)
        self.error_type = error_type
        self.trace = list(trace)


def describe(error, request_id=""):
    """The answer's dict."""
    if isinstance(error, Fault):
        error_type, trace = error.error_type, error.trace
    else:
        error_type, trace = type(error).__name__, _frames(error)
    try:
        message = str(error)
    except Exception:  # an error class of the function's own may fail here too
        message = "<%s that can't be shown>" % error_type
    return {"errorMessage": message, "errorType": error_type, "requestId": request_id, "stackTrace": trace}


def _frames(error):
    """The function's own frames, as in a traceback: those of the runtime in front are of no use to anybody."""
    frames = list(traceback.extract_tb(error.__traceback__))
    while frames and (frames[0].filename.startswith(_OWN) or frames[0].filename.startswith("<frozen importlib")):
        del frames[0]
    return traceback.format_list([(frame.filename, frame.lineno, frame.name, frame.line) for frame in frames])


def log(described):
    """One entry in the log: its lines are parted by carriage returns, as AWS does it."""
    heading = "[ERROR]"
    if described["errorType"]:
        heading += " %s" % described["errorType"]
    if described["errorMessage"]:
        heading += ": %s" % described["errorMessage"]
    lines = [heading, "Traceback (most recent call last):"]
    for entry in described["stackTrace"]:
        for line in entry.splitlines():
            text = line.lstrip(" ")
            lines.append(_INDENT * (len(line) - len(text)) + text)
    try:
        sys.stdout.write("\r".join(lines) + "\n")
        sys.stdout.flush()
    except (OSError, ValueError):  # the function has closed it, or nobody reads it: its caller is told all the same
        pass
