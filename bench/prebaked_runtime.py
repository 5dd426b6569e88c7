"""Our Lambda runtime for Python with one ready point, after the handler was loaded: what PreBaking takes snapshots of."""

import os
import sys

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_RUNTIME = os.path.join(_ROOT, "functions/runtimes/python")
sys.path[0:1] = [_RUNTIME]
from rekindle_lambda import life, logs  # noqa: E402
from rekindle_lambda.api import RuntimeApi  # noqa: E402

sys.path.remove(_RUNTIME)
sys.path.append(os.path.join(_ROOT, "hook/python"))

logs.install()
handler = life._load_function()
life._park("the handler")
life._serve(RuntimeApi(), handler)
