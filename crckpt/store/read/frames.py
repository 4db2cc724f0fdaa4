"""Find the frames that hold the pages of extents; unpack them into memory, ahead of their use and on every core.

`FrameMemory` does it for one reading of a checkpoint, `UnpackedFrames` from before a restore, so that the restore only
has to copy them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import ExitStack
from itertools import groupby, islice
from mmap import MAP_PRIVATE, mmap
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.host.disk.space import free_memory
from crckpt.model import PAGE_SIZE, PackId
from crckpt.store.format.extents import ZERO, Bytes, Extents, Numbers, Positions, expand_ranges, unique_sorted
from crckpt.store.format.index import PAGES
from crckpt.store.format.pack import FRAME_PAGES, FRAME_SIZE, Pack
from crckpt.store.read.contents import Contents
from crckpt.store.workers import workers

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
    # A byte for each frame of these packs; there may be far more pieces, which would have to be sorted.
    numbers = starts[pack][of] + frame
    are_needed = np.zeros(int(starts[-1]), np.bool_)
    are_needed[numbers] = True
    needed = np.flatnonzero(are_needed)
    in_pack = np.searchsorted(starts, needed, side="right") - 1
    return Pieces(
        frames=in_pack << _PACK_SHIFT | needed - starts[in_pack],
        which=(np.cumsum(are_needed) - 1)[numbers],
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


FRAMES_AT_ONCE: Final = 8
"""Frames that one task unpacks: up to 2 MiB. Adjacent ones of a pack are read at once."""

NOWHERE: Final = -1
_ASKED_FOR: Final = -2

# Of the memory that is left when the tree has its own, this share may be used.
_SHARE: Final = 0.75


class FrameMemory:
    """Slots for verified, unpacked frames of a checkpoint. Methods name a frame by its place in `frames`.

    - `frames`: numbered as in `Pieces`
    - `slot_of`: the slot of each frame; negative if it is not unpacked, NOWHERE if nobody has asked for it
    - `frame_in`: the frame in each slot, or NOWHERE
    - `free`: slots without a frame, those used last at the end: they are still in a core's cache
    - `pages`: FRAME_PAGES for each slot
    """

    def __init__(self, contents: Contents, frames: Positions, pages: Bytes, pool: Executor) -> None:
        slots = len(pages) // FRAME_PAGES
        self.frames = frames
        self.slot_of: Positions = np.full(len(frames), NOWHERE, np.int64)
        self.frame_in: Positions = np.full(slots, NOWHERE, np.int64)
        self.free = list(range(slots))
        self.pages = pages
        self.contents = contents
        self._pool = pool

    def ask_for(self, which: Positions) -> list[Future[None]]:
        """Let threads unpack frames, given in order, for which there is room."""
        self.slot_of[which] = _ASKED_FOR
        tasks = (which[at : at + FRAMES_AT_ONCE] for at in range(0, len(which), FRAMES_AT_ONCE))
        return [self._pool.submit(self.unpack, some) for some in tasks]

    def unpack(self, which: Positions) -> None:
        """Unpack frames, given in order. Raises IntegrityError; then their slots are lost."""
        # Slots are taken here, so that those just dropped, whose memory was used before, come first. They are sorted,
        # so that pages that are adjacent in a file are adjacent in memory, and need not be copied.
        slots = sorted(self.free.pop() for _ in range(len(which)))
        unpack(self.contents, self.frames[which], self.pages, slots)
        self.slot_of[which], self.frame_in[slots] = slots, which

    def drop(self, which: Positions) -> int:
        """Free the slots of frames; return how many."""
        slots = self.slot_of[which]
        self.slot_of[which] = NOWHERE
        slots = slots[slots >= 0]
        self.frame_in[slots] = NOWHERE
        self.free += slots.tolist()
        return len(slots)

    def addresses(self, which: npt.NDArray[np.integer[Any]] | slice) -> Numbers:
        """Return the addresses of frames; 0 for one that is not unpacked."""
        slots = self.slot_of[which]
        start = np.uint64(self.pages.ctypes.data)
        return np.where(slots < 0, np.uint64(0), start + slots.astype(np.uint64) * np.uint64(FRAME_SIZE))


def map_slots(count: int) -> Bytes:
    """Return memory for so many slots, of which only those that are used take any. Raises OSError."""
    # numpy's memory asks for huge pages: if few are free, the kernel is slow to find them.
    memory = mmap(-1, max(count, 1) * FRAME_SIZE, MAP_PRIVATE)
    return np.frombuffer(memory, np.uint8).reshape(-1, PAGE_SIZE)


class UnpackedFrames:
    """Verified, unpacked frames, found by pack and number. They stay until this is dropped.

    For one thread; threads of its own unpack. `find` only after `stop`.
    """

    def __init__(self, reserved: int) -> None:
        """`reserved` bytes of memory are left free, for the tree."""
        self._reserved = reserved
        # For each pack the addresses of its frames, 0 for those that are not unpacked.
        self._found: dict[PackId, Numbers] = {}
        self._memories: list[FrameMemory] = []
        self._threads = ExitStack()
        self._tasks: list[Future[None]] = []

    def begin(self, contents: Contents) -> None:
        """Begin to unpack the memory of a checkpoint, as far as there is room. Raises IntegrityError."""
        self.stop()
        room = int((free_memory() - self._reserved) * _SHARE) // FRAME_SIZE
        with contents.named():
            frames = [
                pieces_of(contents, file.name, file.extents, file.extents["first"].astype(np.int64)).frames
                for file in contents.index.files
                if file.kind == PAGES
            ]
            in_order = unique_sorted(np.concatenate([np.empty(0, np.int64), *frames]))
            missing = in_order[self.find(contents, in_order) == 0][: max(room, 0)]
        pool = self._threads.enter_context(workers())
        try:
            memory = FrameMemory(contents, missing, map_slots(len(missing)), pool)
        except OSError:  # the user's limit, or no memory may be promised that is not there
            return
        self._memories.append(memory)
        # What is damaged is not kept: who needs it reads it, and learns of the damage.
        self._tasks = memory.ask_for(np.arange(len(missing)))

    def wait(self) -> None:
        """Wait until all that was begun is unpacked."""
        wait(self._tasks)

    def stop(self) -> None:
        """Unpack no more; return when the threads have ended."""
        self._threads.close()
        if self._tasks:
            memory = self._memories[-1]
            addresses = memory.addresses(slice(None))
            for pack, numbers in group_by_pack(memory.contents, memory.frames):
                found = self._found.setdefault(pack.digest, np.zeros(len(pack.table), np.uint64))
                found[numbers], addresses = addresses[: len(numbers)], addresses[len(numbers) :]
        self._tasks = []

    def find(self, contents: Contents, frames: Positions) -> Numbers:
        """Return the address of each of these frames, numbered as in `Pieces` and in order; 0 for one that is not kept.

        Raises IntegrityError.
        """
        found = [
            kept[numbers] if (kept := self._found.get(pack.digest)) is not None else np.zeros(len(numbers), np.uint64)
            for pack, numbers in group_by_pack(contents, frames)
        ]
        return np.concatenate([np.empty(0, np.uint64), *found])
