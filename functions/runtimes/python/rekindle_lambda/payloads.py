"""Between the bytes on the wire and the handler's values, as AWS's runtime for Python does it."""

import json
import os
import sys

from rekindle_lambda.faults import Fault


def decode(body, content_type):
    if content_type and content_type.split(";")[0].strip().lower() != "application/json":
        return bytes(body)
    try:
        return json.loads(body)
    except Exception as error:
        raise Fault("Runtime.UnmarshalError", "Unable to unmarshal input: %s" % error) from None


def encode(value):
    """(bytes, content type)."""
    if isinstance(value, bytes):
        return value, "application/unknown"
    try:
        try:
            return _encode(value, False), "application/json"
        except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can carry
            return _encode(value, True), "application/json"
    except Exception as error:
        raise Fault("Runtime.MarshalError", "Unable to marshal response: %s" % error) from None


def decode_header(text, name):
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise Fault("Runtime.LambdaContextUnmarshalError", "Unable to parse %s JSON: %s" % (name, error)) from None


def _refuse(thing):
    name = type(thing).__name__
    # As on Lambda, which says no more.
    cure = " (a handler can't be async: have it return asyncio.run(...))" if name == "coroutine" else ""
    raise TypeError("Object of type %s is not JSON serializable%s" % (name, cure))


_plain = json.JSONEncoder(ensure_ascii=False, default=_refuse)


def _encode(value, escaped):
    if "decimal" in sys.modules:
        return _encode_with_decimals(value, escaped).encode()
    encoder = json.JSONEncoder(default=_refuse) if escaped else _plain
    return encoder.encode(value).encode()


def _encode_with_decimals(value, escaped):
    """Decimals become numbers with all their digits. The standard library knows none such, so they are strings with
    a mark that nobody can guess until the text is there.
    """
    from decimal import Decimal

    numbers = []
    mark = ""

    def default(thing):
        nonlocal mark
        if not isinstance(thing, Decimal):
            _refuse(thing)
        if thing.is_nan():
            return float("nan")
        if not mark:
            mark = "decimal-%s-" % os.urandom(16).hex()
        numbers.append(str(thing))
        return mark + str(len(numbers) - 1)

    text = json.JSONEncoder(ensure_ascii=escaped, default=default).encode(value)
    if not numbers:
        return text
    pieces = text.split('"' + mark)
    for at in range(1, len(pieces)):
        number, _, rest = pieces[at].partition('"')
        pieces[at] = numbers[int(number)] + rest
    return "".join(pieces)
