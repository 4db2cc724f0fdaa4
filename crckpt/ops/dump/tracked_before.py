"""Say why a tree has no tracker now, although it or the last checkpoint of its job was tracked before."""

from __future__ import annotations

import msgspec

from crckpt.host import proc
from crckpt.ops.dump.last_checkpoint import LastCheckpoint
from crckpt.tracking.keeper.client import was_ended

ENDED_ON_REQUEST = "its tracker was ended (crckpt trackers --end)"
_UNKNOWN = proc.Identity("", 0, 0)


def find_tracked_root(last: LastCheckpoint | None) -> proc.Identity | None:
    """Find the root of the tree that was tracked last, in the last checkpoint of a job; None if it names none."""
    if last is None:
        return None
    recorded = (last.details or {}).get("tracked_root")
    if recorded is not None:
        return msgspec.convert(recorded, proc.Identity)
    # Older versions did not record it.
    return _UNKNOWN if last.checkpoint.statistics.inherited_pages else None


def why_no_tracker(root: proc.Process, before: proc.Identity | None) -> str:
    """Say why the tree below `root`, which no keeper tracks, has lost its tracker; empty if it never had one."""
    if was_ended(root):
        return ENDED_ON_REQUEST
    if before is None:
        return ""
    if before == _UNKNOWN:
        return "the last checkpoint of the job was incremental, but no tracker runs for this tree"
    now = root.identity
    if before.boot_id != now.boot_id:
        return "the host was rebooted, or is another one, since the program was tracked"
    if before == now:
        return "its tracker has ended"
    return "the tree was restored or started again since it was tracked"
