"""AWS Lambda SnapStart's package of this name, on Rekindle: what is registered here is called by rekindle.ready().

The order is AWS's: before a snapshot the last registered first, after a restore the first registered first. A program
that has AWS's own package is served as well (rekindle.ready() asks it). Unlike there, a second snapshot of the same
process runs the functions again.
"""

from rekindle import _after_restore, _before_snapshot, register_after_restore, register_before_snapshot

__all__ = ["get_after_restore", "get_before_snapshot", "register_after_restore", "register_before_snapshot"]


def get_before_snapshot():
    """The list of (function, arguments, keyword arguments), in the order of registration."""
    return _before_snapshot


def get_after_restore():
    """The same of the functions that each copy calls."""
    return _after_restore
