"""Find inotify watches whose file CRIU would not find again by its file handle."""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.host.proc import Descriptor
from crckpt.host.proc.mountinfo import read_mounts
from crckpt.host.syscalls.libc import LIBC, check

# The kernel shows a handle only if the file system makes them (fs/notify/fdinfo.c, CONFIG_EXPORTFS).
_WATCH: Final = re.compile(
    r"^inotify wd:\S+ ino:\S+ sdev:(\S+) .*fhandle-bytes:(\S+) fhandle-type:(\S+) f_handle:(\S+)", re.MULTILINE
)
# Directories in which CRIU searches files without a handle. Source: criu/irmap.c.
_SEARCHED: Final = ("/", "/etc", "/var/spool", "/var/log", "/lib/udev")


def find_lost_watches(descriptors: Iterable[Descriptor]) -> tuple[Descriptor, ...]:
    """Find descriptors with a watch on a file system that opens no file handles. Source: open_by_handle_at(2)."""
    # Test one watch of each kind of handle on a file system: there may be many thousands.
    found: list[Descriptor] = []
    opens: dict[tuple[int, int], bool] = {}
    searched = frozenset(_device(path) for path in _SEARCHED)
    for held in descriptors:
        if held.target != "anon_inode:inotify":
            continue
        for device, size, kind, handle in _WATCH.findall(held.info):
            key = _kernel_device(int(device, 16)), int(kind, 16)
            if key not in opens:
                opens[key] = key[0] in searched or _can_open_by_handle(*key, bytes.fromhex(handle)[: int(size, 16)])
            if not opens[key]:
                found.append(held)
                break
    return tuple(found)


def _can_open_by_handle(device: int, kind: int, handle: bytes) -> bool:
    """Return whether one of our mounts of that file system opens the handle; True if there is no mount to try."""
    answers = [_can_open(point, kind, handle) for point in _mount_points(device)]
    return not answers or any(answers)


def _can_open(point: str, kind: int, handle: bytes) -> bool:
    # struct file_handle: bytes, type, the handle.
    asked = ctypes.create_string_buffer(struct.pack("=Ii", len(handle), kind) + handle)
    with suppress(OSError):
        mount = os.open(point, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.close(check(LIBC.open_by_handle_at(mount, asked, os.O_PATH)))
        finally:
            os.close(mount)
        return True
    return False


def _mount_points(device: int) -> list[str]:
    return [each.path for each in read_mounts() if each.device == device and Path(each.path).is_dir()]


def _kernel_device(number: int) -> int:
    """The device of a number in fdinfo: 12 bits for the major number, 20 for the minor one (linux/kdev_t.h)."""
    return os.makedev(number >> 20, number & 0xFFFFF)


def _device(path: str) -> int:
    with suppress(OSError):
        return Path(path).stat().st_dev
    return -1
