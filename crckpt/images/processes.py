"""The small images of processes: `pstree.img`, `ids-PID.img`, `fdinfo-N.img`, `fs-PID.img` and `filelocks.img`.

Their formats are in images/pstree.proto, core.proto (task_kobj_ids_entry), fdinfo.proto, fs.proto and
file-lock.proto. Ids of kernel objects are CRIU's own: equal ids mean the same object. A zombie has only an entry in
`pstree.img`, and its core.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.decode import Field, decode, read_all, read_one
from crckpt.images.framing import read_messages
from crckpt.images.wire import Message

LARGEST_PID: Final = (1 << 31) - 1
"""The largest pid_t. CRIU truncates larger numbers, and would restore another PID than crckpt expects."""


class ProcessEntry(Struct, frozen=True):
    """One process, with ids of its own PID namespace.

    `threads` has the leader first. For a zombie CRIU writes one meaningless thread id (seen with 4.2.1): check
    `Core.state` first.
    """

    pid: Annotated[int, 1]
    ppid: Annotated[int, 2]
    pgid: Annotated[int, 3]
    sid: Annotated[int, 4]
    threads: Annotated[tuple[int, ...], 5]


def read_pstree(data: bytes, name: str = "pstree.img") -> tuple[ProcessEntry, ...]:
    """Decode the image. Raises IntegrityError if it is damaged, or has a process twice."""
    entries = read_all(ProcessEntry, data, name, magics.PSTREE)
    for entry in entries:
        # A zombie's thread id is whatever CRIU had in memory. tree.py checks the threads that a restore brings back.
        if not entry.pid or max(entry.pid, entry.ppid, entry.pgid, entry.sid) > LARGEST_PID:
            raise IntegrityError(f"{name}: a process has an impossible PID")
    if len({entry.pid for entry in entries}) != len(entries):
        raise IntegrityError(f"{name}: a process appears twice")
    return entries


class Namespaces(Struct, frozen=True):
    """The ids of a task's namespaces, 0 if the image has none."""

    pid: Annotated[int, Field(5, default=0)]
    net: Annotated[int, Field(6, default=0)]
    ipc: Annotated[int, Field(7, default=0)]
    uts: Annotated[int, Field(8, default=0)]
    mnt: Annotated[int, Field(9, default=0)]
    user: Annotated[int, Field(10, default=0)]
    cgroup: Annotated[int, Field(11, default=0)]
    time: Annotated[int, Field(12, default=0)]


class KernelIds(Struct, frozen=True):
    """The ids of a task's descriptor table (`fdinfo-<files>.img`) and namespaces."""

    files: Annotated[int, Field(2, default=0)]
    namespaces: Annotated[Namespaces, Field()]


def read_ids(data: bytes, name: str = "ids.img") -> KernelIds:
    """Decode the image. Raises IntegrityError if it is damaged."""
    return read_one(KernelIds, data, name, magics.IDS)


class ImageDescriptor(Struct, frozen=True):
    """Descriptor `fd` is the open file `file_id` of `files.img`."""

    fd: Annotated[int, 4]
    file_id: Annotated[int, 1]
    # FD_CLOEXEC (fcntl(2)).
    close_on_exec: Annotated[bool, Field(2, default=0, convert=lambda flags: bool(flags & 1))]


class Directories(Struct, frozen=True):
    """The file ids of a process's working and root directory, and its umask (None if the image has none)."""

    cwd_id: Annotated[int, 1]
    root_id: Annotated[int, 2]
    umask: Annotated[int | None, 3]


def read_descriptors(data: bytes, name: str = "fdinfo.img") -> tuple[ImageDescriptor, ...]:
    """Decode a descriptor table, sorted by number. Raises IntegrityError if the image is damaged."""
    return tuple(sorted(read_all(ImageDescriptor, data, name, magics.FDINFO), key=lambda descriptor: descriptor.fd))


def read_directories(data: bytes, name: str = "fs.img") -> Directories:
    """Decode the directories of a process. Raises IntegrityError if the image is damaged."""
    return read_one(Directories, data, name, magics.FS)


LockKind = Literal["flock", "POSIX", "OFD"]

# Source: criu/include/file-lock.h.
_KINDS: Final[dict[int, LockKind]] = {1: "POSIX", 2: "flock", 4: "OFD"}
_LEASE: Final = 8
# F_WRLCK. CRIU writes an exclusive flock(2) the same way (criu/proc_parse.c).
_WRITE: Final = 1


def _last_byte(message: Message) -> int | None:
    # A length of 0 reaches to the end of the file (criu/file-lock.c:120, and struct flock in fcntl(2)).
    return message.required(5) + message.required(6) - 1 if message.required(6) else None


class FileLock(Struct, frozen=True):
    """A lock of process `pid` on the file of its descriptor `fd`.

    It covers the bytes `start` to `end`, both included. `end` None: to the end of the file, however long it grows.
    """

    kind: Annotated[LockKind, Field(1, convert=_KINDS.__getitem__)]
    exclusive: Annotated[bool, Field(2, convert=lambda kind: kind == _WRITE)]
    pid: Annotated[int, 3]
    fd: Annotated[int, 4]
    start: Annotated[int, 5]
    end: Annotated[int | None, Field(convert=_last_byte)]


def read_locks(data: bytes, name: str = "filelocks.img") -> tuple[FileLock, ...]:
    """Decode all locks, without leases. Raises IntegrityError if the image is damaged."""
    messages = read_messages(data, name, magics.FILE_LOCKS)
    return tuple(decode(FileLock, message) for message in messages if message.required(1) in _KINDS)


def read_leases(data: bytes, name: str = "filelocks.img") -> tuple[tuple[int, int], ...]:
    """Decode the leases: PID and descriptor of each. Raises IntegrityError if the image is damaged."""
    messages = read_messages(data, name, magics.FILE_LOCKS)
    return tuple((message.required(3), message.required(4)) for message in messages if message.required(1) == _LEASE)
