"""A store's directory on a disk that fails on request."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crckpt.store import Repository
from crckpt.store.backend.local import Backend, StoreFile
from crckpt.store.repository import read_store_id


class FailingFile(StoreFile):
    """A file of which the sector at `offset` cannot be read: as a disk says, or a file system that checks."""

    def __init__(self, descriptor: int, offset: int) -> None:
        super().__init__(descriptor)
        self._offset = offset

    def read(self, size: int, offset: int) -> bytes:
        """See `StoreFile`."""
        self._fail(size, offset)
        return super().read(size, offset)

    def read_into(self, into: memoryview, offset: int) -> int:
        """See `StoreFile`."""
        self._fail(len(into), offset)
        return super().read_into(into, offset)

    def _fail(self, size: int, offset: int) -> None:
        if offset <= self._offset < offset + size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class FailingDisk(Backend):
    """The file `name` fails at `offset`; without an offset its inode is damaged, as ext4 says."""

    def __init__(self, root: Path, name: str, offset: int | None = None) -> None:
        super().__init__(root)
        self._name = name
        self._offset = offset

    @contextmanager
    def open(self, name: str) -> Iterator[StoreFile]:
        """See `Backend`."""
        if name != self._name:
            with super().open(name) as file:
                yield file
            return
        if self._offset is None:
            raise OSError(errno.EUCLEAN, os.strerror(errno.EUCLEAN), name)
        with (Path(self.location) / name).open("rb") as opened:
            yield FailingFile(opened.fileno(), self._offset)

    def has_same_content(self, path: Path, target: Path) -> bool:
        """See `Backend`."""
        if target == Path(self.location) / self._name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().has_same_content(path, target)


def failing(repository: Repository, path: Path, offset: int | None = None) -> Repository:
    """The same store, on a disk on which this file fails."""
    backend = FailingDisk(repository.root, str(path.relative_to(repository.root)), offset)
    return Repository(backend, read_store_id(backend))
