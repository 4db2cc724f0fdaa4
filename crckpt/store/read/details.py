"""Read the details of a checkpoint: JSON that a dump wrote, and that a store from elsewhere may have forged."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from crckpt.errors import CrckptError, IntegrityError
from crckpt.host import proc
from crckpt.host.disk.files import write_unsynced
from crckpt.host.program import CODE, Program
from crckpt.model import CheckpointId, Count, Pid
from crckpt.store.documents import decode
from crckpt.store.format.manifest import Checkpoint
from crckpt.store.layout import job_details_name
from crckpt.store.read.materialise import details_of
from crckpt.store.repository import Repository


class _Process(Struct, frozen=True):
    pid: Pid
    command_line: tuple[str, ...] = ()
    directory: str = ""
    uids: tuple[Count, ...] = ()


class _Details(Struct, frozen=True):
    processes: tuple[_Process, ...] = ()
    program: Program | None = None
    root: proc.Identity | None = None
    append_sizes: dict[str, Count] = {}
    closed_pipes: tuple[Count, ...] = ()
    files: dict[str, tuple[tuple[Count, Count, Count], ...]] = {}
    file_owners: dict[str, tuple[Count, ...]] = {}
    file_births: dict[str, tuple[tuple[Count, Count], ...]] = {}
    file_times: dict[str, float] = {}
    file_heads: dict[str, Annotated[str, Meta(pattern=r"\A[0-9]{1,3}-[0-9a-f]{64}\Z")]] = {}
    tracked_root: proc.Identity | None = None
    uptime_ticks: Count | None = None


class _CachedDetails(Struct, frozen=True):
    checkpoint: CheckpointId
    details: dict[str, Any]


_MOST_CACHED: Final = 1 << 20
_CHECKED_BY_DUMPS: Final = ("program", "root", "tracked_root", "uptime_ticks")


def read_details(repository: Repository, checkpoint: Checkpoint) -> dict[str, Any]:
    """Read the details of a checkpoint; entries that `_Details` has are of the types there.

    Raises IntegrityError.
    """
    what = f"checkpoint {checkpoint.short_id}: its details"
    try:
        document = decode(details_of(repository, checkpoint) or b"{}", dict[str, Any], what)
        # Only the types are checked here: the result would lack entries that only others know.
        msgspec.convert(document, _Details)
    except msgspec.ValidationError as error:
        raise IntegrityError(f"{what} are damaged: {error}") from error
    return document


def cache_details(repository: Repository, checkpoint: Checkpoint, details: bytes, scratch: Path) -> None:
    """Cache what the next dump checks of a job's new checkpoint. `scratch` is a directory in the store's own."""
    document = json.loads(details)
    if ((document.get("program") or {}).get("script") or "").startswith(CODE):
        # Code and command lines may contain passwords: they are in packs only.
        return
    root = [
        {"pid": entry["pid"], "uids": entry["uids"]}
        for entry in document.get("processes", ())
        if entry["pid"] == checkpoint.tree[0].pid
    ]
    kept = {"processes": root} | {key: document[key] for key in _CHECKED_BY_DUMPS if key in document}
    path = scratch / "job-details"
    # A failure is ignored: it can be read from the checkpoint.
    with suppress(OSError):
        write_unsynced(path, json.dumps({"checkpoint": checkpoint.id, "details": kept}).encode(), "details")
        repository.backend.put_derived(job_details_name(checkpoint.job), path, "details")


def read_recent_details(repository: Repository, checkpoint: Checkpoint) -> dict[str, Any]:
    """Read the details that a dump checks of a job's last checkpoint: if they are cached, no others.

    Raises IntegrityError.
    """
    # To read them from the packs takes numpy, which takes as long to import as a small dump.
    with suppress(CrckptError, OSError, msgspec.ValidationError):
        name = job_details_name(checkpoint.job)
        cached = decode(repository.backend.read(name, _MOST_CACHED), _CachedDetails, name)
        if cached.checkpoint == checkpoint.id:
            msgspec.convert(cached.details, _Details)
            return cached.details
    return read_details(repository, checkpoint)
