"""A store backend in memory that passes the contract: its directory is only scratch."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from crckpt.errors import IntegrityError, StoreLocked
from crckpt.store.backend.local import Backend, StoreFile


@dataclass(frozen=True)
class MemoryFile(StoreFile):
    """A file; see `StoreFile`."""

    content: bytes

    @property
    def size(self) -> int:
        """The size in bytes."""
        return len(self.content)

    def read(self, size: int, offset: int) -> bytes:
        """See `StoreFile`."""
        return self.content[offset : offset + size]

    def read_into(self, into: memoryview, offset: int) -> int:
        """See `StoreFile`."""
        found = self.read(len(into), offset)
        into[: len(found)] = found
        return len(found)

    def read_ahead(self, offset: int, size: int) -> None:
        """Do nothing: the file is in memory."""


class MemoryBackend(Backend):
    """Files by name; see `Backend`. `scratch` is a directory of the test's."""

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        self.files: dict[str, bytes] = {}
        self._changes = threading.Condition()
        self._locks: dict[str, int] = {}

    @property
    def scratch(self) -> Path:
        """As given."""
        return self._root

    def find_write_refusal(self) -> str:
        """Everybody can."""
        return ""

    def exists(self, name: str) -> bool:
        """See `Backend`."""
        return name in self.files or any(found.startswith(f"{name}/") for found in self.files)

    def names_in(self, directory: str) -> list[str]:
        """See `Backend`."""
        below = f"{directory}/" if directory else ""
        return sorted({name[len(below) :].split("/")[0] for name in self.files if name.startswith(below)})

    def read(self, name: str, most: int) -> bytes:
        """See `Backend`."""
        content = self._content(name)
        if len(content) > most:
            raise IntegrityError(f"{name} has {len(content)} bytes; such a file may have at most {most}")
        return content

    @contextmanager
    def open(self, name: str) -> Iterator[MemoryFile]:
        """See `Backend`."""
        yield MemoryFile(self._content(name))

    def map(self, name: str) -> memoryview:
        """See `Backend`."""
        return memoryview(self._content(name))

    def disk_usage(self, name: str) -> int:
        """See `Backend`."""
        return sum(len(content) for found, content in self.files.items() if _is_in(found, name))

    def put(self, name: str, content: bytes, what: str) -> None:
        """See `Backend`."""
        del what
        self.files[name] = bytes(content)

    def put_if_absent(self, name: str, content: bytes, label: str, what: str) -> None:
        """See `Backend`."""
        del what
        if self.files.setdefault(name, content) is not content:
            raise FileExistsError(name)
        if label:
            self.files[f"{name.rpartition('/')[0]}/{label}"] = b""

    def put_files(self, files: Mapping[str, Path], what: str) -> None:
        """See `Backend`."""
        for name, path in files.items():
            self.put_derived(name, path, what)

    def put_derived(self, name: str, path: Path, what: str) -> None:
        """See `Backend`."""
        self.put(name, path.read_bytes(), what)
        path.unlink()

    def remove(self, name: str, what: str) -> None:
        """See `Backend`."""
        del what
        if self.files.pop(name, None) is None:
            raise FileNotFoundError(name)

    def remove_tree(self, name: str, what: str) -> None:
        """See `Backend`."""
        found = [found for found in self.files if _is_in(found, name)]
        if not found:
            raise FileNotFoundError(name)
        for each in found:
            self.remove(each, what)

    def remove_at_once(self, directories: Iterable[str], what: str) -> None:
        """See `Backend`."""
        for directory in directories:
            self.remove_tree(directory, what)

    def sync_names(self, directory: str, what: str) -> None:
        """Do nothing: this backend does not survive a crash."""

    def find_leftovers(self) -> list[str]:
        """Find nothing: no operation of this backend can be interrupted."""
        return []

    @contextmanager
    def locked(self, *, alone: bool, timeout: float) -> Iterator[None]:
        """See `Backend`."""
        with self._locked("store", alone, timeout):
            yield

    @contextmanager
    def restores_locked(self, job: str, timeout: float, *, alone: bool = True) -> Iterator[None]:
        """See `Backend`."""
        with self._locked(f"restore-{job}", alone, timeout):
            yield

    @contextmanager
    def turn_taken(self, directory: str, timeout: float) -> Iterator[None]:
        """See `Backend`."""
        with ExitStack() as stack:
            with suppress(StoreLocked):
                stack.enter_context(self._locked(f"turn {directory}", True, timeout))
            yield

    @contextmanager
    def _locked(self, name: str, alone: bool, timeout: float) -> Iterator[None]:
        """Count the shared holders of the lock; -1 stands for an exclusive holder."""
        with self._changes:
            if not self._changes.wait_for(lambda: self._is_free(name, alone), timeout):
                raise StoreLocked(f"{self.location} is locked", hint="wait until it has ended")
            self._locks[name] = -1 if alone else self._locks.get(name, 0) + 1
        try:
            yield
        finally:
            with self._changes:
                self._locks[name] = 0 if alone else self._locks[name] - 1
                self._changes.notify_all()

    def _is_free(self, name: str, alone: bool) -> bool:
        holding = self._locks.get(name, 0)
        return holding == 0 or (holding > 0 and not alone)

    def _content(self, name: str) -> bytes:
        try:
            return self.files[name]
        except KeyError:
            raise FileNotFoundError(name) from None


def _is_in(name: str, directory: str) -> bool:
    return name == directory or name.startswith(f"{directory}/")
