"""Name the directory that became full during a dump, and what to do."""

from __future__ import annotations

from pathlib import Path

from crckpt.causes import Finding, cause
from crckpt.host.disk import space
from crckpt.ops.context import Context


def find_full_directory(context: Context, written: str | None = None) -> Finding:
    """Find which directory of a dump is full, after a write to the file or directory `written`, None if not known."""
    store, staging = space.nearest_existing(context.store), context.staging
    if staging is not None:
        path = Path(written or "")
        in_store, in_staging = path.is_relative_to(store), path.is_relative_to(staging)
        if in_store and in_staging:
            # One lies in the other.
            in_staging = not store.is_relative_to(staging)
        elif not (in_store or in_staging):
            in_staging = space.free_disk(staging) <= space.free_disk(store)
        if in_staging:
            return cause("staging-full").finding(directory=staging)
    return cause("store-full").finding(directory=store)
