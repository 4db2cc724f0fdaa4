"""Find who can change what a path names, by owners and modes of all its directories and links.

Imports only what Python has: scripts/install needs it before an installation.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

# The kernel's limit. Source: path_resolution(7).
_MOST_LINKS: Final = 40


class PathEntry(NamedTuple):
    """A directory or symbolic link on a path, or its end."""

    path: Path
    status: os.stat_result


def find_intruder(entries: tuple[PathEntry, ...], users: frozenset[int]) -> str:
    """Say which entry somebody other than root and `users` can change, and why; empty if there is none.

    In a sticky directory (/tmp) only the owner of the file counts.
    """
    trusted = users | {0}
    for entry in entries:
        mode, owner = entry.status.st_mode, entry.status.st_uid
        if owner not in trusted:
            return f"{entry.path} belongs to user {find_user_name(owner) or owner}"
        # The mode of a link has no effect (symlink(7)).
        if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
            continue
        if mode & stat.S_IWOTH:
            return f"every user can write to {entry.path}"
        if mode & stat.S_IWGRP and not _is_group_of(entry.status.st_gid, trusted):
            group = find_group_name(entry.status.st_gid) or entry.status.st_gid
            return f"the group {group} can write to {entry.path}"
    return ""


def is_redirected(entries: tuple[PathEntry, ...]) -> bool:
    """Return whether a symbolic link is on the path that others than root can have put there.

    The preload library for restores follows no such link (crckpt/tracking/preload/trusted.c).
    """
    is_trusted = True
    for entry in entries:
        mode, owner = entry.status.st_mode, entry.status.st_uid
        if stat.S_ISLNK(mode) and (owner or not is_trusted):
            return True
        if stat.S_ISDIR(mode) and (owner or (mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX)):
            is_trusted = False
    return False


class Changers(NamedTuple):
    """The users besides root who can change what a name leads to: `users`, and `anyone` if it is not known who."""

    users: frozenset[int] = frozenset()
    anyone: bool = False

    def __bool__(self) -> bool:
        return bool(self.users) or self.anyone


def find_changers(directory: Path) -> Changers:
    """Find who besides root can replace a file in this directory, or the directory."""
    try:
        descriptor, entries = open_path(directory)
    except OSError:
        return Changers(anyone=True)
    os.close(descriptor)
    # In a sticky directory such as /tmp, anybody can create the file once it is gone. Directories above it exist, and
    # the sticky bit protects their names.
    users, anyone = set(), bool(entries[-1].status.st_mode & stat.S_ISVTX)
    for entry in entries:
        mode = entry.status.st_mode
        users.add(entry.status.st_uid)
        if not stat.S_ISLNK(mode) and not mode & stat.S_ISVTX:
            by_group = mode & stat.S_IWGRP and not _is_group_of(entry.status.st_gid, frozenset({0}))
            anyone = anyone or bool(mode & stat.S_IWOTH or by_group)
    return Changers(frozenset(users - {0}), anyone)


def find_intruder_on(path: Path, users: frozenset[int]) -> str:
    """Like `find_intruder`, for all directories and links on `path`. Raises OSError."""
    descriptor, entries = open_path(path)
    os.close(descriptor)
    return find_intruder(entries, users)


def find_intruder_above(path: Path, users: frozenset[int]) -> str:
    """Like `find_intruder_on`, for the part of `path` that exists. Raises OSError."""
    return find_intruder_on(next(each for each in (path, *path.parents) if each.exists()), users)


def open_path(path: Path) -> tuple[int, tuple[PathEntry, ...]]:
    """Open `path`; return a descriptor, and the entries of the path from the root on.

    The descriptor (O_PATH) cannot read the file. Raises OSError.
    """
    # Resolve the path as the kernel does, but keep each part open: then the entries are those that the path really led
    # through.
    with ExitStack() as stack:
        here = _open("/", None, stack)
        entries = [PathEntry(Path("/"), os.fstat(here))]
        parts = deque(path.absolute().parts[1:])
        links = 0
        while parts:
            found = _open(parts.popleft(), here, stack)
            entries.append(PathEntry(Path(f"/proc/self/fd/{found}").readlink(), os.fstat(found)))
            if not stat.S_ISLNK(entries[-1].status.st_mode):
                here = found
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            target = os.readlink("", dir_fd=found)  # of the open link itself (readlinkat(2), Linux 2.6.39)
            if target.startswith("/"):
                here = _open("/", None, stack)
            parts.extendleft(reversed([part for part in target.split("/") if part]))
        return os.dup(here), tuple(entries)


def _open(name: str, directory: int | None, stack: ExitStack) -> int:
    found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    stack.callback(os.close, found)
    return found


def read_small(descriptor: int, most: int) -> bytes:
    """The first `most` bytes of the regular file that a descriptor of `open_path` names. Raises OSError."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        is_directory = stat.S_ISDIR(status.st_mode)
        raise OSError(*((errno.EISDIR, "Is a directory") if is_directory else (errno.EINVAL, "Not a regular file")))
    # This opens the same file, whatever its path names by now.
    file = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(file, most)
    finally:
        os.close(file)


def _is_group_of(gid: int, users: frozenset[int]) -> bool:
    """Return whether the group has members, and all of them are among the users."""
    try:
        named = grp.getgrgid(gid).gr_mem
    except KeyError:
        return False
    # group(5) does not list those whose primary group it is (passwd(5)).
    members = {user.pw_uid for user in pwd.getpwall() if user.pw_gid == gid}
    for name in named:
        with suppress(KeyError):
            members.add(pwd.getpwnam(name).pw_uid)
    return bool(members) and members <= users


def find_user_name(uid: int) -> str:
    """The name of a user of this host; empty if there is none."""
    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return ""


def find_group_name(gid: int) -> str:
    """The name of a group of this host; empty if there is none."""
    with suppress(KeyError):
        return grp.getgrgid(gid).gr_name
    return ""
