"""Remove checkpoints, and lift the network lock of a stopped tree that is thereby given up."""

from __future__ import annotations

from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.host import network
from crckpt.model import CheckpointId
from crckpt.ops.context import Context
from crckpt.store import Repository


class Removed(Struct, frozen=True):
    """Ids that are gone, and tables of nftables that were network locks and are lifted."""

    removed: tuple[CheckpointId, ...]
    lifted_locks: tuple[str, ...]


def rm(context: Context, refs: tuple[str, ...]) -> Removed:
    """Remove all of them or, if one does not exist, none. Raises NoSuchCheckpoint, StoreLocked."""
    repository = context.repository()
    with repository.exclusive():
        found = dict.fromkeys(repository.resolve(ref) for ref in refs)
        locks = [_lock_of(repository, identity) for identity in found]
        repository.remove(tuple(found))
    lifted = [network.lift_lock(lock) for lock in locks if lock]
    return Removed(tuple(found), tuple(table for table in lifted if table))


def _lock_of(repository: Repository, identity: CheckpointId) -> str | None:
    """The run of CRIU whose network lock may wait for a restore. A damaged manifest tells nothing, and can go too."""
    try:
        checkpoint = repository.get(identity)
    except IntegrityError:
        return None
    return checkpoint.run_id if checkpoint.stopped else None
