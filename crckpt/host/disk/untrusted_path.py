"""Look at files by paths that come from elsewhere, without opening anything but regular files.

Opening acts on some devices, wakes programs that wait for a FIFO, and mounts what is mounted only when it is used.
Source: open(2), O_PATH; Documentation/filesystems/autofs.rst.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from crckpt.host.disk.path_trust import PathEntry, is_redirected, open_path
from crckpt.host.opened import opened
from crckpt.host.proc.mountinfo import read_mounts

_AUTOMOUNTED: Final = "autofs"


class HeldFile(Struct, frozen=True):
    """The file that a path leads to: its `status`, and the `link` by which it can be opened while it is held.

    `owners`: of the file, and of all directories and links of its path. `is_unmounted`: the path leads through a
    directory on which nothing is mounted yet; `status` is that directory's. `is_redirected`: a restore does not follow
    a symbolic link of the path.
    """

    status: os.stat_result
    link: str
    owners: frozenset[int]
    is_unmounted: bool = False
    is_redirected: bool = False


@contextmanager
def held(path: str, automounts: frozenset[int], *, follow: bool = True) -> Iterator[HeldFile]:
    """Hold the file that an absolute path leads to, or, unless `follow`, a symbolic link at its end itself.

    `automounts`: the result of `find_automounts`. Raises OSError.
    """
    place = Path(path)
    try:
        descriptor, entries = open_path(place if follow else place.parent)
        if not follow:
            with opened(descriptor) as above:
                descriptor = os.open(place.name or "/", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            entries = (*entries, PathEntry(place, os.fstat(descriptor)))
    except (FileNotFoundError, NotADirectoryError):
        # Below such a directory nothing exists until something is mounted. Open the nearest one above that exists.
        descriptor, entries = _open_nearest(place)
        if not any(entry.status.st_dev in automounts for entry in entries):
            os.close(descriptor)
            raise
    with opened(descriptor):
        yield HeldFile(
            entries[-1].status,
            f"/proc/self/fd/{descriptor}",
            frozenset(entry.status.st_uid for entry in entries),
            any(entry.status.st_dev in automounts for entry in entries),
            is_redirected(entries if follow else entries[:-1]),
        )


def find_automounts() -> frozenset[int]:
    """Find the devices of automounts: a path that leads through one ends at a directory with nothing mounted yet."""
    return frozenset(mount.device for mount in read_mounts() if mount.kind == _AUTOMOUNTED)


def _open_nearest(path: Path) -> tuple[int, tuple[PathEntry, ...]]:
    for above in path.parents:
        with suppress(OSError):
            return open_path(above)
    return open_path(Path("/"))
