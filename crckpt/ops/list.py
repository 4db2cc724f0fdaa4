"""The checkpoints of a store."""

from __future__ import annotations

from msgspec import Struct

from crckpt.errors import NoSuchCheckpoint
from crckpt.model import CheckpointId
from crckpt.ops.context import Context
from crckpt.store import Checkpoint, Pending, Unreadable


class Entry(Struct, frozen=True):
    """A checkpoint and the tags that point at it."""

    checkpoint: Checkpoint
    tags: tuple[str, ...]


class Listing(Struct, frozen=True):
    """Oldest first; checkpoints that are not durable yet, or were lost; and those whose manifest cannot be read."""

    entries: tuple[Entry, ...]
    pending: tuple[Pending, ...]
    unreadable: tuple[Unreadable, ...]


def list_checkpoints(context: Context, job: str | None) -> Listing:
    """All checkpoints, or those of one job. Raises NoSuchCheckpoint for a job that has none, StoreUnusable."""
    repository = context.repository()
    everything, unreadable = repository.read_all()
    found = [checkpoint for checkpoint in everything if job in (None, checkpoint.job)]
    # One that was stored a moment before its crckpt was killed is not lost.
    stored = {checkpoint.run_id for checkpoint in everything}
    pending = tuple(
        one
        for one in repository.pending()
        if job in (None, one.job) and not (one.lost and one.run_id and one.run_id in stored)
    )
    if job is not None and not found and not pending:
        repository.resolve(job)  # says which names are near
        raise NoSuchCheckpoint(f"{job} is no job", hint="crckpt list shows all")
    tags: dict[CheckpointId, tuple[str, ...]] = {}
    for tag in repository.tags():
        tags[tag.id] = (*tags.get(tag.id, ()), tag.name)
    entries = tuple(Entry(checkpoint, tags.get(checkpoint.id, ())) for checkpoint in found)
    return Listing(entries, pending, unreadable)
