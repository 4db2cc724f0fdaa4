"""Name the directory that became full during a dump, and what to do."""

from __future__ import annotations

from pathlib import Path

from crckpt.causes import Finding, cause
from crckpt.host.disk import space
from crckpt.ops.context import Context


def find_full_directory(context: Context, written: str | None = None) -> Finding:
    """Find which directory of a dump is full, after a write to the file or directory `written`, None if not known."""
    store, staging = space.nearest_existing(context.store), context.staging
    if staging is not None and _is_in_staging(staging, store, written):
        return cause("staging-full").finding(directory=staging)
    return cause("store-full").finding(directory=store)


def _is_in_staging(staging: Path, store: Path, written: str | None) -> bool:
    path = Path(written or "")
    if path.is_relative_to(store) or path.is_relative_to(staging):
        # One may lie in the other.
        return path.is_relative_to(staging) and not (path.is_relative_to(store) and store.is_relative_to(staging))
    return space.free_disk(staging) <= space.free_disk(store)
