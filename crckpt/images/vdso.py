"""Check a program's vDSO, whose symbol table CRIU trusts.

The program can write to its vDSO. If it is not this kernel's, CRIU's code in the restored process, which still has
root's rights then, writes a jump at each address that the symbol table names (criu/pie/parasite-vdso.c). So the table
must name no address outside of the vDSO, and CRIU must be able to read it to its end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

# What CRIU writes at a symbol (criu/arch/x86/vdso-pie.c).
_JUMP_BYTES: Final = 16

_LOAD, _DYNAMIC = 1, 2
_END, _HASH, _STRINGS, _SYMBOLS = 0, 4, 5, 6
_GNU_HASH: Final = 0x6FFFFEF5


class _Layout(Struct, frozen=True):
    """Where an ELF file of one class has what CRIU reads: formats of struct(3), and sizes in bytes (elf(5))."""

    header: str
    program: str
    entry: str
    symbol: str
    word: int


# By EI_CLASS. header: e_phoff, e_phnum. program: p_type, p_offset, p_vaddr, p_filesz. symbol: st_value.
_LAYOUTS: Final = {
    1: _Layout("<28xI12xH6x", "<3I4xI12x", "<iI", "<4xI8x", 4),
    2: _Layout("<32xQ16xH6x", "<I4x2Q8xQ16x", "<qQ", "<8xQ8x", 8),
}


def is_sound(content: bytes) -> bool:
    """Return whether CRIU can read the vDSO, and each symbol lies inside it, with room for CRIU's jump."""
    try:
        if content[:4] != b"\x7fELF":
            return False
        layout = _LAYOUTS[content[4]]
        base, entries = _read_entries(content, layout)
        symbols = entries[_SYMBOLS] - base
        # CRIU takes the first if there are both.
        if _HASH in entries:
            found = _read_hash(content, entries[_HASH] - base)
        else:
            found = _read_gnu_hash(content, entries[_GNU_HASH] - base, layout.word)
        seen: set[int] = set()
        for number in found:
            (value,) = _read(content, layout.symbol, symbols + number * struct.calcsize(layout.symbol))
            # A symbol that comes again is of a list without end.
            if number in seen or (value and not 0 <= value - base <= len(content) - _JUMP_BYTES):
                return False
            seen.add(number)
    # Something is missing, or leads out of the vDSO.
    except (LookupError, ValueError):
        return False
    return True


def _read(content: bytes, form: str, offset: int) -> tuple[int, ...]:
    if not 0 <= offset <= len(content) - struct.calcsize(form):
        raise ValueError("outside of the vDSO")
    return struct.unpack_from(form, content, offset)


def _read_entries(content: bytes, layout: _Layout) -> tuple[int, dict[int, int]]:
    """Read the address for which the vDSO was linked, and its dynamic entries, of each tag the last."""
    offset, count = _read(content, layout.header, 0)
    headers = [
        _read(content, layout.program, offset + number * struct.calcsize(layout.program)) for number in range(count)
    ]
    ((_, _, base, _),) = (header for header in headers if header[0] == _LOAD)
    ((_, offset, _, length),) = (header for header in headers if header[0] == _DYNAMIC)
    entries: dict[int, int] = {}
    size = struct.calcsize(layout.entry)
    for number in range(length // size):
        tag, value = _read(content, layout.entry, offset + number * size)
        if tag == _END:
            break
        entries[tag] = value
    if not 0 <= entries[_STRINGS] - base < len(content):
        raise ValueError("its names are outside of the vDSO")
    return base, entries


def _read_hash(content: bytes, offset: int) -> Iterator[int]:
    """Yield the numbers of the symbols to which a table of DT_HASH leads."""
    buckets, chains = _read(content, "<2I", offset)
    words = _read(content, f"<{buckets + chains}I", offset + 8)
    if not buckets:
        raise ValueError("CRIU would divide by 0")
    for number in words[:buckets]:
        while 0 < number < chains:
            yield number
            number = words[buckets + number]


def _read_gnu_hash(content: bytes, offset: int, word: int) -> Iterator[int]:
    """Yield the numbers of the symbols to which a table of DT_GNU_HASH leads."""
    buckets, first, blooms = _read(content, "<3I", offset)
    begin = offset + 16 + word * blooms
    if not buckets:
        raise ValueError("CRIU would divide by 0")
    for number in _read(content, f"<{buckets}I", begin):
        while number:
            yield number
            (last,) = _read(content, "<I", begin + 4 * (buckets + number - first))
            number = 0 if last & 1 else number + 1
