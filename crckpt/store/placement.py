"""Pages from the store straight into the memory of processes, on every core.

Frame by frame: each is unpacked once, and what it holds is written wherever it belongs. So neither the order of the
addresses nor in how many packs the pages lie makes a difference, and little memory is taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from itertools import pairwise
from mmap import MAP_PRIVATE, mmap
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct

from crckpt.host.other_memory import write_memory
from crckpt.host.signals import interrupt_is_waiting, interrupts_put_off
from crckpt.model import PAGE_SIZE
from crckpt.store.contents import Contents
from crckpt.store.extents import EXTENT, Extents, Numbers, Places, count_of
from crckpt.store.pack import FRAME_PAGES
from crckpt.store.pieces import Pieces, pieces_of, read_ahead, unpack
from crckpt.store.workers import Workers, result_of

_FRAMES_AT_ONCE: Final = 8
"""Frames that are unpacked, and then written, by one thread: 2 MiB."""

_PAGES_AT_ONCE: Final = _FRAMES_AT_ONCE * FRAME_PAGES

_READ_AHEAD: Final = 16
"""Batches of as many that the disk reads while others are unpacked: at most 32 MiB, which are the kernel's."""

_MOST_AHEAD: Final = 64
"""Batches of as many that may be unpacked before the memory is there: 128 MiB."""


class _Runs(Struct, frozen=True):
    """Pages that follow each other both where they are unpacked and where they belong, in the order of batches.

    All are arrays of as many: the number of the batch, the number of the owner, and in bytes where in the unpacked
    batch they begin, at which address they belong, and how many they are.
    """

    batch: Places
    owner: Places
    start: Numbers
    address: Numbers
    length: Numbers


class _Batch(NamedTuple):
    """A batch that is unpacked, or is to be, and its place in our memory."""

    number: int
    slot: int


