"""Manifests: what a checkpoint is, as JSON that people can read, named by its SHA-256."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from crckpt.errors import IntegrityError, StoreUnusable
from crckpt.model import CheckpointId, Host, JobName, Options, Statistics, Task
from crckpt.store.names import SHORT

SCHEMA: Final = 1


@dataclass(frozen=True)
class PackUse:
    """A pack, and how many of its frames and pages a checkpoint uses."""

    digest: str
    frames: int
    pages: int


@dataclass(frozen=True)
class IndexPlace:
    """Where a checkpoint's index lies: its size in bytes and extents (first, count, pack, page)."""

    bytes: int
    extents: tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True)
class Checkpoint:
    """One immutable, complete restore point.

    `created` is aware, in UTC; `parent` is for lineage only; `run_id` is CRIU's `dump_criu_run_id`; `stopped` says
    that the tree was ended by the dump; extents' pack numbers count in `packs`.
    """

    id: CheckpointId
    job: JobName
    created: datetime
    parent: CheckpointId | None
    host: Host
    options: Options
    tree: tuple[Task, ...]
    note: str | None
    run_id: str | None
    stopped: bool
    packs: tuple[PackUse, ...]
    index: IndexPlace
    statistics: Statistics
    config_digest: str | None

    @property
    def short_id(self) -> str:
        """The id as people are shown it."""
        return self.id[:SHORT]


def seal(draft: Checkpoint) -> tuple[Checkpoint, bytes]:
    """The checkpoint with its id, and its manifest, of which the id is the SHA-256."""
    manifest = _encode(draft)
    return replace(draft, id=CheckpointId(hashlib.sha256(manifest).hexdigest())), manifest


def unseal(manifest: bytes, checkpoint_id: CheckpointId) -> Checkpoint:
    """The checkpoint that a manifest describes.

    Raises IntegrityError if `checkpoint_id` is not its SHA-256, StoreUnusable if a newer crckpt wrote it.
    """
    short = checkpoint_id[:SHORT]
    if hashlib.sha256(manifest).hexdigest() != checkpoint_id:
        raise IntegrityError(f"the manifest of checkpoint {short} is damaged: its SHA-256 is not its id")
    try:
        document = json.loads(manifest)
        schema = document["schema"]
        if schema == SCHEMA:
            return _decode(document, checkpoint_id)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreUnusable(
            f"the manifest of checkpoint {short} was written by another version of crckpt ({error})",
            hint="use the newest crckpt",
        ) from error
    raise StoreUnusable(
        f"the manifest of checkpoint {short} has schema {schema}; this crckpt knows schema {SCHEMA}",
        hint=f"use a crckpt that knows schema {schema}",
    )


def job_named_in(manifest: bytes) -> str | None:
    """The job that a manifest names, however damaged the rest of it is; None if that cannot be read."""
    found = re.search(rb'"job": "([A-Za-z0-9._-]+)"', manifest)
    return found[1].decode() if found else None


def _encode(checkpoint: Checkpoint) -> bytes:
    entries: dict[str, Any] = {
        **asdict(checkpoint),
        "schema": SCHEMA,
        "created": checkpoint.created.astimezone(UTC).isoformat(timespec="microseconds"),
    }
    del entries["id"]
    lines = (f" {json.dumps(key)}: {json.dumps(entries[key], sort_keys=True)}" for key in sorted(entries))
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _decode(document: dict[str, Any], checkpoint_id: CheckpointId) -> Checkpoint:
    entries = {key: value for key, value in document.items() if key != "schema"}
    index = entries["index"]
    return Checkpoint(
        **{
            **entries,
            "id": checkpoint_id,
            "created": datetime.fromisoformat(entries["created"]),
            "host": Host(**_tuples(entries["host"])),
            "options": Options(**_tuples(entries["options"])),
            "tree": tuple(Task(**_tuples(task)) for task in entries["tree"]),
            "packs": tuple(PackUse(**use) for use in entries["packs"]),
            "index": IndexPlace(index["bytes"], tuple(_extent(*extent) for extent in index["extents"])),
            "statistics": Statistics(**entries["statistics"]),
        }
    )


def _tuples(entries: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entries.items()}


def _extent(first: int, count: int, pack: int, page: int) -> tuple[int, int, int, int]:
    return first, count, pack, page
