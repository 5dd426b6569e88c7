"""Runs a command that may not make one of the system calls, as under the seccomp profile of a container:

    forbid_call.py CALL COMMAND [ARGUMENT...]

CALL fails with EPERM in it and in all that it starts: process_vm_readv, which reads the memory of other
processes, or io_uring_setup.
"""

import ctypes
import errno
import os
import struct
import sys

_NUMBERS = {
    "process_vm_readv": {"x86_64": 310, "aarch64": 270},
    "io_uring_setup": {"x86_64": 425, "aarch64": 425},
}
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
# Of <linux/bpf_common.h>: load a word of the system call's data, compare, return.
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def main():
    instructions = (
        (_LOAD, 0, 0, 0),
        (_JUMP_IF_EQUAL, 0, 1, _NUMBERS[sys.argv[1]][os.uname().machine]),
        (_RETURN, 0, 0, _FAIL | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    )
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    program = _Program(len(instructions), code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    os.execvp(sys.argv[2], sys.argv[2:])


def prefix(call):
    return [sys.executable, os.path.abspath(__file__), call]


if __name__ == "__main__":
    main()
