"""What `show` says in depth, section by section. Pages are read for the environments alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from crckpt.images.files import OpenFile
from crckpt.images.memfd import MemFd
from crckpt.images.pipes import Fifo
from crckpt.images.regfile import RegularFile
from crckpt.images.sockets import INET6, InetSocket, NetlinkSocket, PacketSocket, UnixSocket
from crckpt.images.tree import ImageTree, OpenDescriptor, Process
from crckpt.model import PAGE_SIZE
from crckpt.ops.context import Context
from crckpt.store import Checkpoint, reader

if TYPE_CHECKING:
    from crckpt.store.read.reading import Reader

_MOST_ENVIRONMENT: Final = 6 << 20
"""Bytes: execve(2) lets arguments and environment have no more together."""

_ACCESS: Final = {os.O_RDONLY: "r", os.O_WRONLY: "w", os.O_RDWR: "rw"}
_FLAGS: Final = (
    (os.O_APPEND, "append"),
    (os.O_NONBLOCK, "nonblock"),
    (os.O_DIRECT, "direct"),
    (os.O_DSYNC, "sync"),
    (os.O_DIRECTORY, "directory"),
    (os.O_PATH, "path"),
)


class ThreadSection(Struct, frozen=True):
    """One thread."""

    tid: int
    comm: str


class ProcessSection(Struct, frozen=True):
    """One process. `state` is alive, stopped, zombie or unknown; `exit_code` a zombie's wait status; `uid` may lack."""

    pid: int
    ppid: int
    pgid: int
    sid: int
    comm: str
    state: str
    exit_code: int
    uid: int | None
    gid: int | None
    exe: str
    cwd: str
    threads: tuple[ThreadSection, ...]


