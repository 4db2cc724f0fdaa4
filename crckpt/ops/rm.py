"""Remove checkpoints, and the network locks of stopped trees that can no longer be restored."""

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


class RemovalResult(Struct, frozen=True):
    """The ids that were removed, and the nftables tables of the network locks that were lifted."""

    removed: tuple[CheckpointId, ...]
    lifted_locks: tuple[str, ...]


def rm(context: Context, refs: tuple[str, ...]) -> RemovalResult:
    """Remove all of these checkpoints; if one does not exist, none of them. Raises NoSuchCheckpoint, StoreLocked."""
    repository = context.repository()
    with repository.exclusive():
        # Resolve all refs first: JOB~1 means another checkpoint once JOB is gone.
        found = dict.fromkeys(repository.resolve(ref) for ref in refs)
        locks = [lock for identity in found for lock in _find_locks(repository, identity)]
        repository.remove(tuple(found))
    # Lift the locks only now: as long as the checkpoint could be restored, its connections needed them.
    lifted = [network_locks.lift_lock(lock, place) for lock, places in locks for place in places]
    return RemovalResult(tuple(found), tuple(table for table in lifted if table))


def _find_locks(repository: Repository, identity: CheckpointId) -> Iterator[tuple[str, tuple[Path | None, ...]]]:
    """Yield the id of the CRIU run whose network lock may still exist, and the network namespaces that may have it."""
    # A damaged checkpoint can be removed too; its locks are not known.
    with suppress(CrckptError, OSError):
        checkpoint = repository.get(identity)
        if checkpoint.stopped and checkpoint.run_id:
            # A network namespace of the tree ends with the tree, unless it has a name.
            named = network_locks.find_named_networks() if checkpoint.options.network_lock == "nftables" else ()
            yield checkpoint.run_id, (None, *named)
