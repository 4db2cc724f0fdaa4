"""A limit of bytes per second, which several processes of this host may share."""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_TIME: Final = struct.Struct("<d")


class Bandwidth:
    """Says when data may be sent, so that all who share a clock stay below a number of bytes per second.

    The clock is a file that has the time (CLOCK_MONOTONIC) from which on the next data may be sent. Each process opens
    it by itself, because a lock belongs to a process.
    """

    def __init__(self, bytes_per_s: int, clock: Path | None = None) -> None:
        """Without a `clock`, this process alone has the bandwidth. Raises OSError if the clock cannot be opened."""
        self.bytes_per_s = bytes_per_s
        self._clock = os.open(clock, os.O_RDWR | os.O_CLOEXEC) if clock is not None else None
        self._free_at = 0.0

    def reserve(self, size: int) -> float:
        """Reserve the next free time for this many bytes; return when it begins."""
        if self._clock is None:
            begin = self._free_at = max(self._free_at, time.monotonic())
            self._free_at += size / self.bytes_per_s
            return begin
        fcntl.lockf(self._clock, fcntl.LOCK_EX)
        try:
            (free_at,) = _TIME.unpack(os.pread(self._clock, _TIME.size, 0))
            # Time in which nothing was sent is not made up for.
            begin = max(free_at, time.monotonic())
            os.pwrite(self._clock, _TIME.pack(begin + size / self.bytes_per_s), 0)
        finally:
            fcntl.lockf(self._clock, fcntl.LOCK_UN)
        return float(begin)

    def close(self) -> None:
        """Close the clock."""
        if self._clock is not None:
            os.close(self._clock)
            self._clock = None


@contextmanager
def shared_clock() -> Iterator[Path]:
    """Make a clock; other processes can open it by its path during the block. It is on no disk."""
    descriptor = os.memfd_create("crckpt-bandwidth", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, _TIME.pack(0.0))
        yield Path(f"/proc/{os.getpid()}/fd/{descriptor}")
    finally:
        os.close(descriptor)
