"""Writing packs: pages in, compressed frames out, in order, by two threads."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np
import zstandard

from crckpt.host.files import open_private, sync, write
from crckpt.model import PAGE_SIZE
from crckpt.store.extents import Bytes
from crckpt.store.pack import FOOTER, FRAME, FRAME_SIZE, MAGIC

_THREADS: Final = 2
_WAITING: Final = 8
"""Frames that may wait for their turn: 2 MiB of memory keep both threads busy."""


@dataclass(frozen=True)
class Written:
    """A finished pack, durable under a temporary name; `size` in bytes."""

    path: Path
    digest: str
    frames: int
    pages: int
    size: int


class PackWriter:
    """A pack that is being written to `path`, a new file. Use as a context manager; then `add`, then `finish`."""

    def __init__(self, path: Path, level: int) -> None:
        """`level` is zstd's."""
        self.pages = 0
        self._path = path
        self._level = level
        self._open_frame = bytearray()
        self._waiting: deque[Future[tuple[bytes, int, bytes]]] = deque()
        self._table: list[tuple[int, int, int, bytes]] = []
        self._offset = len(MAGIC)
        self._local = threading.local()

    def __enter__(self) -> PackWriter:
        self._pool = ThreadPoolExecutor(_THREADS)
        self._file: int | None = None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)
        if self._file is not None:
            os.close(self._file)

    def add(self, pages: Bytes) -> int:
        """Append pages (n by page size); the number of the first. Raises OSError when the disk is full."""
        first = self.pages
        self.pages += len(pages)
        content = np.ascontiguousarray(pages).reshape(-1).data
        while content:
            room = FRAME_SIZE - len(self._open_frame)
            self._open_frame += content[:room]
            content = content[room:]
            if len(self._open_frame) == FRAME_SIZE:
                self._close_frame()
        return first

    def finish(self) -> Written | None:
        """Write what is left, and the table, and make the file's content durable. None, and no file, without pages."""
        if not self.pages:
            return None
        if self._open_frame:
            self._close_frame()
        while self._waiting:
            self._write_frame()
        table = np.array(
            [(offset, stored, raw, np.frombuffer(digest, np.uint8)) for offset, stored, raw, digest in self._table],
            FRAME,
        ).tobytes()
        footer = FOOTER.pack(self._offset, len(self._table), PAGE_SIZE, MAGIC)
        file = self._opened()
        write(file, table + footer, "pack")
        sync(file, "pack")
        size = self._offset + len(table) + len(footer)
        return Written(self._path, hashlib.sha256(table).hexdigest(), len(self._table), self.pages, size)

    def _opened(self) -> int:
        if self._file is None:
            self._file = open_private(self._path, "pack")
            write(self._file, MAGIC, "pack")
        return self._file

    def _close_frame(self) -> None:
        content, self._open_frame = self._open_frame, bytearray()
        self._waiting.append(self._pool.submit(self._compressed, content))
        if len(self._waiting) > _WAITING:
            self._write_frame()

    def _write_frame(self) -> None:
        stored, raw, digest = self._waiting.popleft().result()
        write(self._opened(), stored, "pack")
        self._table.append((self._offset, len(stored), raw, digest))
        self._offset += len(stored)

    def _compressed(self, content: bytearray) -> tuple[bytes, int, bytes]:
        if not hasattr(self._local, "compressor"):
            self._local.compressor = zstandard.ZstdCompressor(level=self._level, write_checksum=True)
        stored: bytes = self._local.compressor.compress(content)
        return stored, len(content), hashlib.sha256(stored).digest()
