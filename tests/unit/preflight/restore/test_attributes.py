"""Attributes that a restore sets again or loses, for the images of a real tree and records written by hand."""

from __future__ import annotations

import pytest
from attribute_records import of_root
from msgspec.structs import replace

from crckpt.host.attributes.sockets import SocketRecord
from crckpt.host.syscalls.own_process import SessionKeyring
from crckpt.images.core import ZOMBIE, Rights
from crckpt.images.sockets import UnixSocket
from crckpt.images.tree import ImageProcess, ImageTree, OpenDescriptor
from crckpt.preflight.attribute_record import (
    AttributeRecord,
    ProcessRecord,
)
from crckpt.preflight.restore.attributes import (
    HostAttributes,
    attributes_to_set,
    find_separate_sessions,
    judge_attributes,
    shares_session,
)

TWO_CPUS = frozenset({0, 1})


def test_attributes_of_a_process_outside_the_tree_are_not_set(tree: ImageTree) -> None:
    """A record that names a process outside the tree does not change that process."""
    record = AttributeRecord((0, 1), (ProcessRecord(1, {1: {"affinity": (0,)}}),))
    assert list(attributes_to_set(record, tree, HostAttributes(TWO_CPUS))) == []
    hostile = of_root(tree, threads={tree.root.pid: {}, 1: {"affinity": (0,)}})
    assert 1 not in {thread.tid for thread in attributes_to_set(hostile, tree, HostAttributes(TWO_CPUS))}


def test_younger_threads_and_processes_inherit_attributes(tree: ImageTree) -> None:
    """Threads inherit from the first thread of their process, processes from their parent. Zombies inherit nothing."""
    found = list(attributes_to_set(of_root(tree), tree, HostAttributes(TWO_CPUS)))
    living = {process.pid for process in tree.processes if process.state != ZOMBIE}
    assert {thread.pid for thread in found} == living < {process.pid for process in tree.processes}
    assert all(thread.values["affinity"] == (0,) for thread in found)


@pytest.mark.parametrize(
    ("had", "was", "now", "gets"),
    [
        ((0,), (0, 1), (0, 1), (0,)),
        ((0, 1), (0, 1), (0, 1, 2, 3), (0, 1, 2, 3)),
        ((0, 5), (0, 1, 5), (0, 1), (0,)),
        ((5,), (0, 1, 5), (0, 1), (0, 1)),
    ],
    ids=["as it was", "all are all", "what is left", "nothing is left"],
)
def test_affinity_is_reduced_to_the_cpus_of_another_host(
    tree: ImageTree, had: tuple[int, ...], was: tuple[int, ...], now: tuple[int, ...], gets: tuple[int, ...]
) -> None:
    record = of_root(tree, was, threads={tree.root.pid: {"affinity": had}})
    host = HostAttributes(frozenset(now))
    assert next(attributes_to_set(record, tree, host)).values["affinity"] == gets
    losses = " ".join(str(finding) for finding in judge_attributes(record, tree, host).lost)
    assert ("this host has no CPU 5" in losses) == (5 in had)


def test_memory_nodes_that_the_host_does_not_have_are_skipped(tree: ImageTree) -> None:
    record = of_root(tree, threads={tree.root.pid: {"memory_policy": (2, 0, 1 << 60, -1)}})
    assert next(attributes_to_set(record, tree, HostAttributes(TWO_CPUS))).values["memory_policy"] == (2, 0)


def test_security_labels_for_the_next_exec_are_reported(tree: ImageTree) -> None:
    record = of_root(tree, labels={"exec": "confined_t"})
    (found,) = judge_attributes(record, tree, HostAttributes(TWO_CPUS)).weaker
    assert f"process {tree.root.pid} (" in found.what
    assert "has set exec to confined_t" in found.what


def test_socket_of_another_user_than_its_future_maker_is_reported(tree: ImageTree) -> None:
    """CRIU creates a shared socket in the process with the lowest PID, whose user may be another one."""
    file = tree.inet_sockets[0]
    first = min(
        (each for each in tree.processes if any(opened.file == file for opened in each.descriptors)),
        key=lambda each: each.pid,
    )
    rights = first.core.rights
    assert rights is not None
    makers = {(rights.uids[3], 7): False, (0, 0): False, (rights.uids[3] + 1, 0): True}
    for maker, is_lost in makers.items():
        record = replace(of_root(tree), sockets=(SocketRecord(1, 3, file.inode, 2, 1, 6, maker=maker),))
        found = [each.what for each in judge_attributes(record, tree, HostAttributes(TWO_CPUS)).weaker]
        assert any(f"is a socket of user {maker[0]}; after a restore" in each for each in found) == is_lost


@pytest.mark.parametrize(("first", "second", "is_lost"), [(0, 1234, True), (1234, 0, False), (0, 0, False)])
def test_waiting_client_that_another_user_may_have_connected_is_reported(
    tree: ImageTree, first: int, second: int, is_lost: bool
) -> None:
    """Root made the socket and gave it to a child. Whichever of them connected it, CRIU connects it as the first."""
    listener = UnixSocket(9001, 9001, "stream", "listen", b"@crckpt-test")
    client = UnixSocket(9002, 9002, "stream", "established", peer=9001)
    living = sorted((each for each in tree.processes if each.core.rights is not None), key=lambda each: each.pid)[:2]
    processes = []
    for process, user in zip(living, (first, second), strict=True):
        rights = process.core.rights
        assert rights is not None
        changed = _with_core(process, rights=replace(rights, uids=(user,) * 4))
        processes.append(replace(changed, descriptors=(OpenDescriptor(50, client, close_on_exec=False),)))
    waiting = replace(tree, processes=tuple(processes), files=(listener, client))
    record = replace(of_root(tree), sockets=(SocketRecord(living[0].pid, 50, 9002, 1, 1, 0, maker=(0, 0)),))
    found = [each.what for each in judge_attributes(record, waiting, HostAttributes(TWO_CPUS)).weaker]
    assert any("is a socket of user 1234; after a restore" in each for each in found) == is_lost


