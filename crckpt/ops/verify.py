"""Verify checkpoints: check every byte against its digest."""

from __future__ import annotations

from crckpt.ops.context import Context
from crckpt.store import VerifyResult
from crckpt.store import verify as verify_store


def verify(context: Context, ref: str | None) -> VerifyResult:
    """Verify one checkpoint, or all (None). The result has the damage. Raises NoSuchCheckpoint, StoreUnusable."""
    repository = context.repository()
    with repository.shared():
        wanted = None if ref is None else (repository.resolve(ref),)
        return verify_store(repository, wanted, progress=context.progress)
