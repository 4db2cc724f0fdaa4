"""List the keepers, which track trees for incremental dumps, or end them."""

from __future__ import annotations

from msgspec import Struct

from crckpt.errors import UsageError
from crckpt.helper.channel import HelperSilent
from crckpt.host.target import resolve
from crckpt.host.usage import ProcessUsage, read_process_usage
from crckpt.tracking.keeper.client import forget_killed, keepers, mark_ended
from crckpt.tracking.keeper.protocol import Keeper


class KeeperUsage(Struct, frozen=True):
    """A keeper, and what it uses; None if it has just ended."""

    keeper: Keeper
    usage: ProcessUsage | None


class Trackers(Struct, frozen=True):
    """The keepers; with `ended`, those that were ended. `unanswered`: for each that does not answer, what to do."""

    trackers: tuple[KeeperUsage, ...]
    ended: bool = False
    unanswered: tuple[str, ...] = ()


def trackers(end: str | None = None) -> Trackers:
    """List the keepers; or end that of the tree that `end` names (a target), or all of them (`all`).

    Raises UsageError if that tree is not tracked, HostCannot if the keeper does not answer, and what `resolve` raises.
    """
    root = resolve.resolve(end) if end not in (None, "all") else None
    found: list[KeeperUsage] = []
    late: list[HelperSilent] = []
    for one in keepers(root):
        if isinstance(one, HelperSilent):
            late.append(one)
            continue
        keeper, session = one
        # Read the usage before the keeper is ended.
        found.append(KeeperUsage(keeper, read_process_usage(keeper.pid)))
        if end is not None:
            session.end()
            mark_ended(keeper.root)
        session.close()
    # Raise it only after the others were ended.
    if end is not None and late:
        raise late[0]
    # If a keeper was killed, the next dump would start it again.
    forgotten = end is not None and forget_killed(root)
    if root is not None and not found and not forgotten:
        raise UsageError(f"the tree of PID {root} is not tracked", hint="list the tracked trees: crckpt trackers")
    return Trackers(tuple(found), end is not None, tuple(f"{one.message}; {one.hint}" for one in late))
