"""Files of a checkpoint from front to back: frames are verified and unpacked ahead of their use, on every core.

Where pages are rewritten one by one, pages that follow each other lie in many packs, and one page may stand in many
places. So it is planned beforehand which frames each part of a file needs. An unpacked frame stays as long as a later
part needs it. Where memory is short, those go that are needed last, and are unpacked once more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Final

import numpy as np
from msgspec.structs import replace

from crckpt.errors import IntegrityError
from crckpt.host.disk.vmsplice import PIPE_SIZE
from crckpt.images.own_memory import MemoryRange, range_edges
from crckpt.images.pagemap import read_pagemap, write_pagemap
from crckpt.model import PAGE_SIZE
from crckpt.store.format.extents import (
    Bytes,
    Extents,
    Numbers,
    Positions,
    expand_ranges,
    extent_ends,
    page_count,
    split_extents,
    unique_sorted,
)
from crckpt.store.format.index import DETAILS, PAGES, StoredFile
from crckpt.store.format.pack import FRAME_PAGES
from crckpt.store.read.contents import Contents
from crckpt.store.read.memory_fill import MemoryFill
from crckpt.store.read.pieces import Pieces, pieces_of, unpack
from crckpt.store.workers import Workers, wait_for_result

_SMALL: Final = 1 << 20
"""Files up to this size are read as a whole."""

_PAGES_IN_PART: Final = 512
_PARTS_AT_FIRST: Final = 64
"""Parts of which the frames are unpacked before anything is asked for: up to 128 MiB."""

_PARTS_AHEAD: Final = 16
"""And later: what was unpacked a moment ago is still in the cores' caches, and little memory is touched at all."""

_FRAMES_AT_ONCE: Final = 8
"""Frames that follow each other in a pack and are read at once: up to 2 MiB."""

_MOST_FRAMES: Final = 1024
"""Unpacked frames that are kept for all files together: 256 MiB of memory."""

_FEWEST_FRAMES: Final = 8
"""But so many, 2 MiB, for each file; as much again is for pages that pipes refer to."""

_NOWHERE: Final = -1
_ASKED_FOR: Final = -2

_LENT_PAGES: Final = PIPE_SIZE // PAGE_SIZE
_SHARE_OF_PART: Final = 3
"""A part needs at most a third of the frames that are kept: so it finds room beside the one before and what is lent.
Where all are kept there is room for each."""

_PAGES_WORTH_LENDING: Final = 16
"""Where fewer follow each other in memory on average, to copy them takes less than to give each run by itself."""

_ZEROS: Final = memoryview(bytearray(1 << 20))
"""Writable, so that a pipe can refer to it; nobody does write."""


class Reader:
    """Reads the image files of a checkpoint, several at once if need be, each in a thread of its own.

    `files` are all of them, `total` their size in bytes. It takes up to 256 MiB of memory, and some 5 MiB for each file
    that is read at the same time. Every method raises IntegrityError, naming the checkpoint, pack and frame, on any
    damage.
    """

    def __init__(self, contents: Contents, pool: Workers) -> None:
        """Reads the index. Frames are unpacked in the `pool`."""
        self.files = tuple(file for file in contents.index.files if file.kind != DETAILS)
        self.total = sum(file.bytes for file in self.files)
        self._contents = contents
        self._pool = pool
        self._one_at_a_time = threading.Lock()
        self._begun: tuple[str, _Plan] | None = None
        self._left: dict[str, StoredFile] = {}
        self._bounds: dict[str, Numbers] = {}

    def set_apart(self, own: Mapping[str, Sequence[MemoryRange]]) -> MemoryFill:
        """Take pages out of the images, to be put into place without CRIU.

        `own` has, by the names of page maps, the memory in which they are. Those of a page map in which a page could
        stand twice stay. To be called before an image is asked for.
        """
        apart: dict[str, Extents] = {}
        for file in self.files:
            if file.kind == PAGES and file.pagemap in own and _is_in_order(file.extents):
                bounds = range_edges(own[file.pagemap], file.extents["first"], file.extents["count"].astype(np.uint64))
                self._bounds[file.pagemap] = bounds
                apart[file.pagemap], left = split_extents(file.extents, bounds)
                self._left[file.name] = replace(file, bytes=page_count(left) * PAGE_SIZE, extents=left)
        with self._contents.named():
            return MemoryFill(self._contents, apart, self._pool)

    def begin(self) -> None:
        """Begin to unpack the largest image, which will be asked for: until then the cores have nothing to do."""
        with self._contents.named():
            largest = max((self._left.get(file.name, file) for file in self.files), key=lambda file: file.bytes)
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
        file = self._left.get(name) or self._contents.index.find(name)
        if file is None:
            return None
        return self._cut(file) if name in self._bounds else self._filled(file)

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

    def _cut(self, file: StoredFile) -> Iterator[memoryview]:
        """A page map, without the pages that are set apart."""
        with self._one_at_a_time:
            content = self._contents.read(file)
        with self._contents.named():
            pagemap = read_pagemap(content, file.name).without_ranges(self._bounds[file.name])
            pages = self._left.get(pagemap.pages_name)
            if pages is None or pages.bytes != pagemap.present * PAGE_SIZE:
                raise IntegrityError(f"{file.name} and {pagemap.pages_name} do not fit together")
        yield memoryview(write_pagemap(pagemap))

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


