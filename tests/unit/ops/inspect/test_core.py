"""A process of a checkpoint as a core file."""

from __future__ import annotations

import signal
import struct
from pathlib import Path

import numpy as np
import pytest
import recorded_images
from core_files import notes, programs
from image_sets import open_store, store

from crckpt.errors import UsageError
from crckpt.images.mm import ANON_PRIVATE, GUARD, AddressSpace, Vma
from crckpt.model import PAGE_SIZE
from crckpt.ops.context import Context
from crckpt.ops.inspect.core import core, segments_of
from crckpt.ops.inspect.elf_core import ElfSegment
from crckpt.ops.inspect.memory import Memory, Region
from crckpt.store import Checkpoint, Repository, open_reader
from crckpt.store.format.extents import EXTENT

AT_PAGESZ = 6


@pytest.fixture(scope="module")
def recorded_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Context, Repository, Checkpoint]:
    """A store with the recorded images."""
    base = tmp_path_factory.mktemp("core")
    repository = open_store(base)
    return (
        Context(base / "store"),
        repository,
        store(repository, base, recorded_images.image_set(recorded_images.PAGES)),
    )


@pytest.mark.parametrize("pid", recorded_images.PIDS)
def test_memory_in_a_core_file_is_where_its_headers_say(
    recorded_checkpoint: tuple[Context, Repository, Checkpoint], tmp_path: Path, pid: int
) -> None:
    """The file has every page that can be known, and no other."""
    context, repository, checkpoint = recorded_checkpoint
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
        memory = Memory(reading, recorded_images.process_of(recorded_images.RECORDED, pid))
        known = {
            address: memory.read(address, PAGE_SIZE)
            for vma in _space(pid).vmas
            for address in range(vma.start, vma.end, PAGE_SIZE)
        }
    assert found == {address: page for address, page in known.items() if page}
    assert len({bytes(page) for page in found.values()}) > 10


def test_long_hole_in_memory_is_left_out_of_a_core_file() -> None:
    """A program may reserve more than a file can hold: here 16 TiB, with one page in the middle."""
    start, middle, size = 1 << 40, 9 << 40, 1 << 44
    vma = Vma(start, start + size, 0, 0, 3, 0x22, ANON_PRIVATE)
    held = np.zeros(1, EXTENT)
    held["first"], held["count"] = middle // PAGE_SIZE, 1
    assert list(segments_of(Region(vma, "", held))) == [
        ElfSegment(start, middle - start, 3, False),
        ElfSegment(middle, PAGE_SIZE, 3, True),
        ElfSegment(middle + PAGE_SIZE, start + size - middle - PAGE_SIZE, 3, False),
    ]


def test_guard_region_is_not_written_to_a_core_file() -> None:
    """CRIU lists guard regions again after all maps, so addresses would be out of order."""
    vma = Vma(0x2000, 0x3000, 0, 0, 0, 0, GUARD)
    assert list(segments_of(Region(vma, "", np.empty(0, EXTENT)))) == []


def test_notes_of_a_core_file_are_in_the_order_of_the_kernel(
    recorded_checkpoint: tuple[Context, Repository, Checkpoint], tmp_path: Path
) -> None:
    """The first thread's registers come first; the notes of the process are between its two notes."""
    context, _, checkpoint = recorded_checkpoint
    root = recorded_images.RECORDED.root
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


def test_zombie_has_no_core_file(recorded_checkpoint: tuple[Context, Repository, Checkpoint], tmp_path: Path) -> None:
    """The error says that the process is a zombie."""
    context, _, checkpoint = recorded_checkpoint
    (zombie,) = (process.pid for process in recorded_images.RECORDED.processes if process.memory is None)
    with pytest.raises(UsageError, match="zombie"):
        core(context, checkpoint.id, zombie, tmp_path / "core")
    assert not list(tmp_path.iterdir())


def _space(pid: int) -> AddressSpace:
    memory = recorded_images.process_of(recorded_images.RECORDED, pid).memory
    assert memory is not None
    return memory
