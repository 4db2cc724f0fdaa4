"""Begin the work of `ingest` while CRIU still dumps: the tree is frozen then, and leaves a core idle."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from crckpt.errors import CrckptError, IntegrityError
from crckpt.host.process.signals import interrupts_deferred
from crckpt.model import CheckpointId
from crckpt.store.format.manifest import Checkpoint
from crckpt.store.repository import Repository

if TYPE_CHECKING:
    from crckpt.store.write.examine_pages import ExaminedPages
    from crckpt.store.write.known_pages import KnownPages


class Preparation:
    """Imports what `ingest` needs, loads what the parent has, and examines the pages that CRIU has already written.

    For one set of images only. The caller holds the lock of the store, so that nothing of the parent is removed.
    `ingest` reads the pages again. So it leaves alone images that another user could change.
    """

    def __init__(self, repository: Repository, images: Path | None = None, parent: CheckpointId | None = None) -> None:
        """Without `images` it only imports. `parent` is the parent of the images, if `ingest` does not search."""
        self._repository = repository
        self._backend = repository.backend
        self._parent = parent
        self._known: KnownPages | None = None
        self._loading = threading.Lock()
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
                from crckpt.store.write.known_pages import KnownPages

                with self._loading, suppress(CrckptError):
                    if self._parent is not None and not self._is_over.is_set():
                        parent = self._repository.get(self._parent)
                        self._known = KnownPages(self._backend, read_key(self._backend), parent, None)
                examine_growing_images(self._images, read_key(self._backend), self._is_over, self._examined)

    def load(self) -> None:
        """Import what `ingest` needs, numpy above all: that takes a tenth of a second. Raises ImportError."""
        import crckpt.store.write.packing  # noqa: F401

    def take_known(self, parent: Checkpoint | None) -> KnownPages | None:
        """Take the pages of this parent, if they were loaded; wait for that if it has begun."""
        with interrupts_deferred(), self._loading:
            known, self._known = self._known, None
        return known if known is not None and parent is not None and parent.id == self._parent else None

    def end(self) -> None:
        """Let `run` return soon. What it has examined can still be found."""
        self._is_over.set()

    def find(self, image: str, start: int) -> ExaminedPages | None:
        """Find what is known of the batch that begins with the `start`-th page of this image."""
        return self._examined.get((image, start))
