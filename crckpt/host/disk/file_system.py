"""The kind of a file system."""

from __future__ import annotations

import ctypes
import os
from typing import Final

from crckpt.host.syscalls.libc import LIBC, check

# More than struct statfs has.
_SIZE: Final = 256


def read_magic(path: str) -> int:
    """Return the magic number (linux/magic.h) of the file system of what `path` leads to. Raises OSError.

    Source: statfs(2). Links in /proc lead to files that have no other path.
    """
    found = ctypes.create_string_buffer(_SIZE)
    check(LIBC.statfs(os.fsencode(path), found), path)
    return ctypes.c_ulong.from_buffer(found).value & 0xFFFFFFFF
