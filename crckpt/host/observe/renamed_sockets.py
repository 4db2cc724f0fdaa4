"""Find unix sockets whose file was renamed after bind(2). The kernel still reports the first name (getsockname(2)).

Programs do this so that no client sees a socket that does not listen yet. Source: SIOCUNIXFILE of linux/un.h.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from crckpt.host.observe.unix_names import is_bound
from crckpt.host.observe.unix_sockets import opened_file, read_path
from crckpt.host.syscalls.openat2 import open_without_links
from crckpt.host.syscalls.renameat2 import RENAME_EXCHANGE, RENAME_NOREPLACE, rename_within


class RenamedSocket(Struct, frozen=True):
    """A socket that was bound as `name`, which is not its file's any more. `new` is that, if in the same directory."""

    name: str
    new: str = ""


def find_renamed(held: socket.socket) -> RenamedSocket | None:
    """Find out whether the file of a unix socket was renamed, or linked to another name and removed under the first.

    None also if the kernel does not tell, or nothing connects to it by its name.
    """
    name = held.getsockname()
    # Abstract names are bytes. CRIU binds no connection, which has the name of the socket that accepted it.
    if not name or isinstance(name, bytes) or _is_connection(held):
        return None
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

    Raises OSError. The directory may be that of another user, who can exchange each file in it at any moment.
    """
    if "/" in new or new in ("", ".", ".."):
        raise ValueError("it is no file name")
    with opened_file(held) as file:
        path = Path(read_path(file))
        directory = open_without_links(str(path.parent), os.O_PATH | os.O_DIRECTORY)
        try:
            _refuse_other(path.name, directory, os.fstat(file))
            try:
                rename_within(directory, path.name, new, RENAME_NOREPLACE)
            except FileExistsError:
                with _left_socket(new, directory, os.fstat(file)) as left:
                    rename_within(directory, path.name, new, RENAME_EXCHANGE)
                    try:
                        _refuse_other(path.name, directory, left)
                    except OSError:
                        rename_within(directory, path.name, new, RENAME_EXCHANGE)
                        raise
                    os.unlink(path.name, dir_fd=directory)
        finally:
            os.close(directory)


def _refuse_other(name: str, directory: int, wanted: os.stat_result) -> None:
    if not os.path.samestat(os.stat(name, dir_fd=directory, follow_symlinks=False), wanted):
        raise FileNotFoundError(errno.ENOENT, "somebody has replaced it", name)


@contextmanager
def _left_socket(name: str, directory: int, ours: os.stat_result) -> Iterator[os.stat_result]:
    """The status of the socket `name`, which nobody uses. Raises FileExistsError if it is anything else."""
    # While it is open, no other file gets its inode.
    file = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        found = os.fstat(file)
        # In a directory like /tmp another user may have a file of that name.
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != ours.st_uid or is_bound(file):
            raise FileExistsError(0, f"another file has the name {name}")
        yield found
    finally:
        os.close(file)


def _is_connection(held: socket.socket) -> bool:
    with suppress(OSError):
        held.getpeername()
        return held.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) != socket.SOCK_DGRAM
    return False


def _is(path: Path, found: os.stat_result) -> bool:
    with suppress(OSError):
        return os.path.samestat(path.lstat(), found)
    return False
