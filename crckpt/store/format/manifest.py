"""Manifests: a checkpoint as JSON that people can read, named by its SHA-256."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, TypeAlias, get_type_hints

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from crckpt.errors import IntegrityError, StoreUnusable
from crckpt.model import CheckpointId, Count, DumpOptions, Host, JobName, PackId, RunId, Statistics, Task
from crckpt.store.documents import decode
from crckpt.store.layout import SHORT

SCHEMA: Final = 1

# The highest number that all readers of JSON read alike.
_MOST: Final = 1 << 53
# Another host must not be able to use up the numbers, in one move or in some.
_LARGEST_JUMP: Final = 1 << 40

_CLOCKS_DIFFER: Final = timedelta(minutes=1)

MOST_BYTES: Final = 32 << 20
"""The size of the largest manifest: that of a tree of some 300,000 processes."""

MOST_INDEX_BYTES: Final = 512 << 20
"""The size of the largest index: extents that compress badly take up to ten bytes each."""

_FIRST_TIME: Final = datetime(2, 1, 1, tzinfo=UTC)
# A time closer to the limits of datetime would not exist in every time zone.
_LAST_TIME: Final = datetime(9999, 1, 2, tzinfo=UTC)

# The pattern of all digests is matched at once: see `_decode`.
_Digest: TypeAlias = Annotated[PackId, Meta(min_length=64, max_length=64)]

_DIGITS: Final = re.compile(r"[0-9a-f]*")
_U32: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
_IndexBytes: TypeAlias = Annotated[int, Meta(ge=0, le=MOST_INDEX_BYTES)]
_Time: TypeAlias = Annotated[datetime, Meta(tz=True)]


class PackUse(Struct, frozen=True):
    """A pack, and how many of its frames and pages a checkpoint uses."""

    digest: _Digest
    frames: Count
    pages: Count


class IndexPlace(Struct, frozen=True):
    """The place of a checkpoint's index: its size in bytes and extents (first, count, pack, page)."""

    bytes: _IndexBytes
    extents: tuple[tuple[Count, _U32, _U32, Count], ...]


class Checkpoint(Struct, frozen=True):
    """One immutable, complete restore point.

    `created` is aware, in UTC; `parent` is for lineage only; `run_id` is CRIU's `dump_criu_run_id`; `stopped` says
    that the tree was ended by the dump; extents' pack numbers count in `packs`. `sequence` orders the checkpoints of a
    store as they were committed; older crckpts wrote none: those count as 0, and so as older than all others.
    """

    id: CheckpointId
    job: JobName
    created: _Time
    parent: CheckpointId | None
    host: Host
    options: DumpOptions
    tree: tuple[Task, ...]
    note: str | None
    run_id: RunId | None
    stopped: bool
    packs: tuple[PackUse, ...]
    index: IndexPlace
    statistics: Statistics
    config_digest: str | None
    sequence: Annotated[int, msgspec.Meta(ge=0, le=_MOST)] = 0

    @property
    def order(self) -> tuple[int, datetime, str]:
        """The key that sorts checkpoints by their commits, whatever the clock was; equal numbers by time."""
        return self.sequence, self.created, self.id

    def is_in_future(self, now: datetime) -> bool:
        """Return whether it was made later than now, by more than clocks differ: then a clock was or is wrong."""
        return self.created > now + _CLOCKS_DIFFER

    @property
    def short_id(self) -> str:
        """The id as messages show it."""
        return self.id[:SHORT]


def seal(draft: Checkpoint) -> tuple[Checkpoint, bytes]:
    """Encode a manifest; return the checkpoint with its id, the SHA-256 of the manifest, and the manifest.

    Raises what `unseal` raises if it could not be read again: images from elsewhere can contain anything.
    """
    entries: dict[str, Any] = {
        **msgspec.to_builtins(draft),
        "schema": SCHEMA,
        "created": draft.created.astimezone(UTC).isoformat(timespec="microseconds"),
    }
    del entries["id"]
    # People read and compare manifests: one line for each entry. Sorted, so that the order of fields changes no id.
    lines = (f" {json.dumps(key)}: {json.dumps(entries[key], sort_keys=True)}" for key in sorted(entries))
    manifest = ("{\n" + ",\n".join(lines) + "\n}\n").encode()
    checkpoint_id = _id_of(manifest)
    unseal(manifest, checkpoint_id)
    return replace(draft, id=checkpoint_id), manifest


def _id_of(manifest: bytes) -> CheckpointId:
    # Imported here: OpenSSL is slow to load, and a dump needs it only when the tree runs again.
    import hashlib

    return CheckpointId(hashlib.sha256(manifest).hexdigest())


