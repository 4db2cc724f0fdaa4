"""A checkpoint's images as CRIU is to read them."""

from __future__ import annotations

from pathlib import Path

from crckpt.images.timers import rearm_timers
from crckpt.ops.context import Progress
from crckpt.store import Checkpoint, Repository, materialise


def unpack(repository: Repository, checkpoint: Checkpoint, directory: Path, progress: Progress) -> None:
    """Write the images into `directory`, which must be empty. Raises IntegrityError, OSError.

    They are what CRIU wrote, but for periodic timers, which it would bring back dead.
    """
    materialise(repository, checkpoint, directory, progress=progress)
    files = directory / "files.img"
    if files.exists():
        before = files.read_bytes()
        after = rearm_timers(before)
        if after != before:
            files.write_bytes(after)