class FileSection(Struct, frozen=True):
    """One descriptor. `access` is r, w or rw; `offset` is None for what has none; `size` is in bytes, if recorded."""

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
    """One socket, and who has it open: nobody if it is only somebody's peer, or waits to be received.

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


class MapSection(Struct, frozen=True):
    """One map: addresses (`end` is not included), bytes in all, and of these the dirty and the resident ones.

    `dirty_bytes` are in memory or swap and in no file: all of them are in the checkpoint. `resident_bytes` counts clean
    ones too. Of a file's map it is None: CRIU's images do not tell which pages of a file were in memory.
    """

    pid: int
    start: int
    end: int
    permissions: str
    kind: str
    path: str
    offset: int
    bytes: int
    dirty_bytes: int
    resident_bytes: int | None


class Environment(Struct, frozen=True):
    """What a process has where its environment was at its start, mostly `NAME=VALUE`."""

    pid: int
    comm: str
    variables: tuple[str, ...]


class Sections(Struct, frozen=True):
    """Those that were asked for; None for the others."""

    checkpoint: Checkpoint
    ps: tuple[ProcessSection, ...] | None = None
    files: tuple[FileSection, ...] | None = None
    sockets: tuple[SocketSection, ...] | None = None
    maps: tuple[MapSection, ...] | None = None
    env: tuple[Environment, ...] | None = None


def sections(
    context: Context,
    ref: str,
    *,
    ps: bool = False,
    files: bool = False,
    sockets: bool = False,
    maps: bool = False,
    env: bool = False,
) -> Sections:
    """Read these sections of a checkpoint. The environment is secret. Raises NoSuchCheckpoint, IntegrityError."""
    from crckpt.ops.inspect.images import read_image_tree

    repository = context.repository()
    with repository.shared():
        checkpoint = repository.get(repository.resolve(ref))
        tree = read_image_tree(repository, checkpoint)
        with reader(repository, checkpoint) as reading:
            return Sections(
                checkpoint,
                ps=tuple(map(_process, tree.processes)) if ps else None,
                files=tuple(_files(tree)) if files else None,
                sockets=tuple(_sockets(tree)) if sockets else None,
                maps=tuple(_maps(reading, tree)) if maps else None,
                env=tuple(_environments(reading, tree)) if env else None,
            )


class OpenFiles(Struct, frozen=True):
    """What the open files of a tree say of each other: all by id, and the names of unix sockets by inode."""

    by_id: dict[int, OpenFile]
    unix_names: dict[int, str]


def open_files(tree: ImageTree) -> OpenFiles:
    """Those of a tree."""
    names = {file.inode: file.name for file in tree.files if isinstance(file, UnixSocket)}
    return OpenFiles({file.id: file for file in tree.files}, names)


def is_socket(file: OpenFile) -> bool:
    """Whether a descriptor is a socket."""
    return isinstance(file, InetSocket | UnixSocket | NetlinkSocket | PacketSocket)


def file_section(pid: int, descriptor: OpenDescriptor, files: OpenFiles) -> FileSection:
    """What a descriptor leads to."""
    file = descriptor.file
    # A named pipe has its flags where it has its path.
    opened = files.by_id.get(file.file_id or 0) if isinstance(file, Fifo) else file
    flags: int = getattr(opened, "flags", 0)
    return FileSection(
        pid=pid,
        fd=descriptor.fd,
        kind=_kind(file),
        path=file.path if isinstance(file, RegularFile) else file.title,
        access=_ACCESS.get(flags & os.O_ACCMODE, ""),
        flags=tuple(word for bit, word in _FLAGS if flags & bit == bit),
        offset=file.pos if isinstance(file, RegularFile | MemFd) else None,
        size=_size(file),
        deleted=isinstance(file, RegularFile | UnixSocket) and _is_deleted(file),
        close_on_exec=descriptor.close_on_exec,
    )


def socket_section(file: OpenFile, holders: tuple[Holder, ...], files: OpenFiles) -> SocketSection | None:
    """A socket; None if it is none."""
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


def _process(process: Process) -> ProcessSection:
    credentials = process.core.credentials
    return ProcessSection(
        pid=process.pid,
        ppid=process.ppid,
        pgid=process.pgid,
        sid=process.sid,
        comm=process.comm,
        state=process.state,
        exit_code=process.core.exit_code,
        uid=None if credentials is None else credentials.uid,
        gid=None if credentials is None else credentials.gid,
        exe="" if process.exe is None else process.exe.title,
        cwd="" if process.cwd is None else process.cwd.title,
        threads=tuple(ThreadSection(thread.tid, thread.core.comm) for thread in process.threads),
    )


def _files(tree: ImageTree) -> Iterator[FileSection]:
    files = open_files(tree)
    for process in tree.processes:
        for descriptor in sorted(process.descriptors, key=lambda found: found.fd):
            yield file_section(process.pid, descriptor, files)


def _kind(file: OpenFile) -> str:
    if not isinstance(file, RegularFile) or file.mode is None:
        return file.kind
    known = ((stat.S_ISDIR, "directory"), (stat.S_ISCHR, "character device"), (stat.S_ISBLK, "block device"))
    return next((kind for holds, kind in known if holds(file.mode)), file.kind)


def _size(file: OpenFile) -> int | None:
    if isinstance(file, RegularFile):
        return file.size if file.remap is None or file.remap.size is None else file.remap.size
    return file.size if isinstance(file, MemFd) else None


def _is_deleted(file: RegularFile | UnixSocket) -> bool:
    return file.is_deleted if isinstance(file, RegularFile) else file.deleted


def _sockets(tree: ImageTree) -> Iterator[SocketSection]:
    holders: dict[int, list[Holder]] = {}
    for process in tree.processes:
        for descriptor in process.descriptors:
            holders.setdefault(descriptor.file.id, []).append(Holder(process.pid, descriptor.fd))
    files = open_files(tree)
    for file in tree.files:
        found = socket_section(file, tuple(holders.get(file.id, ())), files)
        if found is not None:
            yield found


def _maps(reading: Reader, tree: ImageTree) -> Iterator[MapSection]:
    from crckpt.ops.inspect.memory import Memory

    for process in tree.processes:
        for region in Memory(reading, process).regions:
            vma = region.vma
            yield MapSection(
                pid=process.pid,
                start=vma.start,
                end=vma.end,
                permissions=region.permissions,
                kind=vma.kind,
                path=region.path,
                offset=vma.pgoff,
                bytes=vma.size,
                dirty_bytes=region.dirty_pages * PAGE_SIZE,
                resident_bytes=None if region.resident_pages is None else region.resident_pages * PAGE_SIZE,
            )


def _environments(reading: Reader, tree: ImageTree) -> Iterator[Environment]:
    from crckpt.ops.inspect.memory import Memory

    for process in tree.processes:
        if process.memory is None:
            continue
        start, end = process.memory.env_start, process.memory.env_end
        content = Memory(reading, process).read(start, min(max(0, end - start), _MOST_ENVIRONMENT))
        variables = (entry.decode("utf-8", "surrogateescape") for entry in content.split(b"\0") if entry)
        yield Environment(process.pid, process.comm, tuple(variables))
