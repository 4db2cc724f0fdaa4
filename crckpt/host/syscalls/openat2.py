"""Open and rename files of other users without following links, with their owner's rights.

Source: openat2(2), setfsuid(2), renameat2(2)."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from crckpt.host.syscalls.libc import LIBC, check, syscall

# RESOLVE_... in linux/openat2.h, since Linux 5.6. O_NOFOLLOW would check only the last part of a path.
_NO_SYMLINKS: Final = 0x04
_BENEATH: Final = 0x08
# An id that setfsuid(2) refuses: the call then only returns the current one.
_NOBODY: Final = 2**32 - 1

RENAME_NOREPLACE: Final = 1
RENAME_EXCHANGE: Final = 2


def open_without_links(path: str, flags: int, mode: int = 0, *, directory: int | None = None) -> int:
    """Open `path`, a name in the open `directory` if there is one, and return its descriptor.

    Raises OSError; its errno is ELOOP if any part of the path is a symbolic link, and EXDEV if the path leaves
    `directory`.
    """
    resolve = _NO_SYMLINKS | (_BENEATH if directory is not None else 0)
    how = struct.pack("=3Q", flags | os.O_CLOEXEC, mode, resolve)  # struct open_how
    start = -100 if directory is None else directory  # AT_FDCWD
    return syscall("openat2", start, os.fsencode(path), how, len(how), path=path)


@contextmanager
def file_rights_of(uid: int, gid: int, others: Iterable[int] = ()) -> Iterator[None]:
    """Give this thread only the rights to files that the user `uid` has in the group `gid` and the `others`.

    Raises PermissionError.
    """
    if uid == os.geteuid():
        yield
        return
    groups = os.getgroups()
    own_gid = LIBC.setfsgid(_NOBODY)
    try:
        _set_groups(list(others))
        _set(LIBC.setfsgid, gid)
        # Not seteuid(2), which the C library does for all threads. When this id changes from root's, the kernel drops
        # root's capabilities over files; it restores them with the id (capabilities(7)).
        _set(LIBC.setfsuid, uid)
        yield
    finally:
        _set(LIBC.setfsuid, os.geteuid())
        _set(LIBC.setfsgid, own_gid)
        _set_groups(groups)


def _set(setter: ctypes._NamedFuncPointer, number: int) -> None:
    """Set one id of this thread."""
    # The call itself does not report a failure.
    setter(ctypes.c_uint32(number))
    if ctypes.c_uint32(setter(ctypes.c_uint32(_NOBODY))).value != number:
        raise PermissionError(1, f"cannot use the rights of user or group {number}")


def _set_groups(groups: list[int]) -> None:
    """Set the supplementary groups of this thread alone: the C library would set those of all threads."""
    array = (ctypes.c_uint32 * len(groups))(*groups)
    try:
        syscall("setgroups", len(groups), array)
    except OSError as error:
        raise PermissionError(1, "cannot change the supplementary groups of a thread") from error


def rename_within(directory: int, old: str, new: str, flags: int) -> None:
    """Rename a file in an open directory. Raises OSError."""
    check(LIBC.renameat2(directory, os.fsencode(old), directory, os.fsencode(new), flags), new)
