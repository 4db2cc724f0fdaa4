"""Remove checkpoints, and lift the network lock of a stopped tree that is thereby given up."""

from __future__ import annotations

from dataclasses import dataclass

from crckpt.host import network
from crckpt.model import CheckpointId
from crckpt.ops.context import Context


@dataclass(frozen=True)
class Removed:
    """Ids that are gone, and ids of runs of CRIU whose network lock was lifted."""

    removed: tuple[CheckpointId, ...]
    lifted_locks: tuple[str, ...]


def rm(context: Context, refs: tuple[str, ...]) -> Removed:
    """Remove all of them or, if one does not exist, none. Raises NoSuchCheckpoint, StoreLocked."""
    repository = context.repository()
    with repository.exclusive():
        found = dict.fromkeys(repository.resolve(ref) for ref in refs)
        doomed = [repository.get(identity) for identity in found]
        repository.remove(tuple(found))
    lifted = (gone.run_id for gone in doomed if gone.stopped and gone.run_id and network.lift_lock(gone.run_id))
    return Removed(tuple(found), tuple(lifted))
