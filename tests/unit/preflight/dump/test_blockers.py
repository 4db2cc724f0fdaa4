"""States that look like blockers and are none, and blockers that depend on namespaces."""

from __future__ import annotations

import os
import stat

import pytest
from msgspec.structs import replace
from observed import NAMESPACES, PLAIN, ROOT

from crckpt.host.observe.tree import Observed, TracedThread, Transient
from crckpt.host.proc import Descriptor, Tree
from crckpt.host.proc.smaps import UnsavableMap
from crckpt.preflight.dump.checks import find_blockers


def device(target: str, major: int, minor: int, kind: int = stat.S_IFCHR) -> Descriptor:
    return Descriptor(100, 7, target, kind, 0, 1, os.O_RDWR, 0, "pos:\t0\n", os.makedev(major, minor))


def found(observation: Observed) -> list[str]:
    return [finding.key for finding in find_blockers(observation, None, {900: "gdb"}, locks_by_nftables=True)]


@pytest.mark.parametrize(
    "held",
    [
        device("/dev/null", 1, 3),
        device("/dev/kmsg", 1, 11),
        device("/dev/tty", 5, 0),
        device("/dev/console", 5, 1),
        device("/dev/ptmx", 5, 2),
        device("/dev/tty1", 4, 1),
        device("/dev/pts/3", 136, 3),
        device("/dev/ttyUSB0", 188, 0),
        device("/dev/autofs", 10, 235),
        device("/dev/nvidia0", 195, 0),
        device("/dev/dri/renderD128", 226, 128),
    ],
    ids=lambda held: held.target,
)
def test_devices_that_criu_knows(held: Descriptor) -> None:
    assert found(replace(PLAIN, descriptors=(held,))) == []


@pytest.mark.parametrize(
    "held",
    [
        device("/dev/kvm", 10, 232),
        device("/dev/ttyS0", 4, 64),
        device("/dev/tty0", 4, 0),
        device("/dev/sda", 8, 0, stat.S_IFBLK),
    ],
    ids=lambda held: held.target,
)
def test_devices_that_criu_does_not_know(held: Descriptor) -> None:
    assert found(replace(PLAIN, descriptors=(held,))) == ["device"]


def test_resources_in_the_trees_own_namespaces_are_saved() -> None:
    """CRIU saves network devices and System V memory only in another namespace than its own."""
    held = replace(
        PLAIN,
        descriptors=(device("/dev/net/tun", 10, 200),),
        unsavable_maps=(UnsavableMap(100, 0x1000, "/SYSV00000000 (deleted)", "sysv"),),
    )
    assert found(held) == ["tun", "sysv-shm"]
    elsewhere = (("pid", 1), ("mnt", 2), ("net", 33), ("ipc", 44), ("time", 8))
    assert found(replace(held, own_namespaces=elsewhere)) == []


def test_a_namespace_of_the_tree_or_of_crckpt_is_known() -> None:
    known, strange = (replace(device(f"net:[{inode}]", 0, 0, stat.S_IFREG), fd=inode) for inode in (3, 77))
    assert found(replace(PLAIN, descriptors=(known,))) == []
    assert found(replace(PLAIN, descriptors=(strange,))) == ["namespace-outside"]


def test_a_nested_network_namespace_is_restored() -> None:
    """Only if the root's network namespace is not ours, which CRIU does not save."""
    child = replace(ROOT, pid=101, namespaces=(("net", 33),))
    observation = replace(PLAIN, tree=Tree(ROOT, (ROOT, child)))
    assert found(observation) == ["nested-unmade"]
    assert found(replace(observation, own_namespaces=(("pid", 1), ("mnt", 2), ("net", 34)))) == []


def test_sealed_memory_is_no_blocker() -> None:
    assert found(replace(PLAIN, unsavable_maps=(UnsavableMap(100, 0x1000, "", "sealed"),))) == []


def test_the_tracer_of_a_thread_is_named() -> None:
    observation = replace(PLAIN, traced_threads=(TracedThread(100, 102, 900),))
    (told,) = find_blockers(observation, None, {900: "gdb"}, locks_by_nftables=True)
    assert told.key == "traced"
    assert "traced by process 900 (gdb)" in told.what
    assert observation.tracers == {900}


def test_the_remedy_for_a_tracing_root_is_not_to_kill_it() -> None:
    (told,) = find_blockers(
        replace(PLAIN, traced_threads=(TracedThread(100, 102, 100),)), None, {}, locks_by_nftables=True
    )
    assert told.key == "traced-by-root"
    assert "kill" not in told.remedy


def test_a_passing_state_is_no_blocker() -> None:
    """For example a connection that waits at the first look and is accepted before the second."""
    queue, message, pair = frozenset({(100, 3)}), frozenset({(100, 4)}), frozenset({(101, 100)})
    first = Transient(queue, message, pair, frozenset({100}))
    assert first.unchanged(Transient()) == Transient()
    assert found(replace(PLAIN, transient=first.unchanged(first))) == [
        "freeze-timeout",
        "netlink-data",
        "tcp-in-flight",
    ]
    assert found(replace(PLAIN, transient=first.unchanged(Transient(shared=pair)))) == ["memory-in-common"]


def test_another_time_namespace_for_children_is_nested() -> None:
    other = replace(ROOT, namespaces=(*NAMESPACES, ("time_for_children", 9)))
    assert found(replace(PLAIN, tree=Tree(other, (other,)))) == ["nested-namespace"]
