"""Find files of a live tree that a restore would not find by their names in crckpt's mount namespace."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, Literal

from msgspec import Struct

from crckpt.host.disk.other_names import find_other_name
from crckpt.host.proc import Descriptor
from crckpt.host.proc.maps import find_mapped_files
from crckpt.host.proc.mountinfo import read_mounts

# Files that are on no disk, or that CRIU finds another way (/proc/PID of a process that has ended).
_NAMELESS: Final = ("/memfd:", "/anon_hugepage", "/dev/zero", "/SYSV", "/proc/", "/[aio]")

_DELETED: Final = " (deleted)"
_IN_MEMORY: Final = ("tmpfs", "ramfs")

# Source: linux/major.h.
_MEMORY_MAJOR: Final = 1


class UnreachableFile(Struct, frozen=True):
    """A file in use that its name does not lead to: its mount is missing (`mount`), or another one hides it (`hidden`).

    `fd` is -1 for a mapped file, and for the current or root directory of a process.
    """

    pid: int
    fd: int
    path: str
    why: Literal["mount", "hidden"]


def find_unreachable_files(pids: Iterable[int], descriptors: Iterable[Descriptor]) -> tuple[UnreachableFile, ...]:
    """Find unreachable files of processes in our mount namespace. Skip files that change at the same time."""
    # Processes share most files: each name is looked up once.
    mounts = _mounts()
    known: dict[str, tuple[int, int] | None] = {}
    reached: set[tuple[str, str, str]] = set()
    held = tuple(found for found in descriptors if _is_file(found.mode, found.target))
    return (
        *(
            UnreachableFile(found.pid, found.fd, found.target, "mount")
            for found in descriptors
            if found.mount not in mounts and (_is_file(found.mode, found.target) or _is_memory_device(found))
        ),
        *(
            UnreachableFile(found.pid, found.fd, found.target, "hidden")
            for found in held
            if found.mount in mounts and _is_hidden(f"/proc/{found.pid}/fd/{found.fd}", found.target, known)
        ),
        *(found for pid in pids for found in _find_in_process(pid, known, reached)),
    )


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
    return tuple(dict.fromkeys(path for link in links if (path := _find_volatile(link, mounts))))


def find_unlinked_files(pids: Iterable[int], descriptors: Iterable[Descriptor]) -> tuple[str, ...]:
    """Find files of processes that lost their name, and have another only in other directories."""
    links = [f"/proc/{found.pid}/fd/{found.fd}" for found in descriptors if found.target.endswith(_DELETED)]
    links += (link for pid in pids for (*_, path), link in find_mapped_files(pid).items() if path.endswith(_DELETED))
    return tuple(dict.fromkeys(path for link in links if (path := _find_unlinked(link))))


def _find_unlinked(link: str) -> str:
    with suppress(OSError):
        target, found = os.readlink(link), os.stat(link)
        path = target.removesuffix(_DELETED)
        is_linked = found.st_nlink and _is_file(found.st_mode, path) and not stat.S_ISDIR(found.st_mode)
        if is_linked and not find_other_name(path, {found.st_ino}):
            return path
    return ""


def _find_volatile(link: str, mounts: Mapping[int, str]) -> str:
    """Return the path of a file, without the mark of a removed one; empty if a restore does not need it."""
    with suppress(OSError):
        path = (os.readlink(link) if link.startswith("/proc/") else link).removesuffix(_DELETED)
        found = os.stat(link)
        # A checkpoint contains a file that has no name left. The place of a mount is there again after the boot.
        if found.st_nlink and mounts.get(found.st_dev, path) != path and _is_file(found.st_mode, path):
            return path
    return ""


def _find_in_process(
    pid: int, known: dict[str, tuple[int, int] | None], reached: set[tuple[str, str, str]]
) -> Iterator[UnreachableFile]:
    """Find them in one process. `reached` are mapped files that another process has reached by their names."""
    for name in ("cwd", "root"):
        yield from _find_hidden(pid, f"/proc/{pid}/{name}", known)
    for file, link in find_mapped_files(pid).items():
        if file not in reached:
            found = tuple(_find_hidden(pid, link, known))
            yield from found
            if not found:
                reached.add(file)


def _find_hidden(pid: int, link: str, known: dict[str, tuple[int, int] | None]) -> Iterator[UnreachableFile]:
    with suppress(OSError):
        target = os.readlink(link)
        if not target.startswith(_NAMELESS) and target.startswith("/") and _is_hidden(link, target, known):
            yield UnreachableFile(pid, -1, target, "hidden")


def _is_hidden(link: str, target: str, known: dict[str, tuple[int, int] | None]) -> bool:
    """Return whether the name leads to another file than the link, or to none, before and after we read the link."""
    if target.endswith(_DELETED):
        return False
    try:
        if target not in known:
            known[target] = _identity(target)
        # The program still runs: the file counts as hidden only if the link keeps this name, and a second comparison
        # agrees.
        return (
            _identity(link) != known[target]
            and _is_file(os.stat(link).st_mode, target)
            and os.readlink(link) == target
            and _identity(link) != _identity(target)
        )
    except OSError:
        return False


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


def _is_memory_device(descriptor: Descriptor) -> bool:
    """Return whether it is /dev/null or another device that CRIU opens by its name, as a file."""
    return stat.S_ISCHR(descriptor.mode) and os.major(descriptor.device) == _MEMORY_MAJOR


def _mounts() -> frozenset[int]:
    return frozenset(mount.id for mount in read_mounts())
