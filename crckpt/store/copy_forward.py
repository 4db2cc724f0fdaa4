"""Which known pages a checkpoint stores again, so that old packs die. Pure.

A pack dies when no checkpoint names it. Programs that rewrite pages here and there would keep every pack alive for
its last few pages, and a restore would read all of them. So pages that are still used of little used packs are stored
again, at a price in bytes written. The figures are a trade, simulated on series in which 1 % of the pages, anywhere,
is rewritten from one checkpoint to the next. After 100 of them:

    USED_BELOW  PER_NEW   written / new   bytes in frames read / needed   packs of the last 5 / one checkpoint
    none                  1.0             1.99                            2.0
    0.5         1         1.2             1.55                            1.7
    0.75        1         1.3             1.40                            1.5
    0.75        2.5       1.9             1.18 (1.26 at the worst time)   1.35 (1.45)
    0.8         3         2.2             1.15 (1.21)                     1.3

Written are at most 1 + PER_NEW times what is new, in the long run 1 / (1 - USED_BELOW) times. Above 0.75 a series of
ten checkpoints under light load would begin to copy, with nothing to gain yet. A pack is copied over several
checkpoints, its least used frames first, so that no checkpoint writes much more than what is new.

Where much is rewritten each time old packs die of themselves, and what is copied soon dies, too. So no more than OF_ALL
of the checkpoint is copied, or PER_NEW_OF_MUCH pages for each new one where that is more: that is work beside a tree
that writes a lot already. Of the 60th checkpoint, as above (the last column is of 5 checkpoints, of which each has new
pages):

    rewritten   PER_NEW_OF_MUCH   written / new   read / needed   packs of the last 5 / one checkpoint
    10 %        2.5               3.4             1.12            2.6
    10 %        1                 2.0             1.32            2.1
    10 %        0.5               1.5             1.57            2.2
    10 %        0                 1.0             3.5             7.0
    5 %         0.5               1.9             1.35            1.8
"""

from __future__ import annotations

from typing import Final

import numpy as np

from crckpt.store.extents import Mask, Places
from crckpt.store.pack import FRAME_PAGES

USED_BELOW: Final = 0.75
"""Packs of which a smaller share is used are copied."""

PER_NEW: Final = 2.5
"""Pages that are copied at most, for each new one."""

OF_ALL: Final = 0.05
"""The share of a checkpoint's pages that is copied at most, but for PER_NEW_OF_MUCH."""

PER_NEW_OF_MUCH: Final = 0.5
"""Pages that may be copied for each new one however many that are."""

MOST_PACKS: Final = 128
"""With more packs than these the smaller half is merged: each costs an open file and two reads at dump and restore."""


def worth_copying(used: Mask, starts: Places, new: int) -> Mask:
    """Which of the known pages are to be stored again by a checkpoint that has `new` pages of its own.

    `used` says which known pages it uses, `starts` where each pack begins among them, and at last their number.
    """
    chosen = np.zeros(len(used), np.bool_)
    sizes = np.diff(starts)
    live = _counts(used, starts[:-1])
    if not new or not live.any():
        return chosen
    for pack in _small(live):
        chosen[starts[pack] : starts[pack + 1]] = used[starts[pack] : starts[pack + 1]]
    budget = int(min(PER_NEW * new, max(PER_NEW_OF_MUCH * new, OF_ALL * (live.sum() + new))))
    shares = np.where(live > 0, live / sizes, 1)
    for pack in np.argsort(shares, kind="stable").tolist():
        if budget <= 0 or shares[pack] >= USED_BELOW:
            break
        some = _least_used(used[starts[pack] : starts[pack + 1]], budget) + starts[pack]
        chosen[some] = True
        budget -= len(some)
    return chosen


def _small(live: Places) -> list[int]:
    """The smaller half of the packs in use, if they are too many."""
    order = np.argsort(live, kind="stable")
    in_use: list[int] = order[live[order] > 0].tolist()
    return in_use[: len(in_use) // 2] if len(in_use) > MOST_PACKS else []


def _least_used(used: Mask, most: int) -> Places:
    """Up to `most` used pages of a pack, from the frames with the fewest of them."""
    live = _counts(used, np.arange(0, len(used), FRAME_PAGES))
    pages = np.flatnonzero(used).astype(np.int64)
    frame = pages // FRAME_PAGES
    some: Places = pages[np.lexsort((frame, live[frame]))][:most]
    return some


def _counts(used: Mask, starts: Places) -> Places:
    if not len(starts):
        return np.empty(0, np.int64)
    counts: Places = np.add.reduceat(used, starts, dtype=np.int64)
    return counts
