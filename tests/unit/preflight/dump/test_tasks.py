"""Processes and threads that cannot be dumped, or not as this user."""

from __future__ import annotations

import pytest
from dump_plans import (
    CHILD,
    TWO_PROCESSES,
    as_uid,
    keys,
    plan,
    with_tree,
    without_cap,
)
from msgspec.structs import replace
from observations import NAMESPACES, PLAIN, ROOT

from crckpt.causes import cause
from crckpt.host.observe.tasks import RESTARTED, WaitingThread
from crckpt.host.observe.tree import TracedThread
from crckpt.host.proc import Process
from crckpt.preflight.dump.checks import plan_dump
from crckpt.preflight.dump.tasks import root_refusal


@pytest.mark.parametrize(
    ("process", "pid", "key"),
    [
        (None, 100, "gone"),
        (replace(ROOT, pid=1), 1, "init"),
        (replace(ROOT, is_kernel_thread=True), 100, "kernel-thread"),
        (replace(ROOT, pid=50), 50, "ourselves"),
        (replace(ROOT, pid=40), 40, "ancestor"),
        (replace(ROOT, state="zombie", threads=(100,)), 100, "zombie"),
        (replace(ROOT, state="zombie", threads=(100, 105)), 100, "thread-leader-gone"),
    ],
)
def test_unsuitable_root_processes_are_refused(process: Process | None, pid: int, key: str) -> None:
    found = root_refusal(process, pid, 50, (40, 1))
    assert found is not None
    assert found.key == key
    assert str(pid) in found.what
    assert found.remedy
    assert "?" not in str(found)


@pytest.mark.parametrize("state", ["sleeping", "running", "stopped", "traced", "uninterruptible"])
def test_suitable_root_processes_are_accepted(state: str) -> None:
    assert root_refusal(replace(ROOT, state=state), 100, 50, (40, 1)) is None


def test_traced_processes_are_blockers() -> None:
    found = plan(with_tree(ROOT, replace(CHILD, tracer=900)))
    assert keys(found.blockers) == ["traced"]
    assert found.blockers[0].what.startswith("process 101 (worker) is traced by process 900 (gdb)")
    assert "(?)" in plan(with_tree(replace(ROOT, tracer=902))).blockers[0].what
    assert keys(plan(with_tree(replace(ROOT, tracer=901))).blockers) == ["being-dumped"]


@pytest.mark.parametrize(
    ("processes", "as_user", "blockers"),
    [
        ((ROOT, CHILD), None, []),
        ((as_uid(ROOT, 33), as_uid(CHILD, 33)), (33, 33), []),
        ((as_uid(ROOT, 33), as_uid(CHILD, 34)), None, ["foreign-limits"]),
        ((ROOT, as_uid(CHILD, 33)), None, ["foreign-limits"]),
        ((as_uid(ROOT, 33, 0, 0), CHILD), None, ["foreign-limits"]),
        ((as_uid(ROOT, 33, 0, 33), as_uid(CHILD, 33, 0, 33)), None, ["foreign-limits"]),
        ((ROOT, replace(as_uid(CHILD, 33), state="zombie")), None, []),
        ((as_uid(ROOT, 33), replace(CHILD, state="zombie")), (33, 33), []),
    ],
)
def test_limits_of_other_users_need_a_capability(
    processes: tuple[Process, Process], as_user: tuple[int, int] | None, blockers: list[str]
) -> None:
    observation = with_tree(*processes)
    limited = plan(without_cap(observation))
    assert (limited.as_user, keys(limited.blockers)) == (as_user, blockers)
    able = plan(observation)
    assert (able.as_user, able.blockers) == (None, ())


def test_user_with_unreadable_limits_is_reported() -> None:
    """Root is named for no process: also not for one whose effective user alone is another, as of atd."""
    for other, owner in (
        (as_uid(CHILD, 33), "user 33"),
        (as_uid(CHILD, 0, 33, 33), "user 33"),
        (replace(CHILD, gids=(0, 34, 0, 34)), "group 34"),
    ):
        (blocker,) = plan(without_cap(with_tree(ROOT, other))).blockers
        assert f"process 101 (worker) runs as {owner}, but" in blocker.what


def test_interrupted_calls_are_reported_by_thread() -> None:
    """All interrupted calls are reported without the preload library.

    With it, only those are that the kernel alone could restart.
    """
    waits = (WaitingThread(100, 105, "poll"), WaitingThread(101, 101, RESTARTED))
    observation = replace(TWO_PROCESSES, waits=waits)
    restarted_call = cause("call-interrupted-again").finding(pid=101, tid=101)
    assert plan(observation).warnings == (restarted_call,)
    without = plan_dump(observation, None, stop=False, locks_by_nftables=True, names={}, restarts_calls=False)
    assert without.warnings == (cause("call-interrupted").finding(pid=100, tid=105, call="poll"), restarted_call)


def test_preload_library_restarts_calls_in_the_trees_own_mounts() -> None:
    root_with_own_mounts = replace(ROOT, namespaces=(("pid", 1), ("mnt", 99), *NAMESPACES[2:]))
    observation = replace(with_tree(root_with_own_mounts), waits=(WaitingThread(100, 100, "epoll_wait"),))
    assert keys(plan(observation).warnings) == ["mount-namespace"]


def test_blocker_of_a_traced_thread_names_the_tracer() -> None:
    observation = replace(PLAIN, traced_threads=(TracedThread(100, 102, 900),))
    (blocker,) = plan(observation).blockers
    assert blocker.key == "traced"
    assert "traced by process 900 (gdb)" in blocker.what
    assert observation.tracers == {900}


def test_remedy_does_not_kill_a_tracing_root() -> None:
    (blocker,) = plan(replace(PLAIN, traced_threads=(TracedThread(100, 102, 100),))).blockers
    assert blocker.key == "traced-by-root"
    assert "kill" not in blocker.remedy
