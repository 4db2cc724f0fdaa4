"""The last checkpoint of a job, with what a dump needs of it. Reading it is slow, so a dump reads it once."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from crckpt.errors import CrckptError
from crckpt.model import JobName
from crckpt.store import Checkpoint, Repository
from crckpt.store.read.details import read_recent_details


class LastCheckpoint(Struct, frozen=True):
    """A checkpoint and its details; None if they cannot be read."""

    repository: Repository
    checkpoint: Checkpoint
    details: dict[str, Any] | None


def read_last_checkpoint(repository: Repository, job: JobName) -> LastCheckpoint | None:
    """Read the last checkpoint of a job; None if it has none. Raises nothing for one that is damaged."""
    series = repository.checkpoints(job)
    if not series:
        return None
    try:
        details = read_recent_details(repository, series[-1])
    except (CrckptError, OSError):
        # A damaged checkpoint must not prevent the next one.
        return LastCheckpoint(repository, series[-1], None)
    return LastCheckpoint(repository, series[-1], details)
