"""Write pages from the store into the memory of processes, on every core.

Each frame is unpacked once, and its pages are written wherever they belong. So the order of addresses and the number of
packs make no difference, and little memory is used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from itertools import pairwise
from mmap import MAP_PRIVATE, mmap
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from crckpt.host.process.signals import interrupt_is_waiting, interrupts_deferred
from crckpt.host.syscalls.process_vm import write_memory
from crckpt.model import PAGE_SIZE
from crckpt.store.format.extents import EXTENT, Extents, Numbers, Positions, page_count
from crckpt.store.format.pack import FRAME_PAGES, FRAME_SIZE
from crckpt.store.read.contents import Contents
from crckpt.store.read.pieces import Pieces, pieces_of, read_ahead, unpack
from crckpt.store.read.unpacked_frames import UnpackedFrames
from crckpt.store.workers import Workers, wait_for_result

# Frames that one thread unpacks and then writes: 2 MiB.
_FRAMES_AT_ONCE: Final = 8

_PAGES_AT_ONCE: Final = _FRAMES_AT_ONCE * FRAME_PAGES

_KEPT: Final = -1

# Runs, of 2 MiB at most each, that are written before a thread checks whether to go on. With 1,024 of them, one
# process_vm_writev(2) would have to write more than the kernel does in one call (2 GiB less a page).
_RUNS_AT_ONCE: Final = 256

# Batches that the disk reads while others are unpacked: at most 32 MiB of page cache.
_READ_AHEAD: Final = 16

# Batches that may be unpacked before the processes exist: 128 MiB.
_MOST_AHEAD: Final = 64

# Extents that are planned at once, or all of one pack: each takes some 200 bytes.
_EXTENTS_AT_ONCE: Final = 1 << 18


class _Runs(NamedTuple):
    """Runs of pages that are adjacent both in the unpacked batch and in memory, in the order of batches.

    Arrays of equal length: the number of the owner, and in bytes the start in the unpacked batch (of a kept one: our
    address), the length, and the address.
    """

    owner: npt.NDArray[np.uint32]
    start: Numbers
    length: npt.NDArray[np.uint32]
    address: Numbers


class _Batch(NamedTuple):
    """A batch of frames, and the slot of the buffer into which it is unpacked; _KEPT if it was unpacked before."""

    number: int
    slot: int


class MemoryFill:
    """Fills the memory of processes with pages, once.

    Takes up to 132 MiB of memory on two cores, and 24 bytes for each run of pages; while it plans, another 50 MiB.
    """

    def __init__(
        self, contents: Contents, parts: Mapping[str, Extents], pool: Workers, unpacked: UnpackedFrames | None = None
    ) -> None:
        """`parts` has the pages of each owner, under any name; `first` of the extents is an address / PAGE_SIZE.

        Frames that are in `unpacked` are used from there.
        """
        self.bytes = sum(page_count(extents) for extents in parts.values()) * PAGE_SIZE
        self._contents = contents
        self._pool = pool
        self._owners = tuple(parts)
        extents = np.concatenate([np.empty(0, EXTENT), *parts.values()])
        owner = np.repeat(np.arange(len(parts)), [len(of_one) for of_one in parts.values()])
        # Its memory must last.
        self._kept_frames = unpacked
        # Of a batch that is kept: empty.
        self._frames: list[Positions] = []
        # Where the runs of each batch begin, then the number of all runs.
        self._begins = [0]
        runs = []
        for rows in _by_packs(extents):
            some = extents[rows]
            pieces = pieces_of(contents, "memory", some, some["first"].astype(np.int64))
            kept = np.zeros(len(pieces.frames), np.uint64)
            if unpacked is not None:
                kept = unpacked.find(contents, pieces.frames)
            batches = _cut_batches(pieces.frames, kept)
            found, ends = _runs(pieces, owner[rows][pieces.of], batches)
            runs.append(found)
            self._begins += (self._begins[-1] + ends).tolist()
            self._frames += batches.frames
        self._runs = _Runs(*map(np.concatenate, zip(*runs, strict=True)))
        to_unpack = [number for number, frames in enumerate(self._frames) if len(frames)]
        slots = min(len(to_unpack), _MOST_AHEAD + pool.size)
        # mmap, because numpy's memory asks for huge pages: if few are free, the kernel is slow to find them.
        memory = mmap(-1, max(slots, 1) * _PAGES_AT_ONCE * PAGE_SIZE, MAP_PRIVATE)
        self._pages = np.frombuffer(memory, np.uint8).reshape(-1, PAGE_SIZE)
        # The pool's threads take from these and add to them.
        self._left = deque(to_unpack)
        self._asked_for = 0
        self._free = deque(range(slots))
        self._unpacked = deque(_Batch(number, _KEPT) for number, frames in enumerate(self._frames) if not len(frames))
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
            with self._contents.named():
                for ahead in self._ahead:
                    following = ahead
                    while following is not None:
                        following = wait_for_result(following)
                # Interrupted in between, the first of these works would go on unseen.
                with interrupts_deferred():
                    works = [self._pool.submit(self._work, owners, progress) for _ in range(self._pool.size)]
                if sum(wait_for_result(work) for work in works) != len(self._frames):
                    raise RuntimeError("some pages were not restored")
        finally:
            with interrupts_deferred():
                self._has_ended = True
                wait(works)

    def _unpack_ahead(self) -> Future[Any] | None:
        """Unpack one batch; the next one, if there is room, is another task."""
        # Each thread that writes needs a slot.
        if self._is_placed or len(self._free) <= self._pool.size or (batch := self._next()) is None:
            return None
        self._unpack(batch)
        self._unpacked.append(batch)
        return self._pool.submit(self._unpack_ahead)

    def _work(self, owners: list[int], progress: Callable[[int], None]) -> int:
        """Write batches until none is left, or an interrupt waits; return how many were written."""
        placed = 0
        while self._goes_on():
            try:
                batch: _Batch | None = self._unpacked.popleft()
            except IndexError:
                batch = self._next()
                if batch is not None:
                    self._unpack(batch)
            if batch is None:
                break
            for begin, end in self._slices(batch):
                if not self._goes_on():
                    return placed
                progress(self._write(batch, begin, end, owners))
            # This slot is taken next: it is still in the core's cache.
            if batch.slot != _KEPT:
                self._free.appendleft(batch.slot)
            placed += 1
        return placed

    def _goes_on(self) -> bool:
        # `wait_for_result` raises an interrupt only when a work has ended, so each has to look for one.
        return not (self._has_ended or interrupt_is_waiting())

    def _next(self) -> _Batch | None:
        """Return the next batch to unpack, with a slot; None if none is left."""
        try:
            # If there is a batch, there is a slot: what was unpacked ahead is written first, and frees its own.
            batch = _Batch(self._left.popleft(), self._free.popleft())
        except IndexError:
            return None
        # Two threads may ask for the same frames at once: harmless.
        first, self._asked_for = self._asked_for, batch.number + 1 + _READ_AHEAD
        for frames in self._frames[first : self._asked_for]:
            read_ahead(self._contents, frames)
        return batch

    def _unpack(self, batch: _Batch) -> None:
        frames = self._frames[batch.number]
        unpack(self._contents, frames, self._pages[batch.slot * _PAGES_AT_ONCE :], range(len(frames)))

    def _slices(self, batch: _Batch) -> Iterator[tuple[int, int]]:
        """Yield ranges of the batch's runs, each of one owner and of at most _RUNS_AT_ONCE runs."""
        first, last = self._begins[batch.number : batch.number + 2]
        owner = self._runs.owner[first:last]
        bounds = [first, *(np.flatnonzero(np.diff(owner)) + 1 + first).tolist(), last]
        for begin, end in pairwise(bounds):
            yield from ((at, min(at + _RUNS_AT_ONCE, end)) for at in range(begin, end, _RUNS_AT_ONCE))

    def _write(self, batch: _Batch, begin: int, end: int, owners: list[int]) -> int:
        """Write the runs from `begin` to `end` - 1 of the batch; return how many bytes."""
        runs = self._runs
        memory = self._pages[batch.slot * _PAGES_AT_ONCE :].ctypes.data if batch.slot != _KEPT else 0
        lengths = runs.length[begin:end].astype(np.uint64)
        ours = np.stack((runs.start[begin:end] + np.uint64(memory), lengths), axis=1)
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


