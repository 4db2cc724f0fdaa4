"""`inventory.img`: what holds for a whole set of images (images/inventory.proto); `stats-dump` (images/stats.proto).

Times in `stats-dump` are microseconds in 32 bits: they wrap after 71 minutes. It appears only after a hold at
`post-dump`.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.decode import Field, decode
from crckpt.images.framing import read_single
from crckpt.images.processes import KernelIds
from crckpt.model import RunId

# CRIU writes a UUID. The id becomes part of the name of a table that crckpt has nft delete.
_RUN_ID: Final = re.compile(r"[0-9A-Za-z-]{0,64}")
# The newest format of CRIU 4.2 (criu/include/magic.h, CRTOOLS_IMAGES_V1_1).
_NEWEST: Final = 2


class Inventory(Struct, frozen=True):
    """The facts that hold for a whole set of images.

    - `root_ids`: the namespaces of the CRIU that dumped; a task with other ids is in other namespaces
    - `run_id`: names the network lock that the dump may have left (table `inet CRIU-<run id>`)
    """

    version: Annotated[int, 1]
    root_ids: Annotated[KernelIds, 3]
    run_id: Annotated[RunId | None, Field(13, wire=str, convert=lambda run_id: RunId(run_id) if run_id else None)]
    tcp_close: Annotated[bool, 10]
    lsm: Annotated[int, Field(6, default=0)]


def read_inventory(data: bytes, name: str = "inventory.img") -> Inventory:
    """Decode the image. Raises IntegrityError if it is damaged, or of a newer format than crckpt knows."""
    message = read_single(data, name, magics.INVENTORY)
    # First: a newer format may have other fields.
    if message.required(1) > _NEWEST:
        raise IntegrityError(
            f"{name}: the images have CRIU's format {message.required(1)}, but this crckpt reads at most {_NEWEST}",
            hint="use a newer crckpt, or CRIU 4.2",
        )
    inventory = decode(Inventory, message)
    if _RUN_ID.fullmatch(inventory.run_id or "") is None:
        raise IntegrityError(f"{name}: {inventory.run_id!r} is not an ID of a CRIU run")
    return inventory


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
