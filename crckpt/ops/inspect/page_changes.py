"""Which pages of a process differ between two checkpoints of a store.

The store has most pages once: where both checkpoints have a page in the same place, it is the same page. In another
place it may still be equal, as pages are copied forward: only there contents are read and compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from crckpt.model import PAGE_SIZE
from crckpt.ops.inspect.memory import Memory, Region, between
from crckpt.store import Checkpoint
from crckpt.store.format.extents import EXTENT, ZERO, Extents, Mask, Places, ends_of, renumbered

_PackNumbers: TypeAlias = npt.NDArray[np.uint32]


class PageCounts(Struct, frozen=True):
    """Pages that both have and that differ, that only the second has, and that only the first has."""

    changed: int = 0
    new: int = 0
    gone: int = 0

    def __add__(self, other: PageCounts) -> PageCounts:
        """Both together."""
        return PageCounts(self.changed + other.changed, self.new + other.new, self.gone + other.gone)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.changed or self.new or self.gone)


class MapChange(Struct, frozen=True):
    """A map in which something differs: as the second checkpoint has it, or as the first had it if it is gone.

    `start` and `end` (not included) are addresses; `state` is `new`, `gone`, or empty if both have it.
    """

    start: int
    end: int
    permissions: str
    map: str
    state: str
    pages: PageCounts


class Side(Struct, frozen=True):
    """A process's memory in one of the checkpoints."""

    checkpoint: Checkpoint
    memory: Memory


def page_changes(before: Side, after: Side) -> tuple[MapChange, ...]:
    """The maps of a process that are new or gone, or have pages that are, or that changed; in the order of addresses.

    A map that grew, shrank or was cut in pieces is still the same. Takes bounded memory. Raises IntegrityError.
    """
    old, new = before.memory.regions, after.memory.regions
    overlaps = list(_overlaps(old, new))
    heirs = {left: right for left, right, _, _ in reversed(overlaps)}
    # Of each new map, then of each old one: pages changed, new, gone. What both have is taken away from new and gone.
    counts = np.zeros((len(new) + len(old), 3), np.int64)
    counts[: len(new), 1] = [region.pages for region in new]
    doubts: list[_Doubt] = []
    numbers = _numbers(before.checkpoint, after.checkpoint)
    for left, right, low, high in overlaps:
        cells = _in_both(between(old[left].extents, low, high), between(new[right].extents, low, high))
        both = int(cells[0]["count"].sum(dtype=np.int64))
        changed, doubt = _sorted_out(cells, numbers)
        counts[right, :2] += (changed, -both)
        counts[heirs[left], 2] -= both
        doubts.append(_Doubt(right, *doubt))
    for left, region in enumerate(old):
        counts[heirs.get(left, len(new) + left), 2] += region.pages
    counts[: len(new), 0] += _read_and_compared(before.memory, after.memory, doubts, len(new))
    kept = {right for _, right, _, _ in overlaps}
    states = ["" if right in kept else "new" for right in range(len(new))]
    states += ["" if left in heirs else "gone" for left in range(len(old))]
    changes = (
        _change(region, state, PageCounts(*row))
        for region, state, row in zip((*new, *old), states, counts.tolist(), strict=True)
        if state or any(row)
    )
    return tuple(sorted(changes, key=lambda change: (change.start, change.end)))


class _Doubt(Struct, frozen=True):
    """Pages of a new map, and the same ones of the old map, that may be equal although they lie in another place."""

    row: int
    before: Extents
    after: Extents


def _overlaps(old: tuple[Region, ...], new: tuple[Region, ...]) -> Iterator[tuple[int, int, int, int]]:
    """Maps (their positions) of the same thing, and the pages, from one number to before another, that both have."""
    left = right = 0
    while left < len(old) and right < len(new):
        one, two = old[left].vma, new[right].vma
        low, high = max(one.start, two.start), min(one.end, two.end)
        if low < high and _identity(old[left]) == _identity(new[right]):
            yield left, right, low // PAGE_SIZE, high // PAGE_SIZE
        if one.end <= two.end:
            left += 1
        if two.end <= one.end:
            right += 1


