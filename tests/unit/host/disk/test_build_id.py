"""Build-ids of real ELF files, and nothing worse than None for damaged ones."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from crckpt.host.disk import checked_files

ELF = Path(sys.executable).resolve()


def note(kind: int, name: bytes, content: bytes) -> bytes:
    def padded(data: bytes) -> bytes:
        return data + bytes(-len(data) % 4)

    return struct.pack("<III", len(name), len(content), kind) + padded(name) + padded(content)


def image(*segments: tuple[int, bytes], offset: int = 64, entry: int = 56) -> bytes:
    """A 64-bit little-endian ELF file that has nothing but these (type, content) segments."""
    table, body = b"", b""
    start = 64 + len(segments) * entry
    for kind, content in segments:
        header = struct.pack("<IIQQQQQQ", kind, 4, start + len(body), 0, 0, len(content), len(content), 4)
        table += header.ljust(entry, b"\0")
        body += content
    header = b"\x7fELF\x02\x01\x01".ljust(32, b"\0") + struct.pack("<Q", offset) + bytes(14)
    header += struct.pack("<HH", entry, len(segments))
    return header.ljust(64, b"\0") + table + body


def read(path: Path, data: bytes) -> bytes | None:
    path.write_bytes(data)
    return checked_files.read_build_id(str(path))


def test_build_id_matches_readelf_or_file() -> None:
    found = checked_files.read_build_id(str(ELF))
    assert found is None or len(found) in (8, 16, 20, 32)
    try:
        output = subprocess.run(["readelf", "-n", ELF], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        pytest.skip("no readelf to compare with")
    assert (found.hex() if found else "Build ID") in output or found is None


def test_build_id_is_found_among_other_notes(tmp_path: Path) -> None:
    others = note(1, b"GNU\0", b"abi") + note(3, b"Go\0\0", b"not this") + note(4, b"GNU\0", b"gold 1")
    data = image((1, b"code"), (4, others), (4, note(5, b"GNU\0", b"property") + note(3, b"GNU\0", b"12345")))
    assert read(tmp_path / "elf", data) == b"12345"


def test_build_id_is_read_from_longer_program_headers(tmp_path: Path) -> None:
    assert read(tmp_path / "elf", image((4, note(3, b"GNU\0", b"wide")), (1, b""), entry=64)) == b"wide"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x7fELF",
        b"#!/bin/sh\n" * 20,
        image(),
        image((1, b"code")),
        image((4, note(1, b"GNU\0", b"x"))),
        image((4, note(3, b"GNU\0", b"12345")))[:100],
        image((4, b"\xff" * 40)),
        image((4, note(3, b"GNU\0", b"x")), offset=2**64 - 1),
        image((4, note(3, b"GNU\0", b"x")), offset=2**63 - 1),
        image((4, note(3, b"GNU\0", b"x")), entry=56)[:54] + struct.pack("<HH", 0, 9),
        b"\x7fELF\x01\x01" + image((4, note(3, b"GNU\0", b"32 bit")))[6:],
    ],
    ids=lambda data: f"{len(data)}",
)
def test_build_id_of_a_file_without_one_is_none(tmp_path: Path, data: bytes) -> None:
    assert read(tmp_path / "file", data) is None


def test_build_id_in_a_segment_outside_of_the_file_is_none(tmp_path: Path) -> None:
    data = bytearray(image((4, note(3, b"GNU\0", b"x"))))
    struct.pack_into("<Q", data, 64 + 8, 2**64 - 1)
    assert read(tmp_path / "file", bytes(data)) is None


def test_build_id_of_an_unreadable_file_is_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        checked_files.read_build_id(str(tmp_path / "none"))
    assert checked_files.read_build_id(str(tmp_path)) is None


def test_reading_the_build_id_of_a_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert checked_files.read_build_id(str(tmp_path / "fifo")) is None


def test_huge_program_headers_are_not_read_into_memory(tmp_path: Path) -> None:
    """The header of a sparse file declares 4 GiB of program headers, which costs no disk space."""
    path = tmp_path / "sparse"
    path.write_bytes(image((4, b""), entry=0xFFFF)[:56] + struct.pack("<H", 0xFFFF) + bytes(6))
    os.truncate(path, 8 << 30)
    tracemalloc.start()
    try:
        assert checked_files.read_build_id(str(path)) is None
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
