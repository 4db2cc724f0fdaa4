"""PIDs and other ids that a restore needs, and that others have."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from restore_plans import only_blocker

from crckpt.host.proc import IdUser
from crckpt.images.tree import ImageTree
from crckpt.preflight.restore.checks import judge_restore
from crckpt.preflight.restore.host import HostState, PlannedRestore
from crckpt.preflight.restore.tasks import find_needed_ids


def test_restore_needs_all_process_thread_group_and_session_ids_of_the_tree(tree: ImageTree) -> None:
    asked = find_needed_ids(tree)
    assert asked >= {process.pid for process in tree.processes}
    assert asked >= {thread.tid for process in tree.processes for thread in process.threads}
    group = replace(tree.processes[1], pgid=4000)
    outside = replace(tree, processes=(replace(tree.root, sid=0), group, *tree.processes[2:]))
    assert 4000 in find_needed_ids(outside), "the leader of this group has ended"
    assert 0 not in find_needed_ids(outside), "0 stands for a session outside the pid namespace"


def test_session_and_group_of_the_shell_may_be_in_use(tree: ImageTree) -> None:
    """The tree gets the session and group of crckpt instead."""
    asked = find_needed_ids(tree)
    others = (replace(process, sid=5000) for process in tree.processes[1:])
    outside = replace(tree, processes=(replace(tree.root, pgid=5001, sid=5000), *others))
    assert find_needed_ids(outside) == asked


@pytest.mark.parametrize("role", ["PID", "thread", "group", "session"])
def test_ids_of_the_tree_in_use_are_blockers(planned_restore: PlannedRestore, host: HostState, role: str) -> None:
    taken = replace(host, owners=(IdUser(7993, role, 41, 1, "nginx", "sleeping"),))
    assert judge_restore(planned_restore, taken).is_in_use
    blocker = only_blocker(judge_restore(planned_restore, taken))
    assert blocker.startswith(f"pid-taken: {role} 7993 is in use by nginx (PID 41)")
    assert judge_restore(replace(planned_restore, new_pid_namespace=True), taken).blockers == ()


def test_id_of_the_tree_that_crckpt_itself_uses_is_explained(planned_restore: PlannedRestore, host: HostState) -> None:
    """crckpt has ended by the time the user could look for it."""
    used_by_crckpt = replace(host, us=7993, owners=(IdUser(7993, "PID", 7993, 1, "crckpt", "running"),))
    assert "run it again" in only_blocker(judge_restore(planned_restore, used_by_crckpt))


def test_pid_in_use_covers_the_threads_of_the_process(planned_restore: PlannedRestore, host: HostState) -> None:
    threads = tuple(IdUser(number, "thread", 7993, 1, "x", "sleeping") for number in (7996, 7997))
    other = IdUser(7998, "group", 41, 1, "y", "sleeping")
    verdict = judge_restore(
        planned_restore, replace(host, owners=(IdUser(7993, "PID", 7993, 1, "x", "sleeping"), *threads, other))
    )
    assert [finding.what.split(" is ")[0] for finding in verdict.blockers] == ["PID 7993", "group 7998"]
    assert len(judge_restore(planned_restore, replace(host, owners=threads)).blockers) == 2


def test_id_of_a_zombie_is_a_blocker_with_its_own_remedy(planned_restore: PlannedRestore, host: HostState) -> None:
    blocker = only_blocker(
        judge_restore(planned_restore, replace(host, owners=(IdUser(7993, "PID", 7993, 40, "old", "zombie"),)))
    )
    assert blocker.startswith("pid-unreaped: PID 7993 is in use by old, a zombie of process 40: end that process")
    blocker = only_blocker(
        judge_restore(planned_restore, replace(host, owners=(IdUser(7993, "PID", 7993, 1, "old", "zombie"),)))
    )
    assert blocker.endswith(
        "start the container with an init that reaps (docker run --init), or use --new-pid-namespace"
    )