def _is_in_order(extents: Extents) -> bool:
    first = extents["first"]
    return bool((first[1:] >= first[:-1] + extents["count"][:-1]).all())


class _Plan:
    """Which frames each part of a file needs, and which of them are unpacked, where."""

    def __init__(self, contents: Contents, file: StoredFile, most: int, pool: Executor) -> None:
        """`most` is how many unpacked frames may be kept."""
        self._contents = contents
        self._pool = pool
        self._asked: deque[list[Future[None]]] = deque()
        to = extent_ends(file.extents) - file.extents["count"]
        self._pieces = pieces = pieces_of(contents, file.name, file.extents, to)
        frames = len(pieces.frames)
        slots = min(frames, most)
        self._ends = _ends(pieces, frames if slots == frames else max(1, slots // _SHARE_OF_PART))
        parts = len(self._ends)
        part = np.searchsorted(self._ends, np.arange(len(pieces.which)), side="right")
        # The frames that parts need, part by part; and the parts that need frames, frame by frame.
        needed_by, self._needs = np.divmod(unique_sorted(part * frames + pieces.which), max(1, frames))
        self._needs_end = np.searchsorted(needed_by, np.arange(parts), side="right").tolist()
        self._uses = np.sort(self._needs * parts + needed_by)
        last = np.array(self._ends, np.int64) - 1
        self._read_after = pieces.to[last] + pieces.count[last]
        self._pages = np.empty((slots * FRAME_PAGES, PAGE_SIZE), np.uint8)
        # Where there are few, frames would have to make room while pipes still refer to them.
        self._are_lent = slots == frames or slots >= _SHARE_OF_PART * _LENT_PAGES
        self._ring = _Ring(int(np.bincount(part, pieces.count).max(initial=0)))
        self._slot_of = np.full(frames, _NOWHERE, np.int64)
        self._frame_in = np.full(slots, _NOWHERE, np.int64)
        self._room = slots
        self._free = list(range(slots))
        last_use = self._uses[np.searchsorted(self._uses, np.arange(1, frames + 1) * parts) - 1] % max(1, parts)
        self._by_last_use = np.argsort(last_use, kind="stable")
        self._needed_until = last_use[self._by_last_use]
        self._let_go_of = 0

    def begin(self) -> None:
        """Have frames unpacked before they are asked for, as far as there is room."""
        self._ask_ahead(0, _PARTS_AT_FIRST)

    def read(self) -> Iterator[tuple[int, Bytes]]:
        """(number of the first page, pages) of what is stored, in order. Raises IntegrityError."""
        for part in range(len(self._ends)):
            self._ask_ahead(part, _PARTS_AHEAD)
            for future in self._asked.popleft():
                wait_for_result(future)
            yield from self._part(part)

    def _ask_ahead(self, now: int, parts: int) -> None:
        """Have the frames of part `now`, and of others up to so many `parts`, unpacked, as far as there is room."""
        in_use = self._first_in_use(now)
        self._let_go(in_use)
        for part in range(now + len(self._asked), min(now + parts, len(self._ends))):
            missing = self._missing(part)
            if not self._has_room(len(missing), part, in_use):
                return
            self._asked.append(self._ask(missing))

    def _missing(self, part: int) -> Positions:
        wanted: Positions = self._needs[self._needs_end[part - 1] if part else 0 : self._needs_end[part]]
        missing: Positions = wanted[self._slot_of[wanted] == _NOWHERE]
        return missing

    def _first_in_use(self, part: int) -> int:
        """When `slice_extents` is to be read: it, or the first part before it of which pipes may still hold pages."""
        if not part or not self._are_lent:
            return part
        return int(np.searchsorted(self._read_after, self._read_after[part - 1] - _LENT_PAGES, side="right"))

    def _let_go(self, now: int) -> None:
        """Free what no part from `now` on needs."""
        end = int(np.searchsorted(self._needed_until, now))
        self._forget(self._by_last_use[self._let_go_of : end])
        self._let_go_of = end

    def _has_room(self, wanted: int, part: int, now: int) -> bool:
        """Make room for so many frames of a part; whether there was, beside what it and those from `now` on need."""
        short = wanted - self._room
        if short > 0:
            frames = self._frame_in[self._frame_in >= 0]
            next_use = self._next_use(frames, now)
            if short > (next_use > part).sum():
                return False
            self._forget(frames[np.argsort(-next_use, kind="stable")[:short]])
        return True

    def _forget(self, frames: Positions) -> None:
        slots = self._slot_of[frames]
        self._slot_of[frames] = _NOWHERE
        slots = slots[slots >= 0]
        self._frame_in[slots] = _NOWHERE
        self._room += len(slots)
        self._free += slots.tolist()

    def _next_use(self, frames: Positions, now: int) -> Positions:
        """The part, `now` or later, that needs each of the frames next; there is one."""
        parts = len(self._ends)
        found: Positions = self._uses[np.searchsorted(self._uses, frames * parts + now)] % parts
        return found

    def _ask(self, missing: Positions) -> list[Future[None]]:
        """Have frames unpacked that are not; there is room."""
        self._room -= len(missing)
        self._slot_of[missing] = _ASKED_FOR
        return [
            self._pool.submit(self._unpack, missing[at : at + _FRAMES_AT_ONCE])
            for at in range(0, len(missing), _FRAMES_AT_ONCE)
        ]

    def _unpack(self, missing: Positions) -> None:
        """Unpack frames, which are in order."""
        # Only now: what was let go of meanwhile is taken first, and is memory that was touched before. In order: what
        # follows each other in the file then does so in memory, and need not be copied together.
        slots = sorted(self._free.pop() for _ in range(len(missing)))
        unpack(self._contents, self._pieces.frames[missing], self._pages, slots)
        self._slot_of[missing], self._frame_in[slots] = slots, missing

    def _part(self, part: int) -> Iterator[tuple[int, Bytes]]:
        of = slice(self._ends[part - 1] if part else 0, self._ends[part])
        counts, to = self._pieces.count[of], self._pieces.to[of]
        rows = self._slot_of[self._pieces.which[of]] * FRAME_PAGES + self._pieces.start[of]
        cuts, scattered = to[1:] != to[:-1] + counts[:-1], rows[1:] != rows[:-1] + counts[:-1]
        ends = np.cumsum(counts)
        starts, total = ends - counts, int(ends[-1])
        if self._are_lent and np.count_nonzero(scattered) * _PAGES_WORTH_LENDING <= total:
            pages, places, cuts = self._pages, rows, cuts | scattered
        else:
            # The places are known to be inside; any other mode than "clip" copies twice.
            pages = self._pages.take(
                expand_ranges(rows, counts).view(np.int64), axis=0, out=self._ring.next(total), mode="clip"
            )
            places = starts
        begins = np.flatnonzero(np.concatenate(([True], cuts)))
        lengths = np.diff(starts[begins], append=total)
        for first, at, length in zip(to[begins].tolist(), places[begins].tolist(), lengths.tolist(), strict=True):
            yield first, pages[at : at + length]


class _Ring:
    """Memory for pages that is used again when pipes hold nothing of it any more."""

    def __init__(self, most: int) -> None:
        """`most` is how many pages are asked for at once."""
        # At once, given before with less than _LENT_PAGES after them, and unused at the end.
        self._pages = np.empty((3 * most + _LENT_PAGES, PAGE_SIZE), np.uint8)
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


def _ends(pieces: Pieces, most: int) -> list[int]:
    """Where the parts end, in pieces: each has about so many pages as are read at once, in up to `most` frames."""
    by_pages = np.cumsum(pieces.count) // _PAGES_IN_PART
    cuts = np.diff(by_pages, prepend=by_pages[:1]) != 0
    needs = unique_sorted(np.cumsum(cuts) * len(pieces.frames) + pieces.which) // max(1, len(pieces.frames))
    bounds = [*np.flatnonzero(cuts).tolist(), len(cuts)] if len(cuts) else []
    ends: list[int] = []
    begin = 0
    for end, frames in zip(bounds, np.bincount(needs).tolist(), strict=True):
        ends += [*range(begin + most, end, most), end] if frames > most else [end]
        begin = end
    return ends
