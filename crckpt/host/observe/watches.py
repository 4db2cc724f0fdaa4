"""Find what a live tree watches (inotify, fanotify), and watches whose file CRIU would not find again."""

from __future__ import annotations

import ctypes
import os
import re
import stat
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.host.disk.files import status_of
from crckpt.host.opened import opened
from crckpt.host.proc import Descriptor
from crckpt.host.proc.mountinfo import Mount, read_mounts
from crckpt.host.syscalls.libc import LIBC, check

# The kernel shows a handle only if the file system makes them (fs/notify/fdinfo.c, CONFIG_EXPORTFS).
_WATCH: Final = re.compile(
    r"^(?:inotify wd:\S+|fanotify) ino:(\S+) sdev:(\S+) .*fhandle-bytes:(\S+) fhandle-type:(\S+) f_handle:(\S+)",
    re.MULTILINE,
)
_OF_MOUNT: Final = re.compile(r"^fanotify mnt_id:(\S+)", re.MULTILINE)
_LOOKS_FOR_S: Final = 1.0
_WATCHING: Final = ("anon_inode:inotify", "anon_inode:[fanotify]")
# Directories in which CRIU searches files without a handle. Source: criu/irmap.c.
_SEARCHED: Final = ("/", "/etc", "/var/spool", "/var/log", "/lib/udev")


class _Watch(Struct, frozen=True):
    """A mark of an inotify or fanotify: the inode, the device of its file system, and the handle of the file."""

    inode: int
    device: int
    kind: int
    handle: bytes


def find_lost_watches(descriptors: Iterable[Descriptor]) -> tuple[Descriptor, ...]:
    """Find descriptors with a watch whose file CRIU cannot find by its handle (criu/fsnotify.c, check_open_handle).

    Some file systems open no handles (open_by_handle_at(2)). A tmpfs may be another one at the restore: there the file
    must have a path.
    """
    # Test one watch of each kind of handle on a file system, and those on a tmpfs for a second: a user may have a
    # million.
    found: list[Descriptor] = []
    opens: dict[tuple[int, int], bool] = {}
    searched = frozenset(status.st_dev for path in _SEARCHED if (status := status_of(path)) is not None)
    mounts = tuple(read_mounts())
    in_memory = {mount.device for mount in mounts if mount.kind in ("tmpfs", "devtmpfs")}
    points = _MountPoints(mounts)
    end = time.monotonic() + _LOOKS_FOR_S
    for held in descriptors:
        for watch in _read_watches(held):
            key = watch.device, watch.kind
            if key not in opens:
                # True if there is no mount to try.
                tried = points.find(watch.device)
                opens[key] = key[0] in searched or not tried or any(_open(point, watch) for point in tried)
            is_named = watch.device not in in_memory or time.monotonic() > end or _find_path(watch, points)
            if not (opens[key] and is_named):
                found.append(held)
                break
    return tuple(found)


def find_watched_paths(descriptors: Iterable[Descriptor]) -> Iterator[str]:
    """Find the paths of everything that is watched, as CRIU does (criu/fsnotify.c, alloc_openable)."""
    mounts = tuple(read_mounts())
    paths, points = {mount.id: mount.path for mount in mounts}, _MountPoints(mounts)
    found: dict[str, None] = {}
    for held in descriptors:
        if held.target in _WATCHING:
            marked = (int(number, 16) for number in _OF_MOUNT.findall(held.info))
            found |= dict.fromkeys(paths[number] for number in marked if number in paths)
        for watch in _read_watches(held):
            if path := _find_path(watch, points):
                found[path] = None
    return iter(found)


def _find_path(watch: _Watch, points: _MountPoints) -> str:
    """Find the path that leads to a watched file; empty if none does."""
    paths = (_open(point, watch) for point in points.find(watch.device))
    found = ((path, status_of(path)) for path in paths)
    return next((path for path, status in found if status is not None and status.st_ino == watch.inode), "")


def _read_watches(held: Descriptor) -> Iterator[_Watch]:
    if held.target in _WATCHING:
        for inode, device, size, kind, handle in _WATCH.findall(held.info):
            content = bytes.fromhex(handle)[: int(size, 16)]
            # 12 bits for the major number, 20 for the minor one (linux/kdev_t.h).
            number = int(device, 16)
            yield _Watch(int(inode, 16), os.makedev(number >> 20, number & 0xFFFFF), int(kind, 16), content)


def _open(point: str, watch: _Watch) -> str:
    """Open the file on this mount by its handle, and return the path that the kernel has for it; empty if it fails."""
    # struct file_handle: bytes, type, the handle.
    asked = ctypes.create_string_buffer(struct.pack("=Ii", len(watch.handle), watch.kind) + watch.handle)
    with suppress(OSError):
        with opened(os.open(point, os.O_RDONLY | os.O_DIRECTORY)) as mount:
            file = check(LIBC.open_by_handle_at(mount, asked, os.O_PATH))
        with opened(file):
            return str(Path(f"/proc/self/fd/{file}").readlink())
    return ""


class _MountPoints:
    """The directories on which a device is mounted. Others are not touched: they may be silent, or refuse us."""

    def __init__(self, mounts: Iterable[Mount]) -> None:
        self._mounts = tuple(mounts)
        self._found: dict[int, tuple[str, ...]] = {}

    def find(self, device: int) -> tuple[str, ...]:
        if device not in self._found:
            paths = (mount.path for mount in self._mounts if mount.device == device)
            # FUSE may refuse root, or have lost its server.
            found = ((path, status_of(path)) for path in paths)
            self._found[device] = tuple(path for path, status in found if status and stat.S_ISDIR(status.st_mode))
        return self._found[device]
