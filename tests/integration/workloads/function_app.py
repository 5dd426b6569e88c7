"""A Lambda function for tests: its event says what it does."""

import os
import signal
import subprocess
import sys

SECRET = os.environ.pop("SECRET", "")
calls = 0


def handler(event, context):
    global calls
    calls += 1
    return globals()["do_" + event.get("do", "echo")](event, context)


def do_echo(event, context):
    return event


def do_self(event, context):
    return {
        "calls": calls,
        "name": context.function_name,
        "memory": int(context.memory_limit_in_mb),
        "request": context.aws_request_id,
        "remaining": context.get_remaining_time_in_millis(),
        "greeting": os.environ.get("GREETING"),
        "pid": os.getpid(),
        "space": os.readlink("/proc/self/ns/pid"),
        "uid": os.getuid(),
        "folder": os.getcwd(),
    }


def do_wait(event, context):
    """Says that it is in work, and goes on when it is told to."""
    with open(event["began"], "w", encoding="ascii"):
        pass
    with open(event["fifo"], encoding="ascii") as file:
        return {"told": file.read(), "calls": calls}


def do_print(event, context):
    print(event["text"])
    print("to standard error", file=sys.stderr)


def do_raise(event, context):
    raise KeyError(event.get("text", "no such order"))


def do_once_in(event, context):
    """Fails until its file has so many lines."""
    with open(event["file"], "a+", encoding="ascii") as file:
        file.write("x\n")
        file.seek(0)
        if len(file.readlines()) < event["times"]:
            raise RuntimeError("not yet")


def do_exit(event, context):
    sys.exit(event.get("code", 3))


def do_crash(event, context):
    os.kill(os.getpid(), signal.SIGSEGV)


def do_hang(event, context):
    signal.pause()


def do_eat(event, context):
    eaten = []
    while True:
        eaten.append(b"x" * (8 << 20))


def do_large(event, context):
    return "x" * event["bytes"]


def do_daemons(event, context):
    """Processes with sessions of their own, as daemons have them."""
    for _ in range(event["count"]):
        subprocess.Popen(
            ["/usr/bin/python3", "-c", f"import signal; {event['mark']!r}; signal.pause()"], start_new_session=True)
