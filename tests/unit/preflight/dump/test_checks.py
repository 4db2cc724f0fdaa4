"""Blockers, warnings and CRIU options of dumps, for trees written by hand."""

from __future__ import annotations

from dump_plans import (
    CHILD,
    CONNECTION,
    DELETED_FILE,
    FILE,
    READS,
    as_uid,
    blocker_keys,
    in_namespaces,
    keys,
    plan,
    with_tree,
    without_cap,
)
from msgspec.structs import replace
from observations import PLAIN, ROOT

from crckpt.host.observe.tree import Transient


def test_every_finding_of_the_preflight_is_complete() -> None:
    observation = replace(
        with_tree(replace(in_namespaces(ROOT, mnt=98), tracer=900), in_namespaces(as_uid(CHILD, 33), mnt=98, uts=6)),
        descriptors=(READS, replace(DELETED_FILE, links=1), replace(FILE, info="eventfd-semaphore: 1")),
        connections=(CONNECTION,),
        unlinked=("/srv/gone",),
    )
    found = plan(without_cap(observation))
    assert keys(found.blockers) == ["nested-namespace", "traced", "foreign-limits", "tcp"]
    warnings = ["outside-pipe-read", "eventfd-semaphore", "link-remap", "mount-namespace", "untested-kind"]
    assert keys(found.warnings) == warnings
    assert not any("?" in str(finding) or "{" in str(finding) for finding in (*found.blockers, *found.warnings))


def test_state_seen_only_at_the_first_of_two_looks_is_not_a_blocker() -> None:
    """A connection may be pending at the first look and accepted before the second."""
    queue, message, pair = frozenset({(100, 3)}), frozenset({(100, 4)}), frozenset({(101, 100)})
    first = Transient(queue, message, pair, frozenset({100}))
    assert first.intersect(Transient()) == Transient()
    assert blocker_keys(replace(PLAIN, transient=first.intersect(first))) == [
        "freeze-timeout",
        "netlink-data",
        "tcp-in-flight",
    ]
    assert blocker_keys(replace(PLAIN, transient=first.intersect(Transient(shared=pair)))) == ["memory-in-common"]
