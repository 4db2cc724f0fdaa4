"""How quickly the disk reads: as it is, or held to what a usual one does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmark.setting import MEBIBYTE

USUAL: Final = 500
"""MiB/s that an SSD behind SATA reads. A disk in a virtual machine may be its host's memory, and ten times as quick."""

_LIMIT: Final = Path("/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device")


def can_be_held() -> bool:
    """Whether the kernel lets us hold a disk to a rate: with the blkio controller of cgroup v1 it does."""
    return _LIMIT.exists()


@contextmanager
def held(path: Path) -> Iterator[None]:
    """While the block runs, nobody reads more quickly than USUAL from the disk that `path` is on."""
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    _LIMIT.write_text(f"{number} {USUAL * MEBIBYTE}")
    try:
        yield
    finally:
        _LIMIT.write_text(f"{number} 0")
