"""Ports and addresses that a restore binds."""

from __future__ import annotations

from msgspec.structs import replace
from restore_plans import only_blocker

from crckpt.images.files import OpenFile
from crckpt.images.sockets import DATAGRAM, Address, InetSocket
from crckpt.images.tree import ImageTree
from crckpt.preflight.restore.checks import judge_restore
from crckpt.preflight.restore.host import HostState, PlannedRestore
from crckpt.preflight.restore.sockets import find_bound_sockets


def without_sockets(tree: ImageTree) -> tuple[OpenFile, ...]:
    return tuple(file for file in tree.files if not isinstance(file, InetSocket))


def listener_of(planned: PlannedRestore) -> InetSocket:
    """Return the listening socket of the recorded tree."""
    sockets = (socket for socket in planned.tree.inet_sockets if socket.is_listening)
    (found,) = (socket for socket in sockets if socket.source == Address("::1", 47002))
    return found


def test_port_in_use_is_a_blocker(planned_restore: PlannedRestore, host: HostState) -> None:
    (listener,) = (
        socket
        for socket in planned_restore.tree.inet_sockets
        if socket.is_listening and socket.source == Address("::1", 47002)
    )
    blocker = only_blocker(judge_restore(planned_restore, replace(host, refused={listener.id: "taken"})))
    assert blocker == (
        "port-taken: TCP port [::1]:47002 is taken by another program: "
        "find it: ss -ltnp 'sport = :47002' (package iproute2); then end it"
    )


def test_port_of_closed_connections_is_a_blocker_with_the_time_to_wait(
    planned_restore: PlannedRestore, host: HostState
) -> None:
    (listener,) = (
        socket
        for socket in planned_restore.tree.inet_sockets
        if socket.is_listening and socket.source == Address("::1", 47002)
    )
    closing = replace(host, refused={listener.id: "taken"}, released={listener.id: 42})
    assert only_blocker(judge_restore(planned_restore, closing)) == (
        "port-closing: TCP port [::1]:47002 is not free yet: its last connections were closed, and the kernel keeps "
        "them for another 42 s (TIME_WAIT): try again in 42 s"
    )


def test_datagram_port_in_use_is_a_blocker(planned_restore: PlannedRestore, host: HostState) -> None:
    (listener,) = (
        socket
        for socket in planned_restore.tree.inet_sockets
        if socket.is_listening and socket.source == Address("::1", 47002)
    )
    datagram = replace(listener, type=DATAGRAM, protocol="udp", state="close", source=Address("127.0.0.1", 53))
    only_datagram = replace(
        planned_restore, tree=replace(planned_restore.tree, files=(*without_sockets(planned_restore.tree), datagram))
    )
    assert [(socket.id, use) for socket, use in find_bound_sockets(only_datagram)] == [(listener.id, "datagram")]
    blocker = only_blocker(judge_restore(only_datagram, replace(host, refused={listener.id: "taken"})))
    assert blocker == (
        "port-taken: UDP port 127.0.0.1:53 is taken by another program: "
        "find it: ss -lunp 'sport = :53' (package iproute2); then end it"
    )


def test_missing_address_is_a_blocker(planned_restore: PlannedRestore, host: HostState) -> None:
    (listener,) = (
        socket
        for socket in planned_restore.tree.inet_sockets
        if socket.is_listening and socket.source == Address("::1", 47002)
    )
    elsewhere = replace(listener, source=Address("192.0.2.1", 80))
    moved = replace(
        planned_restore, tree=replace(planned_restore.tree, files=(*without_sockets(planned_restore.tree), elsewhere))
    )
    blocker = only_blocker(judge_restore(moved, replace(host, refused={listener.id: "missing"})))
    assert blocker.startswith("address-missing: this host does not have the TCP address 192.0.2.1:80")
    assert blocker.endswith("ip addr add 192.0.2.1 dev INTERFACE")


def test_only_kept_connections_need_their_address(planned_restore: PlannedRestore) -> None:
    established = {socket.id for socket in planned_restore.tree.established}
    assert established
    assert not established & {socket.id for socket, _ in find_bound_sockets(planned_restore)}
    kept = {socket.id: use for socket, use in find_bound_sockets(replace(planned_restore, keeps_connections=True))}
    assert {kept[socket] for socket in established} == {"connection"}


def test_tree_with_its_own_network_binds_nothing_here(planned_restore: PlannedRestore) -> None:
    ids = planned_restore.tree.root.ids
    assert ids is not None
    other = replace(ids, namespaces=replace(ids.namespaces, net=ids.namespaces.net + 1))
    in_own_namespace = replace(
        planned_restore.tree,
        processes=(replace(planned_restore.tree.root, ids=other), *planned_restore.tree.processes[1:]),
    )
    assert list(find_bound_sockets(planned_restore))
    assert list(find_bound_sockets(replace(planned_restore, tree=in_own_namespace))) == []
