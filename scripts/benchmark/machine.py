"""Describe the machine, and make it equal for all measurements."""

from __future__ import annotations

import mmap
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmark.setting import MEBIBYTE, Setting
from crckpt.host.machine import read_criu_version

_REPORTED: Final = Path("/sys/module/page_reporting/parameters/page_reporting_order")
# x86-64 has no blocks of this many pages, as a power of two.
_NO_ORDER: Final = 11

# How much memory is reserved, as a multiple of the largest target's.
_MEMORY_FOR: Final = 4


@contextmanager
def memory_kept(setting: Setting) -> Iterator[None]:
    """Keep free memory from going back to the host while the block measures.

    A virtual machine gives free memory to its host, and gets it back more slowly than a disk writes: the first program
    that is measured would pay for all others.
    """
    before = _REPORTED.read_text() if os.access(_REPORTED, os.W_OK) else None
    try:
        if before is not None:
            _REPORTED.write_text(str(_NO_ORDER))
        count = min(_MEMORY_FOR * max(setting.sizes) * MEBIBYTE, _pages("SC_AVPHYS_PAGES") // 2)
        mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()
        yield
    finally:
        if before is not None:
            _REPORTED.write_text(before)


def describe(setting: Setting) -> dict[str, str]:
    """Describe kernel, cores, memory, CRIU, and the disk of the work directory."""
    memory = _pages("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return {
        "machine": f"{_cpu()}, {cores} cores, {memory:.0f} GiB, Linux {platform.release()}",
        "CRIU": f"{read_criu_version(setting.criu)} ({setting.criu})",
        "disk": _disk(setting.work),
    }


def _pages(name: str) -> int:
    """Return sysconf's number of pages in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf(name)


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _disk(path: Path) -> str:
    """Describe the file system and its device."""
    status = path.stat()
    number = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == number:
            kind, source = rest.split()[:2]
            queue = Path(f"/sys/dev/block/{number}/queue/rotational")
            spins = queue.exists() and queue.read_text().strip() == "1"
            return f"{path} on {kind}, {source}" + (", rotating" if spins else "")
    return f"{path} on device {number}"