class Placement:
    """Pages, and where they belong. They may be placed once. Takes up to 132 MiB of memory on two cores."""

    def __init__(self, contents: Contents, parts: Mapping[str, Extents], pool: Workers) -> None:
        """`parts` has the pages of each owner, by any name; `first` of the extents is an address / PAGE_SIZE."""
        self.bytes = sum(count_of(extents) for extents in parts.values()) * PAGE_SIZE
        self._contents = contents
        self._pool = pool
        self._owners = tuple(parts)
        extents = np.concatenate([np.empty(0, EXTENT), *parts.values()])
        owner = np.repeat(np.arange(len(parts)), [len(of_one) for of_one in parts.values()])
        pieces = pieces_of(contents, "memory", extents, extents["first"].astype(np.int64))
        self._batches = batches = -(-len(pieces.frames) // _FRAMES_AT_ONCE)
        slots = min(batches, _MOST_AHEAD + pool.size)
        self._frames = pieces.frames
        self._runs = runs = _runs(pieces, owner[pieces.of])
        self._begins: list[int] = np.searchsorted(runs.batch, np.arange(batches + 1)).tolist()
        # Not numpy's own memory, which asks for huge pages: where few are free, the kernel takes long to find them.
        memory = mmap(-1, max(slots, 1) * _PAGES_AT_ONCE * PAGE_SIZE, MAP_PRIVATE)
        self._pages = np.frombuffer(memory, np.uint8).reshape(-1, PAGE_SIZE)
        # The pool's threads take from these and add to them.
        self._left = deque(range(batches))
        self._asked_for = 0
        self._free = deque(range(slots))
        self._unpacked: deque[_Batch] = deque()
        self._ahead: list[Future[Any]] = []
        self._is_placed = self._has_ended = False

    def begin(self) -> None:
        """Begin to unpack what there is room for. Whatever else the pool is asked for has its turn in between."""
        self._ahead = [self._pool.submit(self._unpack_ahead) for _ in range(self._pool.size)]

    def place(self, pids: Mapping[str, int], progress: Callable[[int], None]) -> None:
        """Write all pages into the memory of the processes that own them; `pids` has them by the names.

        `progress` is told how many bytes more are done, by several threads. Raises IntegrityError naming checkpoint,
        pack and frame on any damage, OSError if a process or its memory is not there. Whatever it raises, some of the
        pages are written by then, and none is any more.
        """
        owners = [pids[name] for name in self._owners]
        works: list[Future[int]] = []
        try:
            self._is_placed = True
            with self._contents.named():
                for ahead in self._ahead:
                    following = ahead
                    while following is not None:
                        following = result_of(following)
                with interrupts_put_off():
                    works = [self._pool.submit(self._work, owners, progress) for _ in range(self._pool.size)]
                if sum(result_of(work) for work in works) != self._batches:
                    raise RuntimeError("not all pages were placed")
        finally:
            with interrupts_put_off():
                self._has_ended = True
                wait(works)

    def _unpack_ahead(self) -> Future[Any] | None:
        """Unpack one batch; the next one, if there is room, is a turn of its own."""
        # Each of those who place will need a slot.
        if self._is_placed or len(self._free) <= self._pool.size or (batch := self._next()) is None:
            return None
        self._unpack(batch)
        self._unpacked.append(batch)
        return self._pool.submit(self._unpack_ahead)

    def _work(self, owners: list[int], progress: Callable[[int], None]) -> int:
        """Place batches until none is left, or who waits for it is to be interrupted; how many."""
        placed = 0
        while not (self._has_ended or interrupt_is_waiting()) and (batch := self._next_unpacked()) is not None:
            progress(self._write(batch, owners))
            # Taken next: what was touched a moment ago is still in the core's cache.
            self._free.appendleft(batch.slot)
            placed += 1
        return placed

    def _next_unpacked(self) -> _Batch | None:
        try:
            return self._unpacked.popleft()
        except IndexError:
            batch = self._next()
            if batch is not None:
                self._unpack(batch)
            return batch

    def _next(self) -> _Batch | None:
        """The next batch to be unpacked, and where; there is room."""
        try:
            batch = _Batch(self._left.popleft(), self._free.popleft())
        except IndexError:
            return None
        # Of two threads here at once both may ask for some: no harm.
        first, self._asked_for = self._asked_for, batch.number + 1 + _READ_AHEAD
        read_ahead(self._contents, self._frames[first * _FRAMES_AT_ONCE : self._asked_for * _FRAMES_AT_ONCE])
        return batch

    def _unpack(self, batch: _Batch) -> None:
        first = batch.number * _FRAMES_AT_ONCE
        frames = self._frames[first : first + _FRAMES_AT_ONCE]
        unpack(self._contents, frames, self._pages[batch.slot * _PAGES_AT_ONCE :], range(len(frames)))

    def _write(self, batch: _Batch, owners: list[int]) -> int:
        """Write what the batch holds; how many bytes."""
        of = slice(*self._begins[batch.number : batch.number + 2])
        runs, memory = self._runs, self._pages[batch.slot * _PAGES_AT_ONCE :].ctypes.data
        lengths = runs.length[of]
        ours = np.stack((runs.start[of] + np.uint64(memory), lengths), axis=1)
        theirs = np.stack((runs.address[of], lengths), axis=1)
        owner = runs.owner[of]
        bounds = [0, *(np.flatnonzero(np.diff(owner)) + 1).tolist(), len(owner)]
        for begin, end in pairwise(bounds):
            write_memory(owners[int(owner[begin])], ours[begin:end], theirs[begin:end])
        return int(lengths.sum())


def _runs(pieces: Pieces, owner: Places) -> _Runs:
    """The runs of some pieces, each with an owner."""
    batch = pieces.which // _FRAMES_AT_ONCE
    order = np.lexsort((owner, batch))
    batch, owner, to, count = batch[order], owner[order], pieces.to[order], pieces.count[order]
    start = (pieces.which % _FRAMES_AT_ONCE * FRAME_PAGES + pieces.start)[order]
    goes_on = (batch[1:] == batch[:-1]) & (owner[1:] == owner[:-1])
    goes_on &= (start[1:] == start[:-1] + count[:-1]) & (to[1:] == to[:-1] + count[:-1])
    first = np.flatnonzero(np.concatenate((np.ones(len(batch[:1]), np.bool_), ~goes_on)))
    length = np.diff(np.concatenate(([0], np.cumsum(count)))[np.append(first, len(count))])
    return _Runs(batch[first], owner[first], *(_in_bytes(pages) for pages in (start[first], to[first], length)))


def _in_bytes(pages: Places) -> Numbers:
    return (pages * PAGE_SIZE).view(np.uint64)
