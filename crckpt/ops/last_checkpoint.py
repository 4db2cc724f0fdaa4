"""The last checkpoint of a job, and where its tree runs on this host. Reading it is slow, so a dump reads it once."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from crckpt.errors import CrckptError
from crckpt.host import proc
from crckpt.host.process.cgroups import find_unit
from crckpt.host.target import find_restored_trees
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
        return self._read_root("tracked_root") or (UNKNOWN_ROOT if self.checkpoint.statistics.inherited_pages else None)

    def find_running_root(self) -> proc.Process | None:
        """Find the root of the job's tree, as it was dumped or as it was restored; None if it does not run here."""
        for identity in filter(None, (self._read_root("root"), self._read_root("tracked_root"))):
            if (process := identity.find()) is not None:
                return process
        # The last one, if a job has several.
        job = (self.repository.id, self.checkpoint.job)
        restored = [root for tree, root in find_restored_trees() if (tree.store, tree.job) == job]
        return max(restored, key=lambda root: root.start, default=None)

    def _read_root(self, name: str) -> proc.Identity | None:
        recorded = (self.details or {}).get(name)
        return None if recorded is None else msgspec.convert(recorded, proc.Identity)


def read_last_checkpoint(repository: Repository, job: JobName) -> LastCheckpoint | None:
    """Read the last checkpoint of a job; None if it has none. Raises nothing for one that is damaged."""
    series = repository.checkpoints(job)
    return read_with_details(repository, series[-1]) if series else None


def read_last_checkpoints(repository: Repository) -> tuple[LastCheckpoint, ...]:
    """Read the last checkpoint of each job, in the order of their commits. Raises nothing for one that is damaged."""
    newest = {checkpoint.job: checkpoint for checkpoint in repository.checkpoints()}
    return tuple(read_with_details(repository, each) for each in sorted(newest.values(), key=lambda each: each.order))


def read_with_details(repository: Repository, checkpoint: Checkpoint) -> LastCheckpoint:
    """Read the details of a checkpoint. A damaged one must not prevent the next one: then they are None."""
    try:
        return LastCheckpoint(repository, checkpoint, read_recent_details(repository, checkpoint))
    except (CrckptError, OSError):
        return LastCheckpoint(repository, checkpoint, None)


def describe_place(root: proc.Process) -> str:
    """Say where a tree runs: its PID as the host sees it, and its service."""
    service = find_unit(root.pid).rpartition("/")[2]
    return f"as PID {root.pid}" + (f", in {service}" if service else "")
