"""Open files of the kernel's own file systems: /proc, /sys, control groups."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.host.syscalls.libc import LIBC, check

# More than struct statfs has.
_SIZE: Final = 256


class KernelFile(Struct, frozen=True):
    """An open file: `magic` of its file system (linux/magic.h), path, `flags` of open(2), and `mode` (st_mode)."""

    magic: int
    path: str
    flags: int
    mode: int


def read_kernel_file(pid: int, fd: int, flags: int) -> KernelFile:
    """Read what a descriptor of a process leads to. Raises OSError."""
    link = Path(f"/proc/{pid}/fd/{fd}")
    return KernelFile(read_magic(f"{link}"), f"{link.readlink()}", flags, link.stat().st_mode)


def read_magic(path: str) -> int:
    """Return the magic number (linux/magic.h) of the file system of what `path` leads to. Raises OSError.

    Source: statfs(2). Links in /proc lead to files that have no other path.
    """
    found = ctypes.create_string_buffer(_SIZE)
    check(LIBC.statfs(os.fsencode(path), found), path)
    return ctypes.c_ulong.from_buffer(found).value & 0xFFFFFFFF
