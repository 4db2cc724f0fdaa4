"""Free space on disks and in memory, in bytes.

psutil has these figures, too (`host.usage`), but takes 12 to 60 ms to import: every dump and restore needs them.
"""

from __future__ import annotations

import os
from pathlib import Path

from crckpt.host.proc import procfs
from crckpt.host.proc.mountinfo import read_mounts
from crckpt.host.process import cgroups

_HUGE_PAGES = Path("/sys/kernel/mm/hugepages")
_IN_MEMORY = ("tmpfs", "ramfs")


def nearest_existing(path: Path) -> Path:
    """The path, or the nearest directory above it that exists."""
    return next(above for above in (path, *path.parents) if above.exists())


def free_disk(path: Path | int) -> int:
    """Free bytes for us on the file system of an existing path, or of an open file."""
    status = os.statvfs(path)
    # f_bfree would include root's reserve: a full disk must still let root log in and clean up.
    return status.f_bavail * status.f_frsize


def is_read_only(path: Path) -> bool:
    """Return whether the mount of an existing path is read-only."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def is_writable(path: Path) -> bool:
    """Return whether we may write to an existing directory: not on a read-only mount, or if it is immutable."""
    return os.access(path, os.W_OK | os.X_OK, effective_ids=True)


def is_in_memory(path: Path) -> bool:
    """Return whether files at an existing path take memory (tmpfs)."""
    device = path.stat().st_dev
    kind = next((mount.kind for mount in read_mounts() if mount.device == device), "")
    return kind in _IN_MEMORY


def free_memory(*, swap: bool = False) -> int:
    """Memory that the kernel calls available, or less if our control groups have limits. `swap`: add free swap.

    Source: proc_meminfo(5).
    """
    fields = procfs.parse_fields(procfs.text("/proc/meminfo"))
    free, swappable = (int(fields.get(name, "0").split()[0]) << 10 for name in ("MemAvailable", "SwapFree"))
    swappable = swappable if swap else 0
    return min((free + swappable, *cgroups.memory_left(swap=swappable)))


def free_huge_pages(size: int) -> int:
    """Count the huge pages of `size` bytes that are available: reserved by nobody, or allowed as surplus.

    Source: Documentation/admin-guide/mm/hugetlbpage.rst.
    """
    directory = _HUGE_PAGES / f"hugepages-{size >> 10}kB"
    if not directory.exists():
        return 0
    free, promised, more, taken = (
        int((directory / f"{name}_hugepages").read_text()) for name in ("free", "resv", "nr_overcommit", "surplus")
    )
    return free - promised + max(0, more - taken)


def unwritten_limit() -> int:
    """Read how many bytes may wait to be written to disks before writers have to wait, too.

    Source: Documentation/admin-guide/sysctl/vm.rst.
    """
    fixed, share = (int(Path(f"/proc/sys/vm/dirty_{name}").read_text()) for name in ("bytes", "ratio"))
    # Only one of the two is set: the other is 0.
    return fixed or free_memory() * share // 100
