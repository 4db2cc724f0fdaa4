"""The operations that the store needs of the place where its files lie.

Names are relative and have slashes, as `packs/ab/DIGEST.pack`. A name stands for a file; what names begin with is a
directory, which exists as long as a file lies in it, or longer. Files are put whole and never changed, so a reader
finds a file's old content or its new one, and no part of either. `what` names the steps: see `host.steps`.

What holds for every method: it raises FileNotFoundError for a name that is not there, IntegrityError for what cannot be
a store's file (a link, another user's), OSError for what the place refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from crckpt.model import JobName


class OpenFile(Protocol):
    """A file that is open for reading, at any offset and by several threads."""

    @property
    def size(self) -> int:
        """In bytes."""

    def read(self, size: int, offset: int) -> bytes:
        """Return `size` bytes from `offset` on; fewer if the file ends before."""

    def read_into(self, into: memoryview, offset: int) -> int:
        """Fill `into` from `offset` on; return how many bytes there were."""

    def read_ahead(self, offset: int, size: int) -> None:
        """Have these bytes ready, if that can be done: they will be read soon."""


class Backend(Protocol):
    """A place for the files of one store."""

    @property
    def location(self) -> str:
        """The name of the place in messages."""

    @property
    def scratch(self) -> Path:
        """A private local directory for what is in flight; moving a file from there into the store costs little."""

    def is_same(self, other: Backend) -> bool:
        """Return whether both are one place."""

    def find_write_refusal(self) -> str:
        """Say why this process cannot write here; empty if it can. Then `scratch` cannot be used either."""

    # Reading

    def exists(self, name: str) -> bool:
        """Return whether there is a file or a directory of that name; also if the place has lost its content."""

    def names_in(self, directory: str) -> list[str]:
        """Return the last parts of the names directly in a directory, in order; none if it is not there.

        Files that are still being put are not among them.
        """

    def read(self, name: str, most: int) -> bytes:
        """Return a file as a whole. Raises IntegrityError if it has more than `most` bytes."""

    def open(self, name: str) -> AbstractContextManager[OpenFile]:
        """Open a file for reading while the block runs."""

    def map(self, name: str) -> memoryview:
        """Return a file as a whole, in memory that the kernel can take back if the file is local."""

    def disk_usage(self, name: str) -> int:
        """Return how many bytes are free once a file, or all in a directory, is removed."""

    # Writing

    def put(self, name: str, content: bytes, what: str) -> None:
        """Create or replace a file. Durable when it returns: after a crash there is the old content or the new one."""

    def put_if_absent(self, name: str, content: bytes, label: str, what: str) -> None:
        """Create a file in a directory of its own. Durable when it returns; after a crash it is there whole, or not.

        `label`: the name of an empty file next to it; empty for none. Of several who do this at once, one succeeds.
        Raises FileExistsError for the others.
        """

    def put_files(self, files: Mapping[str, Path], what: str) -> None:
        """Move finished files, whose content is durable, from `scratch` to these names. Durable when it returns.

        A file that is there already with the same content stays; one with another content is replaced.
        """

    def put_derived(self, name: str, path: Path, what: str) -> None:
        """Move a finished file from `scratch` to a name. A crash may lose it: it can be derived anew."""

    # Removing

    def remove(self, name: str, what: str) -> None:
        """Remove a file. After a crash it may be there again until `sync_names`."""

    def remove_tree(self, name: str, what: str) -> None:
        """Remove a file, or a directory with all that is in it; no link is followed. As durable as `remove`."""

    def remove_at_once(self, directories: Iterable[str], what: str) -> None:
        """Remove directories, each at once with all that is in it. Durable when it returns. Works on a full disk."""

    def sync_names(self, directory: str, what: str) -> None:
        """Make the names in a directory durable, whichever process has put or removed them."""

    def find_leftovers(self) -> list[str]:
        """Find what this backend has left where its users died. The caller holds the lock alone."""

    # Locks, which end with the process that holds them

    def locked(self, *, alone: bool, timeout: float) -> AbstractContextManager[None]:
        """Hold the store's lock while the block runs, alone or shared.

        Raises StoreLocked, which names the holders, if others have it for `timeout` seconds.
        """

    def restores_locked(self, job: JobName, timeout: float, *, alone: bool = True) -> AbstractContextManager[None]:
        """Hold the lock of the restores of a job while the block runs; with others, unless `alone`.

        Raises StoreLocked if another restore has it for `timeout` seconds. Where nothing can be written, the lock holds
        on this host only.
        """

    def turn_taken(self, directory: str, timeout: float) -> AbstractContextManager[None]:
        """Run the block while nobody else runs one for that directory, or after `timeout` seconds all the same.

        So two blocks may run at once: that must do no harm.
        """
