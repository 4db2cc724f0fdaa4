"""`stats-dump`: CRIU's own measurements (images/stats.proto).

Times are microseconds in 32 bits: they wrap after 71 minutes. `stats-dump` appears only after a hold at `post-dump`.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.decode import Field, decode
from crckpt.images.framing import read_single

# A restore writes field 2 of the same message.
_DUMP: Final = 1


class DumpStats(Struct, frozen=True):
    """Times in microseconds, and pages of private memory and of shared memory (`shared_pages_written`)."""

    frozen_time: Annotated[int, Field(2, default=0)]
    memwrite_time: Annotated[int, Field(4, default=0)]
    pages_scanned: Annotated[int, Field(5, default=0)]
    pages_skipped_parent: Annotated[int, Field(6, default=0)]
    pages_written: Annotated[int, Field(7, default=0)]
    shared_pages_written: Annotated[int, Field(14, default=0)]


def read_dump_stats(data: bytes, name: str = "stats-dump") -> DumpStats:
    """Decode the image. Raises IntegrityError if it is damaged or of a restore."""
    message = read_single(data, name, magics.STATS)
    if _DUMP not in message:
        raise IntegrityError(f"{name}: has no statistics of a dump")
    return decode(DumpStats, message.message(_DUMP))
