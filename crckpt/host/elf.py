"""The build-id of an ELF file: what tells one build of a program or library from another."""

from __future__ import annotations

import os
import struct
from pathlib import Path

_PT_NOTE = 4
_NT_GNU_BUILD_ID = 3


def build_id(path: str) -> bytes | None:
    """The GNU build-id of a 64-bit little-endian ELF file; None for other files and files without one.

    Layout: elf(5), program headers of type PT_NOTE. Raises OSError if the file cannot be read.
    """
    with Path(path).open("rb") as file:
        header = file.read(64)
        if header[:6] != b"\x7fELF\x02\x01" or len(header) < 64:
            return None
        end = os.fstat(file.fileno()).st_size
        offset, size, count = struct.unpack("<Q", header[32:40]) + struct.unpack("<HH", header[54:58])
        file.seek(min(offset, end))
        table = file.read(size * count)
        for at in range(0, len(table) - 55, size or 1):
            kind, _flags, start, _vaddr, _paddr, length = struct.unpack_from("<IIQQQQ", table, at)
            if kind == _PT_NOTE:
                file.seek(min(start, end))
                if found := _in_notes(file.read(min(length, 1 << 16))):
                    return found
    return None


def _in_notes(notes: bytes) -> bytes | None:
    at = 0
    while at + 12 <= len(notes):
        name_length, length, kind = struct.unpack_from("<III", notes, at)
        name = notes[at + 12 : at + 12 + name_length]
        start = at + 12 + (name_length + 3) // 4 * 4
        if kind == _NT_GNU_BUILD_ID and name == b"GNU\0":
            return notes[start : start + length]
        at = start + (length + 3) // 4 * 4
    return None
