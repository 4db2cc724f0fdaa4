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


def can_be_held(path: Path) -> bool:
    """Whether the kernel lets us hold the disk that `path` is on to a rate.

    With the blkio controller of cgroup v1 it does, unless that is a partition or no disk at all.
    """
    try:
        hold(path, rate(path))
    except OSError:
        return False
    return True


@contextmanager
def held(path: Path) -> Iterator[None]:
    """While the block runs, nobody reads more quickly than USUAL from the disk that `path` is on."""
    before = rate(path)
    try:
        hold(path, USUAL * MEBIBYTE)
        yield
    finally:
        hold(path, before)


def rate(path: Path) -> int:
    """Bytes per second that the disk is held to, 0 for no limit."""
    limits = dict(line.split() for line in _LIMIT.read_text().splitlines())
    return int(limits.get(_number(path), 0))


def hold(path: Path, limit: int) -> None:
    """Hold it to so many bytes per second; 0 for no limit. Raises OSError."""
    _LIMIT.write_text(f"{_number(path)} {limit}")


def _number(path: Path) -> str:
    device = path.stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}"
