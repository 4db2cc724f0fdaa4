"""Choose which memory of a tree is filled while the tree runs. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from msgspec import Struct

from crckpt.images.mm import MAP_LOCKED, AddressSpace
from crckpt.images.pagemap import pagemap_name
from crckpt.images.private_memory import MemoryRange
from crckpt.images.tree import ImageTree


class ProcessPlan(Struct, frozen=True):
    """What is filled of the process `pid`: `ranges` of addresses within its whole `mappings`, both in order."""

    pid: int
    ranges: tuple[tuple[int, int], ...]
    mappings: tuple[tuple[int, int], ...]

    @property
    def pagemap(self) -> str:
        """The name of its page map."""
        return pagemap_name(self.pid)


def make_plans(tree: ImageTree, own: Mapping[int, Sequence[MemoryRange]]) -> tuple[ProcessPlan, ...]:
    """Make a plan for each process; `own` has its own memory by its PID."""
    plans = (
        _make_plan(process.pid, process.memory, own[process.pid])
        for process in tree.processes
        if process.memory is not None and process.pid in own
    )
    return tuple(plan for plan in plans if plan.ranges)


def _make_plan(pid: int, memory: AddressSpace, own: Sequence[MemoryRange]) -> ProcessPlan:
    # In a locked mapping no page is missing: the kernel supplies all of them when CRIU makes it.
    vmas = [vma for vma in memory.vmas if not vma.flags & MAP_LOCKED]
    starts = [vma.start for vma in vmas]
    ranges, mappings = [], []
    for each in own:
        at = bisect_right(starts, each.start) - 1
        if at >= 0 and each.end <= vmas[at].end:
            ranges.append((each.start, each.end))
            mappings.append((vmas[at].start, vmas[at].end))
    return ProcessPlan(pid, tuple(ranges), tuple(dict.fromkeys(mappings)))