@pytest.mark.parametrize("are_known", [True, False])
def test_users_of_connected_sockets_are_judged_only_if_the_rights_are_known(tree: ImageTree, are_known: bool) -> None:
    """Before a move the rights are not known: the restore on the other host judges the users."""
    ends = UnixSocket(9001, 9001, "stream", "established", peer=9002), UnixSocket(9002, 9002, "stream", "established")
    process = tree.root if are_known else _with_core(tree.root, rights=None)
    process = replace(process, descriptors=(OpenDescriptor(50, ends[0], close_on_exec=False),))
    connected = replace(tree, processes=(process,), files=ends)
    record = replace(of_root(tree), sockets=(SocketRecord(process.pid, 50, 9001, 1, 1, 0, owner=(1234, 1234)),))
    found = [each.key for each in judge_attributes(record, connected, HostAttributes(TWO_CPUS)).weaker]
    assert ("peer-lost" in found) == are_known


def test_processes_with_other_rights_than_their_parent_do_not_share_its_session_keyring(tree: ImageTree) -> None:
    """They do not share it even if the record of the checkpoint says so."""
    root, rights, memory = tree.root, tree.root.core.rights, tree.root.memory
    assert rights is not None
    assert memory is not None

    def child(pid: int, ppid: int, had: Rights = rights, dumpable: int = 1) -> ImageProcess:
        thread = replace(root.threads[0], tid=pid, core=replace(root.core, rights=had))
        return replace(root, pid=pid, ppid=ppid, threads=(thread,), memory=replace(memory, dumpable=dumpable))

    def of(*uids: int) -> Rights:
        return replace(rights, uids=uids)

    first = child(root.pid, root.ppid)
    equals = (first, child(2, root.pid), child(3, 2))
    assert find_separate_sessions(replace(tree, processes=equals)) == {}
    # A `su` of the user's, which runs a shell, which has another child of the user's.
    su = (child(4, root.pid, of(7, 8, 8, 8)), child(5, 4, of(8, 8, 8, 8)), child(6, 5, of(8, 8, 8, 8)), child(7, 6))
    assert find_separate_sessions(replace(tree, processes=(*equals, *su))) == {4: 4, 5: 5, 6: 5, 7: 7}
    others = (
        child(4, 2, replace(rights, gids=(7, 7, 7, 7))),
        child(5, 2, replace(rights, capabilities=(0, 1, 1, 1, 0))),
        child(6, 2, dumpable=0),
    )
    assert find_separate_sessions(replace(tree, processes=(*equals, *others))) == {4: 4, 5: 5, 6: 6}


def test_session_keyring_is_shared_only_with_its_only_user(tree: ImageTree) -> None:
    """A tree may also have our keyring if it had it at the dump. Without a keyring of ours nothing is shared."""
    who = tree.root.core.credentials
    assert who is not None
    thread = tree.root.threads[0]
    other = replace(thread, core=replace(thread.core, credentials=replace(who, euid=who.euid + 1)))
    of_two_users = replace(tree, processes=(*tree.processes, replace(tree.root, threads=(other,))))
    assert shares_session(None, tree, None)
    assert shares_session(None, tree, SessionKeyring(7, who.euid))
    assert not shares_session(None, tree, SessionKeyring(7, who.euid + 1))
    assert not shares_session(None, of_two_users, SessionKeyring(7, who.euid))
    assert shares_session(of_root(tree, values={"session_keyring": (7, 2)}), tree, SessionKeyring(7, who.euid + 1))
    (lost,) = judge_attributes(
        of_root(tree, values={"session_keyring": (8, 2)}),
        tree,
        HostAttributes(TWO_CPUS, session=SessionKeyring(7, who.euid + 1)),
    ).lost
    assert "had 2 keys in its session keyring" in lost.what


@pytest.mark.parametrize(
    ("parent", "asked", "is_refused"),
    [
        ({}, False, True),
        ({"no_new_privs": True}, False, False),
        ({"no_new_privs": True, "adopts": True}, False, True),
        ({}, True, False),
        ({}, None, False),
    ],
)
def test_later_process_must_have_a_confined_parent(
    tree: ImageTree, parent: dict[str, bool], asked: bool | None, is_refused: bool
) -> None:
    """A parent that adopts orphans need not be their original parent.

    Old checkpoints do not record which task was queried.
    """
    root = tree.root
    child = next(process for process in tree.processes if process.ppid == root.pid)
    changed = {root.pid: _with_core(root, **parent), child.pid: _with_core(child, no_new_privs=True)}
    rest = tuple(changed.get(process.pid, process) for process in tree.processes)
    named = None if asked is None else (root.pid, child.pid) if asked else (root.pid,)
    found = judge_attributes(
        replace(of_root(tree), asked=named), replace(tree, processes=rest), HostAttributes(TWO_CPUS)
    )
    assert [each.key for each in found.weaker] == (["unasked-lost"] if is_refused else [])


def _with_core(process: ImageProcess, **changes: object) -> ImageProcess:
    first, *others = process.threads
    return replace(process, threads=(replace(first, core=replace(first.core, **changes)), *others))
