"""Open files from untrusted places: open once, check through the descriptor, and only then read.

A store or a set of images may come from elsewhere (a backup, a colleague). Instead of a regular file it may contain a
link to another file, a FIFO on which open(2) blocks, a device that acts when it is opened, a file of another user, or a
sparse file of a terabyte.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from crckpt.errors import IntegrityError
from crckpt.host.disk.path_trust import open_path
from crckpt.host.opened import closed_on_failure, opened

# The file may be replaced after the first check: do not follow a link, wait for a FIFO, or get a controlling terminal.
_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_AT_ONCE: Final = 64 << 10
_SECTOR: Final = 512
_ROOT: Final = 0
_HEAD: Final = 512

_MOST_HOLE: Final = 16 << 30
# Refuse a file whose holes exceed 16 GiB and of which less than a sixteenth is on disk: it takes hours to read.
_LEAST_SHARE: Final = 16

_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def open_checked(
    path: str | Path,
    *,
    most: int | None = None,
    within: int | None = None,
    owner: int | None = None,
    mode: int = os.O_RDONLY,
) -> int:
    """Open a regular file, for reading unless `mode` says otherwise, and return its descriptor.

    `path` is relative to `within`, a descriptor of a directory, if given. The file's owner must be root, our user or
    `owner`. `most` is the largest size in bytes. Raises IntegrityError if the file is anything else, OSError.
    """
    # Some devices act when they are opened, so check the kind first.
    _check(os.stat(path, dir_fd=within, follow_symlinks=False), path, most, owner)
    descriptor = _open(path, mode, within, path)
    with closed_on_failure(descriptor):
        found = os.fstat(descriptor)
        _check(found, path, most, owner)
        if found.st_size > _MOST_HOLE:
            stored = found.st_blocks * _SECTOR
            is_hole = found.st_size - stored > _MOST_HOLE and stored * _LEAST_SHARE < found.st_size
            # Some file systems report no blocks; those report no holes either.
            if is_hole and os.lseek(descriptor, 0, os.SEEK_HOLE) < found.st_size:
                raise IntegrityError(f"{path} is a sparse file of {found.st_size} bytes with only {stored} on disk")
            os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def open_regular(path: str | Path) -> tuple[int | None, int]:
    """Open what `path` leads to, following links, if it is a regular file. Return descriptor (or None) and mode.

    Raises OSError.
    """
    # Nothing else is opened: opening acts on some devices, and wakes programs that wait for a FIFO.
    with opened(os.open(path, os.O_PATH | os.O_CLOEXEC)) as found:
        mode = os.fstat(found).st_mode
        if not stat.S_ISREG(mode):
            return None, mode
        # Do not wait for another program's lease.
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), mode


@contextmanager
def regular_opened(path: str | Path) -> Iterator[int | None]:
    """As `open_regular`, for the block: yields the descriptor, or None."""
    descriptor, _ = open_regular(path)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def read_head(path: str | Path) -> bytes:
    """Read the first bytes, at most 512, of a regular file, following links; none if it cannot be read."""
    with suppress(OSError), regular_opened(path) as descriptor:
        return os.pread(descriptor, _HEAD, 0) if descriptor is not None else b""
    return b""


def digest_head(head: bytes) -> str:
    """Return the length and the SHA-256 of first bytes: what programs write may be secret."""
    return f"{len(head)}-{hashlib.sha256(head).hexdigest()}"


def begins_with(head: bytes, digest: str) -> bool:
    """Return whether these first bytes begin with those of a digest; all do with those of an empty one."""
    length = int(digest.partition("-")[0] or "0")
    return not digest or digest_head(head[:length]) == digest


def open_for_appending(path: Path) -> int:
    """Open a regular file of root or our user for appending; create it (0600) if there is none.

    Links of other users on the path are not followed. Raises IntegrityError if that is refused, OSError.
    """
    above, entries = open_path(path.absolute().parent)
    with opened(above):
        for entry in entries:
            if stat.S_ISLNK(entry.status.st_mode):
                _check_owner(entry.status, entry.path, None)
        descriptor = _open(path.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, above, path)
    with closed_on_failure(descriptor):
        _check(os.fstat(descriptor), path, None, None)
        # Another user can give a file of root's a second name, unless the kernel forbids it (fs.protected_hardlinks).
        if os.fstat(descriptor).st_nlink > 1:
            raise IntegrityError(f"{path} has other names (hard links), too")
        os.set_blocking(descriptor, True)
    return descriptor


def read_checked(path: str | Path, most: int, *, within: int | None = None, owner: int | None = None) -> bytes:
    """Read a file of up to `most` bytes. Raises what `open_checked` raises."""
    with opened(open_checked(path, most=most, within=within, owner=owner)) as descriptor:
        size = os.fstat(descriptor).st_size
        # Ask for one byte more than the size: then one read is enough, unless the file changes or is larger than
        # read(2) can return.
        content = os.read(descriptor, size + 1)
        while len(content) != size and len(content) <= most and (more := os.read(descriptor, _AT_ONCE)):
            content += more
    if len(content) > most:
        raise IntegrityError(f"{path} has more than {most} bytes")
    return content


def open_directory(path: str | Path) -> int:
    """Open a directory, for `within`. Raises IntegrityError if it is a link or no directory, OSError."""
    try:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError as error:
        raise IntegrityError(f"{path} is not a directory, or is a link to one") from error


def check_directory(path: str | Path) -> None:
    """Raise IntegrityError if `path` is a link, no directory, or another user's; OSError."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise IntegrityError(f"{path} is {kind_of(found.st_mode)}, not a directory")
    _check_owner(found, path, None)


def is_directory(path: str | Path) -> bool:
    """Return whether `path` is a directory, and not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def kind_of(mode: int) -> str:
    """The kind of a file, for messages."""
    return _KINDS.get(stat.S_IFMT(mode), "a regular file")


def _open(path: str | Path, mode: int, within: int | None, shown: str | Path) -> int:
    try:
        return os.open(path, _FLAGS | mode, 0o600, dir_fd=within)
    except OSError as error:
        # ELOOP: a link. ENXIO: a socket, or a device that does not exist (open(2)).
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise IntegrityError(f"{shown} is not a regular file") from error
        raise


def _check(found: os.stat_result, path: str | Path, most: int | None, owner: int | None) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise IntegrityError(f"{path} is {kind_of(found.st_mode)}, not a regular file")
    _check_owner(found, path, owner)
    if most is not None and found.st_size > most:
        raise IntegrityError(f"{path} has {found.st_size} bytes; such a file may have at most {most}")


def _check_owner(found: os.stat_result, path: str | Path, owner: int | None) -> None:
    if found.st_uid not in (_ROOT, os.geteuid(), owner):
        raise IntegrityError(f"{path} belongs to uid {found.st_uid}, not to root or the user of crckpt")
