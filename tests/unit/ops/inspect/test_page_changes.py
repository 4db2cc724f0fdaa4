"""Pages that differ between two checkpoints: counted as if every page were compared, but read only if necessary."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import recorded_images
from image_sets import described, open_store, page, store
from msgspec.structs import replace

from crckpt.images.mm import HEAP, PROT_READ, AddressSpace, Vma
from crckpt.images.tree import ImageProcess
from crckpt.model import PAGE_SIZE
from crckpt.ops.inspect.diff import PageChanges, number_packs, page_changes
from crckpt.ops.inspect.images import read_image_tree
from crckpt.ops.inspect.memory import Memory
from crckpt.store import Checkpoint, Repository, open_reader
from crckpt.store.format.index import StoredFile
from crckpt.store.read.contents import contents_of
from crckpt.store.read.reader import Reader
from crckpt.store.workers import workers

PID = recorded_images.PIDS[0]
SHARED_PAGEMAP = next(name for name, pages in recorded_images.PAGES.items() if "shmem" in name and pages)
OWN_PAGEMAP = f"pagemap-{PID}.img"


def _changed() -> dict[str, dict[int, bytes]]:
    """The pages again: some changed, some zero, some gone, some new."""
    chance = random.Random(4)
    changed = {name: dict(pages) for name, pages in recorded_images.PAGES.items()}
    own = changed[OWN_PAGEMAP]
    for number in sorted(own):
        what = chance.randrange(12)
        if what == 0:
            del own[number]
        elif what < 3:
            own[number] = page(chance.randrange(1 << 31) * (what - 1))
    for vma in _space(recorded_images.process_of(recorded_images.RECORDED, PID)).vmas:
        first = vma.start // PAGE_SIZE
        for number in range(first, min(first + 60, vma.end // PAGE_SIZE), 5):
            own.setdefault(number, page(number % 1000))
    changed[OWN_PAGEMAP] = dict(sorted(own.items()))
    changed[SHARED_PAGEMAP] = {0: page(77), 2: page(78)}
    return changed


def _heap(process: ImageProcess) -> Vma:
    return next(vma for vma in _space(process).vmas if vma.status & HEAP)


def _space(process: ImageProcess) -> AddressSpace:
    assert process.memory is not None
    return process.memory


class _Watched(Reader):
    """Count the bytes of pages that are read."""

    asked = 0

    def parts(self, file: StoredFile) -> Iterator[tuple[int, memoryview]]:
        self.asked += file.bytes
        return super().parts(file)


@pytest.fixture(scope="module")
def three_checkpoints(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Repository, Checkpoint, Checkpoint, Checkpoint]:
    """A checkpoint, one of the same job with changed pages, and one whose pages are equal but stored apart."""
    base = tmp_path_factory.mktemp("changes")
    repository = open_store(base)
    before = store(repository, base, recorded_images.image_set(recorded_images.PAGES))
    after = store(repository, base, recorded_images.image_set(_changed()))
    separate = store(repository, base, recorded_images.image_set(_changed()), described("apart"), dedup=False)
    return repository, before, after, separate


def _compared(repository: Repository, one: Checkpoint, two: Checkpoint) -> tuple[dict[int, PageChanges], int]:
    """The changes by the start of each map, and how many pages were read."""
    with workers() as pool:
        sides = []
        watched = [_Watched(contents_of(repository, checkpoint), pool) for checkpoint in (one, two)]
        for checkpoint, reading in zip((one, two), watched, strict=True):
            process = recorded_images.process_of(read_image_tree(repository, checkpoint), PID)
            sides.append(Memory(reading, process))
        before, after = sides
        changes = page_changes(before, after, number_packs(one, two))
    assert all(change.state == "" for change in changes)
    return {change.start: change.pages for change in changes}, sum(reading.asked for reading in watched) // PAGE_SIZE


def _expected() -> dict[int, PageChanges]:
    expected = {}
    changed = _changed()
    space = _space(recorded_images.process_of(recorded_images.RECORDED, PID))
    for vma in space.vmas:
        name, first = (SHARED_PAGEMAP, vma.start // PAGE_SIZE) if vma.kind == "memfd" else (OWN_PAGEMAP, 0)
        numbers = range(vma.start // PAGE_SIZE - first, vma.end // PAGE_SIZE - first)
        old, new = (
            {at: pages[name][at] for at in numbers if at in pages[name]} for pages in (recorded_images.PAGES, changed)
        )
        differ = sum(old[at] != new[at] for at in old.keys() & new.keys())
        counts = PageChanges(differ, len(new.keys() - old.keys()), len(old.keys() - new.keys()))
        if counts:
            expected[vma.start] = counts
    return expected


def test_every_changed_page_is_counted(
    three_checkpoints: tuple[Repository, Checkpoint, Checkpoint, Checkpoint],
) -> None:
    """Of each changed page both versions are read; no other page is read."""
    repository, before, after, _ = three_checkpoints
    found, read = _compared(repository, before, after)
    expected = _expected()
    assert found == expected
    total = sum(expected.values(), PageChanges())
    assert min(total.changed, total.new, total.gone) > 50
    assert 0 < read <= 2 * total.changed


def test_equal_pages_in_different_packs_do_not_count_as_changed(
    three_checkpoints: tuple[Repository, Checkpoint, Checkpoint, Checkpoint],
) -> None:
    repository, before, after, separate = three_checkpoints
    found, read = _compared(repository, after, separate)
    assert found == {}
    assert read > 1000
    assert _compared(repository, before, separate)[0] == _expected()


def test_identical_pages_are_not_read(three_checkpoints: tuple[Repository, Checkpoint, Checkpoint, Checkpoint]) -> None:
    repository, before, _, _ = three_checkpoints
    assert _compared(repository, before, before) == ({}, 0)


def test_pages_of_removed_and_shortened_mappings_are_gone_and_new_in_reverse(
    three_checkpoints: tuple[Repository, Checkpoint, Checkpoint, Checkpoint],
) -> None:
    repository, before, _, _ = three_checkpoints
    process = recorded_images.process_of(read_image_tree(repository, before), PID)
    space = _space(process)
    heap = _heap(process)
    held = recorded_images.PAGES[OWN_PAGEMAP]
    of_heap = [at for at in range(heap.start // PAGE_SIZE, heap.end // PAGE_SIZE) if at in held]
    first, last = of_heap[8] * PAGE_SIZE, of_heap[-10] * PAGE_SIZE
    stack = next(vma for vma in space.vmas if vma.kind == "stack")
    rest = tuple(vma for vma in space.vmas if vma not in (heap, stack))
    # The heap in two pieces, of which one may not be written, and shorter; no stack.
    pieces = (replace(heap, end=first, prot=PROT_READ), replace(heap, start=first, end=last))
    vmas = sorted((*rest, *pieces), key=lambda vma: vma.start)
    other = replace(process, memory=replace(space, vmas=tuple(vmas)))
    with open_reader(repository, before) as reading:
        one, two = (Memory(reading, found) for found in (process, other))
        numbers = number_packs(before, before)
        forward, backward = page_changes(one, two, numbers), page_changes(two, one, numbers)
    of_stack = sum(at in held for at in range(stack.start // PAGE_SIZE, stack.end // PAGE_SIZE))
    assert of_stack > 0
    assert [(change.start, change.state, change.pages) for change in forward] == [
        (heap.start, "", PageChanges(gone=10)),
        (stack.start, "gone", PageChanges(gone=of_stack)),
    ]
    assert [(change.start, change.state, change.pages) for change in backward] == [
        (heap.start, "", PageChanges(new=10)),
        (stack.start, "new", PageChanges(new=of_stack)),
    ]
