"""Write frames to the packs of one checkpoint. Each pack is small enough to be removed by itself."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Final

import numpy as np

from crckpt.model import PAGE_SIZE
from crckpt.store.fingerprints import write_fingerprints
from crckpt.store.format.extents import Bytes, Numbers, Positions
from crckpt.store.format.pack import FRAME_PAGES, MOST_FRAMES, FinishedPack, Frame, PackWriter
from crckpt.store.workers import Workers, wait_for_result
from crckpt.store.write.compress import Frames

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
