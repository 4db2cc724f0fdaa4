"""Write pages from the store into the memory of processes, on every core.

Each frame is unpacked once, and its pages are written wherever they belong. So the order of addresses and the number of
packs make no difference, and little memory is used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from crckpt.host.process.signals import interrupt_is_waiting, interrupts_deferred
from crckpt.host.syscalls.process_vm import write_memory
from crckpt.model import PAGE_SIZE
from crckpt.store.format.extents import EXTENT, Extents, Numbers, Positions, page_count
from crckpt.store.read.contents import Contents
from crckpt.store.read.frames import (
    FRAMES_AT_ONCE,
    FrameMemory,
    Pieces,
    UnpackedFrames,
    map_slots,
    pieces_of,
    read_ahead,
)
from crckpt.store.workers import Workers, wait_for_result

# Runs, each in one frame, that are written before a thread checks whether to go on.
_RUNS_AT_ONCE: Final = 256

# Batches that the disk reads while others are unpacked: at most 32 MiB of page cache.
_READ_AHEAD: Final = 16

# Batches that may be unpacked before the processes exist: 128 MiB.
_MOST_AHEAD: Final = 64

# Extents that are planned at once, or all of one pack: each takes some 200 bytes.
_EXTENTS_AT_ONCE: Final = 1 << 18


class _Runs(NamedTuple):
    """Runs of pages that are adjacent both in a frame and in memory, in the order of frames.

    Arrays of equal length: the place of the frame among all, the number of the owner, and in bytes the start in the
    frame, the length, and the address.
    """

    frame: npt.NDArray[np.uint32]
    owner: npt.NDArray[np.uint32]
    start: npt.NDArray[np.uint32]
    length: npt.NDArray[np.uint32]
    address: Numbers


class MemoryFill:
    """Fills the memory of processes with pages, once, in batches of frames.

    Takes up to 132 MiB of memory on two cores, and 24 bytes for each run of pages; while it plans, another 50 MiB.
    """

    def __init__(
        self, contents: Contents, parts: Mapping[str, Extents], pool: Workers, unpacked: UnpackedFrames | None = None
    ) -> None:
        """`parts` has the pages of each owner, under any name; `first` of the extents is an address / PAGE_SIZE.

        Frames that are in `unpacked` are used from there.
        """
        self.bytes = sum(page_count(extents) for extents in parts.values()) * PAGE_SIZE
        self._pool = pool
        self._owners = tuple(parts)
        extents = np.concatenate([np.empty(0, EXTENT), *parts.values()])
        owner = np.repeat(np.arange(len(parts)), [len(of_one) for of_one in parts.values()])
        # Its memory must last.
        self._kept_frames = unpacked
        frames, kept, runs = [np.empty(0, np.int64)], [np.empty(0, np.uint64)], []
        for rows in _by_packs(extents):
            some = extents[rows]
            pieces = pieces_of(contents, "memory", some, some["first"].astype(np.int64))
            here = unpacked.find(contents, pieces.frames) if unpacked else np.zeros(len(pieces.frames), np.uint64)
            # Those that are not unpacked come first, so that there are few batches with some of both.
            order = np.argsort(here != 0, kind="stable")
            place = np.empty(len(order), np.int64)
            place[order] = np.arange(len(order)) + sum(map(len, frames))
            runs.append(_runs(pieces, owner[rows][pieces.of], place[pieces.which]))
            frames.append(pieces.frames[order])
            kept.append(here[order])
        # The addresses of frames that are in `unpacked`, 0 for the others.
        self._kept = np.concatenate(kept)
        self._runs = _Runs(*map(np.concatenate, zip(*runs, strict=True)))
        batches = range(-(-len(self._kept) // FRAMES_AT_ONCE))
        # Where the runs of each batch begin, then the number of all runs.
        edges = np.arange(len(batches) + 1) * FRAMES_AT_ONCE
        self._begins = np.searchsorted(self._runs.frame, edges).tolist()
        # The pool's threads take from these and add to them.
        self._left = deque(number for number in batches if len(self._missing(number)))
        self._unpacked = deque(number for number in batches if not len(self._missing(number)))
        slots = min(len(self._left), _MOST_AHEAD + pool.size) * FRAMES_AT_ONCE
        self._memory = FrameMemory(contents, np.concatenate(frames), map_slots(slots), pool)
        self._asked_for = 0
        self._ahead: list[Future[Any]] = []
        self._is_placed = self._has_ended = False

    def begin(self) -> None:
        """Begin to unpack, as far as there is room. Other tasks of the pool get their turn between batches."""
        self._ahead = [self._pool.submit(self._unpack_ahead) for _ in range(self._pool.size)]

    def fill(self, pids: Mapping[str, int], progress: Callable[[int], None]) -> None:
        """Write all pages into the memory of the processes that own them; `pids` has them by the names.

        `progress` gets how many more bytes are done, from several threads. Raises IntegrityError, which names
        checkpoint, pack and frame, on damage; OSError if a process or its memory is not there. When it raises, some
        pages may be written, and no more will be.
        """
        owners = [pids[name] for name in self._owners]
        works: list[Future[int]] = []
        try:
            self._is_placed = True
            with self._memory.contents.named():
                for ahead in self._ahead:
                    following = ahead
                    while following is not None:
                        following = wait_for_result(following)
                # Interrupted in between, the first of these works would go on unseen.
                with interrupts_deferred():
                    works = [self._pool.submit(self._work, owners, progress) for _ in range(self._pool.size)]
                if sum(wait_for_result(work) for work in works) != len(self._begins) - 1:
                    raise RuntimeError("some pages were not restored")
        finally:
            with interrupts_deferred():
                self._has_ended = True
                wait(works)

    def _unpack_ahead(self) -> Future[Any] | None:
        """Unpack one batch; the next one, if there is room, is another task."""
        # Each thread that writes needs slots.
        has_room = len(self._memory.free) > self._pool.size * FRAMES_AT_ONCE
        if self._is_placed or not has_room or (number := self._unpack_next()) is None:
            return None
        self._unpacked.append(number)
        return self._pool.submit(self._unpack_ahead)

    def _work(self, owners: list[int], progress: Callable[[int], None]) -> int:
        """Write batches until none is left, or an interrupt waits; return how many were written."""
        placed = 0
        while self._goes_on():
            try:
                number: int | None = self._unpacked.popleft()
            except IndexError:
                number = self._unpack_next()
            if number is None:
                break
            first, last = self._begins[number : number + 2]
            edges = np.flatnonzero(np.diff(self._runs.owner[first:last])) + 1 + first
            # Runs of one owner at a time.
            for begin, end in pairwise([first, *edges.tolist(), last]):
                for at in range(begin, end, _RUNS_AT_ONCE):
                    if not self._goes_on():
                        return placed
                    progress(self._write(at, min(at + _RUNS_AT_ONCE, end), owners))
            self._memory.drop(self._missing(number))
            placed += 1
        return placed

    def _goes_on(self) -> bool:
        # `wait_for_result` raises an interrupt only when a work has ended, so each has to look for one.
        return not (self._has_ended or interrupt_is_waiting())

    def _unpack_next(self) -> int | None:
        """Unpack the next batch, and return its number; None if none is left."""
        # There are slots: what was unpacked ahead is written first, and frees its own.
        try:
            number = self._left.popleft()
        except IndexError:
            return None
        # Two threads may ask for the same frames at once: harmless.
        first, self._asked_for = self._asked_for, number + 1 + _READ_AHEAD
        for later in range(first, self._asked_for):
            read_ahead(self._memory.contents, self._memory.frames[self._missing(later)])
        self._memory.unpack(self._missing(number))
        return number

    def _missing(self, number: int) -> Positions:
        """Return the frames of a batch that are not in `unpacked`."""
        first = number * FRAMES_AT_ONCE
        return np.flatnonzero(self._kept[first : first + FRAMES_AT_ONCE] == 0) + first

    def _write(self, begin: int, end: int, owners: list[int]) -> int:
        """Write the runs from `begin` to `end` - 1, of one batch; return how many bytes."""
        runs, frame = self._runs, self._runs.frame[begin:end]
        lengths = runs.length[begin:end].astype(np.uint64)
        kept = self._kept[frame]
        memory: Numbers = np.where(kept == 0, self._memory.addresses(frame), kept)
        ours: Numbers = np.stack((memory + runs.start[begin:end], lengths), axis=1)
        theirs = np.stack((runs.address[begin:end], lengths), axis=1)
        write_memory(owners[int(runs.owner[begin])], ours, theirs)
        return int(lengths.sum())


def _by_packs(extents: Extents) -> Iterator[Positions]:
    """Yield which extents are planned at once: all of some packs."""
    if len(extents) <= _EXTENTS_AT_ONCE:
        yield np.arange(len(extents))
        return
    # All extents of a pack together: each of its frames is unpacked once.
    in_order = np.argsort(extents["pack"], kind="stable")
    begin = 0
    for end in [*(np.flatnonzero(np.diff(extents["pack"][in_order])) + 1).tolist(), len(extents)]:
        if end - begin >= _EXTENTS_AT_ONCE or end == len(extents):
            yield in_order[begin:end]
            begin = end


def _runs(pieces: Pieces, owner: Positions, frame: Positions) -> _Runs:
    """Return the runs of some pieces, each with an owner and the place of its frame."""
    order = np.lexsort((owner, frame))
    frame, owner = frame[order], owner[order]
    to, count, start = (column[order] for column in (pieces.to, pieces.count, pieces.start))
    goes_on = (frame[1:] == frame[:-1]) & (owner[1:] == owner[:-1])
    goes_on &= (start[1:] == start[:-1] + count[:-1]) & (to[1:] == to[:-1] + count[:-1])
    first = np.flatnonzero(np.concatenate((np.ones(len(frame[:1]), np.bool_), ~goes_on)))
    lengths = np.diff(np.concatenate(([0], np.cumsum(count)))[np.append(first, len(count))])
    return _Runs(
        frame=frame[first].astype(np.uint32),
        owner=owner[first].astype(np.uint32),
        start=(start[first] * PAGE_SIZE).astype(np.uint32),
        length=(lengths * PAGE_SIZE).astype(np.uint32),
        address=(to[first] * PAGE_SIZE).view(np.uint64),
    )
