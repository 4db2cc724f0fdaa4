"""Begin the work of `ingest` while CRIU still dumps: the tree is frozen then, and leaves a core idle."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from crckpt.errors import IntegrityError
from crckpt.store.repository import Repository

if TYPE_CHECKING:
    from crckpt.store.write.examine_pages import ExaminedPages


class Preparation:
    """Imports what `ingest` needs, then examines the pages that CRIU has already written. For one set of images only.

    `ingest` reads the pages again. So it leaves alone images that another user could change.
    """

    def __init__(self, repository: Repository, images: Path | None = None) -> None:
        """Without `images` it only imports."""
        self._backend = repository.backend
        # Without a second core it would slow CRIU down, and freeze the tree for longer.
        self._images = images if len(os.sched_getaffinity(0)) > 1 else None
        self._is_over = threading.Event()
        self._examined: dict[tuple[str, int], ExaminedPages] = {}

    def run(self) -> None:
        """Work until another thread calls `end`. Failures are left to `ingest`, where they are reported."""
        with suppress(ImportError, OSError, MemoryError, IntegrityError):
            self.load()
            if self._images is not None:
                from crckpt.store.fingerprints import read_key
                from crckpt.store.write.examine_pages import examine_growing_images

                examine_growing_images(self._images, read_key(self._backend), self._is_over, self._examined)

    def load(self) -> None:
        """Import what `ingest` needs, numpy above all: that takes a tenth of a second. Raises ImportError."""
        import crckpt.store.write.packing  # noqa: F401

    def end(self) -> None:
        """Let `run` return soon. What it has examined can still be found."""
        self._is_over.set()

    def find(self, image: str, start: int) -> ExaminedPages | None:
        """Find what is known of the batch that begins with the `start`-th page of this image."""
        return self._examined.get((image, start))
