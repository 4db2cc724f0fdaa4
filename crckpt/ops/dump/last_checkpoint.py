"""The last checkpoint of a job, with what a dump needs of it. Reading it is slow, so a dump reads it once."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from crckpt.errors import CrckptError
from crckpt.host import proc
from crckpt.model import JobName
from crckpt.store import Checkpoint, Repository
from crckpt.store.read.details import read_recent_details

UNKNOWN_ROOT: Final = proc.Identity("", 0, 0)
"""A root that was tracked, by an older version, which did not record it."""


class LastCheckpoint(Struct, frozen=True):
    """A checkpoint and its details; None if they cannot be read."""

    repository: Repository
    checkpoint: Checkpoint
    details: dict[str, Any] | None

    @property
    def tracked_root(self) -> proc.Identity | None:
        """The root of the tree of the job that was tracked last; None if the checkpoint names none."""
        recorded = (self.details or {}).get("tracked_root")
        if recorded is not None:
            return msgspec.convert(recorded, proc.Identity)
        return UNKNOWN_ROOT if self.checkpoint.statistics.inherited_pages else None


def read_last_checkpoint(repository: Repository, job: JobName) -> LastCheckpoint | None:
    """Read the last checkpoint of a job; None if it has none. Raises nothing for one that is damaged."""
    series = repository.checkpoints(job)
    return _read(repository, series[-1]) if series else None


def read_last_checkpoints(repository: Repository) -> tuple[LastCheckpoint, ...]:
    """Read the last checkpoint of each job, in the order of their commits. Raises nothing for one that is damaged."""
    newest = {checkpoint.job: checkpoint for checkpoint in repository.checkpoints()}
    return tuple(_read(repository, each) for each in sorted(newest.values(), key=lambda each: each.order))


def _read(repository: Repository, checkpoint: Checkpoint) -> LastCheckpoint:
    try:
        details = read_recent_details(repository, checkpoint)
    except (CrckptError, OSError):
        # A damaged checkpoint must not prevent the next one.
        return LastCheckpoint(repository, checkpoint, None)
    return LastCheckpoint(repository, checkpoint, details)
