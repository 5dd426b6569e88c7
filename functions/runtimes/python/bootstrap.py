"""Runs an AWS Lambda handler that is written in Python; docs/functions.md is the users' page."""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
# The function's own modules must not meet ours under the same names, so this folder leaves the path again.
sys.path[0:1] = [_here]
from rekindle_lambda import life  # noqa: E402

sys.path.remove(_here)
# The hook, where it is installed and where it is built; last, so that a package of the function's own comes first.
for _folder in ("../../python", "../../../hook/python"):
    _path = os.path.normpath(os.path.join(_here, _folder))
    if os.path.isdir(os.path.join(_path, "rekindle")):
        sys.path.append(_path)
        break

life.run()
