"""Find out whether names of unix sockets are free or in use, and which of their files were renamed after bind(2).

No socket is made, and no server gets a connection. Programs rename so that no client sees a socket that does not listen
yet; the kernel still reports the first name (getsockname(2)). Source: SIOCUNIXFILE of linux/un.h.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from crckpt.host.disk.checked_files import find_automounts, held
from crckpt.host.observe.sock_diag import opened_file, read_path, read_unix_sockets
from crckpt.host.opened import opened
from crckpt.host.syscalls.openat2 import RENAME_EXCHANGE, RENAME_NOREPLACE, open_without_links, rename_within

NameRefusal = Literal["taken", "occupied", "missing", "unwritable", "linked"]
"""Why a socket cannot be bound to a name: another socket is, another file is there, its directory is missing, cannot be
written, or is reached by a link that is not followed."""

# Answers of connect(2) for a name to which a socket is bound: of another type, or with another peer.
_BOUND: Final = (errno.EPROTOTYPE, errno.EPERM)


class UnixNames:
    """The names of unix sockets on this host, and in our network namespace."""

    def __init__(self) -> None:
        self._automounts = find_automounts()
        self._abstract: set[tuple[int, str]] = set()
        with suppress(OSError):  # a kernel without unix_diag, which CRIU needs, too
            self._abstract = {(found.kind, _plain(found.name)) for found in read_unix_sockets().values()}

    def find_path_refusal(self, path: str) -> NameRefusal | None:
        """Find out why a socket could not be bound to an absolute path; None if it could."""
        directory, _, name = path.rpartition("/")
        try:
            with held(directory or "/", self._automounts) as above:
                if not stat.S_ISDIR(above.status.st_mode):
                    return "missing"
                if above.is_redirected or above.is_unmounted:
                    return "linked" if above.is_redirected else None
                try:
                    file = os.open(f"{above.link}/{name}", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
                except FileNotFoundError:
                    return None if os.access(above.link, os.W_OK | os.X_OK) else "unwritable"
                with opened(file):
                    if not stat.S_ISSOCK(os.fstat(file).st_mode):
                        return "occupied"
                    return "taken" if is_bound(file) else None
        except (FileNotFoundError, NotADirectoryError):
            return "missing"
        except (OSError, ValueError):
            return None

    def is_abstract_bound(self, kind: int, name: str) -> bool:
        """Return whether a socket of this kind, of socket(2), is bound to the abstract name, written as `@name`."""
        return (kind, _plain(name)) in self._abstract


def is_bound(file: int) -> bool:
    """Return whether a socket is bound to this file, which is open with O_PATH."""
    # A stream server answers EPROTOTYPE to a datagram socket, and notices nothing. A datagram server does not notice
    # a connect(2) at all.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as trial:
        return trial.connect_ex(f"/proc/self/fd/{file}") in (0, *_BOUND)


def _plain(name: str) -> str:
    """Return an abstract name in the one spelling in which images and the kernel's answers can be compared."""
    return name.replace("\0", "@").rstrip("@")


class RenamedSocket(Struct, frozen=True):
    """A socket that was bound as `name`, which is not its file's any more. `new` is that, if in the same directory."""

    name: str
    new: str = ""


def find_renamed(held: socket.socket) -> RenamedSocket | None:
    """Find out whether the file of a unix socket was renamed, or linked to another name and removed under the first.

    None also if the kernel does not tell, or nothing connects to it by its name.
    """
    name = held.getsockname()
    if not name or isinstance(name, bytes):  # abstract names are bytes
        return None
    with suppress(OSError):
        held.getpeername()
        if held.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) != socket.SOCK_DGRAM:
            return None  # CRIU binds no connection, which has the name of the socket that accepted it
    with suppress(OSError), opened_file(held) as file:
        found, link = os.fstat(file), read_path(file)
        bound = Path(name)
        if not found.st_nlink or (bound.is_absolute() and _is(bound, found)):
            return None
        if not bound.is_absolute():
            return None if link == name or link.endswith(f"/{name}") else RenamedSocket(name)
        new = Path(link).name
        return RenamedSocket(name, new if _is(bound.with_name(new), found) else "")
    return None


def rename_again(held: socket.socket, new: str) -> None:
    """Give the file of a bound socket a new name in its directory, in the place of a socket that nobody uses.

    Raises OSError, FileExistsError if anything else is there. The directory may be that of another user, who can
    exchange each file in it at any moment.
    """
    if "/" in new or new in ("", ".", ".."):
        raise ValueError("it is no file name")
    with opened_file(held) as file:
        path = Path(read_path(file))
        with opened(open_without_links(str(path.parent), os.O_PATH | os.O_DIRECTORY)) as directory:
            _refuse_other(path.name, directory, os.fstat(file))
            try:
                rename_within(directory, path.name, new, RENAME_NOREPLACE)
            except FileExistsError:
                # While it is open, no other file gets its inode.
                with opened(os.open(new, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)) as left:
                    found = os.fstat(left)
                    # In a directory like /tmp another user may have a file of that name.
                    is_owners = found.st_uid == os.fstat(file).st_uid
                    if not stat.S_ISSOCK(found.st_mode) or not is_owners or is_bound(left):
                        raise FileExistsError(0, f"another file has the name {new}") from None
                    rename_within(directory, path.name, new, RENAME_EXCHANGE)
                    try:
                        _refuse_other(path.name, directory, found)
                    except OSError:
                        rename_within(directory, path.name, new, RENAME_EXCHANGE)
                        raise
                    os.unlink(path.name, dir_fd=directory)


def _refuse_other(name: str, directory: int, wanted: os.stat_result) -> None:
    if not os.path.samestat(os.stat(name, dir_fd=directory, follow_symlinks=False), wanted):
        raise FileNotFoundError(errno.ENOENT, "somebody has replaced it", name)


def _is(path: Path, found: os.stat_result) -> bool:
    with suppress(OSError):
        return os.path.samestat(path.lstat(), found)
    return False
