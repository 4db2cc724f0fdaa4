"""The processes that follow trees from one dump to the next: list them, end them."""

from __future__ import annotations

from msgspec import Struct

from crckpt.errors import UsageError
from crckpt.host import targets
from crckpt.ops.context import need_root
from crckpt.tracking.keeper import Keeper
from crckpt.tracking.kept import keepers


class Trackers(Struct, frozen=True):
    """Those that there are, or (`ended`) were."""

    keepers: tuple[Keeper, ...]
    ended: bool = False


def trackers(end: str | None = None) -> Trackers:
    """List them; or end that of the tree that `end` names, a target or `all`.

    Raises UsageError if that tree is not tracked, and what `targets.resolve` raises.
    """
    need_root("to see what is tracked")
    root = targets.resolve(end) if end not in (None, "all") else None
    found: list[Keeper] = []
    for keeper, session in keepers():
        if root in (None, keeper.root):
            found.append(keeper)
            if end is not None:
                session.end()
        session.close()
    if root is not None and not found:
        raise UsageError(f"nobody tracks the tree of PID {root}", hint="crckpt trackers lists those that are tracked")
    return Trackers(tuple(found), ended=end is not None)
