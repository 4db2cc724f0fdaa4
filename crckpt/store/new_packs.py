"""The packs of one checkpoint, written one after the other: each is of a size that can die before all is old."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from crckpt.model import PAGE_SIZE
from crckpt.store.extents import Bytes, Places
from crckpt.store.pack import FRAME_PAGES
from crckpt.store.pack_writer import PackWriter, Written

_PARTS: Final = 16
_SMALLEST: Final = (16 << 20) // PAGE_SIZE


def pages_in_a_pack(size: int) -> int:
    """How many pages a pack of a checkpoint of `size` bytes of images holds: a sixteenth of them, and 16 MiB at least.

    While a pack is copied forward it lies on disk beside the copy: parts keep that small.
    """
    part = -(-size // PAGE_SIZE // _PARTS)
    return max(_SMALLEST, -(-part // FRAME_PAGES) * FRAME_PAGES)


class NewPacks:
    """Pages go in and are numbered from 0; every `limit` of them are a pack. `new_packs` makes one."""

    def __init__(self, directory: Path, level: int, limit: int, stack: ExitStack) -> None:
        """`level` is zstd's; pack files are made in `directory`."""
        self.written: list[Written] = []
        self.limit = limit
        self._directory = directory
        self._level = level
        self._stack = stack
        self._writer: PackWriter | None = None

    def add(self, pages: Bytes) -> None:
        """Append pages (n by page size). Raises OSError when the disk is full."""
        while len(pages):
            writer = self._opened()
            room = self.limit - writer.pages
            writer.add(pages[:room])
            pages = pages[room:]
            if writer.pages == self.limit:
                self._close()

    def finish(self) -> tuple[Written, ...]:
        """All packs, durable under temporary names; none if no page was added."""
        self._close()
        return tuple(self.written)

    def places(self, numbers: Places) -> tuple[Places, Places]:
        """In which of the packs, and where in it, the pages of these numbers lie."""
        pack, page = np.divmod(numbers, self.limit)
        return pack, page

    def _opened(self) -> PackWriter:
        if self._writer is None:
            path = self._directory / f"pack-{len(self.written)}"
            self._writer = self._stack.enter_context(PackWriter(path, self._level))
        return self._writer

    def _close(self) -> None:
        if self._writer is not None:
            written = self._writer.finish()
            assert written is not None
            self.written.append(written)
            self._writer = None
            self._stack.close()


@contextmanager
def new_packs(directory: Path, level: int, limit: int) -> Iterator[NewPacks]:
    """Packs that are written in `directory`, with `limit` pages in each but the last; files are closed at the end."""
    with ExitStack() as stack:
        yield NewPacks(directory, level, limit, stack)
