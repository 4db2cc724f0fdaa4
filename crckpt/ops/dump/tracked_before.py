"""Say why a tree has no tracker now, although it or the last checkpoint of its job was tracked before."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from crckpt.errors import CrckptError
from crckpt.host import proc
from crckpt.model import JobName
from crckpt.store import Repository
from crckpt.store.read.details import TrackedRoot, read_recent_details
from crckpt.tracking.keeper.client import was_ended

ENDED_ON_REQUEST = "its tracker was ended (crckpt trackers --end)"
_UNKNOWN = TrackedRoot("", 0, 0)


def find_tracked_root(repository: Repository, job: JobName) -> TrackedRoot | None:
    """Find the root of the tree of this job that was tracked last; None if none was, as far as the store knows."""
    series = repository.checkpoints(job)
    if not series:
        return None
    details: dict[str, Any] = {}
    # A damaged checkpoint must not prevent the next one.
    with suppress(CrckptError, OSError):
        details = read_recent_details(repository, series[-1])
    if details.get("tracked_root") is not None:
        return msgspec.convert(details["tracked_root"], TrackedRoot)
    # Older versions did not record it.
    return _UNKNOWN if series[-1].statistics.inherited_pages else None


def identify_root(root: proc.Process) -> TrackedRoot:
    """The root of a tree that is tracked now, as a checkpoint records it."""
    return TrackedRoot(proc.boot_id(), root.pid, root.start)


def why_no_tracker(root: proc.Process, before: TrackedRoot | None) -> str:
    """Say why the tree below `root`, which no keeper tracks, has lost its tracker; empty if it never had one."""
    if was_ended(root):
        return ENDED_ON_REQUEST
    if before is None:
        return ""
    if before == _UNKNOWN:
        return "the last checkpoint of the job was incremental, but no tracker runs for this tree"
    now = identify_root(root)
    if before.boot_id != now.boot_id:
        return "the host was rebooted, or is another one, since the program was tracked"
    if before == now:
        return "its tracker has ended"
    return "the tree was restored, or the program started again, since it was tracked: a tracker ends with its tree"
