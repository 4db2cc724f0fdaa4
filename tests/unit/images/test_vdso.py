"""A vDSO is sound if CRIU can read its symbols to their end, and all of them lie inside it."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crckpt.images.vdso import is_sound

DYNAMIC, HASH, STRINGS, SYMBOLS, GNU_HASH = 2, 4, 5, 6, 0x6FFFFEF5
OTHER: Final = 0x7FFF0000
"""A tag that CRIU does not look for."""


def own_vdso() -> bytes:
    """The vDSO of this process, as the kernel gave it."""
    (line,) = (line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[vdso]"))
    start, end = (int(address, 16) for address in line.split()[0].split("-"))
    return ctypes.string_at(start, end - start)


VDSO: Final = own_vdso()


def dynamic() -> dict[int, int]:
    """Where each entry of the dynamic section stands, by its tag."""
    programs, count = struct.unpack_from("<32xQ16xH", VDSO)
    headers = [struct.unpack_from("<I4xQ", VDSO, programs + 56 * number) for number in range(count)]
    (begin,) = (offset for kind, offset in headers if kind == DYNAMIC)
    places: dict[int, int] = {}
    while tag := struct.unpack_from("<q", VDSO, begin)[0]:
        places[tag] = begin
        begin += 16
    return places


PLACES: Final = dynamic()


def changed(*changes: tuple[int, str, int]) -> bytes:
    """The vDSO with numbers of these formats at these offsets."""
    content = bytearray(VDSO)
    for offset, form, value in changes:
        struct.pack_into(form, content, offset, value)
    return bytes(content)


def offset_of(tag: int) -> int:
    return int(struct.unpack_from("<q", VDSO, PLACES[tag] + 8)[0])


def values() -> list[int]:
    """Where the addresses of all functions stand."""
    begin = offset_of(SYMBOLS)
    numbers = range(1, (offset_of(STRINGS) - begin) // 24)
    return [at for number in numbers if struct.unpack_from("<Q", VDSO, at := begin + 24 * number + 8)[0]]


def test_vdso_of_the_running_kernel_is_sound() -> None:
    assert is_sound(VDSO)
    assert len(values()) > 4


@pytest.mark.parametrize("address", [len(VDSO), len(VDSO) - 15, 2**63, 2**64 - 1])
def test_vdso_with_a_symbol_outside_of_it_is_not_sound(address: int) -> None:
    assert not any(is_sound(changed((at, "<Q", address))) for at in values())


def test_vdso_with_a_symbol_anywhere_inside_is_sound() -> None:
    assert is_sound(changed((values()[0], "<Q", len(VDSO) - 16)))


def without_hash() -> tuple[int, str, int]:
    """The change after which CRIU takes the other table."""
    return PLACES[HASH], "<q", OTHER


@pytest.mark.skipif(HASH not in PLACES or GNU_HASH not in PLACES, reason="this kernel's vDSO has only one table")
def test_both_hash_tables_of_symbols_of_a_vdso_are_read() -> None:
    assert is_sound(changed(without_hash()))
    assert not any(is_sound(changed(without_hash(), (at, "<Q", 1 << 40))) for at in values())
    assert not is_sound(changed(without_hash(), (PLACES[GNU_HASH], "<q", OTHER)))


@pytest.mark.skipif(HASH not in PLACES, reason="this kernel's vDSO has no such table")
def test_vdso_with_an_endless_chain_of_symbols_is_not_sound() -> None:
    begin = offset_of(HASH)
    buckets, _ = struct.unpack_from("<2I", VDSO, begin)
    first = struct.unpack_from(f"<{buckets}I", VDSO, begin + 8)[0]
    assert not is_sound(changed((begin + 8 + 4 * (buckets + first), "<I", first)))
    assert not is_sound(changed((begin, "<I", 0)))


def test_content_that_is_not_a_vdso_is_not_sound() -> None:
    assert not any(map(is_sound, (b"", bytes(len(VDSO)), VDSO[:100], VDSO[:1024], b"\x7fELF\x03" + VDSO[5:])))


@given(st.lists(st.tuples(st.integers(0, 0x500), st.binary(min_size=1, max_size=8)), max_size=6))
def test_check_of_a_vdso_ends_for_any_content(changes: list[tuple[int, bytes]]) -> None:
    content = bytearray(VDSO)
    for at, written in changes:
        content[at : at + len(written)] = written
    assert is_sound(bytes(content)) in (True, False)
