"""Files of a checkpoint from front to back: frames are verified and unpacked ahead of their use, on every core.

Where pages are rewritten one by one, pages that follow each other lie in many packs, and one page may stand in many
places. So it is planned beforehand which frames each part of a file needs. An unpacked frame stays as long as a later
part needs it. Where memory is short, those go that are needed last, and are unpacked once more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from typing import Final

import numpy as np
import numpy.typing as npt

from crckpt.errors import IntegrityError
from crckpt.host.pipes import PIPE_SIZE
from crckpt.model import PAGE_SIZE
from crckpt.store.contents import Contents
from crckpt.store.extents import ZERO, Bytes, Numbers, Places, spread
from crckpt.store.index import DETAILS, StoredFile
from crckpt.store.pack import FRAME_PAGES

_SMALL: Final = 1 << 20
"""Files up to this size are read as a whole."""

_PAGES_IN_PART: Final = 512
_PARTS_AHEAD: Final = 64
"""Parts of which the frames are unpacked before they are asked for: up to 128 MiB."""

_FRAMES_AT_ONCE: Final = 8
"""Frames that follow each other in a pack and are read at once: up to 2 MiB."""

_MOST_FRAMES: Final = 1024
"""Unpacked frames that are kept for all files together: 256 MiB of memory."""

_FEWEST_FRAMES: Final = 8
"""But so many, 2 MiB, for each file; as much again is for pages that pipes refer to."""

_PIECE: Final = np.dtype([("pack", "<u4"), ("frame", "<u8"), ("start", "<u4"), ("count", "<u4"), ("to", "<u8")])
"""`count` pages from page `start` of a frame on are pages `to` and following of the file."""

_PACK_SHIFT: Final = 40
"""A frame's number in all packs: the pack's, shifted, and its own there."""

_LENT_PAGES: Final = PIPE_SIZE // PAGE_SIZE
_SHARE_OF_PART: Final = 3
"""A part needs at most a third of the frames that are kept: so it finds room beside the one before and what is lent."""

_ZEROS: Final = memoryview(bytearray(1 << 20))
"""Writable, so that a pipe can refer to it; nobody does write."""

_Pieces = npt.NDArray[np.void]


class Reader:
    """Reads the image files of a checkpoint, several at once if need be, each in a thread of its own.

    `files` are all of them, `total` their size in bytes. It takes up to 256 MiB of memory, and some 4 MiB for each file
    that is read at the same time. Every method raises IntegrityError, naming the checkpoint, pack and frame, on any
    damage.
    """

    def __init__(self, contents: Contents, pool: Executor) -> None:
        """Reads the index. Frames are unpacked in the `pool`."""
        self.files = tuple(file for file in contents.index.files if file.kind != DETAILS)
        self.total = sum(file.bytes for file in self.files)
        self._contents = contents
        self._pool = pool
        self._one_at_a_time = threading.Lock()
        self._begun: tuple[str, _Plan] | None = None

    def begin(self) -> None:
        """Begin to unpack the largest file, which will be asked for: until then the cores have nothing to do."""
        with self._contents.named():
            largest = max(self.files, key=lambda file: file.bytes)
            if largest.bytes > _SMALL:
                plan = self._plan(largest)
                plan.begin()
                self._begun = largest.name, plan

    def image(self, name: str) -> Iterator[memoryview] | None:
        """The content of an image file, in parts, to be put into a pipe; None if there is no such file.

        A part that is writable memory stays as it is until PIPE_SIZE bytes more were asked for: so a pipe can refer to
        it. The last PIPE_SIZE bytes are zeros, which stay for ever, or read-only copies: memory is used again once a
        file was read to its end.
        """
        file = self._contents.index.find(name)
        return None if file is None else self._filled(file)

    def parts(self, file: StoredFile) -> Iterator[tuple[int, memoryview]]:
        """(offset, content) of all that is not zero, in order; each is good until the next is asked for."""
        if file.bytes <= _SMALL:
            with self._one_at_a_time:
                content = self._contents.read(file)
            yield 0, memoryview(content)
            return
        with self._contents.named():
            for page, pages in self._plan(file).read():
                offset = page * PAGE_SIZE
                yield offset, pages.reshape(-1).data[: file.bytes - offset]

    def _plan(self, file: StoredFile) -> _Plan:
        with self._one_at_a_time:
            if self._begun is not None and self._begun[0] == file.name:
                plan = self._begun[1]
                self._begun = None
            else:
                share = _MOST_FRAMES * file.bytes // self.total
                plan = _Plan(self._contents, file, max(share, _FEWEST_FRAMES), self._pool)
        return plan

    def _filled(self, file: StoredFile) -> Iterator[memoryview]:
        done = 0
        for offset, content in self.parts(file):
            yield from _zeros(offset - done)
            done = offset + len(content)
            lent = max(0, min(len(content), file.bytes - PIPE_SIZE - offset))
            if lent:
                yield content[:lent]
            if lent < len(content):
                yield memoryview(bytes(content[lent:]))
        yield from _zeros(file.bytes - done)


class _Plan:
    """Which frames each part of a file needs, and which of them are unpacked, where."""

    def __init__(self, contents: Contents, file: StoredFile, most: int, pool: Executor) -> None:
        """`most` is how many unpacked frames may be kept."""
        self._contents = contents
        self._pool = pool
        self._asked: deque[list[Future[None]]] = deque()
        pieces = _pieces(contents, file)
        frames, which = np.unique(_frame(pieces), return_inverse=True)
        slots = min(len(frames), most)
        self._pieces, self._frames, self._which = pieces, frames, which.astype(np.int64)
        self._ends = _ends(pieces, max(1, slots // _SHARE_OF_PART))
        part = np.searchsorted(self._ends, np.arange(len(pieces)), side="right")
        self._uses = np.unique(self._which * len(self._ends) + part)
        last = np.array(self._ends, np.int64) - 1
        self._read_after = (pieces["to"][last] + pieces["count"][last]).astype(np.int64)
        self._pages = np.empty((slots * FRAME_PAGES, PAGE_SIZE), np.uint8)
        # Where there are few, frames would have to make room while pipes still refer to them.
        self._are_lent = slots == len(frames) or slots >= _SHARE_OF_PART * _LENT_PAGES
        self._ring = _Ring(int(np.bincount(part, pieces["count"]).max(initial=0)))
        self._slot_of = np.full(len(frames), -1, np.int64)
        self._frame_in = np.full(slots, -1, np.int64)
        self._free = list(range(slots))
        last_use = np.full(len(frames), -1, np.int64)
        np.maximum.at(last_use, self._which, part)
        self._by_last_use = np.argsort(last_use, kind="stable")
        self._needed_until = last_use[self._by_last_use]
        self._let_go_of = 0

    def begin(self) -> None:
        """Have frames unpacked before they are asked for, as far as there is room."""
        self._ask_ahead(0)

    def read(self) -> Iterator[tuple[int, Bytes]]:
        """(number of the first page, pages) of what is stored, in order. Raises IntegrityError."""
        for part in range(len(self._ends)):
            self._ask_ahead(part)
            for future in self._asked.popleft():
                future.result()
            yield from self._part(part)

    def _ask_ahead(self, now: int) -> None:
        """Have the frames of part `now` and of the parts after it unpacked, as far as there is room."""
        in_use = self._first_in_use(now)
        self._let_go(in_use)
        for part in range(now + len(self._asked), min(now + _PARTS_AHEAD, len(self._ends))):
            if not self._has_room(part, in_use):
                return
            self._asked.append(self._ask(part))

    def _pieces_of(self, part: int) -> slice:
        return slice(self._ends[part - 1] if part else 0, self._ends[part])

    def _missing(self, part: int) -> Places:
        wanted: Places = np.unique(self._which[self._pieces_of(part)])
        return wanted[self._slot_of[wanted] < 0]

    def _first_in_use(self, part: int) -> int:
        """When `part` is to be read: it, or the first part before it of which pipes may still hold pages."""
        if not part or not self._are_lent:
            return part
        return int(np.searchsorted(self._read_after, self._read_after[part - 1] - _LENT_PAGES, side="right"))

    def _let_go(self, now: int) -> None:
        """Free what no part from `now` on needs."""
        end = int(np.searchsorted(self._needed_until, now))
        self._forget(self._by_last_use[self._let_go_of : end])
        self._let_go_of = end

    def _has_room(self, part: int, now: int) -> bool:
        """Make room for the frames of a part; whether there was, beside what it and those from `now` on need."""
        short = len(self._missing(part)) - len(self._free)
        if short > 0:
            frames = self._frame_in[self._frame_in >= 0]
            next_use = self._next_use(frames, now)
            if short > (next_use > part).sum():
                return False
            self._forget(frames[np.argsort(-next_use, kind="stable")[:short]])
        return True

    def _forget(self, frames: Places) -> None:
        slots = self._slot_of[frames]
        self._slot_of[frames] = -1
        slots = slots[slots >= 0]
        self._frame_in[slots] = -1
        self._free += slots.tolist()

    def _next_use(self, frames: Places, now: int) -> Places:
        """The part, `now` or later, that needs each of the frames next; there is one."""
        parts = len(self._ends)
        found: Places = self._uses[np.searchsorted(self._uses, frames * parts + now)] % parts
        return found

    def _ask(self, part: int) -> list[Future[None]]:
        """Have the frames of a part unpacked."""
        missing = self._missing(part)
        slots = np.array([self._free.pop() for _ in range(len(missing))], np.int64)
        self._slot_of[missing], self._frame_in[slots] = slots, missing
        frames = self._frames[missing]
        runs = np.flatnonzero(np.diff(frames) != 1) + 1
        return [
            self._pool.submit(self._unpack, int(some[at]), into[at : at + _FRAMES_AT_ONCE].tolist())
            for some, into in zip(np.split(frames, runs), np.split(slots, runs), strict=True)
            for at in range(0, len(some), _FRAMES_AT_ONCE)
        ]

    def _unpack(self, first: int, slots: list[int]) -> None:
        """Unpack frames that follow each other."""
        number, frame = divmod(first, 1 << _PACK_SHIFT)
        memory = [self._pages[slot * FRAME_PAGES :][:FRAME_PAGES].reshape(-1).data for slot in slots]
        self._contents.pack(number).unpack(frame, memory)

    def _part(self, part: int) -> Iterator[tuple[int, Bytes]]:
        of = self._pieces_of(part)
        counts, to = (self._pieces[name][of].astype(np.int64) for name in ("count", "to"))
        pages = self._together(self._slot_of[self._which[of]] * FRAME_PAGES + self._pieces["start"][of], counts)
        begins = np.flatnonzero(np.concatenate(([True], to[1:] != to[:-1] + counts[:-1])))
        starts = np.concatenate(([0], np.cumsum(counts)))
        ends = np.append(starts[begins[1:]], starts[-1])
        for first, start, end in zip(to[begins].tolist(), starts[begins].tolist(), ends.tolist(), strict=True):
            yield first, pages[start:end]

    def _together(self, rows: Places, counts: Places) -> Bytes:
        """The pages of these ranges of unpacked ones, one after the other."""
        if self._are_lent and (rows[1:] == rows[:-1] + counts[:-1]).all():
            return self._pages[int(rows[0]) :][: int(counts.sum())]
        # The places are known to be inside; any other mode than "clip" copies twice.
        into = self._ring.next(int(counts.sum()))
        return self._pages.take(spread(rows, counts).astype(np.int64), axis=0, out=into, mode="clip")


class _Ring:
    """Memory for pages that is used again when pipes hold nothing of it any more."""

    def __init__(self, most: int) -> None:
        """`most` is how many pages are asked for at once."""
        self._pages = np.empty((2 * most + _LENT_PAGES, PAGE_SIZE), np.uint8)
        self._at = 0

    def next(self, count: int) -> Bytes:
        """Room for so many pages."""
        if self._at + count > len(self._pages):
            self._at = 0
        self._at += count
        return self._pages[self._at - count : self._at]


def _zeros(count: int) -> Iterator[memoryview]:
    for done in range(0, count, len(_ZEROS)):
        yield _ZEROS[: count - done]


def _frame(pieces: _Pieces) -> Numbers:
    numbers: Numbers = pieces["pack"].astype(np.uint64) << np.uint64(_PACK_SHIFT) | pieces["frame"]
    return numbers


def _ends(pieces: _Pieces, most: int) -> list[int]:
    """Where the parts end, in pieces: each has up to `most` of them, and about so many pages as are read at once."""
    by_pages = np.cumsum(pieces["count"], dtype=np.int64) // _PAGES_IN_PART
    ends = []
    begin = 0
    for end in [*(np.flatnonzero(np.diff(by_pages)) + 1).tolist(), len(pieces)]:
        ends += [*range(begin + most, end, most), end] if end > begin else []
        begin = end
    return ends


def _pieces(contents: Contents, file: StoredFile) -> _Pieces:
    """A file's extents, cut where frames end."""
    ends = np.cumsum(file.extents["count"], dtype=np.uint64)
    stored = file.extents["pack"] != ZERO
    extents, to = file.extents[stored], (ends - file.extents["count"])[stored]
    end = extents["page"] + extents["count"]
    for pack in np.unique(extents["pack"]).tolist():
        if int(end[extents["pack"] == pack].max()) > contents.pack(pack).pages:
            raise IntegrityError(f"{file.name} refers to pages that {contents.pack(pack).name} does not have")
    size = np.uint64(FRAME_PAGES)
    first = extents["page"] // size
    frames = (end - np.uint64(1)) // size - first + np.uint64(1)
    pieces = np.empty(int(frames.sum()), _PIECE)
    pieces["frame"] = spread(first, frames)
    of = np.repeat(np.arange(len(extents)), frames.astype(np.int64))
    start: Numbers = np.maximum(extents["page"][of], pieces["frame"] * size)
    pieces["pack"] = extents["pack"][of]
    pieces["start"] = start - pieces["frame"] * size
    pieces["count"] = np.minimum(end[of], (pieces["frame"] + np.uint64(1)) * size) - start
    pieces["to"] = to[of] + start - extents["page"][of]
    return pieces
