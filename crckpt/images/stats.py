"""`stats-dump` and `stats-restore`: CRIU's own measurements (images/stats.proto).

Times are microseconds in 32 bits: they wrap after 71 minutes. `stats-dump` appears only after a hold at `post-dump`.
"""

from __future__ import annotations

from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.framing import read_single
from crckpt.images.wire import Message


class DumpStats(Struct, frozen=True):
    """Times in microseconds, and pages of private and of shared memory (`shared_pages_*`)."""

    freezing_time: int
    frozen_time: int
    memdump_time: int
    memwrite_time: int
    pages_scanned: int
    pages_skipped_parent: int
    pages_written: int
    pages_lazy: int
    shared_pages_scanned: int
    shared_pages_skipped_parent: int
    shared_pages_written: int


class RestoreStats(Struct, frozen=True):
    """Times in microseconds. `pages_restored` is None if this CRIU does not count them."""

    pages_compared: int
    pages_skipped_cow: int
    forking_time: int
    restore_time: int
    pages_restored: int | None


def read_dump_stats(data: bytes, name: str = "stats-dump") -> DumpStats:
    """Decode the image. Raises IntegrityError if it is damaged or of a restore."""
    message = _part(data, name, 1)
    return DumpStats(*(message.uint(number) for number in (1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 14)))


def read_restore_stats(data: bytes, name: str = "stats-restore") -> RestoreStats:
    """Decode the image. Raises IntegrityError if it is damaged or of a dump."""
    message = _part(data, name, 2)
    compared, skipped, forking, restore = (message.uint(number) for number in range(1, 5))
    return RestoreStats(compared, skipped, forking, restore, message.optional(5))


def _part(data: bytes, name: str, number: int) -> Message:
    message = read_single(data, name, magics.STATS)
    if number not in message:
        raise IntegrityError(f"{name}: has no statistics of a {'dump' if number == 1 else 'restore'}")
    return message.message(number)
