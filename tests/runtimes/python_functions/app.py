"""Handlers as people write them for Lambda."""

import base64
import decimal
import logging
import os
import sys

logger = logging.getLogger()
logger.setLevel(logging.INFO)
calls = 0


class OrderError(Exception):
    pass


class Untellable(Exception):
    def __str__(self):
        raise RuntimeError("no")


def check(order):
    raise OrderError("order %s is no good: ünïcode" % order)


def handler(event, context):
    """Does what the event says."""
    global calls
    calls += 1
    return globals()["do_" + event["do"]](event, context)


def do_echo(event, context):
    return event


def do_calls(event, context):
    return {"calls": calls, "pid": os.getpid(), "directory": os.getcwd()}


def do_context(event, context):
    client = context.client_context
    return {
        "id": context.aws_request_id, "arn": context.invoked_function_arn, "name": context.function_name,
        "version": context.function_version, "memory": context.memory_limit_in_mb, "group": context.log_group_name,
        "stream": context.log_stream_name, "remaining": context.get_remaining_time_in_millis(),
        "identity": [context.identity.cognito_identity_id, context.identity.cognito_identity_pool_id],
        "client": client and [client.custom, client.env, client.client and client.client.app_title],
        "trace": os.environ.get("_X_AMZN_TRACE_ID"), "shown": repr(context),
    }


def do_raise(event, context):
    check(7)


def do_untellable(event, context):
    raise Untellable


def do_exit(event, context):
    sys.exit(event["status"])


def do_crash(event, context):
    os._exit(event["status"])


def do_print(event, context):
    print("a line\nand another")
    print("on standard error", file=sys.stderr)
    logger.info("an entry of %s", context.aws_request_id)
    print("no end of line", end="")
    return None


def do_close(event, context):
    sys.stdout.close()
    raise OrderError("and no log")


def do_large(event, context):
    return "x" * event["size"]


def do_bytes(event, context):
    return bytes(range(256))


def do_binary(event, context):
    return base64.b64encode(base64.b64decode(event["data"])[::-1]).decode()


def do_unserialisable(event, context):
    return {"thing": {1, 2}}


async def do_coroutine(event, context):
    return event


def do_decimal(event, context):
    return {"price": decimal.Decimal("12.340000000000000000001"), "list": [decimal.Decimal(1), decimal.Decimal("NaN")],
            "text": "decimal-0"}


def do_surrogate(event, context):
    return "half \ud83d"


def do_wait(event, context):
    """Until the test says so."""
    with open(event["fifo"], encoding="ascii") as file:
        return file.read()


class Callable:
    def __call__(self, event, context):
        return "called"


instance = Callable()
