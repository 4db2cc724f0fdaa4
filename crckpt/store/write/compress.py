"""Compress pages into frames in the threads of a pool."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from typing import Final

import numpy as np
import zstandard

from crckpt.model import PAGE_SIZE
from crckpt.store.format.extents import Bytes, Positions
from crckpt.store.format.pack import FRAME_PAGES, FRAME_SIZE, Frame
from crckpt.store.workers import wait_for_result

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
