"""Find files of a live tree that CRIU or a restore would not find by their names, and files of the kernel."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from crckpt.host import proc
from crckpt.host.opened import opened
from crckpt.host.proc import Descriptor
from crckpt.host.proc.fd import read_info
from crckpt.host.proc.maps import find_mapped_files
from crckpt.host.proc.mountinfo import read_mounts, read_mounts_of
from crckpt.host.proc.procfs import DELETED, parse_fields
from crckpt.host.syscalls.libc import LIBC, check

_PLACES = ("/proc", "/sys")

# Files that are on no disk, or that CRIU finds another way (/proc/PID of a process that has ended).
_NAMELESS: Final = ("/memfd:", "/anon_hugepage", "/dev/zero", "/SYSV", "/proc/", "/[aio]")

_SET: Final = ("user.", "trusted.")
_IN_MEMORY: Final = ("tmpfs", "ramfs")

# Source: linux/major.h.
_MEMORY_MAJOR: Final = 1

# Source: ipc/mqueue.c.
_MQUEUE_MAGIC: Final = 0x19800202

# More than struct statfs has.
_SIZE: Final = 256


class UnreachableFile(Struct, frozen=True):
    """A file in use that its name does not lead to: its mount is missing (`mount`), or another one hides it (`hidden`).

    Or its name is longer than any path (`long`), or it is a POSIX message queue (`queue`). `fd` is -1 for a mapped
    file, and for the current or root directory of a process.
    """

    pid: int
    fd: int
    path: str
    why: Literal["mount", "hidden", "long", "queue"]


class _Place:
    """A mount namespace with processes of the tree, as a CRIU in it sees it. Each name is looked up once."""

    def __init__(self, pid: int | Literal["self"]) -> None:
        mounts = tuple(read_mounts_of(pid))
        self._ids = frozenset(mount.id for mount in mounts)
        # Then CRIU finds a mount by the name of a file, too (criu/mount.c, lookup_overlayfs).
        self._has_names = any(mount.kind == "overlay" and mount.path == "/" for mount in mounts)
        self._base = "" if pid == "self" else f"/proc/{pid}/root"
        self._is_own = pid == "self"
        self._known: dict[str, tuple[int, int] | None] = {}

    def find(self, found: Descriptor) -> UnreachableFile | None:
        """Find why CRIU does not reach an open file."""
        link, is_file = f"/proc/{found.pid}/fd/{found.fd}", _is_file(found.mode, found.target)
        if not found.target:
            return UnreachableFile(found.pid, found.fd, link, "long")
        # CRIU opens /dev/null and others by their names, as files.
        is_memory_device = stat.S_ISCHR(found.mode) and os.major(found.device) == _MEMORY_MAJOR
        if (is_file or is_memory_device) and not self._has_mount(found.mount, link, found.target):
            return UnreachableFile(found.pid, found.fd, found.target, "queue" if _is_queue(found, link) else "mount")
        if is_file and found.mount in self._ids and self._is_hidden(link, found.target):
            return UnreachableFile(found.pid, found.fd, found.target, "hidden")
        return None

    def find_link(self, pid: int, link: str) -> UnreachableFile | None:
        """Find why CRIU does not reach what a link in /proc leads to."""
        try:
            target = os.readlink(link)
            if target.startswith(_NAMELESS) or not target.startswith("/"):
                return None
            if not self._is_own:
                with opened(os.open(link, os.O_PATH | os.O_CLOEXEC)) as file:
                    mount = int(parse_fields(read_info("self", file)).get("mnt_id", "0"))
                if not self._has_mount(mount, link, target):
                    return UnreachableFile(pid, -1, target, "mount")
            return UnreachableFile(pid, -1, target, "hidden") if self._is_hidden(link, target) else None
        except OSError as error:
            return UnreachableFile(pid, -1, link, "long") if error.errno == errno.ENAMETOOLONG else None

    def _has_mount(self, mount: int, link: str, target: str) -> bool:
        with suppress(OSError):
            return mount in self._ids or (self._has_names and _identity(link) == _identity(self._base + target))
        return False

    def _is_hidden(self, link: str, target: str) -> bool:
        """Return whether the name leads to another file than the link, or to none, before and after we read it."""
        if target.endswith(DELETED):
            return False
        try:
            if target not in self._known:
                self._known[target] = _identity(self._base + target)
            # The program still runs: the file counts as hidden only if the link keeps this name, and a second
            # comparison agrees.
            return (
                _identity(link) != self._known[target]
                and _is_file(os.stat(link).st_mode, target)
                and os.readlink(link) == target
                and _identity(link) != _identity(self._base + target)
            )
        except OSError:
            return False


def find_unreachable_files(
    pids: Iterable[int], descriptors: Iterable[Descriptor], entered: int | None = None
) -> tuple[UnreachableFile, ...]:
    """Find unreachable files of processes in our mount namespace. Skip files that change at the same time.

    Or they are those in the mount namespace of the process `entered`.
    """
    place = _Place(entered or "self")
    found = [place.find(each) for each in descriptors]
    # Files that one process has mapped and reaches by their names, another one does, too.
    reached: set[tuple[str, str, str]] = set()
    for pid in pids:
        found += (place.find_link(pid, f"/proc/{pid}/{name}") for name in ("cwd", "root"))
        for file, link in find_mapped_files(pid).items():
            if file not in reached:
                found.append(place.find_link(pid, link))
                if found[-1] is None:
                    reached.add(file)
    return tuple(each for each in found if each is not None)


def find_volatile_files(
    pids: Iterable[int], descriptors: Iterable[Descriptor], sockets: Iterable[str]
) -> tuple[str, ...]:
    """Find files of processes in our mount namespace that are in memory, and that a restore needs at their paths.

    `sockets` are names of their sockets: a restore needs the directories.
    """
    mounts = {mount.device: mount.path for mount in read_mounts() if mount.kind in _IN_MEMORY}
    devices = {f"{os.major(device):02x}:{os.minor(device):02x}" for device in mounts}
    links = [f"/proc/{found.pid}/fd/{found.fd}" for found in descriptors if found.identity[0] in mounts]
    for pid in pids:
        links += (f"/proc/{pid}/cwd", f"/proc/{pid}/root")
        links += (link for (device, *_), link in find_mapped_files(pid).items() if device in devices)
    links += (name.rpartition("/")[0] for name in sockets if name.startswith("/"))
    found: dict[str, None] = {}
    for link in links:
        with suppress(OSError):
            # Without the mark of a removed file.
            path = (os.readlink(link) if link.startswith("/proc/") else link).removesuffix(DELETED)
            status = os.stat(link)
            # A checkpoint contains a file that has no name left. The place of a mount is there again after the boot.
            if status.st_nlink and mounts.get(status.st_dev, path) != path and _is_file(status.st_mode, path):
                found[path] = None
    return tuple(found)


def find_unlinked_files(pids: Iterable[int], descriptors: Iterable[Descriptor]) -> tuple[str, ...]:
    """Find files of processes that lost their name, and have another only in other directories."""
    links = [f"/proc/{found.pid}/fd/{found.fd}" for found in descriptors if found.target.endswith(DELETED)]
    links += (link for pid in pids for (*_, path), link in find_mapped_files(pid).items() if path.endswith(DELETED))
    names = OtherNames()
    lost: dict[str, None] = {}
    for link in links:
        with suppress(OSError):
            path, status = os.readlink(link).removesuffix(DELETED), os.stat(link)
            is_linked = status.st_nlink and _is_file(status.st_mode, path) and not stat.S_ISDIR(status.st_mode)
            if is_linked and not names.find(path, {status.st_ino}):
                lost[path] = None
    return tuple(lost)


class OtherNames:
    """Finds files by their inodes in directories, each of which is read once: it may be large."""

    def __init__(self) -> None:
        self._directories: dict[str, dict[int, str]] = {}

    def find(self, path: str, inodes: Collection[int]) -> str:
        """Return the name of a file with one of these inodes in the directory of `path`; empty if there is none."""
        directory = path.rpartition("/")[0]
        if directory not in self._directories:
            self._directories[directory] = {}
            with suppress(OSError), os.scandir(directory or "/") as entries:
                self._directories[directory] = {entry.inode(): entry.name for entry in entries}
        names = self._directories[directory]
        return next((names[inode] for inode in inodes if inode in names), "")


class RemovedFile(Struct, frozen=True):
    """An open file without a name that has these extended attributes: CRIU copies it without them."""

    pid: int
    fd: int
    path: str
    attributes: tuple[str, ...]


def find_removed_with_attributes(descriptors: Iterable[Descriptor]) -> Iterator[RemovedFile]:
    """Find removed files with extended attributes that a program or root has set (xattr(7)), each once."""
    seen: set[tuple[int, int]] = set()
    for found in descriptors:
        is_kept = bool(found.links) or not (stat.S_ISREG(found.mode) or stat.S_ISDIR(found.mode))
        if is_kept or found.identity in seen:
            continue
        seen.add(found.identity)
        with suppress(OSError):
            # The kernel gives a new file those of a security module, and the access list of its directory.
            names = sorted(name for name in os.listxattr(f"/proc/{found.pid}/fd/{found.fd}") if name.startswith(_SET))
            if names:
                yield RemovedFile(found.pid, found.fd, found.target.removesuffix(DELETED), tuple(names))


def _identity(path: str) -> tuple[int, int] | None:
    """File system and inode of a file; None if there is none. Raises OSError if its file system does not answer."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _is_file(mode: int, target: str) -> bool:
    return (
        (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISFIFO(mode))
        and target.startswith("/")
        and not target.startswith(_NAMELESS)
    )