def unseal(manifest: bytes, checkpoint_id: CheckpointId) -> Checkpoint:
    """Decode a manifest.

    Raises IntegrityError if `checkpoint_id` is not its SHA-256, StoreUnusable if a newer crckpt wrote it.
    """
    short = checkpoint_id[:SHORT]
    if _id_of(manifest) != checkpoint_id:
        raise IntegrityError(f"the manifest of checkpoint {short} is damaged: its SHA-256 is not its id")
    what = f"the manifest of checkpoint {short}"
    try:
        return _decode(manifest, checkpoint_id, what)
    except msgspec.ValidationError as error:
        # Looked up only here: a manifest of this schema is decoded once.
        schema = SCHEMA
        with suppress(IntegrityError, msgspec.ValidationError):
            schema = decode(manifest, _AnySchema, "").schema
        if schema != SCHEMA:
            raise StoreUnusable(
                f"{what} has schema {schema}; this crckpt knows schema {SCHEMA}",
                hint=f"use a crckpt that knows schema {schema}",
            ) from error
        raise StoreUnusable(
            f"{what} was written by another version of crckpt ({error})", hint="use the newest release of crckpt"
        ) from error


def next_sequence(checkpoints: Iterable[Checkpoint], at_least: int = 0) -> int:
    """Return the sequence number after those of `checkpoints`, but `at_least` that of the caller.

    Raises StoreUnusable if one has the highest number: a new checkpoint would not be the newest of its job; and if too
    few numbers are left after `at_least`, which another host may have named.
    """
    found = tuple(checkpoints)
    last = max((checkpoint.sequence for checkpoint in found), default=0)
    if last >= _MOST:
        # No store counts so far in steps of one: the first of these numbers was forged.
        high = (checkpoint for checkpoint in found if checkpoint.sequence > _MOST // 2)
        jumped = min(high, key=lambda checkpoint: checkpoint.sequence)
        raise StoreUnusable(
            f"checkpoint {jumped.short_id} has sequence number {jumped.sequence}: too few numbers are left for "
            "another checkpoint",
            hint=f"if it is not yours, remove it: crckpt rm {jumped.short_id}",
        )
    if at_least > highest_after(last):
        raise StoreUnusable(
            f"the other store has a checkpoint with sequence number {at_least - 1}: too few numbers are left after it",
            hint="find that checkpoint there: crckpt list --json; if it is not yours, remove it: crckpt rm",
        )
    return max(last + 1, at_least)


def highest_after(last: int) -> int:
    """Return the highest sequence number that another host may bring into a store whose own highest is `last`.

    Else one of them could use up all numbers at once.
    """
    return min(last + _LARGEST_JUMP, _MOST // 2)


def job_named_in(manifest: bytes) -> JobName | None:
    """Find the job in a manifest, however damaged the rest is; None if it cannot be read."""
    found = re.search(rb'"job": "([A-Za-z0-9._-]+)"', manifest)
    return JobName(found[1].decode()) if found else None


# The host is most of a manifest, and the same in thousands of manifests: it is decoded once.
_FIELDS: Final = {**get_type_hints(Checkpoint, include_extras=True), "schema": Literal[SCHEMA]}
_OPTIONAL: Final = {"sequence": 0}


def _define_stored(name: str, host: Any) -> type[Struct]:
    kinds = {**_FIELDS, "host": host}
    needed = [(entry, kind) for entry, kind in kinds.items() if entry not in ("id", *_OPTIONAL)]
    return msgspec.defstruct(name, [*needed, *((entry, kinds[entry], value) for entry, value in _OPTIONAL.items())])


_PLAIN: Final = _define_stored("_Plain", Host)
_STORED: Final = _define_stored("_Stored", msgspec.Raw)


class _AnySchema(Struct):
    schema: int


@lru_cache(maxsize=64)
def _host(content: bytes) -> Host:
    return decode(content, Host, "the host of a manifest")


def _decode(manifest: bytes, checkpoint_id: CheckpointId, what: str) -> Checkpoint:
    entries = msgspec.structs.asdict(decode(manifest, _STORED, what, _PLAIN))
    del entries["schema"]
    host = entries["host"]
    checkpoint = Checkpoint(
        **{**entries, "id": checkpoint_id, "host": host if isinstance(host, Host) else _host(bytes(host))}
    )
    # Values that the types allow and a manifest cannot have.
    if not _FIRST_TIME <= checkpoint.created <= _LAST_TIME:
        raise msgspec.ValidationError(f"its date is in the year {checkpoint.created.year}")
    if _DIGITS.fullmatch("".join([use.digest for use in checkpoint.packs])) is None:
        raise msgspec.ValidationError("the digest of a pack is not a SHA-256")
    return checkpoint
