"""Core files: their layout byte by byte, and the recorded images as core files, with pages made for the tests."""

from __future__ import annotations

import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import recorded
from image_sets import opened, store

from crckpt.errors import UsageError
from crckpt.images.mm import ANON_PRIVATE, GUARD, AddressSpace, Vma
from crckpt.model import PAGE_SIZE
from crckpt.ops.context import Context
from crckpt.ops.inspect import elf_core
from crckpt.ops.inspect.core import core, segments_of
from crckpt.ops.inspect.elf_core import Ids, MappedFile, Segment, layout, note
from crckpt.ops.inspect.memory import Memory, Region
from crckpt.store import Checkpoint, Repository, open_reader
from crckpt.store.format.extents import EXTENT

AT_PAGESZ = 6


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
    """All of them, as elf(5) has them."""
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


def test_layout() -> None:
    """A segment that is not in the file takes no space there; memory begins at page boundaries."""
    segments = (Segment(0x1000, 0x2000, 5, True), Segment(0x5000, 0x1000, 0, False), Segment(0x8000, 0x1000, 3, True))
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


def test_more_segments_than_16_bits_can_count(tmp_path: Path) -> None:
    """readelf finds them all."""
    many = 70_000
    made = layout([Segment(at * 2 * PAGE_SIZE, PAGE_SIZE, 1, False) for at in range(1, many + 1)], note(1, b""))
    assert len(programs(made.head)) == many + 1
    if (readelf := shutil.which("readelf")) is None:
        pytest.skip("readelf is not installed")
    (file := tmp_path / "core").write_bytes(made.head)
    said = subprocess.run([readelf, "--program-headers", file], capture_output=True, text=True, check=True)
    assert sum(line.startswith("  LOAD ") for line in said.stdout.splitlines()) == many
    assert said.stderr == ""


def test_notes() -> None:
    """Sizes and offsets are those of the kernel's structures."""
    ids = Ids(10, 9, 8, 7)
    status = elf_core.prstatus(ids, range(27), (), (1, 64))
    assert len(status) == 336
    assert struct.unpack_from("<QQ4i", status, 16) == (0, 1 | 1 << 63, 10, 9, 8, 7)
    assert struct.unpack_from("<27Qi", status, 112) == (*range(27), 1)
    info = elf_core.prpsinfo(ids, (1, 2), "name of 16 bytes", b"a\0b\0")
    assert len(info) == 136
    assert struct.unpack_from("<6I", info, 16) == (1, 2, 10, 9, 8, 7)
    assert elf_core.prstatus(ids, range(27), (0, 65), ())[16:24] == bytes(8)
    assert (info[40:56], info[56:60]) == (b"name of 16 byte\0", b"a b\0")
    files = elf_core.make_file_note([MappedFile(0x1000, 0x3000, 0x2000, "/a"), MappedFile(0x4000, 0x5000, 0, "/b c")])
    assert struct.unpack_from("<8Q", files) == (2, PAGE_SIZE, 0x1000, 0x3000, 2, 0x4000, 0x5000, 0)
    assert files[64:] == b"/a\0/b c\0"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Context, Repository, Checkpoint]:
    """A store with the recorded images."""
    base = tmp_path_factory.mktemp("core")
    repository = opened(base)
    return Context(base / "store"), repository, store(repository, base, recorded.image_set(recorded.PAGES))


@pytest.mark.parametrize("pid", recorded.PIDS)
def test_memory_is_where_the_headers_say(
    whole: tuple[Context, Repository, Checkpoint], tmp_path: Path, pid: int
) -> None:
    """The file has every page that can be known, and no other."""
    context, repository, checkpoint = whole
    result = core(context, checkpoint.id, pid, tmp_path / "core")
    content = result.path.read_bytes()
    assert len(content) == result.size
    loads = [program for program in programs(content) if program.kind == 1]
    found = {
        load.address + at: content[load.offset + at : load.offset + at + PAGE_SIZE]
        for load in loads
        for at in range(0, load.file_size, PAGE_SIZE)
    }
    assert sum(load.size for load in loads) == sum(vma.size for vma in _space(pid).vmas)
    with open_reader(repository, checkpoint) as reading:
        memory = Memory(reading, recorded.process_of(recorded.RECORDED, pid))
        known = {
            address: memory.read(address, PAGE_SIZE)
            for vma in _space(pid).vmas
            for address in range(vma.start, vma.end, PAGE_SIZE)
        }
    assert found == {address: page for address, page in known.items() if page}
    assert len({bytes(page) for page in found.values()}) > 10


