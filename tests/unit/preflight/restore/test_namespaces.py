"""Namespaces of the tree that CRIU cannot make again."""

from __future__ import annotations

from msgspec.structs import replace

from crckpt.preflight.restore.checks import UNCONDITIONAL, judge_restore
from crckpt.preflight.restore.host import HostState, PlannedRestore


def test_recorded_user_namespace_is_an_unconditional_blocker(planned_restore: PlannedRestore, host: HostState) -> None:
    ids = planned_restore.tree.root.ids
    assert ids is not None
    other = replace(ids, namespaces=replace(ids.namespaces, user=ids.namespaces.user + 1))
    in_user_namespace = replace(
        planned_restore.tree,
        processes=(replace(planned_restore.tree.root, ids=other), *planned_restore.tree.processes[1:]),
    )
    (blocker,) = judge_restore(replace(planned_restore, tree=in_user_namespace), host).blockers
    assert blocker.key in UNCONDITIONAL
    assert "had its own user namespace at the dump" in blocker.what
