"""The memory that a process has for itself: ordinary memory of which nothing but the process knows what lies where.

Whoever restores may put the pages of it into place by himself, once the mappings are there, in any order and by as many
threads as there are cores. All else is CRIU's to restore, which knows what it stands for: memory that processes have
had in common since a fork, so that a page of it is one page for both; what lies in files; stacks, which grow; code;
what the kernel gave, or writes to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from crckpt.images.mm import (
    ANON_PRIVATE,
    HEAP,
    MAP_GROWSDOWN,
    MAP_HUGETLB,
    MAP_PRIVATE,
    PROT_READ,
    PROT_WRITE,
    REGULAR,
    Vma,
)
from crckpt.images.pagemap import cut_runs
from crckpt.images.tree import ImageTree, Process
from crckpt.model import PAGE_SIZE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Pages = NDArray[np.uint64]


class MemoryRange(Struct, frozen=True):
    """Addresses `start` to `end` (not included) of a process, in bytes, both multiples of the page size.

    `wants_huge_pages` says whether the kernel would fill it by huge pages, of which the program has asked for.
    """

    start: int
    end: int
    wants_huge_pages: bool


_REGION: Final = 512
"""Pages in a huge page."""

_STATUS: Final = (REGULAR | ANON_PRIVATE, REGULAR | ANON_PRIVATE | HEAP)
_FLAGS: Final = MAP_PRIVATE | MAP_GROWSDOWN | MAP_HUGETLB


def own_memory(tree: ImageTree) -> dict[int, tuple[MemoryRange, ...]]:
    """PID -> its own memory, in ascending order; processes that have none are left out."""
    in_common = _in_common(tree)
    found = {process.pid: tuple(_of(process, in_common)) for process in tree.processes if process.memory is not None}
    return {pid: ranges for pid, ranges in found.items() if ranges}


def range_edges(ranges: Iterable[MemoryRange], first: Pages, count: Pages) -> Pages:
    """The ranges as `cut_runs` takes them, but for one page of each huge page that there would be of fewer pages.

    `count` pages from page `first` on are what there is to be put into place. Where the program has asked for huge
    pages, the kernel takes one as soon as the first page of it is written. That is quick where all of it is there.
    Where some is not, it would take memory that the program did not have: there the first page is left to CRIU, which
    fills a mapping before it asks for huge pages, so that they stay single ones (and the kernel joins them later, if it
    does).
    """
    import numpy as np

    bounds = np.array([edge // PAGE_SIZE for each in ranges for edge in (each.start, each.end)], np.uint64)
    huge = [(each.start // PAGE_SIZE, each.end // PAGE_SIZE) for each in ranges if each.wants_huge_pages]
    if not huge:
        return np.sort(bounds)
    _, first, count, is_huge = cut_runs(first, count, np.array(list(chain(*huge)), np.uint64))
    # A huge page may reach beyond the mapping: the kernel joins those that are next to each other.
    starts = [np.arange(start // _REGION, -(-end // _REGION), dtype=np.uint64) * _REGION for start, end in huge]
    starts.append(np.empty(0, np.uint64))
    _, page, pages, _ = cut_runs(first[is_huge], count[is_huge], np.sort(np.concatenate(starts)))
    order = np.argsort(page, kind="stable")
    page, pages = page[order], pages[order]
    begins = np.flatnonzero(np.diff(page // _REGION, prepend=~np.uint64(0)) != 0)
    there = np.add.reduceat(pages, begins)
    left_out = page[begins[there < _REGION]]
    return np.sort(np.concatenate((bounds, left_out, left_out + np.uint64(1))))


def _of(process: Process, in_common: frozenset[tuple[int, int]]) -> Iterator[MemoryRange]:
    assert process.memory is not None
    told = sorted(_told_to(process))
    for vma in process.memory.vmas:
        if _is_ordinary(vma) and (vma.start, vma.end) not in in_common:
            yield from _between(vma, [page for page in told if vma.start <= page < vma.end])


def _is_ordinary(vma: Vma) -> bool:
    """Code is not: some processors must be told of what is new there."""
    return vma.status in _STATUS and vma.flags & _FLAGS == MAP_PRIVATE and vma.prot == PROT_READ | PROT_WRITE


def _told_to(process: Process) -> set[int]:
    """The pages in which the kernel tells threads their core, which it does as soon as CRIU has asked it to.

    What the memory held there before would be wrong, and the kernel need not write again what it believes to stand
    there. Source: criu/pie/restorer.c, restore_rseq.
    """
    areas = (thread.core.rseq for thread in process.threads)
    return {
        place // PAGE_SIZE * PAGE_SIZE for start, size in areas if start for place in (start, start + max(size, 1) - 1)
    }


def _between(vma: Vma, left_out: list[int]) -> Iterator[MemoryRange]:
    bounds = [vma.start, *(edge for page in left_out for edge in (page, page + PAGE_SIZE)), vma.end]
    yield from (
        MemoryRange(start, end, vma.wants_huge_pages) for start, end in list(pairwise(bounds))[::2] if start < end
    )


def _in_common(tree: ImageTree) -> frozenset[tuple[int, int]]:
    """Start and end of the private mappings that several processes have at the same place.

    Only there CRIU looks for pages in common (criu/mem.c, check_cow_vmas), and only in parents and their children.
    """
    spaces = (process.memory.vmas for process in tree.processes if process.memory is not None)
    found = Counter((vma.start, vma.end) for vmas in spaces for vma in vmas if vma.flags & MAP_PRIVATE)
    return frozenset(place for place, count in found.items() if count > 1)
