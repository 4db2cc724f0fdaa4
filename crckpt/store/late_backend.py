"""A store whose packs are not all here yet: those that lack are fetched, piece by piece, from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from crckpt.model import PackId
from crckpt.store.backend.local import LocalBackend
from crckpt.store.backend.protocol import OpenFile
from crckpt.store.format.manifest import Checkpoint
from crckpt.store.held_backend import HeldBackend
from crckpt.store.layout import checkpoint_directory, manifest_name, pack_name


class Fetched(NamedTuple):
    """The size of a whole file, and a part of it."""

    size: int
    content: bytes


Fetch = Callable[[PackId, int, int], Fetched]
"""Reads from the pack of a digest: from an offset on, so many bytes."""


class LateBackend(LocalBackend):
    """A store on this host, with a checkpoint whose manifest and packs it may not have yet."""

    def __init__(self, root: Path, checkpoint: Checkpoint, manifest: bytes, fetch: Fetch) -> None:
        """`manifest` is that of the checkpoint."""
        super().__init__(root)
        self._manifest = {manifest_name(checkpoint.id): manifest}
        self._names = {*self._manifest, checkpoint_directory(checkpoint.id)}
        self._digests = {pack_name(use.digest): use.digest for use in checkpoint.packs}
        self._fetch = fetch
        self._checkpoint = checkpoint
        self._held: HeldBackend | None = None

    def hold(self) -> None:
        """Keep all packs open, as the store has them now. The caller locks it. Raises IntegrityError, OSError."""
        self._held = HeldBackend(self._root, self._checkpoint)

    def exists(self, name: str) -> bool:
        """See `Backend`."""
        return name in self._names or super().exists(name)

    def read(self, name: str, most: int) -> bytes:
        """See `Backend`."""
        return self._manifest.get(name) or super().read(name, most)

    @contextmanager
    def open(self, name: str) -> Iterator[OpenFile]:  # type: ignore[override]
        """See `Backend`."""
        if self._held is not None:
            with self._held.open(name) as file:
                yield file
            return
        if name in self._digests and not super().exists(name):
            yield _LateFile(self._digests[name], self._fetch)
            return
        with super().open(name) as file:
            yield file


class _LateFile:
    """A pack elsewhere."""

    def __init__(self, digest: PackId, fetch: Fetch) -> None:
        self._digest, self._fetch = digest, fetch

    @property
    def size(self) -> int:
        """See `OpenFile`."""
        return self._fetch(self._digest, 0, 0).size

    def read(self, size: int, offset: int) -> bytes:
        """See `OpenFile`."""
        return self._fetch(self._digest, offset, size).content

    def read_into(self, into: memoryview, offset: int) -> int:
        """See `OpenFile`."""
        content = self.read(len(into), offset)[: len(into)]
        into[: len(content)] = content
        return len(content)

    def read_ahead(self, offset: int, size: int) -> None:
        """See `OpenFile`."""
