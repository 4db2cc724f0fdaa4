"""Namespaces of the tree that CRIU cannot make again."""

from __future__ import annotations

from msgspec.structs import replace

from crckpt.preflight.restore.checks import UNCONDITIONAL, judge_restore
from crckpt.preflight.restore.host import HostState, PlannedRestore


def test_recorded_user_namespace_is_an_unconditional_blocker(planned: PlannedRestore, host: HostState) -> None:
    ids = planned.tree.root.ids
    assert ids is not None
    other = replace(ids, namespaces=replace(ids.namespaces, user=ids.namespaces.user + 1))
    apart = replace(planned.tree, processes=(replace(planned.tree.root, ids=other), *planned.tree.processes[1:]))
    (blocker,) = judge_restore(replace(planned, tree=apart), host).blockers
    assert blocker.key in UNCONDITIONAL
    assert "had its own user namespace at the dump" in blocker.what
