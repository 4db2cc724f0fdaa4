"""Find the ordinary private memory of each process, which crckpt fills itself at a restore.

Once the mappings exist, its pages can be written in any order, by as many threads as there are cores. CRIU restores all
other memory, because more depends on it: memory that processes share since a fork (one page for both), mapped files,
stacks (they grow), code, and what the kernel provides or writes to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from crckpt.images import mm
from crckpt.images.pagemap import cut_runs
from crckpt.images.tree import ImageProcess, ImageTree
from crckpt.model import PAGE_SIZE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Pages = NDArray[np.uint64]


class MemoryRange(Struct, frozen=True):
    """Addresses `start` to `end` (not included) of a process, multiples of the page size.

    `wants_huge_pages`: the program asked for huge pages there, so that the kernel would use them.
    """

    start: int
    end: int
    wants_huge_pages: bool


# Pages in a huge page.
_REGION: Final = 512

# Compared as a whole: any further bit means that CRIU or the kernel does something else with the mapping.
_STATUS: Final = (mm.REGULAR | mm.ANON_PRIVATE, mm.REGULAR | mm.ANON_PRIVATE | mm.HEAP)
_FLAGS: Final = mm.MAP_PRIVATE | mm.MAP_GROWSDOWN | mm.MAP_HUGETLB


def own_memory(tree: ImageTree) -> dict[int, tuple[MemoryRange, ...]]:
    """Return the own memory of each process by PID, in ascending order, without processes that have none."""
    # CRIU looks for shared pages, of parents and their children, in private mappings that several processes have at the
    # same address (criu/mem.c, check_cow_vmas).
    spaces = [(process, process.memory.vmas) for process in tree.processes if process.memory is not None]
    counts = Counter((vma.start, vma.end) for _, vmas in spaces for vma in vmas if vma.flags & mm.MAP_PRIVATE)
    found = {}
    for process, vmas in spaces:
        written_by_kernel = sorted(_rseq_pages(process))
        ranges: list[MemoryRange] = []
        for vma in vmas:
            # Code is not ordinary: some processors must be told when it changes.
            is_data = vma.flags & _FLAGS == mm.MAP_PRIVATE and vma.prot == mm.PROT_READ | mm.PROT_WRITE
            if is_data and vma.status in _STATUS and counts[vma.start, vma.end] == 1:
                left_out = (page for page in written_by_kernel if vma.start <= page < vma.end)
                bounds = [vma.start, *(edge for page in left_out for edge in (page, page + PAGE_SIZE)), vma.end]
                # Every second pair of these bounds encloses a page that is left out.
                pairs = list(pairwise(bounds))[::2]
                ranges += [MemoryRange(start, end, vma.wants_huge_pages) for start, end in pairs if start < end]
        if ranges:
            found[process.pid] = tuple(ranges)
    return found


def range_edges(ranges: Iterable[MemoryRange], first: Pages, count: Pages) -> Pages:
    """Return the edges of the ranges for `cut_runs`, without the first page of each incomplete huge page.

    `first` and `count`: the runs of pages that crckpt has to fill.
    """
    import numpy as np

    bounds = np.array([edge // PAGE_SIZE for each in ranges for edge in (each.start, each.end)], np.uint64)
    # Where the program asked for huge pages, the kernel allocates one at the first write to it. If only some of its
    # pages have content, that takes memory that the program did not have. So CRIU fills the first page there: it fills
    # a mapping before it asks for huge pages (criu/pie/restorer.c:1987), and the pages stay small. The kernel may join
    # them later.
    huge = [(each.start // PAGE_SIZE, each.end // PAGE_SIZE) for each in ranges if each.wants_huge_pages]
    if not huge:
        return np.sort(bounds)
    _, first, count, is_huge = cut_runs(first, count, np.array(list(chain(*huge)), np.uint64))
    # A huge page may reach beyond the mapping: the kernel joins adjacent mappings.
    starts = [np.arange(start // _REGION, -(-end // _REGION), dtype=np.uint64) * _REGION for start, end in huge]
    starts.append(np.empty(0, np.uint64))
    _, page, pages, _ = cut_runs(first[is_huge], count[is_huge], np.sort(np.concatenate(starts)))
    order = np.argsort(page, kind="stable")
    page, pages = page[order], pages[order]
    # Runs may lie in the same huge page without touching: count its pages over all of them.
    begins = np.flatnonzero(np.diff(page // _REGION, prepend=~np.uint64(0)) != 0)
    present = np.add.reduceat(pages, begins)
    left_out = page[begins[present < _REGION]]
    return np.sort(np.concatenate((bounds, left_out, left_out + np.uint64(1))))


def _rseq_pages(process: ImageProcess) -> set[int]:
    """Return the pages of rseq areas, to which the kernel writes as soon as CRIU has registered them."""
    # If crckpt wrote the saved content there, the kernel would not correct it. Source: criu/pie/restorer.c,
    # restore_rseq.
    areas = (thread.core.rseq for thread in process.threads)
    return {
        address // PAGE_SIZE * PAGE_SIZE
        for start, size, _ in areas
        if start
        for address in (start, start + max(size, 1) - 1)
    }
