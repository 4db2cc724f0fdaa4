"""Core files: their layout byte by byte, and the recorded images as core files, with pages made for the tests."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from core_files import notes, programs

from crckpt.model import PAGE_SIZE
from crckpt.ops.inspect import elf_core
from crckpt.ops.inspect.elf_core import ElfSegment, layout, note


def test_segments_of_a_core_file_begin_at_page_boundaries() -> None:
    """A segment without content takes no space in the file."""
    segments = (
        ElfSegment(0x1000, 0x2000, 5, True),
        ElfSegment(0x5000, 0x1000, 0, False),
        ElfSegment(0x8000, 0x1000, 3, True),
    )
    made = layout(segments, note(1, b"abcde"))
    assert made.head[:7] == b"\x7fELF\x02\x01\x01"
    assert struct.unpack_from("<HHI", made.head, 16) == (4, 62, 1)
    noted, *loads = programs(made.head)
    assert noted.offset + noted.file_size == len(made.head)
    assert list(notes(made.head)) == [(1, b"abcde")]
    assert [(load.address, load.file_size, load.size) for load in loads] == [
        (0x1000, 0x2000, 0x2000),
        (0x5000, 0, 0x1000),
        (0x8000, 0x1000, 0x1000),
    ]
    assert [load.flags for load in loads] == [4 | 1, 0, 4 | 2]
    assert tuple(load.offset for load in loads) == made.offsets == (0x1000, 0x3000, 0x3000)
    assert made.size == 0x4000
    assert {load.align for load in loads} == {PAGE_SIZE}


def test_readelf_finds_more_segments_than_16_bits_can_count(tmp_path: Path) -> None:
    many = 70_000
    made = layout([ElfSegment(at * 2 * PAGE_SIZE, PAGE_SIZE, 1, False) for at in range(1, many + 1)], note(1, b""))
    assert len(programs(made.head)) == many + 1
    if (readelf := shutil.which("readelf")) is None:
        pytest.skip("readelf is not installed")
    (file := tmp_path / "core").write_bytes(made.head)
    result = subprocess.run([readelf, "--program-headers", file], capture_output=True, text=True, check=True)
    assert sum(line.startswith("  LOAD ") for line in result.stdout.splitlines()) == many
    assert result.stderr == ""


def test_notes_of_a_core_file_have_the_layout_of_the_kernel() -> None:
    """Sizes and offsets are those of the kernel's structures."""
    ids = (10, 9, 8, 7)
    status = elf_core.prstatus(ids, range(27), (), (1, 64))
    assert len(status) == 336
    assert struct.unpack_from("<QQ4i", status, 16) == (0, 1 | 1 << 63, 10, 9, 8, 7)
    assert struct.unpack_from("<27Qi", status, 112) == (*range(27), 1)
    info = elf_core.prpsinfo(ids, (1, 2), "name of 16 bytes", b"a\0b\0")
    assert len(info) == 136
    assert struct.unpack_from("<6I", info, 16) == (1, 2, 10, 9, 8, 7)
    assert elf_core.prstatus(ids, range(27), (0, 65), ())[16:24] == bytes(8)
    assert (info[40:56], info[56:60]) == (b"name of 16 byte\0", b"a b\0")
    files = elf_core.make_file_note([(0x1000, 0x3000, 0x2000, "/a"), (0x4000, 0x5000, 0, "/b c")])
    assert struct.unpack_from("<8Q", files) == (2, PAGE_SIZE, 0x1000, 0x3000, 2, 0x4000, 0x5000, 0)
    assert files[64:] == b"/a\0/b c\0"


def test_extended_registers_in_a_core_file_are_at_their_offsets() -> None:
    """The offsets are those of Intel CPUs. Two masks come first: components present and in use."""
    extended = ((2, b"y" * 256), (5, b"k" * 64), (9, b"p" * 8))
    area = elf_core.xstate(bytes(range(256)) * 2, extended, 0xFFFF)
    assert (area[:464], len(area)) == ((bytes(range(256)) * 2)[:464], 2696)
    there = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 5 | 1 << 9
    assert (struct.unpack_from("<Q", area, 464), struct.unpack_from("<8Q", area, 512)) == ((there,), (there, *[0] * 7))
    assert [area[at : at + len(content)] for at, (_, content) in zip((576, 1088, 2688), extended, strict=True)] == [
        content for _, content in extended
    ]
