"""Manifests: what a checkpoint is, as JSON that people can read, named by its SHA-256."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from crckpt.errors import IntegrityError, StoreUnusable
from crckpt.model import CheckpointId, Host, JobName, Options, Statistics, Task
from crckpt.store.names import SHORT

SCHEMA: Final = 1

_MOST: Final = 1 << 53
"""The highest number that all who read JSON agree about."""

_CLOCKS_DIFFER: Final = timedelta(minutes=1)


class PackUse(Struct, frozen=True):
    """A pack, and how many of its frames and pages a checkpoint uses."""

    digest: str
    frames: int
    pages: int


class IndexPlace(Struct, frozen=True):
    """Where a checkpoint's index lies: its size in bytes and extents (first, count, pack, page)."""

    bytes: int
    extents: tuple[tuple[int, int, int, int], ...]


class Checkpoint(Struct, frozen=True):
    """One immutable, complete restore point.

    `created` is aware, in UTC; `parent` is for lineage only; `run_id` is CRIU's `dump_criu_run_id`; `stopped` says
    that the tree was ended by the dump; extents' pack numbers count in `packs`. `sequence` orders the checkpoints of a
    store as they were committed; older crckpts wrote none: those count as 0, and so as older than all others.
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
    sequence: Annotated[int, msgspec.Meta(ge=0, le=_MOST)] = 0

    @property
    def order(self) -> tuple[int, datetime, str]:
        """What sorts checkpoints as they were committed, whatever the clock said: the time counts for equal numbers."""
        return self.sequence, self.created, self.id

    def is_in_future(self, now: datetime) -> bool:
        """Whether it was made later than now, by more than clocks differ: under a clock that was wrong, or is."""
        return self.created > now + _CLOCKS_DIFFER

    @property
    def short_id(self) -> str:
        """The id as people are shown it."""
        return self.id[:SHORT]


def seal(draft: Checkpoint) -> tuple[Checkpoint, bytes]:
    """The checkpoint with its id, and its manifest, of which the id is the SHA-256."""
    manifest = _encode(draft)
    return replace(draft, id=_id_of(manifest)), manifest


def _id_of(manifest: bytes) -> CheckpointId:
    # Loaded only where it is used: OpenSSL takes its time, and a dump has none until the tree runs again.
    import hashlib

    return CheckpointId(hashlib.sha256(manifest).hexdigest())


def unseal(manifest: bytes, checkpoint_id: CheckpointId) -> Checkpoint:
    """The checkpoint that a manifest describes.

    Raises IntegrityError if `checkpoint_id` is not its SHA-256, StoreUnusable if a newer crckpt wrote it.
    """
    short = checkpoint_id[:SHORT]
    if _id_of(manifest) != checkpoint_id:
        raise IntegrityError(f"the manifest of checkpoint {short} is damaged: its SHA-256 is not its id")
    try:
        # Only json reads the lone surrogates of a note in no encoding, and says what schema it is if it is another.
        with suppress(msgspec.DecodeError):
            return _decode(manifest, checkpoint_id)
        entries = json.loads(manifest)
        schema = entries["schema"]
        if schema == SCHEMA:
            return msgspec.convert({**entries, "id": checkpoint_id}, Checkpoint)
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise StoreUnusable(
            f"the manifest of checkpoint {short} was written by another version of crckpt ({error})",
            hint="use the newest crckpt",
        ) from error
    raise StoreUnusable(
        f"the manifest of checkpoint {short} has schema {schema}; this crckpt knows schema {SCHEMA}",
        hint=f"use a crckpt that knows schema {schema}",
    )


def next_sequence(checkpoints: Iterable[Checkpoint]) -> int:
    """Return the number of the checkpoint that is committed after these."""
    return min(max((checkpoint.sequence for checkpoint in checkpoints), default=0) + 1, _MOST)


def job_named_in(manifest: bytes) -> str | None:
    """The job that a manifest names, however damaged the rest of it is; None if that cannot be read."""
    found = re.search(rb'"job": "([A-Za-z0-9._-]+)"', manifest)
    return found[1].decode() if found else None


def _encode(checkpoint: Checkpoint) -> bytes:
    entries: dict[str, Any] = {
        **msgspec.to_builtins(checkpoint),
        "schema": SCHEMA,
        "created": checkpoint.created.astimezone(UTC).isoformat(timespec="microseconds"),
    }
    del entries["id"]
    lines = (f" {json.dumps(key)}: {json.dumps(entries[key], sort_keys=True)}" for key in sorted(entries))
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


# A host is most of its manifest, and the same in thousands of them: it is decoded once.
_FIELDS: Final = {**get_type_hints(Checkpoint, include_extras=True), "host": msgspec.Raw, "schema": Literal[SCHEMA]}
_OPTIONAL: Final = {"sequence": 0}
_STORED: Final = msgspec.json.Decoder(
    msgspec.defstruct(
        "_Stored",
        [
            *((name, kind) for name, kind in _FIELDS.items() if name not in ("id", *_OPTIONAL)),
            *((name, _FIELDS[name], default) for name, default in _OPTIONAL.items()),
        ],
    )
)
_host: Final = lru_cache(maxsize=64)(msgspec.json.Decoder(Host).decode)


def _decode(manifest: bytes, checkpoint_id: CheckpointId) -> Checkpoint:
    """Raises DecodeError for what has another schema too."""
    entries = msgspec.structs.asdict(_STORED.decode(manifest))
    del entries["schema"]
    return Checkpoint(**{**entries, "id": checkpoint_id, "host": _host(bytes(entries["host"]))})
