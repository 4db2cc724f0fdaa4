"""Compress pages into frames in the threads of a pool, and write these to the packs of one checkpoint.

Each pack is small enough to be removed by itself.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Final

import numpy as np
import zstandard

from crckpt.model import PAGE_SIZE
from crckpt.store.fingerprints import write_fingerprints
from crckpt.store.format.extents import Bytes, Numbers, Positions
from crckpt.store.format.pack import FRAME_PAGES, FRAME_SIZE, MOST_FRAMES, FinishedPack, Frame, PackWriter
from crckpt.store.workers import Workers, wait_for_result

# Frames that one thread compresses at one level. With single frames, threads wait more for each other.
_TOGETHER: Final = 4

_PAGES_TOGETHER: Final = _TOGETHER * FRAME_PAGES

# Tasks that may wait: 8 MiB of memory in all keep the threads busy while the next pages are examined.
_WAITING: Final = 6

_PLAIN: Final = -1
# This level also codes single bytes by their frequency. Compressing and unpacking take a third longer; a redis takes a
# third fewer bytes, a Python or a JVM a twentieth: `scripts/bench choices`.
_DENSE: Final = 1

# One page of so many is compressed at both levels, to choose the level of all that are compressed together.
_SAMPLE_EVERY: Final = 64

# The denser level is used where it stores at most this share of the bytes of the other.
_DENSE_PAYS: Final = 7 / 8

_FAST_UP_TO: Final = 1
# With matches of at least 7 bytes, and a table that fits in the L1 cache, zstd's fastest strategy is a tenth faster for
# pages, and finds as much.
_FAST: Final = {"min_match": 7, "hash_log": 11}


class Frames:
    """Collects pages and compresses them. Each page is copied once, into its frame."""

    def __init__(self, pool: Executor, level: int | None) -> None:
        """`level` is zstd's; None chooses -1 or 1 for the frames that are compressed together."""
        self._pool = pool
        self._level = level
        # Memory that is used again costs no page faults; until it is used it is none.
        self._spare = deque(np.empty((_PAGES_TOGETHER, PAGE_SIZE), np.uint8) for _ in range(_WAITING + 2))
        self._open: Bytes = self._spare.popleft()
        self._filled = 0
        self._waiting: deque[Future[list[Frame]]] = deque()
        self._local = threading.local()

    def add(self, pages: Bytes, rows: Positions) -> Iterator[Frame]:
        """Append these rows of pages (n by page size); yield the frames that are ready."""
        while len(rows):
            some, rows = np.split(rows, [_PAGES_TOGETHER - self._filled])
            end = self._filled + len(some)
            # Only with a mode other than the default does numpy copy straight into `out`.
            np.take(pages, some, axis=0, out=self._open[self._filled : end], mode="clip")
            self._filled = end
            if end == _PAGES_TOGETHER:
                self._submit()
            while len(self._waiting) > _WAITING:
                yield from wait_for_result(self._waiting.popleft())

    def finish(self) -> Iterator[Frame]:
        """Yield the frames that are left; the last may be a short one."""
        if self._filled:
            self._submit()
        while self._waiting:
            yield from wait_for_result(self._waiting.popleft())

    def _submit(self) -> None:
        self._waiting.append(self._pool.submit(self._compress, self._open, self._filled))
        self._open, self._filled = self._spare.popleft(), 0

    def _compress(self, memory: Bytes, filled: int) -> list[Frame]:
        pages = memory[:filled]
        level = self._level
        if level is None:
            sample = np.ascontiguousarray(pages[::_SAMPLE_EVERY]).reshape(-1).data
            plain, dense = (len(self._compressor(level).compress(sample)) for level in (_PLAIN, _DENSE))
            level = _DENSE if dense <= plain * _DENSE_PAYS else _PLAIN
        compressor = self._compressor(level)
        made = []
        for start in range(0, filled, FRAME_PAGES):
            content = pages[start : start + FRAME_PAGES].reshape(-1).data
            stored: bytes = compressor.compress(content)
            made.append(Frame(stored, hashlib.sha256(stored).digest(), len(content)))
        self._spare.append(memory)
        return made

    def _compressor(self, level: int) -> zstandard.ZstdCompressor:
        """Return the compressor of this thread and level: they must not be shared."""
        name = f"level {level}"
        if not hasattr(self._local, name):
            fast = _FAST if level and level <= _FAST_UP_TO else {}  # 0 is zstd's own choice: 3
            # No checksum of zstd's: every frame is under a SHA-256.
            parameters = zstandard.ZstdCompressionParameters.from_level(
                level, source_size=FRAME_SIZE, write_checksum=False, **fast
            )
            setattr(self._local, name, zstandard.ZstdCompressor(compression_params=parameters))
        found: zstandard.ZstdCompressor = getattr(self._local, name)
        return found


