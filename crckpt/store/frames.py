"""Pages in, compressed frames out, in order: the threads of a pool compress."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from typing import Final

import numpy as np
import zstandard
from msgspec import Struct

from crckpt.model import PAGE_SIZE
from crckpt.store.extents import Bytes, Places
from crckpt.store.pack import FRAME_PAGES

_WAITING: Final = 32
"""Frames that may wait for their turn: 8 MiB of memory keep all threads busy while the next pages are looked at."""


class Frame(Struct, frozen=True):
    """The stored bytes of a frame, the SHA-256 of them, and how many bytes its pages have."""

    stored: bytes
    sha256: bytes
    raw: int


class Frames:
    """Each page is copied once, into its frame."""

    def __init__(self, pool: Executor, level: int) -> None:
        """`level` is zstd's."""
        self._pool = pool
        self._level = level
        self._open: Bytes = _empty()
        self._filled = 0
        self._waiting: deque[Future[Frame]] = deque()
        self._local = threading.local()

    def add(self, pages: Bytes, rows: Places) -> Iterator[Frame]:
        """Append those rows of pages (n by page size); frames that are ready to be written."""
        while len(rows):
            some, rows = np.split(rows, [FRAME_PAGES - self._filled])
            end = self._filled + len(some)
            # Only with a mode other than the default does numpy copy straight into `out`.
            np.take(pages, some, axis=0, out=self._open[self._filled : end], mode="clip")
            self._filled = end
            if end == FRAME_PAGES:
                self._close()
            while len(self._waiting) > _WAITING:
                yield self._waiting.popleft().result()

    def finish(self) -> Iterator[Frame]:
        """The frames that are left; the last may be a short one."""
        if self._filled:
            self._close()
        while self._waiting:
            yield self._waiting.popleft().result()

    def _close(self) -> None:
        self._waiting.append(self._pool.submit(self._compressed, self._open[: self._filled]))
        self._open, self._filled = _empty(), 0

    def _compressed(self, pages: Bytes) -> Frame:
        if not hasattr(self._local, "compressor"):
            self._local.compressor = zstandard.ZstdCompressor(level=self._level, write_checksum=True)
        stored: bytes = self._local.compressor.compress(pages.reshape(-1).data)
        return Frame(stored, hashlib.sha256(stored).digest(), pages.size)


def _empty() -> Bytes:
    return np.empty((FRAME_PAGES, PAGE_SIZE), np.uint8)
