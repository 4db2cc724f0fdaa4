"""The checkpoints of a store."""

from __future__ import annotations

from dataclasses import dataclass

from crckpt.errors import NoSuchCheckpoint
from crckpt.model import CheckpointId
from crckpt.ops.context import Context
from crckpt.store import Checkpoint, Unreadable


@dataclass(frozen=True)
class Entry:
    """A checkpoint and the tags that point at it."""

    checkpoint: Checkpoint
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Listing:
    """Oldest first; and checkpoints whose manifest cannot be read."""

    entries: tuple[Entry, ...]
    unreadable: tuple[Unreadable, ...]


def list_checkpoints(context: Context, job: str | None) -> Listing:
    """All checkpoints, or those of one job. Raises NoSuchCheckpoint for a job that has none, StoreUnusable."""
    repository = context.repository()
    everything, unreadable = repository.read_all()
    found = [checkpoint for checkpoint in everything if job in (None, checkpoint.job)]
    if job is not None and not found:
        repository.resolve(job)  # says which names are near
        raise NoSuchCheckpoint(f"{job} is no job", hint="crckpt list shows all")
    tags: dict[CheckpointId, tuple[str, ...]] = {}
    for tag in repository.tags():
        tags[tag.id] = (*tags.get(tag.id, ()), tag.name)
    return Listing(tuple(Entry(checkpoint, tags.get(checkpoint.id, ())) for checkpoint in found), unreadable)
