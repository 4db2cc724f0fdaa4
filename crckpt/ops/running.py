"""Find the tree of a job that runs on this host: as its checkpoint was made of it, or as it was restored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from crckpt.host import proc
from crckpt.host.program.unit import find_unit
from crckpt.host.target.restored_trees import find_restored_trees
from crckpt.model import JobName
from crckpt.store import Repository


def find_running_root(repository: Repository, job: JobName, details: dict[str, Any] | None) -> proc.Process | None:
    """Find the root of the job's tree; None if it does not run here. `details` are those of a checkpoint of the job."""
    for identity in _read_identities(details or {}):
        if (process := identity.find()) is not None:
            return process
    # The last one, if a job has several.
    restored = [root for tree, root in find_restored_trees() if (tree.store, tree.job) == (repository.id, job)]
    return max(restored, key=lambda root: root.start, default=None)


def describe_place(root: proc.Process) -> str:
    """Say where a tree runs: its PID as the host sees it, and its service."""
    service = find_unit(root.pid).rpartition("/")[2]
    return f"as PID {root.pid}" + (f", in {service}" if service else "")


def _read_identities(details: dict[str, Any]) -> Iterator[proc.Identity]:
    for key in ("root", "tracked_root"):
        if details.get(key) is not None:
            yield msgspec.convert(details[key], proc.Identity)
