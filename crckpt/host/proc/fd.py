"""/proc/PID/fd and /proc/PID/fdinfo: the open descriptors of processes.

psutil lists only regular files and inet sockets, without fdinfo. Source: proc_pid_fd(5), proc_pid_fdinfo(5).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Final

from msgspec import Struct

from crckpt.host.proc import procfs

_MOUNT: Final = re.compile(r"^mnt_id:\s*(\d+)", re.MULTILINE)
_SOCKET: Final = "socket:["
# Enough for `pos`, `flags`, `mnt_id` and `ino`, with which every fdinfo begins, and some lines.
_HEAD_BYTES: Final = 1024
# Of a tree, in bytes: a million watches are some 80 MB.
_MOST_KEPT: Final = 96 << 20
_MOST_READ: Final = 512 << 20
# /dev/ptmx, whatever its path. Source: Documentation/admin-guide/devices.txt.
_MULTIPLEXER: Final = os.makedev(5, 2)


class Descriptor(Struct, frozen=True):
    """An open descriptor of a live process: what /proc/PID/fd and fdinfo say. `size`, `pos` and `allocated` are bytes.

    `target` is empty if it is longer than any path. `allocated` is what the file takes on its disk. `mode`, `size` and
    `links` are 0 where the file system does not answer (FUSE of another user, a dead network share). `device` is the
    number of the device that it is, if any. `identity` are the number of its file system and its inode; zeros if
    another file has replaced it. `is_namespace` is whether it names one, whatever its path.
    """

    pid: int
    fd: int
    target: str
    mode: int
    size: int
    links: int
    flags: int
    pos: int
    info: str
    device: int = 0
    allocated: int = 0
    is_namespace: bool = False
    identity: tuple[int, int] = (0, 0)

    @property
    def mount(self) -> int:
        """The id of the mount that it was opened on, as in mountinfo."""
        found = _MOUNT.search(self.info)
        return int(found[1]) if found else 0

    @property
    def is_master(self) -> bool:
        """Whether it is the master side of a pseudo terminal."""
        return self.device == _MULTIPLEXER

    @property
    def tty_index(self) -> int | None:
        """The N of /dev/pts/N, of which it is the master side; None of anything else."""
        index = procfs.parse_fields(self.info).get("tty-index") if self.is_master else None
        return None if index is None else int(index)

    @property
    def most(self) -> int:
        """Bytes of content, or on the disk: a file system takes more than it needs of one that grows (XFS)."""
        return max(self.size, self.allocated)

    @property
    def is_append_only(self) -> bool:
        """Whether it can only write at the end of a file."""
        return self.flags & os.O_ACCMODE == os.O_WRONLY and bool(self.flags & os.O_APPEND)

    @property
    def socket_inode(self) -> int:
        """The inode of a socket; 0 of anything else."""
        return socket_inode(self.target)


def socket_inode(target: str) -> int:
    """The inode of the socket that a link in /proc/PID/fd leads to; 0 if it leads to something else."""
    inode = target[len(_SOCKET) : -1]
    return int(inode) if target.startswith(_SOCKET) and inode.isdecimal() else 0


def read_targets(pid: int) -> Iterator[tuple[int, str]]:
    """Number and target of each descriptor, ascending. Raises OSError if the process has ended."""
    # No more is read: this is used while a tree is frozen, and a process may have very many.
    for fd in sorted(map(int, os.listdir(f"/proc/{pid}/fd"))):
        with suppress(OSError):  # it was closed in the meantime
            yield fd, os.readlink(f"/proc/{pid}/fd/{fd}")


def list_files(pid: int) -> Iterator[int]:
    """Number of each descriptor of something that has a path, or had one. Raises OSError if the process has ended."""
    # In any order, and one after the other: a process may have very many.
    with os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            try:
                has_path = os.readlink(entry.path).startswith("/")
            except OSError as error:
                has_path = error.errno == errno.ENAMETOOLONG
            if has_path:
                yield int(entry.name)


def read_link(link: str) -> tuple[str, os.stat_result] | None:
    """Read the target of a link in /proc, and the status of the file that it leads to; None if either is not known."""
    with suppress(OSError):
        return os.readlink(link), os.stat(link)
    return None


def read_info(pid: int | str, fd: int) -> str:
    """The fdinfo of a descriptor. Raises OSError."""
    return procfs.text(f"/proc/{pid}/fdinfo/{fd}")


def read_head(pid: int | str, fd: int) -> str:
    """The begin of a descriptor's fdinfo, with its flags and its first lock if it has any. Raises OSError."""
    # An epoll has a line for each file that it watches behind these, a file one for each lock.
    return procfs.head(f"/proc/{pid}/fdinfo/{fd}", _HEAD_BYTES).decode(errors="replace")


