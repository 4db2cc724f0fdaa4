"""The open files and sockets of a checkpoint's processes, as `show` and `diff` show them."""

from __future__ import annotations

import os
import stat
from typing import Final

from msgspec import Struct

from crckpt.images.files import OpenFile
from crckpt.images.other_files import Fifo, MemFd
from crckpt.images.regfile import RegularFile
from crckpt.images.sockets import INET6, InetSocket, NetlinkSocket, PacketSocket, UnixSocket
from crckpt.images.tree import ImageTree, OpenDescriptor

_ACCESS: Final = {os.O_RDONLY: "r", os.O_WRONLY: "w", os.O_RDWR: "rw"}
# O_SYNC includes O_DSYNC: a flag counts if all of its bits are set.
_FLAGS: Final = (
    (os.O_APPEND, "append"),
    (os.O_NONBLOCK, "nonblock"),
    (os.O_DIRECT, "direct"),
    (os.O_DSYNC, "sync"),
    (os.O_DIRECTORY, "directory"),
    (os.O_PATH, "path"),
)
_KINDS: Final = ((stat.S_ISDIR, "directory"), (stat.S_ISCHR, "character device"), (stat.S_ISBLK, "block device"))


class FileSection(Struct, frozen=True):
    """One descriptor that is no socket.

    `access` is r, w or rw. `offset` is None if the file has none. `size` is in bytes, None if it is not recorded.
    """

    pid: int
    fd: int
    kind: str
    path: str
    access: str
    flags: tuple[str, ...]
    offset: int | None
    size: int | None
    deleted: bool
    close_on_exec: bool


class Holder(Struct, frozen=True):
    """A descriptor of a process."""

    pid: int
    fd: int


class SocketSection(Struct, frozen=True):
    """One socket, and the descriptors that have it open: none if it is only a peer, or waits to be received.

    Addresses are `HOST:PORT`, a unix socket's path, `@NAME` or `#INODE`; empty where there is none.
    """

    family: str
    type: str
    protocol: str
    state: str
    local: str
    remote: str
    deleted: bool
    holders: tuple[Holder, ...]


class OpenFiles(Struct, frozen=True):
    """The open files of a tree by id, and the names of its unix sockets by inode."""

    by_id: dict[int, OpenFile]
    unix_names: dict[int, str]


def open_files(tree: ImageTree) -> OpenFiles:
    """Index the open files of a tree."""
    # A unix socket names its peer by the inode.
    names = {file.inode: file.name for file in tree.files if isinstance(file, UnixSocket)}
    return OpenFiles({file.id: file for file in tree.files}, names)


def is_socket(file: OpenFile) -> bool:
    """Return whether an open file is a socket."""
    return isinstance(file, InetSocket | UnixSocket | NetlinkSocket | PacketSocket)


def file_section(pid: int, descriptor: OpenDescriptor, files: OpenFiles) -> FileSection:
    """Describe a descriptor that is no socket."""
    file = descriptor.file
    # The images have the flags of a named pipe in another file, the one with its path.
    opened = files.by_id.get(file.file_id or 0) if isinstance(file, Fifo) else file
    flags: int = getattr(opened, "flags", 0)
    access = _ACCESS.get(flags & os.O_ACCMODE, "")
    # O_TMPFILE includes O_DIRECTORY: it names the directory of a file that has no name.
    if flags & os.O_TMPFILE == os.O_TMPFILE:
        flags &= ~os.O_TMPFILE
    kind, path, is_deleted = file.kind, file.title, False
    offset: int | None = None
    size: int | None = None
    if isinstance(file, RegularFile):
        # CRIU saves directories and devices as regular files; an old CRIU recorded no mode.
        kind = next((name for holds, name in _KINDS if holds(file.mode or 0)), file.kind)
        # CRIU saves the content of a deleted file, and with it the size.
        size = file.size if file.remap is None or file.remap.size is None else file.remap.size
        path, offset, is_deleted = file.path, file.pos, file.is_deleted
    elif isinstance(file, MemFd):
        offset, size = file.pos, file.size
    elif isinstance(file, UnixSocket):
        is_deleted = file.deleted
    return FileSection(
        pid=pid,
        fd=descriptor.fd,
        kind=kind,
        path=path,
        access=access,
        flags=tuple(word for bit, word in _FLAGS if flags & bit == bit),
        offset=offset,
        size=size,
        deleted=is_deleted,
        close_on_exec=descriptor.close_on_exec,
    )


def socket_section(file: OpenFile, holders: tuple[Holder, ...], files: OpenFiles) -> SocketSection | None:
    """Describe a socket; None if the file is no socket."""
    if isinstance(file, InetSocket):
        family = "inet6" if file.family == INET6 else "inet"
        remote = str(file.destination) if file.is_connected else ""
        return SocketSection(family, file.type, file.protocol, file.state, str(file.source), remote, False, holders)
    if isinstance(file, UnixSocket):
        remote = (files.unix_names.get(file.peer) or f"#{file.peer}") if file.peer else ""
        local = file.name or f"#{file.inode}"
        return SocketSection("unix", file.type, "", file.state, local, remote, file.deleted, holders)
    if isinstance(file, NetlinkSocket):
        return SocketSection("netlink", "", str(file.protocol), "", str(file.port_id), "", False, holders)
    if isinstance(file, PacketSocket):
        return SocketSection("packet", file.type, f"{file.protocol:#06x}", "", str(file.interface), "", False, holders)
    return None
