"""Extents: where the pages of an object lie, as arrays of (first, count, pack, page)."""

from __future__ import annotations

from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from crckpt.images.pagemap import cut_runs

Extents: TypeAlias = npt.NDArray[np.void]
Numbers: TypeAlias = npt.NDArray[np.uint64]
Positions: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Bytes: TypeAlias = npt.NDArray[np.uint8]

_Number = TypeVar("_Number", bound=np.integer[Any])

EXTENT: Final = np.dtype([("first", "<u8"), ("count", "<u4"), ("pack", "<u4"), ("page", "<u8")])

ZERO: Final = 0xFFFFFFFF
"""The pack number of pages that are all zero and lie nowhere."""


def make_extents(first: npt.NDArray[Any], pack: npt.NDArray[Any], page: npt.NDArray[Any]) -> Extents:
    """Make extents of single pages, joined where they follow each other."""
    single = np.empty(len(first), EXTENT)
    single["first"], single["count"], single["pack"], single["page"] = first, 1, pack, page
    return join_extents(single)


def join_extents(extents: Extents) -> Extents:
    """Return the same pages in the same order, in as few extents as possible."""
    if len(extents) < 2:
        return extents
    before, after = extents[:-1], extents[1:]
    follows = (after["first"] == before["first"] + before["count"]) & (after["pack"] == before["pack"])
    # The `page` of zeros says nothing: they lie nowhere.
    follows &= (after["page"] == before["page"] + before["count"]) | (after["pack"] == ZERO)
    starts = np.flatnonzero(np.concatenate(([True], ~follows)))
    joined = extents[starts]
    counts = np.add.reduceat(extents["count"].astype(np.uint64), starts)
    if counts.max() > np.iinfo(np.uint32).max:
        return extents
    joined["count"] = counts
    return joined


def concatenate_extents(parts: list[Extents]) -> Extents:
    """Put extents one after the other, joined where the parts meet."""
    return join_extents(np.concatenate(parts)) if parts else np.empty(0, EXTENT)


def extent_ends(extents: Extents) -> Positions:
    """Count the pages of the extents, up to the end of each."""
    return np.cumsum(extents["count"], dtype=np.int64)


def page_count(extents: Extents) -> int:
    return int(extents["count"].sum(dtype=np.int64))


def slice_extents(extents: Extents, ends: Positions, start: int, end: int) -> Extents:
    """Return the extents of pages `start` to `end` - 1, counted through all extents; `ends` are their `extent_ends`."""
    low = int(np.searchsorted(ends, start, side="right"))
    last = int(np.searchsorted(ends, end, side="left"))
    found = extents[low : last + 1].copy()
    if len(found):
        before = start - int(ends[low] - extents["count"][low])
        found["first"][0] += before
        found["page"][0] += before if found["pack"][0] != ZERO else 0
        found["count"][-1] -= int(ends[last]) - end
        found["count"][0] -= before
    return found


def split_extents(extents: Extents, edges: Numbers) -> tuple[Extents, Extents]:
    """Split extents into what lies between each pair of `edges`, which are addresses, and the rest: see `cut_runs`."""
    before = np.searchsorted(edges, extents["first"], side="right")
    is_between = before % 2 == 1
    cut = np.flatnonzero(np.searchsorted(edges, extents["first"] + extents["count"], side="left") > before)
    if not len(cut):
        return extents[is_between], extents[~is_between]
    # Of many extents few have an edge inside: to cut only these takes half the time.
    row, first, count, of_pieces = cut_runs(extents["first"][cut], extents["count"][cut].astype(np.uint64), edges)
    pieces = extents[cut][row]
    pieces["page"] += np.where(pieces["pack"] == ZERO, 0, first - pieces["first"]).astype(np.uint64)
    pieces["first"], pieces["count"] = first, count
    counts = np.ones(len(extents), np.int64)
    counts[cut] = np.bincount(row, minlength=len(cut))
    found, is_between = np.repeat(extents, counts), np.repeat(is_between, counts)
    at = expand_ranges((np.cumsum(counts) - counts)[cut], counts[cut])
    found[at], is_between[at] = pieces, of_pieces
    return found[is_between], found[~is_between]


