"""Limit the rate at which the disk is read to that of a usual disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmark.setting import MEBIBYTE

USUAL: Final = 500
"""MiB/s of an SSD on SATA. A disk in a virtual machine may be its host's memory, and ten times as fast."""

_LIMIT: Final = Path("/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device")


def can_be_limited(path: Path) -> bool:
    """Return whether the kernel can limit the disk of `path`.

    With the blkio controller of cgroup v1 it does, unless that is a partition or no disk at all.
    """
    try:
        set_limit(path, rate(path))
    except OSError:
        return False
    return True


@contextmanager
def limited(path: Path) -> Iterator[None]:
    """Limit reads from the disk of `path` to USUAL while the block runs."""
    before = rate(path)
    try:
        set_limit(path, USUAL * MEBIBYTE)
        yield
    finally:
        set_limit(path, before)


def rate(path: Path) -> int:
    """Return the limit of the disk in bytes per second, 0 for none."""
    limits = dict(line.split() for line in _LIMIT.read_text().splitlines())
    return int(limits.get(_number(path), 0))


def set_limit(path: Path, limit: int) -> None:
    """Set the limit of the disk in bytes per second, 0 for none. Raises OSError."""
    _LIMIT.write_text(f"{_number(path)} {limit}")


def _number(path: Path) -> str:
    device = path.stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}"