_PARTS: Final = 16
# Each pack costs an open file and two reads at every dump and restore.
_SMALLEST: Final = (16 << 20) // PAGE_SIZE


def pages_in_a_pack(size: int) -> int:
    """Return how many pages a pack holds, for `size` bytes of images: a sixteenth of them, and 16 MiB at least."""
    # A pack that is copied forward lies on the disk next to its copy for a while: small packs keep that small.
    part = -(-size // PAGE_SIZE // _PARTS)
    return min(max(_SMALLEST, -(-part // FRAME_PAGES) * FRAME_PAGES), MOST_FRAMES * FRAME_PAGES)


class NewPacks:
    """Packs that are being written. Pages are numbered from 0; every `limit` of them are a pack. `close` it at last."""

    def __init__(self, directory: Path, pool: Executor, level: int | None, limit: int, key: bytes) -> None:
        """`level` as for `Frames`; `limit` is a multiple of a frame's pages; files are made in `directory`."""
        self.limit = limit
        self.pages = 0
        self._directory = directory
        self._frames = Frames(pool, level)
        self._key = key
        self._syncer = Workers(1)
        self._writers: list[PackWriter] = []
        self._prints: list[Numbers] = []
        self._finished: list[Future[FinishedPack]] = []

    def add(self, pages: Bytes, rows: Positions, prints: Numbers) -> None:
        """Append those rows of pages (n by page size) that have these fingerprints.

        Raises OSError when the disk is full.
        """
        self.pages += len(rows)
        self._prints.append(prints)
        for frame in self._frames.add(pages, rows):
            self._write(frame)

    def finish(self) -> tuple[FinishedPack, ...]:
        """Return all packs, durable under temporary names, with their fingerprints; none if no page was added."""
        for frame in self._frames.finish():
            self._write(frame)
        if len(self._writers) > len(self._finished):
            self._finish(self._writers[-1])
        return tuple(wait_for_result(finished) for finished in self._finished)

    def locations(self, numbers: Positions) -> tuple[Positions, Positions]:
        """Return the pack of each page, and its page number there."""
        pack, page = np.divmod(numbers, self.limit)
        return pack, page

    def close(self) -> None:
        """Close the files."""
        # First the thread ends.
        self._syncer.shutdown(cancel_futures=True)
        for writer in self._writers:
            writer.close()

    def _write(self, frame: Frame) -> None:
        if len(self._writers) == len(self._finished):
            self._writers.append(PackWriter(self._directory / f"pack-{len(self._writers)}"))
        writer = self._writers[-1]
        writer.add(frame)
        if writer.pages == self.limit:
            self._finish(writer)

    def _finish(self, writer: PackWriter) -> None:
        prints = np.concatenate(self._prints)
        self._prints = [prints[writer.pages :]]

        def make_durable() -> FinishedPack:
            written = writer.finish()
            writer.close()
            write_fingerprints(self._key, written, prints[: writer.pages])
            return written

        # In a thread of its own: the disk works while the next pack is compressed.
        self._finished.append(self._syncer.submit(make_durable))
