"""The memory that crckpt fills itself at a restore: ordinary memory, on which nothing else depends."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from crckpt.images import mm
from crckpt.images.mm import Vma
from crckpt.images.pagemap import PRESENT, Entry, PageMap, cut_runs
from crckpt.images.private_memory import MemoryRange, own_memory, range_edges
from crckpt.images.tree import ImageProcess, ImageTree
from crckpt.model import PAGE_SIZE

START = 0x7F00_0000_0000
HUGE = 512
ORDINARY = Vma(
    START, START + 64 * PAGE_SIZE, 0, 0, 3, mm.MAP_PRIVATE | 0x20, mm.REGULAR | mm.ANON_PRIVATE, wants_huge_pages=False
)


def alone(tree: ImageTree, *vmas: Vma, rseq: tuple[int, int, int] = (0, 0, 0)) -> ImageTree:
    """Make a tree of one process with this memory and one thread."""
    return replace(tree, processes=(process(tree, tree.root.pid, *vmas, rseq=rseq),))


def process(tree: ImageTree, pid: int, *vmas: Vma, rseq: tuple[int, int, int] = (0, 0, 0)) -> ImageProcess:
    """Make a process with this memory."""
    root = tree.root
    assert root.memory is not None
    thread = replace(root.threads[0], core=replace(root.core, rseq=rseq))
    return replace(root, pid=pid, threads=(thread,), memory=replace(root.memory, vmas=vmas))


def test_private_anonymous_memory_is_filled_by_crckpt(tree: ImageTree) -> None:
    heap = replace(ORDINARY, start=START - PAGE_SIZE, end=START, status=ORDINARY.status | mm.HEAP)
    assert own_memory(alone(tree, heap, ORDINARY)) == {
        tree.root.pid: (MemoryRange(heap.start, heap.end, False), MemoryRange(ORDINARY.start, ORDINARY.end, False))
    }


@pytest.mark.parametrize(
    "other",
    [
        {"prot": mm.PROT_READ},
        {"prot": mm.PROT_READ | mm.PROT_WRITE | mm.PROT_EXEC},
        {"flags": 0x21},
        {"flags": ORDINARY.flags | mm.MAP_GROWSDOWN},
        {"flags": ORDINARY.flags | mm.MAP_HUGETLB},
        *({"status": ORDINARY.status | bit} for bit in (mm.VDSO, mm.AIO_RING, mm.SHADOW_STACK, mm.PLUGIN, mm.GUARD)),
        {"status": mm.REGULAR | mm.FILE_PRIVATE},
        {"status": mm.REGULAR | mm.ANON_SHARED},
    ],
)
def test_other_kinds_of_memory_are_restored_by_criu(tree: ImageTree, other: dict[str, int]) -> None:
    assert own_memory(alone(tree, replace(ORDINARY, **other))) == {}


def test_possibly_shared_mappings_are_left_to_criu(tree: ImageTree) -> None:
    """A child shares the mappings that its parent had at the fork, and owns those that it made later."""
    shorter = replace(ORDINARY, end=ORDINARY.end - PAGE_SIZE)
    moved = replace(ORDINARY, start=ORDINARY.end, end=ORDINARY.end + PAGE_SIZE)
    parent = process(tree, 10, ORDINARY)
    assert own_memory(replace(tree, processes=(parent, process(tree, 11, ORDINARY, moved)))) == {
        11: (MemoryRange(moved.start, moved.end, False),)
    }
    assert own_memory(replace(tree, processes=(parent, process(tree, 11, shorter)))).keys() == {10, 11}


@pytest.mark.parametrize(
    ("offset", "size", "left_out"), [(0, 32, (0,)), (2 * PAGE_SIZE + 64, 32, (2,)), (PAGE_SIZE - 16, 32, (0, 1))]
)
def test_pages_written_by_the_kernel_are_left_to_criu(
    tree: ImageTree, offset: int, size: int, left_out: tuple[int, ...]
) -> None:
    (ranges,) = own_memory(alone(tree, ORDINARY, rseq=(START + offset, size, 0))).values()
    pages = [page for each in ranges for page in range(each.start, each.end, PAGE_SIZE)]
    assert pages == [START + page * PAGE_SIZE for page in range(64) if page not in left_out]


def test_zombie_has_no_memory_to_fill(tree: ImageTree) -> None:
    assert own_memory(replace(tree, processes=(replace(tree.root, memory=None),))) == {}


def test_heap_is_filled_by_crckpt_only_without_children(tree: ImageTree) -> None:
    """Children would share the whole heap."""
    (ranges,) = own_memory(replace(tree, processes=(tree.root,))).values()
    assert tree.root.memory is not None
    assert any(each.start == vma.start for each in ranges for vma in tree.root.memory.vmas if vma.kind == "heap")
    assert tree.root.pid not in own_memory(tree)


runs = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), max_size=20)
"""(pages left out, pages present), one after the other."""


def of_runs(given_runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (first page, pages) in order."""
    found, at = [], 0
    for gap, count in given_runs:
        found.append((at + gap, count))
        at += gap + count
    return found


