"""Pages that are set apart come to the processes they belong to, and all others are still in the images."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from image_sets import Area, ImageSet, area, flip, open_store, packs, page, store
from smaller_bounds import smaller_bounds

from crckpt.errors import IntegrityError
from crckpt.host.syscalls.process_vm import MOST_BYTES, MOST_ROWS, can_write_memory
from crckpt.images.pagemap import PageMap, read_pagemap
from crckpt.images.private_memory import MemoryRange
from crckpt.model import PAGE_SIZE
from crckpt.store import Checkpoint, Repository, open_reader
from crckpt.store.format.pack import FRAME_SIZE
from crckpt.store.read import write_to_memory
from crckpt.store.read.contents import contents_of
from crckpt.store.read.frames import UnpackedFrames
from crckpt.store.read.reader import Reader

PAGES = 600
NAME = "pagemap-1.img"


class Memory:
    """Pages of another process."""

    def __init__(self) -> None:
        memory = mmap.mmap(-1, PAGES * PAGE_SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.first = ctypes.addressof(ctypes.c_char.from_buffer(memory)) // PAGE_SIZE
        self.pid = os.fork()
        if not self.pid:
            signal.pause()
            os._exit(0)

    def read(self) -> list[bytes]:
        """The memory at an address."""
        with Path(f"/proc/{self.pid}/mem").open("rb", buffering=0) as memory:
            memory.seek(self.first * PAGE_SIZE)
            content = memory.read(PAGES * PAGE_SIZE)
        return [content[at : at + PAGE_SIZE] for at in range(0, len(content), PAGE_SIZE)]

    def end(self) -> None:
        """End the process; a second call does nothing."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


@contextmanager
def processes(count: int) -> Iterator[list[Memory]]:
    """So many processes with empty memory."""
    memories = [Memory() for _ in range(count)]
    try:
        yield memories
    finally:
        for memory in memories:
            memory.end()


def areas(first: int, numbers: list[int | None]) -> list[Area]:
    """An area for each present page."""
    return [area(first + at, number) for at, number in enumerate(numbers) if number is not None]


def apart(first: int, ranges: list[tuple[int, int]]) -> tuple[MemoryRange, ...]:
    """Ranges of pages (from, to) that are set apart."""
    return tuple(MemoryRange((first + low) * PAGE_SIZE, (first + high) * PAGE_SIZE, False) for low, high in ranges)


def image(reading: Reader, name: str) -> bytes:
    """What CRIU would read."""
    parts = reading.image(name)
    assert parts is not None
    return b"".join(bytes(part) for part in parts)


