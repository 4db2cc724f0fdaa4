"""How much room there is: on disks and in memory, in bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = Path("/sys/fs/cgroup")
_IN_MEMORY = ("tmpfs", "ramfs")


def existing(path: Path) -> Path:
    """The path, or the first directory above it that is there."""
    return next(above for above in (path, *path.parents) if above.exists())


def free_disk(path: Path) -> int:
    """What can still be written to the file system of an existing path."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def is_in_memory(path: Path) -> bool:
    """Whether what is written to an existing path takes memory."""
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == number:
            return after.split()[0] in _IN_MEMORY
    return False


def free_memory() -> int:
    """What the kernel calls available, or less if our control group is limited. Source: proc_meminfo(5), cgroup v2."""
    return min((_available(), *_left_in_groups()))


def _available() -> int:
    for line in _MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def _page_cache(group: Path) -> int:
    """What a group's memory holds of files: the kernel takes it back before it refuses anything."""
    words = (line.split() for line in (group / "memory.stat").read_text().splitlines())
    return sum(int(number) for name, number in words if name in ("active_file", "inactive_file"))


def _left_in_groups() -> Iterator[int]:
    line = next((line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), "0::/")
    own = _CGROUPS / line[3:].strip().lstrip("/")
    for group in (own, *own.parents):
        try:
            limit = (group / "memory.max").read_text().strip()
            if limit != "max":
                yield int(limit) - int((group / "memory.current").read_text()) + _page_cache(group)
        except OSError:
            continue
