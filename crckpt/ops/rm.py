"""Remove checkpoints, and lift the network lock of a stopped tree that is thereby given up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from crckpt.errors import CrckptError
from crckpt.host.namespaces import network_locks
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
        locks = [lock for identity in found for lock in _locks_of(repository, identity)]
        repository.remove(tuple(found))
    lifted = [network_locks.lift_lock(lock, place) for lock, places in locks for place in places]
    return Removed(tuple(found), tuple(table for table in lifted if table))


def _locks_of(repository: Repository, identity: CheckpointId) -> Iterator[tuple[str, tuple[Path | None, ...]]]:
    """The run of CRIU whose network lock may wait for a restore, and the network namespaces that may have it.

    A damaged manifest tells nothing, and can go too.
    """
    with suppress(CrckptError, OSError):
        checkpoint = repository.get(identity)
        if checkpoint.stopped and checkpoint.run_id:
            # A tree with a network of its own: that goes with it, unless it has a name.
            named = network_locks.named_networks() if checkpoint.options.network_lock == "nftables" else ()
            yield checkpoint.run_id, (None, *named)
