"""The processes that follow trees from one dump to the next: list them, end them."""

from __future__ import annotations

from msgspec import Struct

from crckpt.errors import UsageError
from crckpt.host.target import resolve
from crckpt.ops.context import need_root
from crckpt.tracking.keeper.client import Unanswered, forget, keepers
from crckpt.tracking.keeper.server import Keeper


class Trackers(Struct, frozen=True):
    """Those that there are, or (`ended`) were; of those that do not answer what can be done about each."""

    keepers: tuple[Keeper, ...]
    ended: bool = False
    unanswered: tuple[str, ...] = ()


def trackers(end: str | None = None) -> Trackers:
    """List them; or end that of the tree that `end` names, a target or `all`.

    Raises UsageError if that tree is not tracked, HostCannot if one to be ended does not answer, and what
    `targets.resolve` raises.
    """
    need_root("to see what is tracked")
    root = resolve.resolve(end) if end not in (None, "all") else None
    found: list[Keeper] = []
    late: list[Unanswered] = []
    for one in keepers(root):
        if isinstance(one, Unanswered):
            late.append(one)
            continue
        keeper, session = one
        found.append(keeper)
        if end is not None:
            session.end()
        session.close()
    if end is not None and late:
        raise late[0]
    # One that was killed would be started again by the next dump.
    forgotten = end is not None and forget(root)
    if root is not None and not found and not forgotten:
        raise UsageError(f"nobody tracks the tree of PID {root}", hint="crckpt trackers lists those that are tracked")
    return Trackers(tuple(found), end is not None, tuple(f"{one.message}; {one.hint}" for one in late))
