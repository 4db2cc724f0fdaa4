"""`stats-dump`: CRIU's own measurements (images/stats.proto).

Times are microseconds in 32 bits: they wrap after 71 minutes. `stats-dump` appears only after a hold at `post-dump`.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.framing import read_single

# A restore writes field 2 of the same message.
_DUMP: Final = 1


class DumpStats(Struct, frozen=True):
    """Times in microseconds, and pages of private memory and of shared memory (`shared_pages_written`)."""

    frozen_time: int
    memwrite_time: int
    pages_scanned: int
    pages_skipped_parent: int
    pages_written: int
    shared_pages_written: int


def read_dump_stats(data: bytes, name: str = "stats-dump") -> DumpStats:
    """Decode the image. Raises IntegrityError if it is damaged or of a restore."""
    message = read_single(data, name, magics.STATS)
    if _DUMP not in message:
        raise IntegrityError(f"{name}: has no statistics of a dump")
    statistics = message.message(_DUMP)
    return DumpStats(*(statistics.uint(number) for number in (2, 4, 5, 6, 7, 14)))
