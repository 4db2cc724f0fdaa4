"""From extents to files: each frame is read, verified and unpacked once, in whatever order the files use it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from crckpt.errors import IntegrityError
from crckpt.host.files import open_private, resize, write_at
from crckpt.model import PAGE_SIZE
from crckpt.store.contents import Contents
from crckpt.store.extents import ZERO, Numbers, spread
from crckpt.store.index import DETAILS, StoredFile
from crckpt.store.pack import FRAME_PAGES, Pack

_THREADS: Final = 2
_FRAMES_AT_ONCE: Final = 16
_FILES_AT_ONCE: Final = 256
"""Far below any limit of open files."""

_PIECE: Final = np.dtype(
    [("pack", "<u4"), ("frame", "<u8"), ("start", "<u4"), ("count", "<u4"), ("file", "<u4"), ("to", "<u8")]
)
"""`count` pages from page `start` of a frame on go to page `to` of a file."""


@dataclass(frozen=True)
class _Work:
    """Frames that follow each other, and the pieces of them that are needed."""

    pack: Pack
    first: int
    count: int
    pieces: npt.NDArray[np.void]


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
    work = list(_work(contents, files))
    with ExitStack() as stack:
        descriptors = []
        for file in files:
            descriptor = open_private(directory / file.name, "image")
            stack.callback(os.close, descriptor)
            resize(descriptor, file.bytes, "image")
            descriptors.append(descriptor)
        pool = stack.enter_context(ThreadPoolExecutor(_THREADS))
        yield from pool.map(lambda some: _write(some, descriptors, files), work)


def _work(contents: Contents, files: list[StoredFile]) -> Iterator[_Work]:
    pieces = np.concatenate([_pieces(contents, number, file) for number, file in enumerate(files)])
    pieces = pieces[np.lexsort((pieces["frame"], pieces["pack"]))]
    if not len(pieces):
        return
    frames, starts = np.unique(pieces[["pack", "frame"]], return_index=True)
    ends = np.append(starts[1:], len(pieces))
    begin = 0
    for at in range(1, len(frames) + 1):
        if at == len(frames) or at - begin == _FRAMES_AT_ONCE or not _follows(frames[at - 1], frames[at]):
            pack = contents.pack(int(frames["pack"][begin]))
            yield _Work(pack, int(frames["frame"][begin]), at - begin, pieces[starts[begin] : ends[at - 1]])
            begin = at


def _follows(before: np.void, after: np.void) -> bool:
    return bool(before["pack"] == after["pack"] and before["frame"] + 1 == after["frame"])


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


def _write(work: _Work, descriptors: list[int], files: list[StoredFile]) -> int:
    pieces = iter(work.pieces.tolist())
    piece = next(pieces)
    done = 0
    for frame, content in enumerate(work.pack.frames(work.first, work.count), work.first):
        while piece is not None and piece[1] == frame:
            _, _, start, count, file, to = piece
            length = min(count * PAGE_SIZE, files[file].bytes - to * PAGE_SIZE)
            write_at(descriptors[file], memoryview(content)[start * PAGE_SIZE :][:length], to * PAGE_SIZE, "image")
            done += length
            piece = next(pieces, None)
    return done