def test_a_long_hole_is_left_out() -> None:
    """A program may reserve more than a file can hold: here 16 TiB, with one page in the middle."""
    start, middle, size = 1 << 40, 9 << 40, 1 << 44
    vma = Vma(start, start + size, 0, 0, 3, 0x22, ANON_PRIVATE)
    held = np.zeros(1, EXTENT)
    held["first"], held["count"] = middle // PAGE_SIZE, 1
    assert list(segments_of(Region(vma, "", held))) == [
        Segment(start, middle - start, 3, False),
        Segment(middle, PAGE_SIZE, 3, True),
        Segment(middle + PAGE_SIZE, start + size - middle - PAGE_SIZE, 3, False),
    ]


def test_a_guard_is_no_map() -> None:
    """CRIU lists it again after all maps, so addresses would be out of order."""
    vma = Vma(0x2000, 0x3000, 0, 0, 0, 0, GUARD)
    assert list(segments_of(Region(vma, "", np.empty(0, EXTENT)))) == []


def test_threads_and_the_process_in_the_kernels_order(
    whole: tuple[Context, Repository, Checkpoint], tmp_path: Path
) -> None:
    """The first thread's registers come first; the notes of the process are between its two notes."""
    context, _, checkpoint = whole
    root = recorded.RECORDED.root
    found = list(notes(core(context, checkpoint.id, None, tmp_path / "core").path.read_bytes()))
    assert [kind for kind, _ in found] == [1, 3, 6, 0x46494C45, 2, 0x202, 1, 2, 0x202]
    leader, other = (content for kind, content in found if kind == 1)
    assert [struct.unpack_from("<i", content, 32)[0] for content in (leader, other)] == [
        thread.tid for thread in root.threads
    ]
    assert struct.unpack_from("<Q", leader, 24) == (1 << signal.SIGUSR1 - 1,)
    auxv = dict(found)[6]
    vector = dict(struct.iter_unpack("<QQ", auxv))
    assert vector[AT_PAGESZ] == PAGE_SIZE
    ip, sp = (struct.unpack_from("<Q", leader, 112 + 8 * at)[0] for at in (16, 19))
    maps = {vma.kind: vma for vma in _space(root.pid).vmas if vma.start <= ip < vma.end or vma.start <= sp < vma.end}
    assert set(maps) == {"private file", "stack"}


def test_extended_registers() -> None:
    """Each component is where Intel's CPUs have it. Two masks come first: components present, and in use."""
    extended = ((2, b"y" * 256), (5, b"k" * 64), (9, b"p" * 8))
    area = elf_core.xstate(bytes(range(256)) * 2, extended, 0xFFFF)
    assert (area[:464], len(area)) == ((bytes(range(256)) * 2)[:464], 2696)
    there = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 5 | 1 << 9
    assert (struct.unpack_from("<Q", area, 464), struct.unpack_from("<8Q", area, 512)) == ((there,), (there, *[0] * 7))
    assert [area[at : at + len(content)] for at, (_, content) in zip((576, 1088, 2688), extended, strict=True)] == [
        content for _, content in extended
    ]


def test_a_zombie_has_no_core_file(whole: tuple[Context, Repository, Checkpoint], tmp_path: Path) -> None:
    """The error says why."""
    context, _, checkpoint = whole
    (zombie,) = (process.pid for process in recorded.RECORDED.processes if process.memory is None)
    with pytest.raises(UsageError, match="zombie"):
        core(context, checkpoint.id, zombie, tmp_path / "core")
    assert not list(tmp_path.iterdir())


def _space(pid: int) -> AddressSpace:
    memory = recorded.process_of(recorded.RECORDED, pid).memory
    assert memory is not None
    return memory