@given(entries=runs, ranges=runs)
def test_pages_to_fill_are_cut_at_the_boundaries_of_memory_ranges(
    entries: list[tuple[int, int]], ranges: list[tuple[int, int]]
) -> None:
    """Every page is in one piece, in order, and marked if it is in a range."""
    stored, between = of_runs(entries), of_runs(ranges)
    bounds = np.array([edge for first, count in between for edge in (first, first + count)], np.uint64)
    first, count = (np.array([entry[column] for entry in stored], np.uint64) for column in (0, 1))
    pieces = list(zip(*(column.tolist() for column in cut_runs(first, count, bounds)), strict=True))
    inside = {page for start, length in between for page in range(start, start + length)}
    expected = [
        (row, page, page in inside)
        for row, (start, length) in enumerate(stored)
        for page in range(start, start + length)
    ]
    assert [(row, start + nth, is_in) for row, start, length, is_in in pieces for nth in range(length)] == expected
    pagemap = PageMap.of(1, (Entry(start * PAGE_SIZE, length, PRESENT) for start, length in stored))
    left = [
        entry.vaddr // PAGE_SIZE + nth for entry in pagemap.without_ranges(bounds).entries for nth in range(entry.pages)
    ]
    assert left == [page for _, page, is_in in expected if not is_in]


@given(
    entries=st.lists(st.tuples(st.integers(0, 900), st.integers(1, 900)), max_size=8),
    start=st.integers(0, 1500),
    sizes=st.lists(st.integers(1, 2000), min_size=1, max_size=3),
)
def test_first_page_of_an_incomplete_huge_page_is_left_to_criu(
    entries: list[tuple[int, int]], start: int, sizes: list[int]
) -> None:
    """CRIU gets the first stored page of a huge page of which some pages are not stored.

    The huge page may lie in several adjacent mappings. If none of them wants huge pages, no page is left to CRIU.
    """
    stored = of_runs(entries)
    first, count = (np.array([entry[column] for entry in stored], np.uint64) for column in (0, 1))
    end = start + sum(sizes)
    pages = [page for begin, length in stored for page in range(begin, begin + length) if start <= page < end]
    places = [at * PAGE_SIZE for at in accumulate(sizes, initial=start)]
    for wants_huge_pages in (True, False):
        ranges = [MemoryRange(begin, end, wants_huge_pages) for begin, end in pairwise(places)]
        _, begins, lengths, is_in = cut_runs(first, count, range_edges(ranges, first, count))
        placed = {
            page
            for begin, length, placed in zip(begins.tolist(), lengths.tolist(), is_in.tolist(), strict=True)
            for page in range(begin, begin + length)
            if placed
        }
        regions = {page // HUGE for page in pages if wants_huge_pages}
        present = {region: [page for page in pages if page // HUGE == region] for region in regions}
        leaders = {min(some) for some in present.values() if len(some) < HUGE}
        assert placed == set(pages) - leaders
