"""CRIU by itself, without Rekindle."""

import os


def criu_command():
    """The same CRIU that Rekindle finds."""
    for prefix in (os.environ.get("REKINDLE_CRIU", ""), "/opt/rekindle/criu"):
        loader = os.path.join(prefix, "lib64/ld-linux-x86-64.so.2")
        if prefix and os.path.exists(loader):
            return [
                loader,
                "--library-path",
                os.path.join(prefix, "usr/lib/x86_64-linux-gnu"),
                os.path.join(prefix, "usr/sbin/criu"),
            ]
    return ["criu"]