def _identity(region: Region) -> tuple[str, str, bool, int]:
    """What is mapped, and which part of it is at address 0."""
    vma = region.vma
    return vma.kind, region.path, region.is_shared, vma.start - vma.pgoff if region.path else 0


def _change(region: Region, state: str, pages: PageCounts) -> MapChange:
    return MapChange(region.vma.start, region.vma.end, region.permissions, region.label, state, pages)


def _numbers(before: Checkpoint, after: Checkpoint) -> tuple[_PackNumbers, _PackNumbers]:
    """Of each checkpoint's packs, a number that means the same pack in both."""
    known: dict[str, int] = {}
    one, two = ([known.setdefault(use.digest, len(known)) for use in side.packs] for side in (before, after))
    return np.array(one, np.uint32), np.array(two, np.uint32)


def _in_both(before: Extents, after: Extents) -> tuple[Extents, Extents]:
    """The pages that both extents have, cut so that each extent of the one has its counterpart in the other."""
    edges = [
        edge.astype(np.int64) for side in (before, after) for edge in (side["first"], side["first"] + side["count"])
    ]
    bounds = np.unique(np.concatenate(edges))
    one, two = (_owners(side, bounds[:-1]) for side in (before, after))
    both = (one >= 0) & (two >= 0)
    low, high = bounds[:-1][both], bounds[1:][both]
    return _cut(before[one[both]], low, high), _cut(after[two[both]], low, high)


def _owners(extents: Extents, pages: Places) -> Places:
    """Which of the extents has each page; -1 for none."""
    first = extents["first"].astype(np.int64)
    found = np.searchsorted(first, pages, side="right") - 1
    if len(extents):
        found[pages >= (first + extents["count"])[found]] = -1
    return found


def _cut(extents: Extents, low: Places, high: Places) -> Extents:
    cut = extents.copy()
    cut["page"] += np.where(cut["pack"] == ZERO, 0, low - cut["first"].astype(np.int64)).astype(np.uint64)
    cut["first"], cut["count"] = low, high - low
    return cut


def _sorted_out(
    cells: tuple[Extents, Extents], numbers: tuple[_PackNumbers, _PackNumbers]
) -> tuple[int, tuple[Extents, Extents]]:
    """How many pages differ for sure, as only one of the two is zero, and those that may differ."""
    before, after = cells
    one, two = (renumbered(side, table) for side, table in zip(cells, numbers, strict=True))
    zeros = (before["pack"] == ZERO).astype(np.int8) + (after["pack"] == ZERO)
    same = (zeros == 2) | ((one["pack"] == two["pack"]) & (one["page"] == two["page"]))
    doubtful = (zeros == 0) & ~same
    return int(before["count"][zeros == 1].sum(dtype=np.int64)), (before[doubtful], after[doubtful])


def _read_and_compared(before: Memory, after: Memory, doubts: list[_Doubt], rows: int) -> Places:
    """How many of the doubtful pages of each row differ indeed."""
    one = np.concatenate([np.empty(0, EXTENT), *(doubt.before for doubt in doubts)])
    two = np.concatenate([np.empty(0, EXTENT), *(doubt.after for doubt in doubts)])
    ends = ends_of(one)
    row = np.repeat([doubt.row for doubt in doubts], [len(doubt.before) for doubt in doubts])
    counts = np.zeros(rows, np.int64)
    for first, differ in _differing(before.contents(one), after.contents(two)):
        cells = np.searchsorted(ends, first + np.flatnonzero(differ), side="right")
        counts += np.bincount(row[cells].astype(np.int64), minlength=rows)
    return counts


def _differing(before: Iterator[memoryview], after: Iterator[memoryview]) -> Iterator[tuple[int, Mask]]:
    """(position of the first page, which pages differ) of equally many pages."""
    done = 0
    one = two = memoryview(b"")
    while (one := one or next(before, one)) and (two := two or next(after, two)):
        size = min(len(one), len(two))
        left, right = (np.frombuffer(side[:size], np.uint64).reshape(-1, PAGE_SIZE // 8) for side in (one, two))
        yield done // PAGE_SIZE, (left != right).any(axis=1)
        done, one, two = done + size, one[size:], two[size:]
