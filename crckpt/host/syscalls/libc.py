"""The C library: one handle for every module that makes system calls which Python has no function for.

A call that fails raises OSError with its errno. The numbers are from asm/unistd_64.h (x86-64) and
asm-generic/unistd.h (all other machines).
"""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Final

# None: what Python itself is linked with. use_errno keeps errno apart from that of Python's own calls.
LIBC: Final = ctypes.CDLL(None, use_errno=True)
# Otherwise ctypes cuts results to 32 bits.
LIBC.syscall.restype = ctypes.c_long

# The kernel gives a call the same number on all machines since 424.
NUMBERS: Final = {
    "pidfd_getfd": 438,
    "openat2": 437,
    "clone3": 435,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "landlock_create_ruleset": 444,
    **(
        {
            "setgroups": 116,
            "pivot_root": 155,
            "keyctl": 250,
            "ioprio_set": 251,
            "ioprio_get": 252,
            "kcmp": 312,
            "sched_setattr": 314,
            "sched_getattr": 315,
            "bpf": 321,
            "userfaultfd": 323,
        }
        if platform.machine() == "x86_64"
        else {
            "ioprio_set": 30,
            "ioprio_get": 31,
            "pivot_root": 41,
            "setgroups": 159,
            "keyctl": 219,
            "kcmp": 272,
            "sched_setattr": 274,
            "sched_getattr": 275,
            "bpf": 280,
            "userfaultfd": 282,
        }
    ),
}


def check(answer: int, path: str | None = None) -> int:
    """Return what a function of the C library returned. Raises OSError if that is negative; `path` is its file name."""
    if answer < 0:
        raise last_error(path)
    return answer


def last_error(path: str | None = None) -> OSError:
    """The error of the last function of LIBC that this thread called."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), *(() if path is None else (path,)))


def syscall(name: str, *arguments: object, path: str | None = None) -> int:
    """Make a system call. Raises OSError; `path` is its file name."""
    # The kernel reads registers of 64 bits; ctypes would fill 32 of them.
    words = (ctypes.c_long(word) if isinstance(word, int) else word for word in arguments)
    return check(LIBC.syscall(ctypes.c_long(NUMBERS[name]), *words), path)


def getsockopt(descriptor: int, level: int, option: int, buffer: object, length: int) -> int:
    """Fill `buffer` with an option that Python's sockets cannot read; return its length. Raises OSError."""
    size = ctypes.c_uint32(length)
    check(LIBC.getsockopt(descriptor, level, option, buffer, ctypes.byref(size)))
    return size.value
