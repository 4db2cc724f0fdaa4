"""Remove what no checkpoint uses."""

from __future__ import annotations

from crckpt.ops.context import Context
from crckpt.store import GarbageResult, collect_garbage


def gc(context: Context, *, dry_run: bool = False) -> GarbageResult:
    """Collect garbage. Raises StoreLocked; IntegrityError if a manifest cannot be read, and then removes nothing."""
    repository = context.repository()
    # Exclusive, because a dump in progress has written packs that no manifest names yet.
    with repository.exclusive():
        return collect_garbage(repository, dry_run=dry_run)
