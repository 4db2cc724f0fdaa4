"""A store in a directory of this host: files are written next to their place, synced and renamed; links are refused.

`LateBackend` may lack packs of a checkpoint, which are fetched from elsewhere, or lose them, which are kept open.
"""

from __future__ import annotations

import errno
import filecmp
import mmap
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from crckpt.host.disk.checked_files import check_directory, is_directory, open_checked, open_directory, read_checked
from crckpt.host.disk.files import (
    add_private_directory,
    ensure_private_directory,
    is_named,
    losses_ignored,
    make_private_directory,
    move_durably,
    open_private,
    own_name,
    remove,
    remove_tree,
    rename,
    status_of,
    sync_directory,
    write_durably,
    write_new,
)
from crckpt.model import CheckpointId, JobName, PackId
from crckpt.store import layout
from crckpt.store.backend import flock
from crckpt.store.backend.directory import find_write_refusal
from crckpt.store.layout import checkpoint_directory, manifest_name, pack_name
from crckpt.store.owner import read_owner

# The unit of st_blocks, whatever the file system's blocks are (stat(2)).
_SECTOR: Final = 512
# rename(2) onto a directory that is not empty fails with either.
_EXISTS: Final = frozenset({errno.EEXIST, errno.ENOTEMPTY})

# The temporary files of `put`. Other hidden files in the store's directory may be a file system's.
_TEMPORARIES: Final = (
    f"{layout.FINGERPRINTS}/.*",
    f"{layout.SAMPLES}/.*",
    f"{layout.MOVES}/.*",
    f"{layout.RESTORED}/.*",
    f"{layout.UNREPORTED}/.*",
    "cache/.fingerprints.key.*",
    "cache/.damaged.*",
    f"{layout.PENDING}/.*",
    f"{layout.TAGS}/*/.*",
    f".{layout.DESCRIPTION}.*",
)


