"""A hash table of fingerprints, in arrays: objects would take 200 bytes a page. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from crckpt.store.format.extents import Numbers, Positions

MOST: Final = 1 << 22
"""The most fingerprints of a table: 16 GiB of pages, in 96 MiB. Equal pages after them are stored again."""

# Fingerprints that are put into slots at once: each takes some 100 bytes meanwhile.
_AT_ONCE: Final = 1 << 16


class FingerprintTable:
    """Fingerprints (n by 2 numbers), numbered from 0 in the order in which they are added.

    The first `most` are kept, in 24 to 32 bytes each; the others only count. Open addressing: a fingerprint is in the
    first slot that was free, from the slot of its low bits on.
    """

    def __init__(self, most: int, expected: int | None = None) -> None:
        """`most` is below 2^31; memory is taken as it is used. With more than `expected` ones the table grows."""
        self.count = 0
        self._most = most
        # Two rows rather than two columns: numpy looks up single numbers four times as fast as pairs.
        self._prints: Numbers = np.empty((2, most if expected is None else expected), np.uint64)
        self._make_slots()

    def find(self, prints: Numbers) -> Positions:
        """Find the number of each, -1 for those that are not kept."""
        found = np.full(len(prints), -1, np.int64)
        left = np.arange(len(prints) if min(self.count, self._most) else 0)
        low, high = np.ascontiguousarray(prints.T)
        # The low bits serve as the hash: a fingerprint of GMAC is as good as random.
        slot = low[left] & self._mask
        while len(left):
            # A free slot, 0, becomes the last fingerprint: what that is does not matter.
            number = self._slots[slot].astype(np.int64) - 1
            hit = (self._prints[0][number] == low[left]) & (self._prints[1][number] == high[left]) & (number >= 0)
            found[left[hit]] = number[hit]
            further = ~hit & (number >= 0)
            left, slot = left[further], (slot[further] + np.uint64(1)) & self._mask
        return found

    def extend(self, prints: Numbers) -> None:
        """Give the next numbers to all of them, also to those that have one: `find` finds the older number."""
        some = prints[: max(0, self._most - self.count)]
        start, end = self.count, self.count + len(some)
        self.count += len(prints)
        if not len(some):
            return
        if end > self._prints.shape[1]:
            grown: Numbers = np.empty((2, min(self._most, 2 * end)), np.uint64)
            grown[:, :start] = self._prints[:, :start]
            self._prints = grown
            self._make_slots()
            start = 0
        self._prints[:, end - len(some) : end] = some.T
        for first in range(start, end, _AT_ONCE):
            self._insert(np.arange(first, min(end, first + _AT_ONCE)))

    def _make_slots(self) -> None:
        """Make slots for as many fingerprints as there is room for, all free."""
        # Between two and four slots a fingerprint, so that searches are short. 0 is a free slot.
        self._slots = np.zeros(1 << (2 * self._prints.shape[1] - 1).bit_length(), np.uint32)
        self._mask = np.uint64(len(self._slots) - 1)

    def _insert(self, numbers: Positions) -> None:
        slot = self._prints[0][numbers] & self._mask
        while len(numbers):
            free = self._slots[slot] == 0
            # Of several that claim a slot the last here gets it, which is the oldest; the others see that.
            self._slots[slot[free][::-1]] = numbers[free][::-1] + 1
            lost = self._slots[slot] != numbers + 1
            numbers, slot = numbers[lost], (slot[lost] + np.uint64(1)) & self._mask

    def number(self, prints: Numbers) -> tuple[Positions, Positions]:
        """Return the number of each, and the rows that are new, in order: they now have a number."""
        # Once the table is full, all that is not found is new, even if it comes twice.
        numbers = self.find(prints)
        missing = np.flatnonzero(numbers < 0)
        fresh, group = missing, np.arange(len(missing))
        if len(missing) and self.count < self._most:
            first, group = _group(prints[missing])
            fresh = missing[first]
        numbers[missing] = self.count + group
        self.extend(prints[fresh])
        return numbers, fresh


def _group(prints: Numbers) -> tuple[Positions, npt.NDArray[np.intp]]:
    """Return the first row of each fingerprint, in order, and which of those each row equals."""
    # Equal fingerprints may count as different if another with the same low half sorts between them: that takes some
    # 2^32 pages, and then a page is stored twice.
    low, high = np.ascontiguousarray(prints.T)
    order = np.argsort(low)
    low, high = low[order], high[order]
    begins = np.concatenate(([True], (low[1:] != low[:-1]) | (high[1:] != high[:-1])))
    first = np.minimum.reduceat(order, np.flatnonzero(begins))
    rank = np.empty(len(first), np.intp)
    rank[np.argsort(first)] = np.arange(len(first))
    group = np.empty(len(prints), np.intp)
    group[order] = rank[np.cumsum(begins) - 1]
    return np.sort(first), group