class _Batches(NamedTuple):
    """Frames cut into batches: those of each batch, empty if it is kept; and for each frame its batch and its start."""

    frames: list[Positions]
    number: Positions
    start: Numbers


def _cut_batches(frames: Positions, kept: Numbers) -> _Batches:
    """Cut frames into batches; `kept` has the address of each that is unpacked already, and 0 for the others."""
    cut: list[Positions] = []
    number, start = np.empty(len(frames), np.int64), kept.copy()
    for some, is_kept in ((np.flatnonzero(kept == 0), False), (np.flatnonzero(kept), True)):
        places = np.arange(len(some))
        number[some] = len(cut) + places // _FRAMES_AT_ONCE
        if not is_kept:
            start[some] = places % _FRAMES_AT_ONCE * FRAME_SIZE
        of_batch = (frames[some[at : at + _FRAMES_AT_ONCE]] for at in range(0, len(some), _FRAMES_AT_ONCE))
        cut += [frames[:0] if is_kept else batch for batch in of_batch]
    return _Batches(cut, number, start)


def _runs(pieces: Pieces, owner: Positions, batches: _Batches) -> tuple[_Runs, Positions]:
    """Return the runs of some pieces, each with an owner, and where the runs of each batch end."""
    batch = batches.number[pieces.which]
    order = np.lexsort((owner, batch))
    batch, owner, to, count = batch[order], owner[order], pieces.to[order], pieces.count[order]
    start = batches.start[pieces.which[order]] + pieces.start[order].astype(np.uint64) * np.uint64(PAGE_SIZE)
    length = count.astype(np.uint64) * np.uint64(PAGE_SIZE)
    goes_on = (batch[1:] == batch[:-1]) & (owner[1:] == owner[:-1])
    goes_on &= (start[1:] == start[:-1] + length[:-1]) & (to[1:] == to[:-1] + count[:-1])
    first = np.flatnonzero(np.concatenate((np.ones(len(batch[:1]), np.bool_), ~goes_on)))
    lengths = np.diff(np.concatenate(([0], np.cumsum(count)))[np.append(first, len(count))])
    runs = _Runs(
        owner=owner[first].astype(np.uint32),
        start=start[first],
        length=(lengths * PAGE_SIZE).astype(np.uint32),
        address=(to[first] * PAGE_SIZE).view(np.uint64),
    )
    return runs, np.searchsorted(batch[first], np.arange(len(batches.frames)), side="right")
