"""Check the control groups of a checkpoint's processes before a restore.

A restored tree is in crckpt's group: under systemd the unit's own, in a shell the user's session.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.preflight.attribute_record import AttributeRecord, ControlGroup, GroupId, ProcessRecord

LIMITS: Final = ("memory", "swap", "pids", "cpu")
RULES: Final = ("devices", "network")
PACKETS: Final = "packets of "


class CheckedGroups(Struct, frozen=True):
    """The fate of the control groups that a process had: crckpt moves it back to those of `moves`.

    `weaker` findings refuse the restore, unless the user allows it; `lost` ones are warnings.
    """

    moves: tuple[ControlGroup, ...] = ()
    weaker: tuple[Finding, ...] = ()
    lost: tuple[Finding, ...] = ()


def groups_of(record: AttributeRecord, process: ProcessRecord) -> tuple[ControlGroup, ...]:
    """Return the groups that the process was in."""
    # A record from elsewhere may have any index.
    index = process.groups
    return () if index is None or not 0 <= index < len(record.groups) else record.groups[index]


def check_groups(
    groups: tuple[ControlGroup, ...],
    ours: dict[str, int],
    old: dict[GroupId, dict[str, int]],
    values: dict[str, object],
) -> CheckedGroups:
    """Compare what the old groups restricted with what crckpt's own groups do (`ours`).

    `old`: what those old groups restrict that still exist. `values`: how findings name the process.
    """
    moves: list[ControlGroup] = []
    weaker: list[Finding] = []
    lost: list[Finding] = []
    for group in groups:
        missing = _missing_restrictions(group, ours)
        # The path may belong to another group by now: use it only if it still has all of the old limits.
        if missing and _still_restricts(group, old):
            moves.append(group)
        elif rules := [name for name in missing if _is_rule(name)]:
            # Rules on devices, the network and packets are for security.
            weaker.append(cause("group-rules-lost").finding(what=" and ".join(rules), path=group.path, **values))
        elif missing:
            # A service must stay restorable from a shell, in spite of its default limit of tasks.
            lost.append(cause("group-limits-lost").finding(what=" and ".join(missing), path=group.path, **values))
    return CheckedGroups(tuple(moves), tuple(weaker), tuple(lost))


def _missing_restrictions(group: ControlGroup, ours: dict[str, int]) -> list[str]:
    """Return what the old group restricted and ours do not, or less."""
    return [
        name
        for name, limit in group.restricts.items()
        if (name in LIMITS or _is_rule(name)) and ours.get(name, limit + 1) > limit
    ]


def _is_rule(name: str) -> bool:
    return name in RULES or name.startswith(PACKETS)


def _still_restricts(group: ControlGroup, old: dict[GroupId, dict[str, int]]) -> bool:
    now = old.get(group.id)
    return now is not None and all(now.get(name, limit + 1) <= limit for name, limit in group.restricts.items())
