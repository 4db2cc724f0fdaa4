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

# On x86-64, and on all other machines.
_NUMBERS: Final = {
    "setgroups": (116, 159),
    "pivot_root": (155, 41),
    "keyctl": (250, 219),
    "ioprio_set": (251, 30),
    "ioprio_get": (252, 31),
    "kcmp": (312, 272),
    "sched_setattr": (314, 274),
    "sched_getattr": (315, 275),
    "bpf": (321, 280),
    "execveat": (322, 281),
    "userfaultfd": (323, 282),
}
_PLACE: Final = 0 if platform.machine() == "x86_64" else 1
# The kernel gives a call the same number on all machines since 424.
NUMBERS: Final = {name: numbers[_PLACE] for name, numbers in _NUMBERS.items()} | {
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "clone3": 435,
    "openat2": 437,
    "pidfd_getfd": 438,
    "landlock_create_ruleset": 444,
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
