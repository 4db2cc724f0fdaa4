"""Namespaces of a tree: those that crckpt enters, and those that CRIU does not save."""

from __future__ import annotations

import pytest
from dump_plans import (
    CHILD,
    TWO_PROCESSES,
    blocker_keys,
    in_namespaces,
    keys,
    plan,
    with_tree,
)
from msgspec.structs import replace
from observations import NAMESPACES, PLAIN, ROOT

from crckpt.host.observe.tasks import ForeignNamespace
from crckpt.host.proc import Tree
from crckpt.preflight.dump.checks import UNCONDITIONAL


def test_nested_pid_namespace_gives_one_blocker() -> None:
    """The remedy does not lead to another refusal."""
    nested = replace(in_namespaces(CHILD, pid=99), ns_pids=(101, 1), ns_sids=(100, 0))
    (around,) = plan(with_tree(ROOT, nested)).blockers
    assert around.key == "nested-pid-namespace"
    (inside,) = (found for found in plan(with_tree(replace(nested, ppid=1))).blockers if found.key == "container")
    for remedy in (around.remedy, inside.remedy):
        assert "container engine" in remedy
        assert "unshare --pid" in remedy


@pytest.mark.parametrize("kind", ["ipc", "uts", "time", "cgroup"])
def test_nested_namespaces_are_blockers(kind: str) -> None:
    nested = in_namespaces(CHILD, **{kind: 99})
    found = plan(with_tree(ROOT, nested))
    assert keys(found.blockers) == ["nested-namespace"]
    assert f"process 101 has its own {kind} namespace" in found.blockers[0].what
    assert plan(with_tree(ROOT, replace(nested, state="zombie"))).blockers == ()
    assert plan(with_tree(in_namespaces(ROOT, **{kind: 99}), nested)).blockers == ()


@pytest.mark.parametrize(("kind", "key"), [("user", "other-user-namespace"), ("net", "namespace-owner")])
def test_namespaces_of_another_user_namespace_are_blockers(kind: str, key: str) -> None:
    (found,) = plan(replace(TWO_PROCESSES, foreign_namespaces=(ForeignNamespace(101, "worker", kind),))).blockers
    assert (found.key, found.key in UNCONDITIONAL) == (key, True)
    assert "process 101 (worker)" in found.what


@pytest.mark.parametrize("kind", ["mnt", "net"])
def test_nested_namespaces_that_cannot_be_restored_are_blockers(kind: str) -> None:
    found = plan(with_tree(ROOT, in_namespaces(CHILD, **{kind: 99})))
    assert keys(found.blockers) == ["nested-unmade"]
    assert found.blockers[0].what.startswith("process 101 (worker) has its own mount or network namespace")


@pytest.mark.parametrize("sids", [(0,), (500, 0)], ids=["our namespace", "its own namespace"])
@pytest.mark.parametrize("state", ["sleeping", "zombie"])
def test_sessions_from_outside_the_pid_namespace_are_blockers(sids: tuple[int, ...], state: str) -> None:
    (found,) = plan(with_tree(replace(ROOT, ns_sids=(ROOT.sid,)), replace(CHILD, ns_sids=sids, state=state))).blockers
    assert found.key == "session-outside"
    assert found.what == "the session leader of process 101 is outside its PID namespace"


def test_outside_session_of_the_root_is_accepted_if_crckpt_enters_mounts() -> None:
    """crckpt's library names such a session to CRIU, but not that of a zombie."""
    inside = {"ns_pids": (100, 5), "ns_sids": (500, 0)}
    root = replace(in_namespaces(ROOT, pid=99, mnt=98), **inside)
    child = replace(in_namespaces(CHILD, pid=99, mnt=98), ns_pids=(101, 6), ns_sids=(500, 0))
    assert plan(with_tree(root, child)).blockers == ()
    assert keys(plan(with_tree(root, replace(child, state="zombie"))).blockers) == ["session-outside"]
    assert keys(plan(with_tree(replace(root, ns_sids=(100, 5)), child)).blockers) == ["session-outside"]


def test_init_of_a_container_is_a_blocker() -> None:
    found = plan(with_tree(replace(in_namespaces(ROOT, pid=99, mnt=98), ns_pids=(100, 1))))
    assert keys(found.blockers) == ["container"]


def test_mount_namespace_of_a_tree_is_entered() -> None:
    found = plan(with_tree(in_namespaces(ROOT, mnt=98)))
    assert (found.enter, keys(found.warnings), found.blockers) == (("mnt",), ["mount-namespace"], ())


def test_restored_pid_namespace_is_entered() -> None:
    found = plan(with_tree(replace(in_namespaces(ROOT, pid=99, mnt=98, net=97), ns_pids=(100, 7))))
    assert (found.enter, found.warnings, found.blockers) == (("pid", "mnt"), (), ())


def test_nested_network_namespace_is_accepted_in_a_private_network() -> None:
    """The root's network namespace must not be ours, which CRIU does not save."""
    child = replace(ROOT, pid=101, namespaces=(("net", 33),))
    observation = replace(PLAIN, tree=Tree(ROOT, (ROOT, child)))
    assert blocker_keys(observation) == ["nested-unmade"]
    assert blocker_keys(replace(observation, own_namespaces=(("pid", 1), ("mnt", 2), ("net", 34)))) == []


def test_time_namespace_for_children_counts_as_nested_if_it_differs() -> None:
    other = replace(ROOT, namespaces=(*NAMESPACES, ("time_for_children", 9)))
    assert blocker_keys(replace(PLAIN, tree=Tree(other, (other,)))) == ["nested-namespace"]
