"""Find users who could not open a file that a process has open. crckpt does not open it: opening a device may act.

Source: faccessat(2), proc_pid_fd(5).
"""

from __future__ import annotations

import ctypes
import os
import pwd
import struct
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from msgspec import Struct

from crckpt.host.disk.path_trust import Changers, find_user_name
from crckpt.host.opened import opened
from crckpt.host.proc.procfs import DELETED
from crckpt.host.syscalls.libc import LIBC, check
from crckpt.host.syscalls.openat2 import file_rights_of, open_without_links

_NOBODY: Final = 65534
_AT_FDCWD: Final = -100
# Masks of statx(2): STATX_BASIC_STATS, STATX_BTIME.
_BASIC: Final = 0x7FF
_BIRTH: Final = 0x800
# struct statx (linux/stat.h): mask, user, inode, time of creation in s and ns, device.
_STATX: Final = struct.Struct("=I16xI8xQ40xqI44xII112x")


class User(Struct, frozen=True):
    """A user with their groups."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


def read_user(uid: int) -> User:
    """Read a user of this host, with the groups of a login."""
    with suppress(KeyError):
        known = pwd.getpwuid(uid)
        return User(uid, known.pw_gid, tuple(os.getgrouplist(known.pw_name, known.pw_gid)))
    return User(uid, _NOBODY)


def users_of(changers: Changers) -> tuple[User, ...]:
    """The users who can change what a path leads to; a user without any rights if they are unknown."""
    return (*map(read_user, sorted(changers.users)), *([User(_NOBODY, _NOBODY)] if changers.anyone else []))


class LinkTarget(Struct, frozen=True):
    """The file that a link in /proc leads to: path, file system, inode, owner, and time of creation if that is known.

    The time tells it from another file that the file system gave the same inode later.
    """

    path: str
    device: int
    inode: int
    owner: int
    birth: int | None = None


def read_link_target(link: str) -> LinkTarget | None:
    """Read the target of a link in /proc; None if there is none, or it has just changed."""
    with suppress(OSError):
        path, status = os.readlink(link), ctypes.create_string_buffer(_STATX.size)
        # os.stat() leaves the time of creation out.
        check(LIBC.statx(_AT_FDCWD, os.fsencode(link), 0, _BASIC | _BIRTH, status), link)
        # Path and inode come from two calls: a program may rename the file, or close it, in between.
        if os.readlink(link) == path:
            mask, uid, inode, birth, birth_ns, major, minor = _STATX.unpack(status.raw)
            created = birth * 10**9 + birth_ns if mask & _BIRTH else None
            return LinkTarget(path, os.makedev(major, minor), inode, uid, created)
    return None


def find_refused_user(link: str, access: int, users: Iterable[User], root: int) -> User | None:
    """Find a user who may not open what `link` in /proc leads to for `access` (as of access(2)); None if all may.

    `root` is a descriptor of the root directory to which its path is relative. Raises OSError if the file is gone.
    """
    with opened(os.open(link, os.O_PATH | os.O_CLOEXEC)) as found:
        path = os.readlink(link)
        for each in users:
            if not _may_open(found, path, access, each, root):
                return each
        return None


def _may_open(found: int, path: str, access: int, who: User, root: int) -> bool:
    with file_rights_of(who.uid, who.gid, who.groups):
        # AT_EACCESS (faccessat2, Linux 5.8): by the file system ids, which are this user's now.
        if not os.access(f"/proc/self/fd/{found}", access, effective_ids=True):
            return False
        if path.endswith(DELETED):
            return True
        # Even a file that everybody may read is out of reach in a directory that this user may not enter.
        above = path.rpartition("/")[0].lstrip("/") or "."
        try:
            directory = open_without_links(above, os.O_PATH | os.O_DIRECTORY, directory=root)
        except OSError:
            return False
        with opened(directory):
            return os.access(f"/proc/self/fd/{directory}", os.X_OK, effective_ids=True)


def user_name(uid: int) -> str:
    """A user's name, for messages."""
    return find_user_name(uid) or f"user {uid}"
