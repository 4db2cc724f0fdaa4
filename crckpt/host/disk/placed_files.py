"""Put new files of others where they belong: by descriptors, through no link, replacing nothing.

A file is written without a name, and gets its name when its content is verified. Every function that changes something
reports its steps: see `crckpt.host.steps`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from crckpt.errors import PreflightRefused
from crckpt.host.disk.files import own_name, sync
from crckpt.host.disk.path_trust import PathEntry, find_intruder
from crckpt.host.opened import opened
from crckpt.host.steps import step

WHAT: Final = "sent-file"
"""The word that names the steps."""
_FORBIDDEN: Final = ("proc", "sys", "dev")
_NO_UNNAMED: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT})


_Number = Annotated[int, Meta(ge=0, lt=1 << 32)]


class Ownership(Struct, frozen=True):
    """The permissions and the owner of a file or directory. Other hosts send them, too."""

    mode: _Number
    uid: _Number
    gid: _Number

    def give(self, descriptor: int) -> None:
        """Give them to an open file."""
        # A change of the owner takes bits of the mode away.
        os.fchown(descriptor, self.uid, self.gid)
        os.fchmod(descriptor, stat.S_IMODE(self.mode))


class Placement(ExitStack):
    """New files and directories, for a block: if that fails, they are removed again. It closes all descriptors."""

    def __init__(self) -> None:
        super().__init__()
        self._made: list[tuple[int, str, tuple[int, int]]] = []
        self._temporary: list[tuple[int, str]] = []

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *where: Any) -> None:
        """Undo it after an error, and close all descriptors."""
        if error is not None:
            self.undo()
        super().__exit__(kind, error, *where)

    def undo(self) -> None:
        """Remove what was made, the last first; leave alone what another program has put in its place."""
        with suppress(OSError):
            self.remove_temporary_names()
        for directory, name, identity in reversed(self._made):
            with suppress(OSError):
                found = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if (found.st_dev, found.st_ino) != identity:
                    continue
                step(f"{WHAT}.remove", name)
                if stat.S_ISDIR(found.st_mode):
                    os.rmdir(name, dir_fd=directory)
                else:
                    os.unlink(name, dir_fd=directory)
        self._made.clear()

    def open_directory(self, path: Path, owners: Sequence[Ownership], user: int) -> int:
        """Open a directory, and make what is missing of its path; return a descriptor.

        `owners` are those of each directory of the path, from the one in the root on. The path must be one that nobody
        but root, our user and `user` can change. Raises PreflightRefused, OSError.
        """
        parts = path.parts[1:]
        if parts[:1] and parts[0] in _FORBIDDEN:
            raise PreflightRefused(f"{path} is made by the kernel", hint="leave out --send-files")
        here = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.callback(os.close, here)
        entries = [PathEntry(Path("/"), os.fstat(here))]
        for number, (name, owner) in enumerate(zip(parts, owners, strict=True), 1):
            place = Path("/", *parts[:number])
            try:
                here = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            except FileNotFoundError:
                _check_trust(entries, user, place)
                here = self._make_directory(here, name, owner)
            self.callback(os.close, here)
            entries.append(PathEntry(place, os.fstat(here)))
            if not stat.S_ISDIR(entries[-1].status.st_mode):
                raise PreflightRefused(
                    f"{place} is not a directory, or is a symbolic link to one", hint=_copy_hint(path)
                )
        _check_trust(entries, user, path)
        return here

    def put(self, directory: int, name: str, descriptor: int) -> None:
        """Name a file of `open_unnamed`. Raises PreflightRefused if there is one of this name."""
        step(f"{WHAT}.link", name)
        try:
            # Of the descriptor, whatever name it has or has not: linkat(2).
            os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=directory, follow_symlinks=True)
        except FileExistsError as error:
            said = f"{name} is there by now, and crckpt does not replace it"
            raise PreflightRefused(said, hint="run the command again") from error
        self._remember(directory, name, os.fstat(descriptor))

    def open_unnamed(self, directory: int) -> int:
        """Open a new file in a directory, without a name. The caller closes it. Raises OSError."""
        step(f"{WHAT}.create", directory)
        # O_TMPFILE needs a descriptor that is no O_PATH one: name it by the link in /proc.
        place = f"/proc/self/fd/{directory}"
        try:
            return os.open(place, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in _NO_UNNAMED:
                raise
        temporary = f".crckpt-{own_name()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600, dir_fd=directory)
        self._temporary.append((directory, temporary))
        return descriptor

    def remove_temporary_names(self) -> None:
        """Remove the names of files that could not be made without one."""
        for directory, name in self._temporary:
            with suppress(FileNotFoundError):
                step(f"{WHAT}.remove", name)
                os.unlink(name, dir_fd=directory)
        self._temporary.clear()

    def sync_directories(self) -> None:
        """Make all new names durable."""
        for directory in {found[0] for found in self._made}:
            with opened(
                os.open(f"/proc/self/fd/{directory}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            ) as descriptor:
                step(f"{WHAT}.sync-directory", directory)
                os.fsync(descriptor)

    def _make_directory(self, above: int, name: str, owner: Ownership) -> int:
        step(f"{WHAT}.mkdir", name)
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=above)
            with opened(
                os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            ) as made:
                self._remember(above, name, os.fstat(made))
                owner.give(made)
        return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)

    def _remember(self, directory: int, name: str, status: os.stat_result) -> None:
        self._made.append((directory, name, (status.st_dev, status.st_ino)))


def finish(descriptor: int, owner: Ownership, modified: int) -> None:
    """Give a written file its owner, mode and time, and make its content durable."""
    owner.give(descriptor)
    os.utime(descriptor, ns=(modified, modified))
    sync(descriptor, WHAT)


def read_owners(path: Path) -> Iterator[Ownership]:
    """Read the owners of all directories above a file, from the one in the root on. Raises OSError."""
    for above in reversed(path.parents[:-1]):
        status = above.stat()
        yield Ownership(find_permissions(status.st_mode, above), status.st_uid, status.st_gid)


def find_permissions(mode: int, file: int | Path) -> int:
    """The permissions of an open file, or of a directory, that hold without its access control list.

    `mode` is that of its status. With a list, the bits of the group are the most that the list can give (acl(5)).
    """
    with suppress(OSError):
        os.getxattr(file, "system.posix_acl_access")
        return stat.S_IMODE(mode) & ~stat.S_IRWXG
    return stat.S_IMODE(mode)


def _check_trust(entries: Sequence[PathEntry], user: int, path: Path) -> None:
    intruder = find_intruder(tuple(entries), frozenset({user, os.geteuid()}))
    if intruder:
        raise PreflightRefused(f"other users can change what {path} leads to: {intruder}", hint=_copy_hint(path))


def _copy_hint(path: Path) -> str:
    return f"check the path, then copy the file there yourself: rsync -t to {path}"
