"""Core files, taken apart."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Program:
    """A program header."""

    kind: int
    flags: int
    offset: int
    address: int
    file_size: int
    size: int
    align: int


def programs(content: bytes) -> list[Program]:
    """All program headers, as elf(5) defines them."""
    at, sections_at = struct.unpack_from("<QQ", content, 32)
    size, number = struct.unpack_from("<HH", content, 54)
    if number == 0xFFFF:
        (number,) = struct.unpack_from("<I", content, sections_at + 44)
    rows = (struct.unpack_from("<IIQQQQQQ", content, at + size * index) for index in range(number))
    return [Program(row[0], row[1], row[2], row[3], row[5], row[6], row[7]) for row in rows]


def notes(content: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, content) of all notes."""
    (place,) = (program for program in programs(content) if program.kind == 4)
    at = place.offset
    while at < place.offset + place.file_size:
        name, size, kind = struct.unpack_from("<III", content, at)
        assert content[at + 12 : at + 12 + name] == (b"LINUX\0" if kind == 0x202 else b"CORE\0")
        yield kind, content[at + 20 : at + 20 + size]
        at += 20 + -(-size // 4) * 4
