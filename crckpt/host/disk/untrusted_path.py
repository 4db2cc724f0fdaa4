"""Look at files by paths that come from elsewhere, without opening anything but regular files.

Opening acts on some devices, wakes programs that wait for a FIFO, and mounts what is mounted only when it is used.
Source: open(2), O_PATH; Documentation/filesystems/autofs.rst.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.host.disk.path_trust import PathEntry, open_path
from crckpt.host.proc.mountinfo import read_mounts

_AUTOMOUNTED: Final = "autofs"


class FoundFile(Struct, frozen=True):
    """What a path leads to: `status`, and `link`, by which the file can be opened while it is held.

    `is_unmounted`: the path leads through a directory on which nothing is mounted yet; `status` is that directory's.
    """

    status: os.stat_result
    link: str
    is_unmounted: bool = False


@contextmanager
def found(path: str, automounts: frozenset[int], *, follow: bool = True) -> Iterator[FoundFile]:
    """Hold the file that an absolute path leads to, or the symbolic link itself. Raises OSError.

    `automounts`: the result of `find_automounts`.
    """
    descriptor, entries = open_path(Path(path))
    try:
        last = entries[-1]
        if not follow and (link := _last_link(path)) is not None:
            os.close(descriptor)
            descriptor, last = link
        is_unmounted = any(entry.status.st_dev in automounts for entry in entries)
        yield FoundFile(last.status, f"/proc/self/fd/{descriptor}", is_unmounted)
    finally:
        os.close(descriptor)


def find_automounts() -> frozenset[int]:
    """Find the devices of automounts: a path that leads through one ends at a directory with nothing mounted yet."""
    return frozenset(mount.device for mount in read_mounts() if mount.kind == _AUTOMOUNTED)


def _last_link(path: str) -> tuple[int, PathEntry] | None:
    """Open the symbolic link at the end of a path; None if there is another file."""
    above, name = os.path.split(path.rstrip("/"))
    directory, _ = open_path(Path(above))
    try:
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    finally:
        os.close(directory)
    status = os.fstat(descriptor)
    if stat.S_ISLNK(status.st_mode):
        return descriptor, PathEntry(Path(path), status)
    os.close(descriptor)
    return None