def open_flags(pid: int, fd: int) -> int:
    """The flags with which a process has a file open, as of open(2); 0 if that is gone."""
    return read_open(pid, fd)[0]


def read_open(pid: int | str, fd: int) -> tuple[int, int]:
    """The flags with which a process has a file open, and its inode (Linux 5.14, else 0); zeros if that is gone."""
    with suppress(OSError):
        fields = procfs.parse_fields(read_head(pid, fd))
        return int(fields.get("flags", "0"), 8), int(fields.get("ino", "0"))
    return 0, 0


def read_pidfd(descriptor: int) -> int:
    """The PID, as we see it, of the process that a pidfd of ours is of; 0 if it has ended."""
    # -1 once it was reaped. Source: kernel/fork.c, pidfd_show_fdinfo
    return max(0, int(procfs.parse_fields(read_info("self", descriptor)).get("Pid", "0")))


class Details:
    """What fdinfo says of the descriptors of a tree: a text that several have is kept once."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._left, self._left_to_read = _MOST_KEPT, _MOST_READ

    def read(self, pid: int, fd: int) -> str:
        """Read the fdinfo of a descriptor. Raises OSError, with EFBIG if that of all is more than a tree may have."""
        # An epoll has a line for each file that it watches, in each of its descriptors.
        path = f"/proc/{pid}/fdinfo/{fd}"
        info = procfs.text(path, min(self._left, self._left_to_read))
        self._left_to_read -= len(info)
        if len(info) > _HEAD_BYTES and info not in self._texts:
            self._left -= len(info)
            self._texts[info] = info
        return self._texts.get(info, info)


def descriptors(pid: int, details: Details | None = None) -> tuple[Descriptor, ...]:
    """Every open descriptor of a process; none if it has ended or ends now. `details` are of a tree that it is in.

    Raises OSError if fdinfo says too much of them.
    """
    details = Details() if details is None else details
    found = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for name in sorted(os.listdir(f"/proc/{pid}/fd"), key=int):
            with suppress(FileNotFoundError, ProcessLookupError):
                found.append(_read_descriptor(pid, int(name), details))
    return tuple(found)


def _read_descriptor(pid: int, fd: int, details: Details) -> Descriptor:
    try:
        target = os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        target = ""
    status = None
    try:
        status = os.stat(f"/proc/{pid}/fd/{fd}")
    except (FileNotFoundError, ProcessLookupError):  # the descriptor was closed, or its process has ended
        raise
    except OSError:  # EACCES: FUSE of another user. EIO, ESTALE, ENOTCONN: a dead share.
        pass
    info = details.read(pid, fd)
    fields = procfs.parse_fields(info[:_HEAD_BYTES])
    # Between stat and the read of fdinfo, the number may have been given to another file. fdinfo has `ino` since Linux
    # 5.14.
    is_known = status is not None and int(fields.get("ino", status.st_ino)) == status.st_ino
    return Descriptor(
        pid=pid,
        fd=fd,
        target=target,
        mode=status.st_mode if status else 0,
        size=status.st_size if status else 0,
        links=status.st_nlink if status else 0,
        flags=int(fields.get("flags", "0"), 8),  # octal, unlike the other numbers there
        pos=int(fields.get("pos", "0")),
        info=info,
        device=status.st_rdev if status else 0,
        # In units of 512 bytes on every file system (inode(7)).
        allocated=status.st_blocks * 512 if status else 0,
        is_namespace=status is not None and status.st_dev == _namespaces_device(),
        identity=(status.st_dev, status.st_ino) if status and is_known else (0, 0),
    )


@cache
def _namespaces_device() -> int:
    """The device of the kernel's file system of namespaces (nsfs), which `ip netns` mounts on names of its own."""
    return os.stat("/proc/self/ns/mnt").st_dev
