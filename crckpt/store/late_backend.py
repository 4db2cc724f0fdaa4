"""A store that may lack packs of a checkpoint, which are fetched from elsewhere, or lose them, which are kept open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from crckpt.model import PackId
from crckpt.store.backend.local import LocalBackend, LocalStoreFile
from crckpt.store.backend.protocol import OpenFile
from crckpt.store.format.manifest import Checkpoint
from crckpt.store.layout import checkpoint_directory, manifest_name, pack_name


class Fetched(NamedTuple):
    """The size of a whole file, and a part of it."""

    size: int
    content: bytes


Fetch = Callable[[PackId, int, int], Fetched]
"""Reads from the pack of a digest: from an offset on, so many bytes."""


class LateBackend(LocalBackend):
    """A store on this host, and one of its checkpoints: with `fetch` it may not have all packs and the manifest yet."""

    def __init__(self, root: Path, checkpoint: Checkpoint, manifest: bytes = b"", fetch: Fetch | None = None) -> None:
        """`manifest` is that of the checkpoint, if the store may lack it."""
        super().__init__(root)
        self._manifest = {manifest_name(checkpoint.id): manifest} if manifest else {}
        self._names = {*self._manifest, *([checkpoint_directory(checkpoint.id)] if manifest else [])}
        self._digests = {pack_name(use.digest): use.digest for use in checkpoint.packs}
        self._fetch = fetch
        self._held: dict[str, LocalStoreFile] = {}

    def hold(self) -> None:
        """Keep all packs open as long as this process lives, so that they can be read when they have been removed.

        The caller locks the store meanwhile. Raises IntegrityError, OSError.
        """
        self._held = {name: LocalStoreFile(self._open(name)) for name in self._digests}

    def exists(self, name: str) -> bool:
        return name in self._names or name in self._held or super().exists(name)

    def read(self, name: str, most: int) -> bytes:
        return self._manifest.get(name) or super().read(name, most)

    @contextmanager
    def open(self, name: str) -> Iterator[OpenFile]:  # type: ignore[override]
        if name in self._held:
            yield self._held[name]
        elif self._fetch is not None and name in self._digests and not super().exists(name):
            yield _LateFile(self._digests[name], self._fetch)
        else:
            with super().open(name) as file:
                yield file


class _LateFile:
    """A pack elsewhere."""

    def __init__(self, digest: PackId, fetch: Fetch) -> None:
        self._digest, self._fetch = digest, fetch

    @property
    def size(self) -> int:
        return self._fetch(self._digest, 0, 0).size

    def read(self, size: int, offset: int) -> bytes:
        return self._fetch(self._digest, offset, size).content

    def read_into(self, into: memoryview, offset: int) -> int:
        content = self.read(len(into), offset)[: len(into)]
        into[: len(content)] = content
        return len(content)

    def read_ahead(self, offset: int, size: int) -> None:
        pass
