"""What identifies the content of a file: its SHA-256, and the build-id of a program or library."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable
from typing import Final

from crckpt.host.disk.checked_files import open_regular
from crckpt.host.opened import opened

_AT_ONCE: Final = 1 << 20

_PT_NOTE = 4
_NT_GNU_BUILD_ID = 3

# Most bytes of program headers that we read: a file may declare 4 GiB.
_MOST_HEADERS = 1 << 20

# Bytes at the start of a file in which linkers put its headers and its build-id.
_USUALLY = 4096

# No file is as long.
_MOST = 1 << 62


def read_digest(descriptor: int, size: int, report: Callable[[int], None] = lambda _: None) -> str:
    """The digest of an open file, in hexadecimal; empty if it does not have `size` bytes. Raises OSError.

    `report` is called with the number of bytes after each read.
    """
    found = hashlib.sha256()
    position = 0
    # Read one byte more than expected: the file may grow.
    while content := os.pread(descriptor, min(_AT_ONCE, size + 1 - position), position):
        found.update(content)
        position += len(content)
        report(len(content))
        if position > size:
            return ""
    return found.hexdigest() if position == size else ""


def read_build_id(path: str) -> bytes | None:
    """The GNU build-id of a 64-bit little-endian ELF file; None for other files and files without one.

    Layout: elf(5), program headers of type PT_NOTE. Raises OSError if the file cannot be read.
    """
    # The owner of the path may have put a FIFO or a device there.
    descriptor, _ = open_regular(path)
    if descriptor is None:
        return None
    with opened(descriptor):
        start = os.pread(descriptor, _USUALLY, 0)
        if start[:6] != b"\x7fELF\x02\x01" or len(start) < 64:
            return None
        # e_phoff; e_phentsize, e_phnum
        offset, size, count = struct.unpack("<Q", start[32:40]) + struct.unpack("<HH", start[54:58])
        table = _part(descriptor, start, offset, min(size * count, _MOST_HEADERS))
        # An entry has 56 bytes; a damaged file may declare 0, for which range() raises an error.
        for at in range(0, len(table) - 55, size or 1):
            kind, _flags, place, _vaddr, _paddr, length = struct.unpack_from("<IIQQQQ", table, at)
            notes = _part(descriptor, start, place, min(length, 1 << 16)) if kind == _PT_NOTE else b""
            note = 0
            while note + 12 <= len(notes):
                name_length, length, kind = struct.unpack_from("<III", notes, note)
                # Name and content are padded to 4 bytes each.
                content = note + 12 + (name_length + 3) // 4 * 4
                if kind == _NT_GNU_BUILD_ID and notes[note + 12 : note + 12 + name_length] == b"GNU\0":
                    return notes[content : content + length]
                note = content + (length + 3) // 4 * 4
    return None


def _part(descriptor: int, start: bytes, offset: int, length: int) -> bytes:
    """`length` bytes of a file from `offset` on, fewer at its end. `start` was read before."""
    if offset + length <= len(start):
        return start[offset : offset + length]
    return os.pread(descriptor, length, offset) if offset < _MOST else b""
