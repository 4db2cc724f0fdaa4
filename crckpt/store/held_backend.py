"""A store of which the packs of one checkpoint are kept open: they can be read also when they have been removed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crckpt.store.backend.local import LocalBackend, LocalStoreFile
from crckpt.store.format.manifest import Checkpoint
from crckpt.store.layout import pack_name


class HeldBackend(LocalBackend):
    """A store on this host. Its packs stay open as long as this process lives."""

    def __init__(self, root: Path, checkpoint: Checkpoint) -> None:
        """Open the packs of the checkpoint. The caller locks the store meanwhile. Raises IntegrityError, OSError."""
        super().__init__(root)
        names = [pack_name(use.digest) for use in checkpoint.packs]
        self._held = {name: LocalStoreFile(self._open(name)) for name in names}

    def exists(self, name: str) -> bool:
        """See `Backend`."""
        return name in self._held or super().exists(name)

    @contextmanager
    def open(self, name: str) -> Iterator[LocalStoreFile]:
        """See `Backend`."""
        if name in self._held:
            yield self._held[name]
            return
        with super().open(name) as file:
            yield file