def _is_queue(found: Descriptor, link: str) -> bool:
    # On the kernel's own mount, a queue has no directory. statfs(2) would wait for ever for some other file systems.
    with suppress(OSError):
        return found.target.rindex("/") == 0 and read_magic(link) == _MQUEUE_MAGIC
    return False


class HeldKernelFile(Struct, frozen=True):
    """A file that a process has open as `fd`."""

    pid: int
    fd: int
    file: KernelFile


def find_kernel_files(descriptors: Iterable[proc.Descriptor]) -> Iterator[HeldKernelFile]:
    """Find those below /proc and /sys among the descriptors."""
    for found in descriptors:
        # statfs(2) would wait for ever for some file systems elsewhere.
        if found.target.startswith(_PLACES):
            with suppress(OSError):
                yield HeldKernelFile(found.pid, found.fd, read_kernel_file(found.pid, found.fd, found.flags))


class KernelFile(Struct, frozen=True):
    """An open file: `magic` of its file system (linux/magic.h), path, `flags` of open(2), and `mode` (st_mode)."""

    magic: int
    path: str
    flags: int
    mode: int


def read_kernel_file(pid: int, fd: int, flags: int) -> KernelFile:
    """Read what a descriptor of a process leads to. Raises OSError."""
    link = Path(f"/proc/{pid}/fd/{fd}")
    return KernelFile(read_magic(f"{link}"), f"{link.readlink()}", flags, link.stat().st_mode)


def read_magic(path: str) -> int:
    """Return the magic number (linux/magic.h) of the file system of what `path` leads to. Raises OSError.

    Source: statfs(2). Links in /proc lead to files that have no other path.
    """
    found = ctypes.create_string_buffer(_SIZE)
    check(LIBC.statfs(os.fsencode(path), found), path)
    return ctypes.c_ulong.from_buffer(found).value & 0xFFFFFFFF
