"""Choose which memory of a tree is filled while the tree runs. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from crckpt.images.mm import MAP_LOCKED, AddressSpace
from crckpt.images.pagemap import pagemap_name
from crckpt.images.private_memory import MemoryRange
from crckpt.images.tree import ImageTree
from crckpt.model import PackId
from crckpt.store import Checkpoint

# Pages that the program wrote last, and that are filled before it runs: 64 MiB at most, which takes some 50 ms.
_MOST_HOT_PAGES: Final = 1 << 14
# The smallest ranges are filled before, too, up to so many bytes of a tree: programs use them all the time, and a fault
# for each of their pages would take longer.
_MOST_SMALL: Final = 8 << 20

Range = tuple[int, int]


class ProcessPlan(Struct, frozen=True):
    """What is filled of the process `pid`: `ranges` of addresses within its whole `mappings`, both in order."""

    pid: int
    ranges: tuple[Range, ...]
    mappings: tuple[Range, ...]

    @property
    def pagemap(self) -> str:
        """The name of its page map."""
        return pagemap_name(self.pid)


def choose_hot_packs(checkpoint: Checkpoint, newest: Collection[PackId]) -> frozenset[PackId]:
    """Choose among the `newest` packs of a checkpoint those whose pages are filled before the tree runs."""
    found, pages = [], 0
    for use in checkpoint.packs:
        if use.digest in newest and pages + use.pages <= _MOST_HOT_PAGES:
            found.append(use.digest)
            pages += use.pages
    return frozenset(found)


def make_plans(tree: ImageTree, own: Mapping[int, Sequence[MemoryRange]]) -> tuple[ProcessPlan, ...]:
    """Make a plan for each process; `own` has its own memory by its PID."""
    found = {
        process.pid: tuple(_find_ranges(process.memory, own[process.pid]))
        for process in tree.processes
        if process.memory is not None and process.pid in own
    }
    # The size up to which ranges are filled before the tree runs.
    largest_small = total = 0
    for size in sorted(end - start for of_one in found.values() for (start, end), _ in of_one):
        total += size
        if total > _MOST_SMALL:
            # All of one size are treated alike.
            largest_small = min(largest_small, size - 1)
            break
        largest_small = size
    plans = []
    for pid, of_one in found.items():
        large = [(each, mapping) for each, mapping in of_one if each[1] - each[0] > largest_small]
        if large:
            ranges, mappings = zip(*large, strict=True)
            plans.append(ProcessPlan(pid, ranges, tuple(dict.fromkeys(mappings))))
    return tuple(plans)


def _find_ranges(memory: AddressSpace, own: Sequence[MemoryRange]) -> Iterator[tuple[Range, Range]]:
    """Yield the ranges of `own`, each with its mapping, that can be filled later."""
    # In a locked mapping no page is missing: the kernel supplies all of them when CRIU makes it.
    vmas = [vma for vma in memory.vmas if not vma.flags & MAP_LOCKED]
    starts = [vma.start for vma in vmas]
    for each in own:
        at = bisect_right(starts, each.start) - 1
        if at >= 0 and each.end <= vmas[at].end:
            yield (each.start, each.end), (vmas[at].start, vmas[at].end)
