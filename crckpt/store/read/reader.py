"""Read files of a checkpoint from front to back. Frames are verified and unpacked ahead of their use, on every core.

If a program rewrites single pages, adjacent pages lie in many packs, and one page belongs in many places. So the reader
plans which frames each part of a file needs. An unpacked frame is kept as long as a later part needs it. If memory runs
short, the frames that are needed last are dropped, and unpacked again later.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from types import MappingProxyType
from typing import Final

import numpy as np
from msgspec.structs import replace

from crckpt.errors import IntegrityError
from crckpt.host.syscalls.process_vm import PIPE_SIZE
from crckpt.images.pagemap import read_pagemap, write_pagemap
from crckpt.images.private_memory import MemoryRange, range_edges
from crckpt.model import PAGE_SIZE, PackId
from crckpt.store.format.extents import (
    Bytes,
    Extents,
    Numbers,
    expand_ranges,
    extent_ends,
    page_count,
    split_extents,
    unique_sorted,
)
from crckpt.store.format.index import DETAILS, PAGES, StoredFile
from crckpt.store.format.pack import FRAME_PAGES
from crckpt.store.read.contents import Contents
from crckpt.store.read.frames import NOWHERE, FrameMemory, Pieces, UnpackedFrames, pieces_of
from crckpt.store.read.write_to_memory import MemoryFill
from crckpt.store.workers import Workers, wait_for_result

# Files up to this size are read as a whole.
_SMALL: Final = 1 << 20

_PAGES_IN_PART: Final = 512
# Parts whose frames are unpacked before the first part is read: up to 128 MiB.
_PARTS_AT_FIRST: Final = 64

# The same later: frames unpacked a moment ago are still in the caches of the cores, and little memory is used.
_PARTS_AHEAD: Final = 16

# Unpacked frames that are kept for all files together: 256 MiB of memory.
_MOST_FRAMES: Final = 1024

# Frames that each file may keep at least: 2 MiB, and as much again for pages that pipes refer to.
_FEWEST_FRAMES: Final = 8

_LENT_PAGES: Final = PIPE_SIZE // PAGE_SIZE
# A part needs at most a third of the kept frames: so it fits next to the part before and to what pipes refer to.
_SHARE_OF_PART: Final = 3

# With fewer adjacent pages on average, copying them takes less time than passing on each run separately.
_PAGES_WORTH_LENDING: Final = 16

# Writable, so that a pipe can refer to it; nothing writes there.
_ZEROS: Final = memoryview(bytearray(1 << 20))


class Reader:
    """Reads the image files of a checkpoint; several may be read at once, each in its own thread.

    `files` are all of them, `page_maps` those of memory by the names of their page maps; `total` is their size in
    bytes. It takes up to 256 MiB of memory, and some 5 MiB for each file that is read at the same time. On damage every
    method raises IntegrityError, which names checkpoint, pack and frame.
    """

    def __init__(self, contents: Contents, pool: Workers, unpacked: UnpackedFrames | None = None) -> None:
        """Read the index. The threads of `pool` unpack frames, except those that are in `unpacked`."""
        self.files = tuple(file for file in contents.index.files if file.kind != DETAILS)
        self.page_maps = {file.pagemap: file for file in self.files if file.pagemap}
        self.total = sum(file.bytes for file in self.files)
        self._contents = contents
        self._pool = pool
        self._unpacked = unpacked
        self._one_at_a_time = threading.Lock()
        self._begun: dict[str, _Plan] = {}
        self._left: dict[str, StoredFile] = {}
        self._bounds: dict[str, Numbers] = {}

    def set_apart(
        self,
        own: Mapping[str, Sequence[MemoryRange]],
        later: Mapping[str, Sequence[tuple[int, int]]] = MappingProxyType({}),
        hot: frozenset[PackId] = frozenset(),
    ) -> MemoryFill:
        """Take pages out of the images; the result fills memory with them, without CRIU.

        `own` has the memory of these pages by the names of page maps. What lies in the ranges of addresses `later`, and
        not in packs that are `hot`, is left to the caller. The pages of a page map that may have a page twice stay in
        the images: see `is_apart`. Call this before reading an image.
        """
        apart: dict[str, Extents] = {}
        for file in self.files:
            first, count = file.extents["first"], file.extents["count"]
            is_in_order = bool((first[1:] >= first[:-1] + count[:-1]).all())
            if file.kind == PAGES and file.pagemap in own and is_in_order:
                bounds = range_edges(own[file.pagemap], first, count.astype(np.uint64))
                self._bounds[file.pagemap] = bounds
                apart[file.pagemap], left = split_extents(file.extents, bounds)
                if file.pagemap in later:
                    edges = np.array([edge // PAGE_SIZE for each in later[file.pagemap] for edge in each], np.uint64)
                    late, others = split_extents(apart[file.pagemap], edges)
                    is_hot = self._contents.are_in_packs(late, hot)
                    apart[file.pagemap] = np.concatenate((others, late[is_hot]))
                self._left[file.name] = replace(file, bytes=page_count(left) * PAGE_SIZE, extents=left)
        with self._contents.named():
            return MemoryFill(self._contents, apart, self._pool, self._unpacked)

    def is_apart(self, pagemap: str) -> bool:
        """Return whether pages of this page map were taken out of the images."""
        return pagemap in self._bounds

    def begin(self) -> None:
        """Begin to unpack the largest image, while the cores are idle."""
        with self._contents.named():
            largest = max((self._left.get(file.name, file) for file in self.files), key=lambda file: file.bytes)
            if largest.bytes > _SMALL:
                plan = self._plan(largest)
                plan.begin()
                self._begun[largest.name] = plan

    def image(self, name: str) -> Iterator[memoryview] | None:
        """Yield the content of an image file in parts, for a pipe; return None if there is no such file.

        A part in writable memory stays valid until PIPE_SIZE more bytes were read, so that a pipe can refer to it. The
        last PIPE_SIZE bytes are zeros, which stay valid, or read-only copies: memory is reused after the end of a file.
        """
        file = self._left.get(name) or self._contents.index.find(name)
        if file is None:
            return None
        return self._cut(file) if name in self._bounds else self._fill_gaps(file)

    def parts(self, file: StoredFile) -> Iterator[tuple[int, memoryview]]:
        """Yield (offset, content) of all that is not zero, in order; each is valid until the next is read."""
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
            if (begun := self._begun.pop(file.name, None)) is not None:
                return begun
            share = _MOST_FRAMES * file.bytes // self.total
            return _Plan(self._contents, file, max(share, _FEWEST_FRAMES), self._pool)

    def _cut(self, file: StoredFile) -> Iterator[memoryview]:
        """Yield a page map without the pages that are set apart."""
        with self._one_at_a_time:
            content = self._contents.read(file)
        with self._contents.named():
            pagemap = read_pagemap(content, file.name).without_ranges(self._bounds[file.name])
            pages = self._left.get(pagemap.pages_name)
            if pages is None or pages.bytes != pagemap.present * PAGE_SIZE:
                raise IntegrityError(f"{file.name} and {pagemap.pages_name} do not match")
        yield memoryview(write_pagemap(pagemap))

    def _fill_gaps(self, file: StoredFile) -> Iterator[memoryview]:
        done = 0
        for offset, content in self.parts(file):
            yield from _zeros(offset - done)
            done = offset + len(content)
            # The plan's memory ends with the file, while a pipe may still refer to the last PIPE_SIZE bytes: these are
            # copied.
            lent = max(0, min(len(content), file.bytes - PIPE_SIZE - offset))
            if lent:
                yield content[:lent]
            if lent < len(content):
                yield memoryview(bytes(content[lent:]))
        yield from _zeros(file.bytes - done)


class _Plan:
    """Plans which frames each part of a file needs, and keeps those that are unpacked."""

    def __init__(self, contents: Contents, file: StoredFile, most: int, pool: Executor) -> None:
        """`most` is how many unpacked frames may be kept."""
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
        # Sorted by frame, then by part: the next use of a frame is found by bisection.
        self._uses = np.sort(self._needs * parts + needed_by)
        last = np.array(self._ends, np.int64) - 1
        self._read_after = pieces.to[last] + pieces.count[last]
        self._memory = FrameMemory(contents, pieces.frames, np.empty((slots * FRAME_PAGES, PAGE_SIZE), np.uint8), pool)
        # With few slots, frames would have to make room while pipes still refer to them.
        self._are_lent = slots == frames or slots >= _SHARE_OF_PART * _LENT_PAGES
        self._ring = _Ring(int(np.bincount(part, pieces.count).max(initial=0)))
        # Slots without a frame that is there or asked for.
        self._room = slots
        # The entry before the first one of the next frame.
        last_use = self._uses[np.searchsorted(self._uses, np.arange(1, frames + 1) * parts) - 1] % max(1, parts)
        self._by_last_use = np.argsort(last_use, kind="stable")
        self._needed_until = last_use[self._by_last_use]
        self._let_go_of = 0

    def begin(self) -> None:
        """Have frames unpacked before they are asked for, as far as there is room."""
        self._ask_ahead(0, _PARTS_AT_FIRST)

    def read(self) -> Iterator[tuple[int, Bytes]]:
        """Yield (number of the first page, pages) of what is stored, in order. Raises IntegrityError."""
        for part in range(len(self._ends)):
            self._ask_ahead(part, _PARTS_AHEAD)
            for future in self._asked.popleft():
                wait_for_result(future)
            yield from self._part(part)

    def _ask_ahead(self, now: int, parts: int) -> None:
        """Let the frames of `parts` parts from `now` on be unpacked, as far as there is room."""
        in_use = now
        if now and self._are_lent:
            # Pipes may still refer to pages of earlier parts.
            lent = self._read_after[now - 1] - _LENT_PAGES
            in_use = int(np.searchsorted(self._read_after, lent, side="right"))
        # Drop frames that no part from there on needs.
        end = int(np.searchsorted(self._needed_until, in_use))
        self._room += self._memory.drop(self._by_last_use[self._let_go_of : end])
        self._let_go_of = end
        for part in range(now + len(self._asked), min(now + parts, len(self._ends))):
            wanted = self._needs[self._needs_end[part - 1] if part else 0 : self._needs_end[part]]
            missing = wanted[self._memory.slot_of[wanted] == NOWHERE]
            if not self._has_room(len(missing), part, in_use):
                return
            self._room -= len(missing)
            self._asked.append(self._memory.ask_for(missing))

    def _has_room(self, wanted: int, part: int, now: int) -> bool:
        """Make room for the frames of a part; return False if frames that are needed up to it leave none."""
        short = wanted - self._room
        if short > 0:
            frames, parts = self._memory.frame_in[self._memory.frame_in >= 0], len(self._ends)
            # The part from `now` on that needs each of these frames next; there is one.
            next_use = self._uses[np.searchsorted(self._uses, frames * parts + now)] % parts
            if short > (next_use > part).sum():
                return False
            # Those whose next use is furthest away: what has to be unpacked again is the least (Belady's rule).
            self._room += self._memory.drop(frames[np.argsort(-next_use, kind="stable")[:short]])
        return True

    def _part(self, part: int) -> Iterator[tuple[int, Bytes]]:
        of = slice(self._ends[part - 1] if part else 0, self._ends[part])
        counts, to = self._pieces.count[of], self._pieces.to[of]
        rows = self._memory.slot_of[self._pieces.which[of]] * FRAME_PAGES + self._pieces.start[of]
        cuts, scattered = to[1:] != to[:-1] + counts[:-1], rows[1:] != rows[:-1] + counts[:-1]
        ends = np.cumsum(counts)
        starts, total = ends - counts, int(ends[-1])
        if self._are_lent and np.count_nonzero(scattered) * _PAGES_WORTH_LENDING <= total:
            pages, places, cuts = self._memory.pages, rows, cuts | scattered
        else:
            # All rows exist; any mode but "clip" copies twice.
            source = expand_ranges(rows, counts).view(np.int64)
            pages = self._memory.pages.take(source, axis=0, out=self._ring.next(total), mode="clip")
            places = starts
        begins = np.flatnonzero(np.concatenate(([True], cuts)))
        lengths = np.diff(starts[begins], append=total)
        for first, at, length in zip(to[begins].tolist(), places[begins].tolist(), lengths.tolist(), strict=True):
            yield first, pages[at : at + length]


class _Ring:
    """Memory for pages that is reused when no pipe refers to it any more."""

    def __init__(self, most: int) -> None:
        """`most` is the largest number of pages asked for at once."""
        # What is asked for now, what was given less than _LENT_PAGES ago, and what is unused at the end.
        self._pages = np.empty((3 * most + _LENT_PAGES, PAGE_SIZE), np.uint8)
        self._at = 0

    def next(self, count: int) -> Bytes:
        """Return memory for `count` pages."""
        if self._at + count > len(self._pages):
            self._at = 0
        self._at += count
        return self._pages[self._at - count : self._at]


def _zeros(count: int) -> Iterator[memoryview]:
    for done in range(0, count, len(_ZEROS)):
        yield _ZEROS[: count - done]


def _ends(pieces: Pieces, most: int) -> list[int]:
    """Return where parts end, in pieces: each has about _PAGES_IN_PART pages, in up to `most` frames."""
    by_pages = np.cumsum(pieces.count) // _PAGES_IN_PART
    cuts = np.diff(by_pages, prepend=by_pages[:1]) != 0
    needs = unique_sorted(np.cumsum(cuts) * len(pieces.frames) + pieces.which) // max(1, len(pieces.frames))
    bounds = [*np.flatnonzero(cuts).tolist(), len(cuts)] if len(cuts) else []
    ends: list[int] = []
    begin = 0
    for end, frames in zip(bounds, np.bincount(needs).tolist(), strict=True):
        # A part in too many frames is cut after every `most` pieces, each of which lies in one frame.
        ends += [*range(begin + most, end, most), end] if frames > most else [end]
        begin = end
    return ends