def left(reading: Reader, name: str, pages: str) -> dict[int, bytes]:
    """The pages that CRIU would read, by their numbers."""
    pagemap: PageMap = read_pagemap(image(reading, name))
    content = image(reading, pages)
    assert len(content) == pagemap.present * PAGE_SIZE
    numbers = [entry.vaddr // PAGE_SIZE + nth for entry in pagemap.entries for nth in range(entry.pages)]
    return {number: content[at * PAGE_SIZE : (at + 1) * PAGE_SIZE] for at, number in enumerate(numbers)}


def test_kernel_supports_writes_to_the_memory_of_a_process() -> None:
    assert can_write_memory()


def test_writes_to_memory_respect_the_kernel_limit() -> None:
    assert write_to_memory._RUNS_AT_ONCE <= MOST_ROWS  # noqa: SLF001
    assert write_to_memory._RUNS_AT_ONCE * FRAME_SIZE <= MOST_BYTES  # noqa: SLF001


numbers = st.lists(st.one_of(st.none(), st.just(0), st.integers(1, 300)), min_size=1, max_size=PAGES)
bounds = st.lists(st.integers(0, PAGES), max_size=8, unique=True).map(sorted)


@settings(max_examples=examples(25))
@given(
    contents=st.lists(st.tuples(numbers, bounds), min_size=1, max_size=3),
    ahead=st.integers(0, 3),
    kept=st.sampled_from(("nothing", "older", "all")),
)
def test_every_page_is_written_to_memory_or_left_to_criu(
    tmp_path_factory: pytest.TempPathFactory, contents: list[tuple[list[int | None], list[int]]], ahead: int, kept: str
) -> None:
    """Several processes have equal pages, or pages in older packs, with little space for unpacked frames.

    None, all, or the frames of an older checkpoint are unpacked before.
    """
    base = tmp_path_factory.mktemp("placed")
    repository = open_store(base)
    older = store(repository, base, ImageSet({NAME: [area(0, *range(1, 300, 3))]}))
    few = smaller_bounds(write_to_memory, _MOST_AHEAD=ahead, FRAMES_AT_ONCE=1, _RUNS_AT_ONCE=3, _EXTENTS_AT_ONCE=5)
    with processes(len(contents)) as memories, few:
        names = [f"pagemap-{number}.img" for number in range(1, len(contents) + 1)]
        checkpoint = store(
            repository,
            base,
            ImageSet(
                {
                    name: areas(memory.first, pages)
                    for name, memory, (pages, _) in zip(names, memories, contents, strict=True)
                }
            ),
        )
        own = {
            name: list(zip(edges[::2], edges[1::2], strict=False))
            for name, (_, edges) in zip(names, contents, strict=True)
        }
        done: list[int] = []
        unpacked = UnpackedFrames(0)
        if kept != "nothing":
            unpacked.begin(contents_of(repository, checkpoint if kept == "all" else older))
            unpacked.wait()
            unpacked.stop()
        with open_reader(repository, checkpoint, unpacked) as reading:
            placed = reading.set_apart(
                {name: apart(memory.first, own[name]) for name, memory in zip(names, memories, strict=True)}
            )
            placed.begin()
            placed.fill({name: memory.pid for name, memory in zip(names, memories, strict=True)}, done.append)
            for number, (name, memory) in enumerate(zip(names, memories, strict=True), 1):
                pages = contents[number - 1][0]
                there = {at: page(which) for at, which in enumerate(pages) if which is not None}
                is_apart = {at for low, high in own[name] for at in range(low, high)}
                expected = {memory.first + at: content for at, content in there.items() if at not in is_apart}
                assert left(reading, name, f"pages-{number}.img") == expected
                assert memory.read() == [there.get(at, page(0)) if at in is_apart else page(0) for at in range(PAGES)]
        assert sum(done) <= placed.bytes


@pytest.fixture
def checkpoint(tmp_path: Path) -> Iterator[tuple[Repository, Checkpoint, Memory]]:
    """Many pages, all of one process."""
    with processes(1) as (memory,):
        repository = open_store(tmp_path)
        yield repository, store(repository, tmp_path, ImageSet({NAME: [area(memory.first, *range(1, PAGES))]})), memory


@pytest.mark.parametrize("ahead", [True, False])
def test_damaged_frame_is_found_when_it_is_written_to_memory(
    checkpoint: tuple[Repository, Checkpoint, Memory], ahead: bool
) -> None:
    repository, stored, memory = checkpoint
    (pack,) = packs(repository)
    with open_reader(repository, stored) as reading:
        placed = reading.set_apart({NAME: apart(memory.first, [(0, PAGES)])})
        flip(pack, pack.stat().st_size // 3)
        if ahead:
            placed.begin()
        with pytest.raises(IntegrityError, match=rf"checkpoint {stored.short_id} is damaged: pack .*frame .*SHA-256"):
            placed.fill({NAME: memory.pid}, lambda _more: None)


def unpack_before(repository: Repository, stored: Checkpoint, reserved: int = 0) -> UnpackedFrames:
    """All frames of a checkpoint's memory."""
    unpacked = UnpackedFrames(reserved)
    unpacked.begin(contents_of(repository, stored))
    # `stop` would drop frames whose unpacking has not begun.
    unpacked.wait()
    unpacked.stop()
    return unpacked


def test_frames_unpacked_before_are_not_read_again(checkpoint: tuple[Repository, Checkpoint, Memory]) -> None:
    repository, stored, memory = checkpoint
    unpacked = unpack_before(repository, stored)
    (pack,) = packs(repository)
    with open_reader(repository, stored, unpacked) as reading:
        flip(pack, pack.stat().st_size // 3)
        reading.set_apart({NAME: apart(memory.first, [(0, PAGES)])}).fill({NAME: memory.pid}, lambda _more: None)
    assert memory.read()[: PAGES - 1] == [page(number) for number in range(1, PAGES)]


def test_damaged_frames_are_not_unpacked_before(checkpoint: tuple[Repository, Checkpoint, Memory]) -> None:
    repository, stored, memory = checkpoint
    (pack,) = packs(repository)
    flip(pack, pack.stat().st_size // 3)
    unpacked = unpack_before(repository, stored)
    with (
        open_reader(repository, stored, unpacked) as reading,
        pytest.raises(IntegrityError, match=rf"checkpoint {stored.short_id} is damaged: pack .*frame .*SHA-256"),
    ):
        reading.set_apart({NAME: apart(memory.first, [(0, PAGES)])}).fill({NAME: memory.pid}, lambda _more: None)


def test_no_frame_is_unpacked_before_without_space(checkpoint: tuple[Repository, Checkpoint, Memory]) -> None:
    repository, stored, memory = checkpoint
    unpacked = unpack_before(repository, stored, reserved=1 << 60)
    (pack,) = packs(repository)
    with open_reader(repository, stored, unpacked) as reading:
        placed = reading.set_apart({NAME: apart(memory.first, [(0, PAGES)])})
        flip(pack, pack.stat().st_size // 3)
        with pytest.raises(IntegrityError):
            placed.fill({NAME: memory.pid}, lambda _more: None)


def test_ended_process_is_an_error(checkpoint: tuple[Repository, Checkpoint, Memory]) -> None:
    repository, stored, memory = checkpoint
    with open_reader(repository, stored) as reading:
        placed = reading.set_apart({NAME: apart(memory.first, [(0, PAGES)])})
        pid = memory.pid
        memory.end()
        with pytest.raises(ProcessLookupError):
            placed.fill({NAME: pid}, lambda _more: None)


def test_unmapped_memory_is_an_error(checkpoint: tuple[Repository, Checkpoint, Memory], tmp_path: Path) -> None:
    repository, _, memory = checkpoint
    beyond = store(repository, tmp_path, ImageSet({NAME: [area(1, *range(1, 20))]}))
    with open_reader(repository, beyond) as reading, pytest.raises(OSError, match="Bad address") as raised:
        reading.set_apart({NAME: apart(1, [(0, 20)])}).fill({NAME: memory.pid}, lambda _more: None)
    assert raised.value.errno == errno.EFAULT


def test_unordered_pages_are_left_to_criu(checkpoint: tuple[Repository, Checkpoint, Memory], tmp_path: Path) -> None:
    """A page could occur twice, and only CRIU knows which one counts."""
    repository, _, memory = checkpoint
    twice = store(repository, tmp_path, ImageSet({NAME: [area(memory.first, 1, 2), area(memory.first, 3)]}))
    with open_reader(repository, twice) as reading:
        placed = reading.set_apart({NAME: apart(memory.first, [(0, PAGES)])})
        assert placed.bytes == 0
        assert image(reading, "pages-1.img") == page(1) + page(2) + page(3)
