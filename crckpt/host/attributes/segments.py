"""Segments of a process's own (LDT): read and set them by modify_ldt(2) in it. Wine and old emulators have some.

Source: modify_ldt(2); asm/ldt.h; arch/x86/include/asm/desc.h: fill_ldt.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from crckpt.host.syscalls import ptrace

_MODIFY_LDT, _MMAP, _MUNMAP = 154, 9, 11
_READ, _WRITE = 0, 0x11
_ENTRY: Final = struct.Struct("<II")
_USER_ENTRY: Final = struct.Struct("<IIII")  # struct user_desc: number, base, limit, flags
_BYTES: Final = 8192 * _ENTRY.size


def read_segments(thread: ptrace.StoppedThread, pid: int) -> tuple[int, ...]:
    """Number and both words of each segment. Those of 32-bit programs are not read."""
    # Without a place for them the kernel refuses only what it has.
    if thread.is_compat or _modify(thread, _READ, 0, _BYTES) != -errno.EFAULT:
        return ()
    access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = thread.system_call(_MMAP, 0, _BYTES, access, flags, -1, 0)
    if address < 0:
        return ()
    try:
        size = max(0, _modify(thread, _READ, address, _BYTES))
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            content = memory.read(size)
    finally:
        thread.system_call(_MUNMAP, address, _BYTES)
    entries = enumerate(_ENTRY.iter_unpack(content[: len(content) // _ENTRY.size * _ENTRY.size]))
    return tuple(word for number, (low, high) in entries if low or high for word in (number, low, high))


def set_segments(thread: ptrace.StoppedThread, *value: int) -> int:
    """Make these segments again. A negative number is an error."""
    for entry in _user_entries(value):
        with thread.lent(entry) as address:
            if (found := _modify(thread, _WRITE, address, len(entry))) < 0:
                return found
    return 0


def _modify(thread: ptrace.StoppedThread, *arguments: int) -> int:
    # The kernel returns 32 bits.
    return ctypes.c_int32(thread.system_call(_MODIFY_LDT, *arguments)).value


def _user_entries(value: tuple[int, ...]) -> Iterator[bytes]:
    for number, low, high in zip(*[iter(value)] * 3, strict=True):
        base = low >> 16 & 0xFFFF | (high & 0xFF) << 16 | high & 0xFF000000
        limit = low & 0xFFFF | high & 0xF0000
        # In this order: 32 bits, contents (2), read only, limit in pages, not present, usable, 64 bits.
        flags = (
            *(high >> 22 & 1, high >> 10 & 1, high >> 11 & 1, ~high >> 9 & 1),
            *(high >> 23 & 1, ~high >> 15 & 1, high >> 20 & 1, high >> 21 & 1),
        )
        yield _USER_ENTRY.pack(number, base, limit, sum(flag << bit for bit, flag in enumerate(flags)))
