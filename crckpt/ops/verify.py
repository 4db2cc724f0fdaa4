"""Check every digest of checkpoints, down to the last byte."""

from __future__ import annotations

from crckpt.ops.context import Context
from crckpt.store import Verified
from crckpt.store import verify as verify_store


def verify(context: Context, ref: str | None) -> Verified:
    """Verify one checkpoint, or all (None). Damage is in the result; raises NoSuchCheckpoint, StoreUnusable."""
    repository = context.repository()
    with repository.shared():
        wanted = None if ref is None else (repository.resolve(ref),)
        return verify_store(repository, wanted, progress=context.progress)