class StoreFile:
    """A file that is open for reading, at any offset and by several threads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def size(self) -> int:
        """In bytes."""
        return os.fstat(self._descriptor).st_size

    def read(self, size: int, offset: int) -> bytes:
        """Return `size` bytes from `offset` on; fewer if the file ends before."""
        return os.pread(self._descriptor, size, offset)

    def read_into(self, into: memoryview, offset: int) -> int:
        """Fill `into` from `offset` on; return how many bytes there were."""
        return os.preadv(self._descriptor, [into], offset)

    def read_ahead(self, offset: int, size: int) -> None:
        """Have these bytes ready, if that can be done: they will be read soon."""
        os.posix_fadvise(self._descriptor, offset, size, os.POSIX_FADV_WILLNEED)


class Backend:
    """A place for the files of one store: a directory. `directory` checks whether it may be used."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def location(self) -> str:
        """The name of the place in messages."""
        return str(self._root)

    @property
    def scratch(self) -> Path:
        """A private directory for what is in flight: moving a file from there into the store is a rename."""
        return self._root / layout.SCRATCH

    def is_same(self, other: Backend) -> bool:
        """Return whether both are one place."""
        return self._root.samefile(other.location)

    def find_write_refusal(self) -> str:
        """Say why this process cannot write here; empty if it can. Then `scratch` cannot be used either."""
        return find_write_refusal(self._root)

    def exists(self, name: str) -> bool:
        """Return whether there is a file or a directory of that name; also if the place has lost its content."""
        return self._is_directory(_directory_of(name)) and is_named(self._root / name)

    def names_in(self, directory: str) -> list[str]:
        """Return the last parts of the names directly in a directory, in order; none if it is not there.

        Files that are still being put are not among them.
        """
        if not self._is_directory(directory):
            return []
        # There may be very many: names alone cost a tenth of paths.
        try:
            with os.scandir(f"{self._root}/{directory}") as entries:
                return sorted(entry.name for entry in entries if not entry.name.startswith("."))
        except FileNotFoundError:
            # A backup leaves out empty directories, and here it may be impossible to make them.
            if directory in (layout.CHECKPOINTS, layout.PACKS):
                raise
            return []

    def read(self, name: str, most: int) -> bytes:
        """Return a file as a whole. Raises IntegrityError if it has more than `most` bytes."""
        directory, file = self._open_directory(name)
        try:
            return read_checked(file, most, within=directory)
        finally:
            os.close(directory)

    @contextmanager
    def open(self, name: str) -> Iterator[StoreFile]:
        """Open a file for reading while the block runs."""
        descriptor = self._open(name)
        try:
            yield StoreFile(descriptor)
        finally:
            os.close(descriptor)

    def map(self, name: str) -> memoryview:
        """Return a file as a whole, in memory that the kernel can take back. Raises ValueError if it has no content."""
        descriptor = self._open(name)
        try:
            # The mapping stays when the descriptor is closed (mmap(2)).
            return memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
        finally:
            os.close(descriptor)

    def disk_usage(self, name: str) -> int:
        """Return how many bytes are free once a file, or all in a directory, is removed."""
        return disk_usage(self._root / name)

    def put(self, name: str, content: bytes, what: str) -> None:
        """Create or replace a file. Durable when it returns: after a crash there is the old content or the new one."""
        directory = self._root / _directory_of(name)
        if not self._is_standing(_directory_of(name)):
            ensure_private_directory(directory, f"{what}-directory")
            check_directory(directory)
        write_durably(self._root / name, content, what)

    def put_if_absent(self, name: str, content: bytes, label: str, what: str) -> None:
        """Create a file in a directory of its own. Durable when it returns; after a crash it is there whole, or not.

        `label`: the name of an empty file next to it; empty for none. Of several who do this at once, one succeeds.
        Raises FileExistsError for the others.
        """
        # The directory is made in `scratch`: it exists if and only if the file does.
        beside = self.scratch / own_name()
        make_private_directory(beside, f"{what}-directory")
        try:
            if label:
                # The sync of the directory makes it durable: it has no content.
                os.close(open_private(beside / label, "label"))
            write_new(beside / Path(name).name, content, what)
            sync_directory(beside, f"{what}-directory")
            move_durably(beside, self._root / _directory_of(name), f"{what}-directory")
        except BaseException as error:
            with suppress(OSError):
                remove_tree(beside, f"{what}-directory")
            if isinstance(error, OSError) and error.errno in _EXISTS:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from error
            raise

    def put_files(self, files: Mapping[str, Path], what: str) -> None:
        """Move finished files, whose content is durable, from `scratch` to these names. Durable when it returns.

        A file that is there already with the same content stays; one with another content is replaced.
        """
        targets = {self._root / name: path for name, path in files.items()}
        for target, path in targets.items():
            with suppress(FileNotFoundError):
                # Through a link in its place, the file would be written where that leads.
                check_directory(target.parent)
            if self._is_same_file(path, target):
                remove(path, what)
            else:
                add_private_directory(target.parent, f"{what}-directory")
                check_directory(target.parent)
                rename(path, target, what)
        # Also for files that were there before: the process that put one may have died before its sync, and a manifest
        # relies on it.
        directories = {target.parent for target in targets}
        for directory in sorted(directories):
            sync_directory(directory, what)
        for above in sorted({directory.parent for directory in directories}):
            sync_directory(above, f"{what}-directory")

    def _is_same_file(self, path: Path, target: Path) -> bool:
        """Return whether `target` has that content already; not if it is missing, or the disk has lost some of it."""
        with suppress(FileNotFoundError), losses_ignored():
            # filecmp follows a link, and could find the same content outside of the store.
            return stat.S_ISREG(target.lstat().st_mode) and self.has_same_content(path, target)
        return False

    def has_same_content(self, path: Path, target: Path) -> bool:
        """Return whether two files have the same content. Raises OSError."""
        return filecmp.cmp(path, target, shallow=False)

    def put_derived(self, name: str, path: Path, what: str) -> None:
        """Move a finished file from `scratch` to a name. A crash may lose it: it can be derived anew."""
        rename(path, self._root / name, what)

    def remove(self, name: str, what: str) -> None:
        """Remove a file. After a crash it may be there again until `sync_names`."""
        if not self._is_directory(_directory_of(name)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        remove(self._root / name, what)

    def remove_tree(self, name: str, what: str) -> None:
        """Remove a file, or a directory with all that is in it; no link is followed. As durable as `remove`."""
        remove_tree(self._root / name, what)

    def remove_at_once(self, directories: Iterable[str], what: str) -> None:
        """Remove directories, each at once with all that is in it. Durable when it returns. Works on a full disk."""
        # Nothing is created: it works on a full disk. What a crash leaves in `scratch` has no owner, so gc removes it.
        moves = [(self._root / name, self.scratch / Path(name).name) for name in directories]
        for path, aside in moves:
            rename(path, aside, what)
        # Only their absence here must be durable: in `scratch` they may be lost.
        for above in sorted({path.parent for path, _ in moves}):
            sync_directory(above, what)
        for _, aside in moves:
            remove_tree(aside, what)

    def sync_names(self, directory: str, what: str) -> None:
        """Make the names in a directory durable, whichever process has put or removed them."""
        sync_directory(self._root / directory, what)

    def find_leftovers(self) -> list[str]:
        """Find records of locks whose holders have ended, and files that were being put. Needs the lock alone."""
        owners = ((path, read_owner(path)) for path in (self._root / layout.LOCKS).iterdir())
        records = (path for path, owner in owners if owner is None or not owner.is_alive)
        hidden = (path for pattern in _TEMPORARIES for path in self._root.glob(pattern) if is_directory(path.parent))
        return [str(path.relative_to(self._root)) for path in (*sorted(records), *sorted(hidden))]

    def locked(self, *, alone: bool, timeout: float) -> AbstractContextManager[None]:
        """Hold the store's lock while the block runs, alone or shared.

        Raises StoreLocked, which names the holders, if others have it for `timeout` seconds.
        """
        return flock.locked(self._root, alone=alone, timeout=timeout)

    def restores_locked(self, job: JobName, timeout: float, *, alone: bool = True) -> AbstractContextManager[None]:
        """Hold the lock of the restores of a job while the block runs; with others, unless `alone`.

        Raises StoreLocked if another restore has it for `timeout` seconds. Where nothing can be written, the lock holds
        on this host only.
        """
        return flock.restores_locked(self._root, job, timeout, alone=alone)

    def turn_taken(self, directory: str, timeout: float) -> AbstractContextManager[None]:
        """Run the block while nobody else runs one for that directory, or after `timeout` seconds all the same.

        So two blocks may run at once: that must do no harm.
        """
        return flock.turn_taken(self._root / directory, timeout)

    def _is_standing(self, directory: str) -> bool:
        """Return whether every store has it; that none of these is a link was checked when the store was opened."""
        return not directory or directory in layout.DIRECTORIES

    def _is_directory(self, name: str) -> bool:
        return self._is_standing(name) or is_directory(self._root / name)

    def _open(self, name: str) -> int:
        if not self._is_standing(directory := _directory_of(name)):
            check_directory(f"{self._root}/{directory}")
        within, file = self._open_directory(name)
        try:
            return open_checked(file, within=within)
        finally:
            os.close(within)

    def _open_directory(self, name: str) -> tuple[int, str]:
        """Return a descriptor of a file's directory, to which no link leads, and the file's name there."""
        directory, _, file = name.rpartition("/")
        # The store itself may lie behind a link.
        return open_directory(f"{self._root}/{directory or '.'}"), file


def disk_usage(path: Path) -> int:
    """Return how many bytes a file, or all in a directory, takes on the disk; what links lead to does not count."""
    if not is_directory(path):
        return _file_usage(path)
    return sum(_file_usage(Path(top) / name) for top, _, names in os.walk(path) for name in names)


def _file_usage(path: Path) -> int:
    # A CRIU that has outlived a killed crckpt may remove it while gc looks.
    found = status_of(str(path), follow=False)
    return found.st_blocks * _SECTOR if found else 0


def _directory_of(name: str) -> str:
    return name.rpartition("/")[0]


class Fetched(NamedTuple):
    """The size of a whole file, and a part of it."""

    size: int
    content: bytes


Fetch = Callable[[PackId, int, int], Fetched]
"""Reads from the pack of a digest: from an offset on, so many bytes."""


class LateBackend(Backend):
    """A store on this host, and one of its checkpoints: with `fetch` it may not have all packs and the manifest yet."""

    def __init__(
        self, root: Path, checkpoint_id: CheckpointId, packs: Iterable[PackId], manifest: bytes, fetch: Fetch | None
    ) -> None:
        """`packs` are those of the checkpoint; `manifest` is its, if the store may lack it, or empty."""
        super().__init__(root)
        self._manifest = {manifest_name(checkpoint_id): manifest} if manifest else {}
        self._names = {*self._manifest, *([checkpoint_directory(checkpoint_id)] if manifest else [])}
        self._digests = {pack_name(digest): digest for digest in packs}
        self._fetch = fetch
        self._held: dict[str, StoreFile] = {}

    def hold(self) -> None:
        """Keep all packs open as long as this process lives, so that they can be read when they have been removed.

        The caller locks the store meanwhile. Raises IntegrityError, OSError.
        """
        self._held = {name: StoreFile(self._open(name)) for name in self._digests}

    def exists(self, name: str) -> bool:
        return name in self._names or name in self._held or super().exists(name)

    def read(self, name: str, most: int) -> bytes:
        return self._manifest.get(name) or super().read(name, most)

    @contextmanager
    def open(self, name: str) -> Iterator[StoreFile]:
        if name in self._held:
            yield self._held[name]
        elif self._fetch is not None and name in self._digests and not super().exists(name):
            yield _LateFile(self._digests[name], self._fetch)
        else:
            with super().open(name) as file:
                yield file


class _LateFile(StoreFile):
    """A pack elsewhere."""

    def __init__(self, digest: PackId, fetch: Fetch) -> None:
        super().__init__(-1)
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
