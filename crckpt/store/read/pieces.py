"""Find the frames that hold the pages of extents, and unpack them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Final

import numpy as np
from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.store.format.extents import ZERO, Bytes, Extents, Positions, expand_ranges
from crckpt.store.format.pack import FRAME_PAGES, Pack
from crckpt.store.read.contents import Contents

# The bits of a frame's number in its pack, of which MOST_FRAMES needs 20.
_PACK_SHIFT: Final = 40

# Pieces that are planned at once: each takes some 100 bytes.
_MOST_PIECES: Final = 1 << 26


class Pieces(Struct, frozen=True):
    """`count` pages from page `start` on of the frame `frames[which]` are pages `to` and following of extent `of`.

    All but `frames` are arrays of as many; a frame's number is its pack's, shifted, and its own there. Pages of zeros
    are in no piece.
    """

    frames: Positions
    which: Positions
    start: Positions
    count: Positions
    to: Positions
    of: Positions


def pieces_of(contents: Contents, name: str, extents: Extents, to: Positions) -> Pieces:
    """Cut extents where frames end. The pages of each become pages `to` and following of what is filled.

    Raises IntegrityError, which begins with `name`, if a pack does not have the pages.
    """
    rows = np.flatnonzero(extents["pack"] != ZERO)
    page, count, pack = (extents[column][rows].astype(np.int64) for column in ("page", "count", "pack"))
    starts = _starts(contents, name, pack, page, page + count)
    first, last = page // FRAME_PAGES, (page + count - 1) // FRAME_PAGES
    if int((last - first + 1).sum()) > _MOST_PIECES:
        raise IntegrityError(f"{name} is in more pieces than a checkpoint can have")
    frame = expand_ranges(first, last - first + 1).view(np.int64)
    of = np.repeat(np.arange(len(rows)), last - first + 1)
    start = np.maximum(page[of], frame * FRAME_PAGES)
    frames, which = _find_needed(starts, starts[pack][of] + frame)
    return Pieces(
        frames=frames,
        which=which,
        start=start - frame * FRAME_PAGES,
        count=np.minimum((page + count)[of], (frame + 1) * FRAME_PAGES) - start,
        to=to[rows][of] + start - page[of],
        of=rows[of],
    )


def unpack(contents: Contents, frames: Positions, pages: Bytes, slots: Sequence[int]) -> None:
    """Unpack frames, numbered as in `Pieces` and in order, each into its slot of FRAME_PAGES `pages`.

    Raises IntegrityError.
    """
    memory = iter([pages[slot * FRAME_PAGES :][:FRAME_PAGES].reshape(-1).data for slot in slots])
    for pack, numbers in group_by_pack(contents, frames):
        pack.unpack_frames(numbers, list(islice(memory, len(numbers))))


def read_ahead(contents: Contents, frames: Positions) -> None:
    """Let the disk read frames, numbered as in `Pieces` and in order, before they are unpacked."""
    for pack, numbers in group_by_pack(contents, frames):
        pack.read_ahead(numbers)


def group_by_pack(contents: Contents, frames: Positions) -> Iterator[tuple[Pack, list[int]]]:
    """Yield each pack, and the numbers in it, of frames that are numbered as in `Pieces` and in order."""
    for number, some in groupby(frames.tolist(), lambda frame: frame >> _PACK_SHIFT):
        yield contents.pack(number), [frame - (number << _PACK_SHIFT) for frame in some]


def _starts(contents: Contents, name: str, pack: Positions, page: Positions, end: Positions) -> Positions:
    """Return the number of each pack's first frame if all are numbered in one row, then the number of all.

    Packs that the extents do not use have no frames in the row. Raises IntegrityError if an extent lies where its pack
    has no pages.
    """
    pages = np.zeros(len(contents.checkpoint.packs), np.int64)
    for number in np.flatnonzero(np.bincount(pack)).tolist():
        pages[number] = contents.pack(number).pages
    beyond = np.flatnonzero((page < 0) | (end > pages[pack]))
    if len(beyond):
        raise IntegrityError(f"{name} refers to pages that {contents.pack(int(pack[beyond[0]])).name} does not have")
    return np.cumsum([0, *(-(-pages // FRAME_PAGES))], dtype=np.int64)


def _find_needed(starts: Positions, numbers: Positions) -> tuple[Positions, Positions]:
    """Return the different frames of these numbers in the row, as `Pieces` has them, and which of them each is."""
    # A byte for each frame of these packs; there may be far more pieces, which would have to be sorted.
    are_needed = np.zeros(int(starts[-1]), np.bool_)
    are_needed[numbers] = True
    needed = np.flatnonzero(are_needed)
    pack = np.searchsorted(starts, needed, side="right") - 1
    return pack << _PACK_SHIFT | needed - starts[pack], (np.cumsum(are_needed) - 1)[numbers]
