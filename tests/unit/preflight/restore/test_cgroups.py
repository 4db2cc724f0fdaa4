"""Control groups that a tree had, and what they restricted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from attribute_records import of_root
from growth import grows_linearly

from crckpt.images.tree import ImageTree
from crckpt.preflight.attribute_record import (
    AttributeRecord,
    ControlGroup,
    ProcessRecord,
)
from crckpt.preflight.restore.attributes import AttributeVerdict, HostAttributes, judge_attributes

RULES = ControlGroup("devices", "/a", {"devices": 1})
LIMITS = ControlGroup("pids", "/b", {"pids": 50})


@pytest.mark.parametrize(
    ("here", "now", "weaker", "lost", "moves"),
    [
        ({"devices": 1, "pids": 50}, {}, [], [], 0),
        ({"devices": 1, "pids": 60}, {}, [], ["group-limits-lost"], 0),
        ({"pids": 40}, {}, ["group-rules-lost"], [], 0),
        ({}, {("devices", "/a"): {"devices": 1}, ("pids", "/b"): {"pids": 50}}, [], [], 2),
        ({}, {("devices", "/a"): {}, ("pids", "/b"): {"pids": 70}}, ["group-rules-lost"], ["group-limits-lost"], 0),
    ],
    ids=["as strict", "a looser limit", "no rules", "still there", "still there, and looser"],
)
def test_cgroups_that_do_not_exist_any_more_are_reported(
    tree: ImageTree,
    here: dict[str, int],
    now: dict[tuple[str, str], dict[str, int]],
    weaker: list[str],
    lost: list[str],
    moves: int,
) -> None:
    record = of_root(tree, groups=0, record_groups=((RULES, LIMITS),))
    found = judge_attributes(record, tree, HostAttributes(frozenset({0, 1}), here, old_groups=now))
    assert [finding.key for finding in found.weaker] == weaker
    assert [finding.key for finding in found.lost] == lost
    assert len(found.moves) == moves


def test_time_is_linear_in_processes_and_cgroups(tree: ImageTree) -> None:
    """The groups are checked once, however often the record names the processes."""

    def prepare(count: int) -> Callable[[], AttributeVerdict]:
        groups = tuple(ControlGroup(f"c{number}", "/a", {"devices": 1, "memory": 5}) for number in range(count))
        processes = (ProcessRecord(tree.root.pid, {}, groups=0),) * count
        record = AttributeRecord((0,), processes, (groups,))
        return partial(judge_attributes, record, tree, HostAttributes(frozenset({0, 1})))

    assert [finding.key for finding in prepare(64)().weaker] == ["group-rules-lost"]
    assert grows_linearly(prepare, 800)
