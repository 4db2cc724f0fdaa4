"""Open files from untrusted places: open once, check through the descriptor, and only then read.

A store or a set of images may come from elsewhere (a backup, a colleague). Instead of a regular file it may contain a
link to another file, a FIFO on which open(2) blocks, a device that acts when it is opened, a file of another user, or a
sparse file of a terabyte. Opening acts on some devices, wakes programs that wait for a FIFO, and mounts what is mounted
only when it is used. Source: open(2), O_PATH; Documentation/filesystems/autofs.rst.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.host.disk.path_trust import PathEntry, is_redirected, open_path
from crckpt.host.opened import closed_on_failure, opened
from crckpt.host.proc.mountinfo import read_mounts

# The file may be replaced after the first check: do not follow a link, wait for a FIFO, or get a controlling terminal.
_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_AT_ONCE: Final = 64 << 10
_SECTOR: Final = 512
_ROOT: Final = 0
_HEAD: Final = 512

_MOST_HOLE: Final = 16 << 30
# Refuse a file whose holes exceed 16 GiB and of which less than a sixteenth is on disk: it takes hours to read.
_LEAST_SHARE: Final = 16

_HASHED_AT_ONCE: Final = 1 << 20

_PT_NOTE = 4
_NT_GNU_BUILD_ID = 3

# Most bytes of program headers that we read: a file may declare 4 GiB.
_MOST_HEADERS = 1 << 20

# Bytes at the start of a file in which linkers put its headers and its build-id.
_USUALLY = 4096

# No file is as long.
_MOST = 1 << 62

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


def read_digest(descriptor: int, size: int, report: Callable[[int], None] = lambda _: None) -> str:
    """The digest of an open file, in hexadecimal; empty if it does not have `size` bytes. Raises OSError.

    `report` is called with the number of bytes after each read.
    """
    found = hashlib.sha256()
    position = 0
    # Read one byte more than expected: the file may grow.
    while content := os.pread(descriptor, min(_HASHED_AT_ONCE, size + 1 - position), position):
        found.update(content)
        position += len(content)
        report(len(content))
        if position > size:
            return ""
    return found.hexdigest() if position == size else ""


def read_build_id(path: str) -> bytes | None:
    """The GNU build-id of a 64-bit little-endian ELF file; None for other files and files without one.

    Layout: elf(5), program headers of type PT_NOTE. Raises OSError if the file cannot be read.
    """
    # The owner of the path may have put a FIFO or a device there.
    descriptor, _ = open_regular(path)
    if descriptor is None:
        return None
    with opened(descriptor):
        start = os.pread(descriptor, _USUALLY, 0)
        if start[:6] != b"\x7fELF\x02\x01" or len(start) < 64:
            return None
        # e_phoff; e_phentsize, e_phnum
        offset, size, count = struct.unpack("<Q", start[32:40]) + struct.unpack("<HH", start[54:58])
        table = _part(descriptor, start, offset, min(size * count, _MOST_HEADERS))
        # An entry has 56 bytes; a damaged file may declare 0, for which range() raises an error.
        for at in range(0, len(table) - 55, size or 1):
            kind, _flags, place, _vaddr, _paddr, length = struct.unpack_from("<IIQQQQ", table, at)
            notes = _part(descriptor, start, place, min(length, 1 << 16)) if kind == _PT_NOTE else b""
            note = 0
            while note + 12 <= len(notes):
                name_length, length, kind = struct.unpack_from("<III", notes, note)
                # Name and content are padded to 4 bytes each.
                content = note + 12 + (name_length + 3) // 4 * 4
                if kind == _NT_GNU_BUILD_ID and notes[note + 12 : note + 12 + name_length] == b"GNU\0":
                    return notes[content : content + length]
                note = content + (length + 3) // 4 * 4
    return None


def _part(descriptor: int, start: bytes, offset: int, length: int) -> bytes:
    """`length` bytes of a file from `offset` on, fewer at its end. `start` was read before."""
    if offset + length <= len(start):
        return start[offset : offset + length]
    return os.pread(descriptor, length, offset) if offset < _MOST else b""


class HeldFile(Struct, frozen=True):
    """The file that a path leads to: its `status`, and the `link` by which it can be opened while it is held.

    `owners`: of the file, and of all directories and links of its path. `is_unmounted`: the path leads through a
    directory on which nothing is mounted yet; `status` is that directory's. `is_redirected`: a restore does not follow
    a symbolic link of the path.
    """

    status: os.stat_result
    link: str
    owners: frozenset[int]
    is_unmounted: bool = False
    is_redirected: bool = False


@contextmanager
def held(path: str, automounts: frozenset[int], *, follow: bool = True) -> Iterator[HeldFile]:
    """Hold the file that an absolute path leads to, or, unless `follow`, a symbolic link at its end itself.

    `automounts`: the result of `find_automounts`. Raises OSError.
    """
    place = Path(path)
    try:
        descriptor, entries = open_path(place if follow else place.parent)
        if not follow:
            with opened(descriptor) as above:
                descriptor = os.open(place.name or "/", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            entries = (*entries, PathEntry(place, os.fstat(descriptor)))
    except (FileNotFoundError, NotADirectoryError):
        # Below such a directory nothing exists until something is mounted. Open the nearest one above that exists.
        descriptor, entries = _open_nearest(place)
        if not any(entry.status.st_dev in automounts for entry in entries):
            os.close(descriptor)
            raise
    with opened(descriptor):
        yield HeldFile(
            entries[-1].status,
            f"/proc/self/fd/{descriptor}",
            frozenset(entry.status.st_uid for entry in entries),
            any(entry.status.st_dev in automounts for entry in entries),
            is_redirected(entries if follow else entries[:-1]),
        )


def find_automounts() -> frozenset[int]:
    """Find the devices of automounts: a path that leads through one ends at a directory with nothing mounted yet."""
    return frozenset(mount.device for mount in read_mounts() if mount.kind == "autofs")


def _open_nearest(path: Path) -> tuple[int, tuple[PathEntry, ...]]:
    for above in path.parents:
        with suppress(OSError):
            return open_path(above)
    return open_path(Path("/"))
