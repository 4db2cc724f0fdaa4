"""Read the details of a checkpoint: JSON that a dump wrote, and that a store from elsewhere may have forged."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.host.program.program import Program
from crckpt.model import Count, Pid
from crckpt.store.documents import decode
from crckpt.store.format.manifest import Checkpoint
from crckpt.store.read.materialise import details_of
from crckpt.store.repository import Repository


class _Process(Struct, frozen=True):
    pid: Pid
    command_line: tuple[str, ...] = ()
    directory: str = ""
    uids: tuple[Count, ...] = ()


class TrackedRoot(Struct, frozen=True):
    """The root of a tree whose written pages were tracked; `start` is in clock ticks after the boot."""

    boot_id: str
    pid: Count
    start: Count


class _Details(Struct, frozen=True):
    processes: tuple[_Process, ...] = ()
    program: Program | None = None
    append_sizes: dict[str, Count] = {}
    closed_pipes: tuple[Count, ...] = ()
    files: dict[str, tuple[tuple[Count, Count, Count], ...]] = {}
    tracked_root: TrackedRoot | None = None


_DOCUMENT: Final = msgspec.json.Decoder(dict[str, Any])


def read_details(repository: Repository, checkpoint: Checkpoint) -> dict[str, Any]:
    """Read the details of a checkpoint; entries that `_Details` has are of the types there.

    Raises IntegrityError.
    """
    what = f"checkpoint {checkpoint.short_id}: its details"
    try:
        document = decode(details_of(repository, checkpoint) or b"{}", _DOCUMENT, what)
        # Only the types are checked here: the result would lack entries that only others know.
        msgspec.convert(document, _Details)
    except msgspec.ValidationError as error:
        raise IntegrityError(f"{what} are damaged: {error}") from error
    return document
