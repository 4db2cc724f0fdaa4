"""Verify checkpoints: check every byte against its digest; repair what is damaged from another store."""

from __future__ import annotations

from pathlib import Path

from crckpt.errors import StoreUnusable
from crckpt.ops.context import Context
from crckpt.store import RepairResult, Repository, VerifyResult
from crckpt.store import repair as repair_store
from crckpt.store import verify as verify_store


def verify(context: Context, ref: str | None) -> VerifyResult:
    """Verify one checkpoint, or all (None). The result has the damage. Raises NoSuchCheckpoint, StoreUnusable."""
    repository = context.repository()
    with repository.shared():
        wanted = None if ref is None else (repository.resolve(ref),)
        return verify_store(repository, wanted, progress=context.progress)


def repair(context: Context, ref: str | None, source: Path | None) -> RepairResult:
    """Verify and repair one checkpoint, or all (None), from the store at `source`; without it, only verify.

    Raises NoSuchCheckpoint, StoreUnusable, UsageError if both are the same store.
    """
    repository = context.repository()
    try:
        other = Repository.open(source) if source is not None else None
    except StoreUnusable as error:
        # Its own hint is about --store.
        raise StoreUnusable(error.message, hint="name another store: --from STORE") from error
    # Shared, so that dumps and restores can continue: a repair only puts back what belongs there.
    with repository.shared():
        wanted = None if ref is None else (repository.resolve(ref),)
        return repair_store(repository, wanted, source=other, progress=context.progress)
