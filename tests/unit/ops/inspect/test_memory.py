"""A process's memory by address: recorded images, with pages made for the tests, in a real store."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
import recorded_images
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from image_sets import flip, open_store, packs, store

from crckpt.errors import IntegrityError
from crckpt.images.mm import ANON_PRIVATE, ANON_SHARED, VVAR
from crckpt.images.other_files import MemFd
from crckpt.images.tree import ImageProcess, ImageTree
from crckpt.model import PAGE_SIZE
from crckpt.ops.inspect.images import read_image_tree
from crckpt.ops.inspect.memory import Memory
from crckpt.store import Checkpoint, Repository, open_reader


def known(process: ImageProcess) -> Iterator[tuple[int, bytes | None]]:
    """Each page of the address space in order, and its content; None if the images do not show it."""
    assert process.memory is not None
    files = {file.id: file for file in process.mapped}
    for vma in process.memory.vmas:
        file = files.get(vma.file_id) if vma.file_id is not None else None
        held = recorded_images.PAGES[f"pagemap-{process.pid}.img"]
        shift = 0
        if isinstance(file, MemFd):
            held, shift = recorded_images.PAGES[f"pagemap-shmem-{file.shmid}.img"], vma.start // PAGE_SIZE
        zero = (vma.status & (ANON_PRIVATE | ANON_SHARED) and not vma.status & VVAR) or isinstance(file, MemFd)
        for number in range(vma.start // PAGE_SIZE, vma.end // PAGE_SIZE):
            yield number, held.get(number - shift, bytes(PAGE_SIZE) if zero else None)


KNOWN_PAGES = {
    process.pid: dict(known(process)) for process in recorded_images.RECORDED.processes if process.memory is not None
}


@pytest.fixture(scope="module")
def recorded_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repository, Checkpoint, ImageTree]:
    """A store with the recorded images; a test that damages the store repairs it."""
    base = tmp_path_factory.mktemp("memory")
    repository = open_store(base)
    checkpoint = store(repository, base, recorded_images.image_set(recorded_images.PAGES))
    return repository, checkpoint, read_image_tree(repository, checkpoint)


@pytest.mark.parametrize("pid", recorded_images.PIDS)
def test_runs_of_memory_contain_all_nonzero_pages(
    recorded_checkpoint: tuple[Repository, Checkpoint, ImageTree], pid: int
) -> None:
    repository, checkpoint, tree = recorded_checkpoint
    found: dict[int, bytes] = {}
    with open_reader(repository, checkpoint) as reading:
        memory = Memory(reading, recorded_images.process_of(tree, pid))
        for region in memory.regions:
            end = region.vma.start
            for address, content in memory.runs(region):
                assert end <= address < address + len(content) <= region.vma.end
                end = address + len(content)
                for at in range(0, len(content), PAGE_SIZE):
                    found[(address + at) // PAGE_SIZE] = bytes(content[at : at + PAGE_SIZE])
    filled = {number: content for number, content in KNOWN_PAGES[pid].items() if content and any(content)}
    assert {number: content for number, content in found.items() if any(content)} == filled
    assert len(filled) > 500
    assert any(region.is_shared and region.pages for region in memory.regions)


@settings(max_examples=examples(200))
@given(
    data=st.data(),
    pid=st.sampled_from(recorded_images.PIDS),
    offset=st.integers(0, 2 * PAGE_SIZE),
    length=st.integers(0, 600_000),
)
def test_reading_memory_stops_at_the_first_unknown_page(
    recorded_checkpoint: tuple[Repository, Checkpoint, ImageTree],
    data: st.DataObject,
    pid: int,
    offset: int,
    length: int,
) -> None:
    repository, checkpoint, tree = recorded_checkpoint
    address = data.draw(st.sampled_from(sorted(KNOWN_PAGES[pid]))) * PAGE_SIZE + offset
    expected = b""
    number = address // PAGE_SIZE
    while len(expected) < length + PAGE_SIZE and (content := KNOWN_PAGES[pid].get(number)) is not None:
        expected, number = expected + content, number + 1
    with open_reader(repository, checkpoint) as reading:
        found = Memory(reading, recorded_images.process_of(tree, pid)).read(address, length)
    assert found == expected[address % PAGE_SIZE :][:length]


def test_zombie_in_a_checkpoint_has_no_memory(recorded_checkpoint: tuple[Repository, Checkpoint, ImageTree]) -> None:
    repository, checkpoint, tree = recorded_checkpoint
    (zombie,) = (process for process in tree.processes if process.memory is None)
    with open_reader(repository, checkpoint) as reading:
        memory = Memory(reading, zombie)
        assert (memory.regions, memory.read(4096, 10)) == ((), b"")


def test_damaged_bytes_are_never_returned(recorded_checkpoint: tuple[Repository, Checkpoint, ImageTree]) -> None:
    repository, checkpoint, tree = recorded_checkpoint
    process = recorded_images.process_of(tree, recorded_images.PIDS[0])
    for pack in packs(repository):
        flip(pack, pack.stat().st_size // 2)
    try:
        with open_reader(Repository.open(repository.root), checkpoint) as reading:
            memory = Memory(reading, process)
            runs = (run for region in memory.regions for run in memory.runs(region))
            with pytest.raises(IntegrityError, match="pack"):
                deque(runs, 0)
    finally:
        for pack in packs(repository):
            flip(pack, pack.stat().st_size // 2)


def test_pages_out_of_order_are_refused(tmp_path: Path) -> None:
    repository = open_store(tmp_path)
    name = f"pagemap-{recorded_images.PIDS[0]}.img"
    turned = dict(reversed(recorded_images.PAGES[name].items()))
    checkpoint = store(repository, tmp_path, recorded_images.image_set({**recorded_images.PAGES, name: turned}))
    with open_reader(repository, checkpoint) as reading, pytest.raises(IntegrityError, match=name):
        Memory(reading, read_image_tree(repository, checkpoint).root)
