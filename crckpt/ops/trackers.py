"""The processes that follow trees from one dump to the next: list them, end them."""

from __future__ import annotations

from msgspec import Struct

from crckpt.errors import UsageError
from crckpt.host import targets
from crckpt.ops.context import need_root
from crckpt.tracking.keeper import Keeper
from crckpt.tracking.kept import forget, keepers


class Trackers(Struct, frozen=True):
    """Those that there are, or (`ended`) were."""

    keepers: tuple[Keeper, ...]
    ended: bool = False


def trackers(end: str | None = None) -> Trackers:
    """List them; or end that of the tree that `end` names, a target or `all`.

    Raises UsageError if that tree is not tracked, HostCannot if a keeper does not answer, and what `targets.resolve`
    raises.
    """
    need_root("to see what is tracked")
    root = targets.resolve(end) if end not in (None, "all") else None
    found: list[Keeper] = []
    for keeper, session in keepers(root):
        found.append(keeper)
        if end is not None:
            session.end()
        session.close()
    # One that was killed would be started again by the next dump.
    forgotten = end is not None and forget(root)
    if root is not None and not found and not forgotten:
        raise UsageError(f"nobody tracks the tree of PID {root}", hint="crckpt trackers lists those that are tracked")
    return Trackers(tuple(found), ended=end is not None)
