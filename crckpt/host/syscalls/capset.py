"""Our own capabilities. Source: capset(2), linux/capability.h."""

from __future__ import annotations

import ctypes
from typing import Final

from crckpt.host.syscalls.libc import LIBC, check

_VERSION_3: Final = 0x20080522


def set_capabilities(capabilities: int) -> None:
    """Give this thread exactly these (a set of bits), permitted and effective, none inheritable. Raises OSError."""
    low, high = capabilities & 0xFFFFFFFF, capabilities >> 32 & 0xFFFFFFFF
    # PID 0 is the caller. Version 3 splits each set in two: bits 0 to 31 of all three sets come first.
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    check(LIBC.capset(header, (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)))
