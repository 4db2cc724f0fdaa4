"""The checkpoints of a store."""

from __future__ import annotations

from dataclasses import dataclass

from crckpt.errors import NoSuchCheckpoint
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
    tags = repository.tags()
    entries = (Entry(entry, tuple(tag.name for tag in tags if tag.id == entry.id)) for entry in found)
    return Listing(tuple(entries), unreadable)
