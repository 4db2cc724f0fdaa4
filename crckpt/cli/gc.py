"""`crckpt gc`."""

from __future__ import annotations

from typing import Final

from msgspec.structs import asdict

from crckpt.cli import options
from crckpt.cli.format import count, size
from crckpt.cli.output import emit
from crckpt.ops.gc import gc as perform

_CACHE: Final = "cache/"


def gc(
    dry_run: bool = options.flag("--dry-run", "Show how much would be removed; remove nothing."),
) -> None:
    """Free space: remove data that no checkpoint uses, and leftovers of interrupted dumps."""
    context = options.make_context()
    result = perform(context, dry_run=dry_run)
    verb = "would free" if dry_run else "freed"
    # What is cached of a pack goes with it.
    left = sum(not name.startswith(_CACHE) for name in result.leftovers)
    of_others = f", {count(left, 'leftover')} of interrupted commands" if left else ""
    line = f"{verb} {size(result.bytes)}: {count(len(result.packs), 'pack')}{of_others}"
    if not (result.packs or result.leftovers):
        # Checkpoints share data: after `rm` this is not obvious.
        line = "checkpoints use all data" if context.repository().ids() else "the store has no checkpoints"
        line = f"nothing to free: {line}"
    emit({**asdict(result), "dry_run": dry_run}, f"{line}\n", is_answer=dry_run)
