"""From extents to files: each frame is read, verified and unpacked once, in whatever order the files use it.

Where pages are rewritten one by one, pages that follow each other lie in many packs. So frames are taken in the order
in which the files need them, a batch is unpacked, and what follows each other is gathered and written at once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from crckpt.errors import IntegrityError
from crckpt.host.files import open_private, resize, write_at
from crckpt.model import PAGE_SIZE
from crckpt.store.contents import Contents
from crckpt.store.extents import ZERO, Bytes, Numbers, Places, spread
from crckpt.store.index import DETAILS, StoredFile
from crckpt.store.pack import FRAME_PAGES, Pack

_THREADS: Final = 2
_FRAMES_AT_ONCE: Final = 16
"""Frames that follow each other in a pack and are read at once: up to 4 MiB."""

_FRAMES_IN_BATCH: Final = 256
"""64 MiB of memory."""

_KEPT_FROM: Final = _FRAMES_IN_BATCH * FRAME_PAGES
_PAGES_KEPT: Final = 8192
"""32 MiB for pages that wait for their neighbours: a frame of a small checkpoint has pages from far apart."""

_PAGES_AT_ONCE: Final = 1024
_FILES_AT_ONCE: Final = 256
"""Far below any limit of open files."""

_PIECE: Final = np.dtype(
    [("pack", "<u4"), ("frame", "<u8"), ("start", "<u4"), ("count", "<u4"), ("file", "<u4"), ("to", "<u8")]
)
"""`count` pages from page `start` of a frame on go to page `to` of a file."""

_MOVE: Final = np.dtype([("row", "<u8"), ("count", "<u4"), ("file", "<u4"), ("to", "<u8"), ("batch", "<i8")])
"""`count` unpacked pages from `row` on go to page `to` of a file, best when that `batch` is written."""

_PACK_SHIFT: Final = 40
"""A frame's number in all packs: the pack's, shifted, and its own there."""

_Pieces = npt.NDArray[np.void]
_Moves = npt.NDArray[np.void]


def unpack(contents: Contents, directory: Path, progress: Callable[[int, int], None]) -> None:
    """Write all files into `directory`. Raises IntegrityError."""
    with contents.named():
        files = [file for file in contents.index.files if file.kind != DETAILS]
        total = sum(file.bytes for file in files)
        done = 0
        for start in range(0, len(files), _FILES_AT_ONCE):
            some = files[start : start + _FILES_AT_ONCE]
            for written in _unpack_some(contents, some, directory):
                done += written
                progress(min(done, total), total)
        progress(total, total)


def _unpack_some(contents: Contents, files: list[StoredFile], directory: Path) -> Iterator[int]:
    """Yields bytes as they are written."""
    pieces = np.concatenate([_pieces(contents, number, file) for number, file in enumerate(files)])
    with ExitStack() as stack:
        descriptors = []
        for file in files:
            descriptor = open_private(directory / file.name, "image")
            stack.callback(os.close, descriptor)
            resize(descriptor, file.bytes, "image")
            descriptors.append(descriptor)
        pool = stack.enter_context(ThreadPoolExecutor(_THREADS))
        unpacked = _Unpacked(contents, descriptors, [file.bytes for file in files])
        for number, (frames, some) in enumerate(_batches(pieces)):
            for _ in pool.map(unpacked.fill, *zip(*unpacked.reads(frames), strict=True)):
                pass
            due, later = unpacked.taken(some, number)
            yield from pool.map(unpacked.write, *zip(*_parts(due), strict=True))
            unpacked.keep(later)


def _batches(pieces: _Pieces) -> Iterator[tuple[Numbers, _Moves]]:
    """Frames as numbers that `_frame` makes, in order, and what is to become of them, in the order of the files."""
    frames, first, which = np.unique(_frame(pieces), return_index=True, return_inverse=True)
    batch = np.argsort(np.argsort(first)) // _FRAMES_IN_BATCH
    together = np.argsort(batch, kind="stable")
    place = np.empty(len(frames), np.uint64)
    place[together] = np.arange(len(frames)) % _FRAMES_IN_BATCH
    moves = np.empty(len(pieces), _MOVE)
    moves["row"] = place[which] * np.uint64(FRAME_PAGES) + pieces["start"]
    moves["count"], moves["file"], moves["to"] = pieces["count"], pieces["file"], pieces["to"]
    # Frames are in the order of their first use: until one of the next batch is needed, a batch is being written.
    moves["batch"] = np.maximum.accumulate(batch[which])
    order = np.argsort(batch[which], kind="stable")
    starts = np.arange(_FRAMES_IN_BATCH, len(frames), _FRAMES_IN_BATCH)
    ends = np.searchsorted(batch[which[order]], np.arange(1, len(starts) + 1))
    for inside, some in zip(np.split(together, starts), np.split(order, ends), strict=True):
        if len(some):
            yield frames[inside], moves[some]


def _frame(pieces: _Pieces) -> Numbers:
    numbers: Numbers = pieces["pack"].astype(np.uint64) << np.uint64(_PACK_SHIFT) | pieces["frame"]
    return numbers


def _parts(moves: _Moves) -> Iterator[tuple[_Moves, Places]]:
    """The moves, cut so that each part has about as many pages as are written at once; where a part's runs begin."""
    ends = np.cumsum(moves["count"], dtype=np.int64)
    cuts = np.flatnonzero(np.diff(ends // _PAGES_AT_ONCE)) + 1
    for part in np.split(moves, cuts):
        follows = (part["file"][1:] == part["file"][:-1]) & (part["to"][1:] == part["to"][:-1] + part["count"][:-1])
        yield part, np.concatenate(([0], np.flatnonzero(~follows) + 1))


class _Unpacked:
    """The frames of a batch, one after the other, and the files that they go to; its memory is used again.

    Behind the frames lie pages of batches before, whose neighbours in the files come in a later one.
    """

    def __init__(self, contents: Contents, descriptors: list[int], sizes: list[int]) -> None:
        self._contents = contents
        self._descriptors = descriptors
        self._sizes = sizes
        self._pages = np.empty((_KEPT_FROM + _PAGES_KEPT, PAGE_SIZE), np.uint8)
        self._kept = np.empty(0, _MOVE)
        self._local = threading.local()

    def reads(self, frames: Numbers) -> Iterator[tuple[Pack, int, int, int]]:
        """What `fill` is to be called with: pack, its first frame, how many, and where they go."""
        follows = np.diff(frames) == 1
        begin = 0
        for at in range(1, len(frames) + 1):
            if at == len(frames) or at - begin == _FRAMES_AT_ONCE or not follows[at - 1]:
                pack, frame = divmod(int(frames[begin]), 1 << _PACK_SHIFT)
                yield self._contents.pack(pack), frame, at - begin, begin
                begin = at

    def fill(self, pack: Pack, first: int, count: int, place: int) -> None:
        """Unpack frames. Raises IntegrityError."""
        for number, content in enumerate(pack.frames(first, count), place):
            pages = np.frombuffer(content, np.uint8).reshape(-1, PAGE_SIZE)
            self._pages[number * FRAME_PAGES :][: len(pages)] = pages

    def taken(self, moves: _Moves, batch: int) -> tuple[_Moves, _Moves]:
        """What is to be written now and what is to be kept, of these moves and of what was kept before."""
        everything = np.concatenate([self._kept, moves])
        everything = everything[np.lexsort((everything["to"], everything["file"]))]
        later = everything["batch"] > batch
        later[later] = np.cumsum(everything["count"][later], dtype=np.int64) <= _PAGES_KEPT
        return everything[~later], everything[later]

    def keep(self, moves: _Moves) -> None:
        """Put the pages of these moves aside: the frames make room for others."""
        pages = self._pages.take(spread(moves["row"], moves["count"]).astype(np.int64), axis=0)
        self._pages[_KEPT_FROM:][: len(pages)] = pages
        self._kept = moves
        self._kept["row"] = np.cumsum(moves["count"], dtype=np.uint64) - moves["count"] + np.uint64(_KEPT_FROM)

    def write(self, moves: _Moves, runs: Places) -> int:
        """Write pages that are there; how many bytes. A run of moves follows each other in a file."""
        pages = self._gathered(moves["row"], moves["count"])
        starts = np.concatenate(([0], np.cumsum(moves["count"], dtype=np.int64)))
        ends = starts[np.append(runs[1:], len(moves))].tolist()
        places = zip(starts[runs].tolist(), ends, moves["file"][runs].tolist(), moves["to"][runs].tolist(), strict=True)
        done = 0
        for start, end, file, to in places:
            length = min((end - start) * PAGE_SIZE, self._sizes[file] - to * PAGE_SIZE)
            content = pages[start:end].reshape(-1).data[:length]
            write_at(self._descriptors[file], content, to * PAGE_SIZE, "image")
            done += length
        return done

    def _gathered(self, start: Numbers, count: npt.NDArray[Any]) -> Bytes:
        """The pages of these ranges, one after the other."""
        total = int(count.sum())
        if (start[1:] == start[:-1] + count[:-1]).all():
            return self._pages[int(start[0]) :][:total]
        if not hasattr(self._local, "pages"):
            self._local.pages = np.empty((_PAGES_AT_ONCE + FRAME_PAGES, PAGE_SIZE), np.uint8)
        into: Bytes = self._local.pages[:total]
        # The places are known to be inside; any other mode than "clip" copies twice.
        return self._pages.take(spread(start, count).astype(np.int64), axis=0, out=into, mode="clip")


def _pieces(contents: Contents, number: int, file: StoredFile) -> npt.NDArray[np.void]:
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
    pieces["pack"], pieces["file"] = extents["pack"][of], number
    pieces["start"] = start - pieces["frame"] * size
    pieces["count"] = np.minimum(end[of], (pieces["frame"] + np.uint64(1)) * size) - start
    pieces["to"] = to[of] + start - extents["page"][of]
    return pieces
