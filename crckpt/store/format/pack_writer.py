"""Write packs: frames, their table, a footer. `crckpt.store` specifies the format."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
from msgspec import Struct

from crckpt.host.disk.files import open_private, sync, write
from crckpt.model import PAGE_SIZE, PackId
from crckpt.store.format.pack import FOOTER, FRAME, MAGIC


class Frame(Struct, frozen=True):
    """The stored bytes of a frame, their SHA-256, and how many bytes its pages have."""

    stored: bytes
    sha256: bytes
    raw: int


class FinishedPack(Struct, frozen=True):
    """A finished pack, durable under a temporary name; `size` in bytes."""

    path: Path
    digest: PackId
    frames: int
    pages: int
    size: int


class PackWriter:
    """Writes a pack to `path`, a new file: `add` frames, then `finish`, and `close` in any case."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when the disk is full, as the other methods do."""
        self.pages = 0
        self._path = path
        self._table: list[tuple[int, int, int, bytes]] = []
        self._offset = len(MAGIC)
        self._file = open_private(path, "pack")
        try:
            write(self._file, MAGIC, "pack")
        except BaseException:
            self.close()
            raise

    def add(self, frame: Frame) -> None:
        """Write the next frame."""
        write(self._file, frame.stored, "pack")
        self._table.append((self._offset, len(frame.stored), frame.raw, frame.sha256))
        self._offset += len(frame.stored)
        self.pages += frame.raw // PAGE_SIZE

    def finish(self) -> FinishedPack:
        """Write the table, and make the file's content durable."""
        table = np.array(
            [(offset, stored, raw, np.frombuffer(digest, np.uint8)) for offset, stored, raw, digest in self._table],
            FRAME,
        ).tobytes()
        footer = FOOTER.pack(self._offset, len(self._table), PAGE_SIZE, MAGIC)
        write(self._file, table + footer, "pack")
        sync(self._file, "pack")
        size = self._offset + len(table) + len(footer)
        # The table has the SHA-256 of each frame, so its own covers every byte of the pages.
        return FinishedPack(self._path, PackId(hashlib.sha256(table).hexdigest()), len(self._table), self.pages, size)

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
