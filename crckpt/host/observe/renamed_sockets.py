"""Find unix sockets whose file was renamed after bind(2). The kernel still reports the first name (getsockname(2)).

Programs do this so that no client sees a socket that does not listen yet. Source: SIOCUNIXFILE of linux/un.h.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from crckpt.host.observe.unix_sockets import opened_file, read_path


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

    Raises OSError.
    """
    with opened_file(held) as file:
        found, path = os.fstat(file), Path(read_path(file))
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        here = os.stat(path.name, dir_fd=directory, follow_symlinks=False)
        if not os.path.samestat(here, found):
            raise FileNotFoundError(0, "somebody has moved it")
        _refuse_other_file(new, directory, found)
        os.rename(path.name, new, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.close(directory)


def _refuse_other_file(name: str, directory: int, ours: os.stat_result) -> None:
    if "/" in name or name in ("", ".", ".."):
        raise ValueError("it is no file name")
    with suppress(FileNotFoundError):
        there = os.stat(name, dir_fd=directory, follow_symlinks=False)
        # In a directory like /tmp another user may have a file of that name.
        is_left = stat.S_ISSOCK(there.st_mode) and there.st_uid == ours.st_uid
        if not is_left or _is_listening(name, directory):
            raise FileExistsError(0, f"another file has the name {name}")


def _is_listening(name: str, directory: int) -> bool:
    # A connection that is closed at once does less harm than a server that loses its name.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asks:
        asks.setblocking(False)
        try:
            asks.connect(f"/proc/self/fd/{directory}/{name}")
        except ConnectionRefusedError:
            return False
        except OSError:
            pass
        return True


def _is_connection(held: socket.socket) -> bool:
    with suppress(OSError):
        held.getpeername()
        return held.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) != socket.SOCK_DGRAM
    return False


def _is(path: Path, found: os.stat_result) -> bool:
    with suppress(OSError):
        return os.path.samestat(path.lstat(), found)
    return False
