"""List the checkpoints of a store."""

from __future__ import annotations

from msgspec import Struct

from crckpt.errors import NoSuchCheckpoint
from crckpt.model import CheckpointId
from crckpt.ops.context import Context
from crckpt.store import Checkpoint, PendingCheckpoint, UnreadableCheckpoint
from crckpt.store.damage import read_known_damage
from crckpt.store.move_status import MoveStatus, find_marks


class ListedCheckpoint(Struct, frozen=True):
    """A checkpoint, its tags, and the move of its job to or from another host that concerns it.

    `damaged`: the last verification found it damaged.
    """

    checkpoint: Checkpoint
    tags: tuple[str, ...]
    move: MoveStatus | None = None
    damaged: bool = False


class Listing(Struct, frozen=True):
    """The checkpoints, oldest first; those not durable yet, or lost; and those whose manifest cannot be read."""

    entries: tuple[ListedCheckpoint, ...]
    pending: tuple[PendingCheckpoint, ...]
    unreadable: tuple[UnreadableCheckpoint, ...]


def list_checkpoints(context: Context, job: str | None) -> Listing:
    """List all checkpoints, or those of one job. Raises NoSuchCheckpoint if the job has none, StoreUnusable."""
    # No lock is needed: manifests appear whole and never change, and `gc` or `rm` must not delay a list.
    repository = context.repository()
    # In this order: what is stored between the two is in both, and listed once.
    announced = repository.pending()
    everything, unreadable = repository.read_all()
    found = [checkpoint for checkpoint in everything if job in (None, checkpoint.job)]
    # A checkpoint is not lost, either, if crckpt was killed right after it had stored it.
    stored = {checkpoint.run_id for checkpoint in everything}
    pending = tuple(one for one in announced if job in (None, one.job) and not (one.run_id and one.run_id in stored))
    if job is not None and not found and not pending:
        repository.resolve(job)  # its error suggests similar names
        raise NoSuchCheckpoint(f"there is no job {job!r}", hint="see all jobs: crckpt list")
    tags: dict[CheckpointId, tuple[str, ...]] = {}
    for tag in repository.tags():
        tags[tag.id] = (*tags.get(tag.id, ()), tag.name)
    marks = find_marks(repository, found)
    damaged = read_known_damage(repository.backend)
    entries = tuple(
        ListedCheckpoint(each, tags.get(each.id, ()), marks.get(each.id), each.id in damaged) for each in found
    )
    return Listing(entries, pending, unreadable)