def expand_ranges(start: npt.NDArray[Any], count: npt.NDArray[Any]) -> Numbers:
    """Return each number of the ranges that begin at `start` and are `count` long, in order."""
    counts = count.astype(np.int64)
    ends = np.cumsum(counts)
    numbers = np.arange(ends[-1] if len(ends) else 0, dtype=np.int64)
    numbers += np.repeat(start.astype(np.int64) - ends + counts, counts)
    return numbers.view(np.uint64)


def page_locations(extents: Extents) -> tuple[npt.NDArray[np.uint32], Numbers]:
    """Return the pack of each page, and its page there; page 0 for pages of zeros."""
    pack = np.repeat(extents["pack"], extents["count"].astype(np.int64))
    page = expand_ranges(extents["page"], extents["count"])
    page[pack == ZERO] = 0
    return pack, page


def renumber_packs(extents: Extents, numbers: npt.NDArray[np.uint32]) -> Extents:
    """Return the extents with their pack numbers looked up in `numbers`."""
    # ZERO is no index of `numbers`.
    changed = extents.copy()
    stored = changed["pack"] != ZERO
    changed["pack"][stored] = numbers[changed["pack"][stored]]
    return changed


def find_extents(wanted: Extents, above: Extents) -> tuple[Extents, Positions]:
    """Find what `above` has at the addresses of `wanted`, in that order, and for which of them each is.

    Raises LookupError with the number of the first page that `above` lacks.
    """
    # Of extents with the same address the first counts, as in CRIU.
    bounds, owner = _cells(above)
    ends = wanted["first"] + wanted["count"]
    low = np.searchsorted(bounds, wanted["first"], side="right") - 1
    counts = np.searchsorted(bounds, ends, side="left") - low
    cell, which = expand_ranges(low, counts), np.repeat(np.arange(len(wanted)), counts)
    first = np.maximum(wanted["first"][which], bounds[cell])
    if (owner[cell] < 0).any():
        raise LookupError(int(first[owner[cell] < 0][0]))
    found = above[owner[cell]]
    found["page"] += first - found["first"]
    found["page"][found["pack"] == ZERO] = 0
    found["count"] = np.minimum(ends[which], bounds[cell + np.uint64(1)]) - first
    found["first"] = first
    return found, which


def unique_sorted(numbers: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """Return the different numbers, in order."""
    # np.unique takes longer, and first loads its masked arrays: 20 ms.
    in_order = np.sort(numbers)
    is_first = np.ones(len(in_order), np.bool_)
    np.not_equal(in_order[1:], in_order[:-1], out=is_first[1:])
    return in_order[is_first]


def mark_used_pages(extents: Extents, pack: int, pages: int) -> Mask:
    """Mark which of a pack's `pages` pages the extents use."""
    inside = extents[extents["pack"] == pack]
    steps = np.zeros(pages + 1, np.int64)
    # np.add.at adds once for each extent; `steps[...] += 1` would add once where several begin at the same page.
    np.add.at(steps, inside["page"].astype(np.int64), 1)
    np.add.at(steps, (inside["page"] + inside["count"]).astype(np.int64), -1)
    return np.cumsum(steps)[:-1] > 0


def _cells(extents: Extents) -> tuple[Numbers, Positions]:
    """Return the addresses between which one extent counts, and which that is, -1 for none."""
    ends = extents["first"] + extents["count"]
    bounds = unique_sorted(np.concatenate((np.zeros(1, np.uint64), extents["first"], ends)))
    owner = np.full(len(bounds), -1, np.int64)
    low, high = np.searchsorted(bounds, extents["first"]), np.searchsorted(bounds, ends)
    cell, which = expand_ranges(low, high - low), np.repeat(np.arange(len(extents)), high - low)
    # Of several values for one cell the last stays.
    owner[cell[::-1]] = which[::-1]
    return bounds, owner
