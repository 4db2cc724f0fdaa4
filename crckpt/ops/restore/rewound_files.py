"""Cut files back to their size at the checkpoint (--grown rewind)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from crckpt.causes import Finding
from crckpt.host.disk.files import name_with_ending
from crckpt.host.disk.rewind import restored_on_failure
from crckpt.preflight.restore.checks import RestoreVerdict
from crckpt.store import Checkpoint


@contextmanager
def files_rewound(checkpoint: Checkpoint, verdict: RestoreVerdict) -> Iterator[dict[str, Path]]:
    """Cut files back; give for each the path of the file with what was cut off."""
    kept_files: dict[str, Path] = {}
    with ExitStack() as stack:
        for rewind in verdict.rewinds:
            path = Path(rewind.path)
            kept = name_with_ending(path.name, f".after-{checkpoint.id[:12]}")
            # A restore that fails leaves the files as they were.
            kept_files[rewind.path] = stack.enter_context(restored_on_failure(path, rewind.size, kept))
        yield kept_files


def name_kept_files(warnings: tuple[Finding, ...], kept_files: dict[str, Path]) -> Iterator[Finding]:
    """Name in the warning of each file that was cut back the file with what was cut off."""
    for warning in warnings:
        kept = kept_files.get(warning.get("path")) if warning.key == "file-rewound" else None
        yield warning if kept is None else warning.fill(kept=kept)
