"""Choose known pages that a checkpoint stores again, so that old packs die. Pure.

A pack dies when no checkpoint names it. Programs that rewrite pages here and there would keep every pack alive for its
last few pages, and a restore would read all of them. So when too little is used of all the packs that a checkpoint
needs, pages of the least used ones are stored again, at a price in bytes written. The figures are a trade, simulated on
series in which 1 % of the pages, anywhere, is rewritten from one checkpoint to the next. After 100 of them, and at the
worst time:

    USED_BELOW  PER_NEW   written / new   bytes in frames read / needed   packs of the last 5 / one checkpoint
    none                  1.0             2.00                            2.0
    0.7         1         1.3             1.42 (1.48)                     1.5 (1.6)
    0.8         2.5       1.75            1.23 (1.25)                     1.35 (1.45)
    0.835       2.5       1.95            1.18 (1.22)                     1.35 (1.41)
    0.85        3         2.2             1.15 (1.19)                     1.33 (1.41)

Each checkpoint writes at most 1 + PER_NEW times what is new, and the least used frames go first. A series of ten under
light load copies nothing: there is nothing to gain yet. Where the same pages are rewritten again and again their packs
die of themselves, and a few that are little used do no harm: of 2 % each time, in a fifth of the pages, 1.3 times what
is new is written, and 1.12 (1.20) times what is needed is read.

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

A pack that checkpoints of other jobs use does not die by a copy. So what the fullest of these uses counts as used. A
pack of which a checkpoint found fewer than LEAST_FOUND by their fingerprints is no pack of its job: a few pages would
keep it alive once that job is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from crckpt.store.format.extents import Mask, Positions
from crckpt.store.format.pack import FRAME_PAGES

USED_BELOW: Final = 0.835
"""Nothing is copied while a larger share of all packs in use is used."""

PER_NEW: Final = 2.5
"""Pages that are copied at most, for each new one."""

OF_ALL: Final = 0.05
"""The share of a checkpoint's pages that is copied at most, but for PER_NEW_OF_MUCH."""

PER_NEW_OF_MUCH: Final = 0.5
"""Pages that may be copied for each new one however many that are."""

MOST_PACKS: Final = 128
"""With more packs than these the smaller half is merged: each costs an open file and two reads at dump and restore."""

LEAST_FOUND: Final = 1 / 64
"""The share of a pack that a checkpoint uses at least of a pack that its parent does not use."""


def choose_pages(
    used: Mask, starts: Positions, new: int, inherited: int, find_used_by_others: Callable[[], Positions]
) -> Mask:
    """Choose which of the known pages are stored again by a checkpoint that has `new` pages of its own.

    `used` says which known pages it uses, `starts` where each pack begins among them, and at last their number. The
    first `inherited` packs are the parent's. `find_used_by_others` says how many pages of each pack the checkpoint of
    another job uses that uses most of it.
    """
    chosen = np.zeros(len(used), np.bool_)
    sizes = np.diff(starts)
    live = _sums(used, starts[:-1])
    inherits = np.arange(len(sizes)) < inherited
    whole = np.flatnonzero((live > 0) & (live < LEAST_FOUND * sizes) & ~inherits).tolist()
    order = np.argsort(live, kind="stable")
    packs = order[live[order] > 0].tolist()
    # A checkpoint with nothing new has no budget for copies.
    if new and len(packs) > MOST_PACKS:
        whole += packs[: len(packs) // 2]
    for pack in whole:
        chosen[starts[pack] : starts[pack + 1]] = used[starts[pack] : starts[pack + 1]]
    if not new or not packs:
        return chosen
    in_use = live.sum()
    needed = USED_BELOW * sizes[live > 0].sum()
    if in_use >= needed:
        return chosen
    # Only now: every manifest is read for it.
    of_any = np.maximum(live, find_used_by_others())
    if of_any[live > 0].sum() >= needed:
        return chosen
    budget = int(min(PER_NEW * new, max(PER_NEW_OF_MUCH * new, OF_ALL * (in_use + new))))
    shares = np.where(live > 0, of_any / sizes, 1)
    for pack in np.argsort(shares, kind="stable").tolist():
        # A pack that is used whole gains nothing from a copy.
        if budget <= 0 or shares[pack] == 1:
            break
        # From the frames with the fewest of them.
        here = used[starts[pack] : starts[pack + 1]]
        in_frame = _sums(here, np.arange(0, len(here), FRAME_PAGES))
        pages = np.flatnonzero(here)
        frame = pages // FRAME_PAGES
        some = pages[np.lexsort((frame, in_frame[frame]))][:budget] + starts[pack]
        chosen[some] = True
        budget -= len(some)
    return chosen


def _sums(used: Mask, starts: Positions) -> Positions:
    if not len(starts):
        return np.empty(0, np.int64)
    counts: Positions = np.add.reduceat(used, starts, dtype=np.int64)
    return counts
