"""Find pages of a checkpoint by the address that they had in a process, and unpack their frames."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from crckpt.errors import IntegrityError
from crckpt.model import PAGE_SIZE, PackId
from crckpt.ops.lazy.plan import Range
from crckpt.store.format.extents import Bytes, split_extents
from crckpt.store.format.index import PAGES
from crckpt.store.format.pack import FRAME_PAGES
from crckpt.store.read.contents import Contents
from crckpt.store.read.frames import pieces_of, read_ahead, unpack

# Frames that one thread unpacks at once: 2 MiB.
_FRAMES_AT_ONCE: Final = 8
# Frames that faults have unpacked, and neighbours may need: 16 MiB.
_KEPT_FRAMES: Final = 64


class Piece(NamedTuple):
    """Content for `length` bytes from `origin` on: it lies at our address `content`, as long as `memory` exists."""

    origin: int
    content: int
    length: int
    memory: Bytes


class ProcessPages:
    """The pages of one process that lie in `ranges` of addresses, but not in packs that are `hot`, nor all zero."""

    def __init__(
        self, contents: Contents, pagemap: str, ranges: tuple[Range, ...], hot: frozenset[PackId] = frozenset()
    ) -> None:
        """Read where they lie; `pagemap` is the name of its page map. Raises IntegrityError."""
        self._contents = contents
        with contents.named():
            file = next((one for one in contents.index.files if one.kind == PAGES and one.pagemap == pagemap), None)
            if file is None:
                raise IntegrityError(f"it has no pages for {pagemap}")
            edges = np.array([edge // PAGE_SIZE for each in ranges for edge in each], np.uint64)
            extents, _ = split_extents(file.extents, edges)
            extents = extents[~contents.are_in_packs(extents, hot)]
            pieces = pieces_of(contents, file.name, extents, extents["first"].astype(np.int64))
        self._frames = pieces.frames
        by_frame = np.lexsort((pieces.to, pieces.which))
        self._which, self._start, self._count, self._to = (
            column[by_frame] for column in (pieces.which, pieces.start, pieces.count, pieces.to)
        )
        self._by_address = np.argsort(self._to, kind="stable")
        self._addresses = self._to[self._by_address]
        self._kept: OrderedDict[int, Bytes] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = int(pieces.count.sum()) * PAGE_SIZE

    @property
    def batches(self) -> int:
        """The number of batches."""
        return -(-len(self._frames) // _FRAMES_AT_ONCE)

    def unpack_batch(self, number: int) -> Iterator[Piece]:
        """Unpack a batch, and yield its pieces. Raises IntegrityError."""
        first = number * _FRAMES_AT_ONCE
        frames = self._frames[first : first + _FRAMES_AT_ONCE]
        pages = np.empty((len(frames) * FRAME_PAGES, PAGE_SIZE), np.uint8)
        with self._contents.named():
            read_ahead(self._contents, self._frames[first + _FRAMES_AT_ONCE : first + 2 * _FRAMES_AT_ONCE])
            unpack(self._contents, frames, pages, range(len(frames)))
        low, high = np.searchsorted(self._which, (first, first + len(frames)))
        for row in range(int(low), int(high)):
            yield self._piece(row, pages, int(self._which[row]) - first)

    def unpack_at(self, origin: int) -> Iterator[Piece]:
        """Unpack the frame with the page of this address; nothing for a page of zeros. Raises IntegrityError."""
        page = origin // PAGE_SIZE
        at = int(np.searchsorted(self._addresses, page, side="right")) - 1
        if at < 0:
            return
        row = int(self._by_address[at])
        if page >= int(self._to[row] + self._count[row]):
            return
        which = int(self._which[row])
        with self._lock:
            if (memory := self._kept.get(which)) is not None:
                self._kept.move_to_end(which)
        if memory is None:
            memory = np.empty((FRAME_PAGES, PAGE_SIZE), np.uint8)
            with self._contents.named():
                unpack(self._contents, self._frames[which : which + 1], memory, (0,))
            with self._lock:
                self._kept[which] = memory
                if len(self._kept) > _KEPT_FRAMES:
                    self._kept.popitem(last=False)
        yield self._piece(row, memory, 0)

    def _piece(self, row: int, memory: Bytes, frame: int) -> Piece:
        at = (frame * FRAME_PAGES + int(self._start[row])) * PAGE_SIZE
        return Piece(int(self._to[row]) * PAGE_SIZE, memory.ctypes.data + at, int(self._count[row]) * PAGE_SIZE, memory)
