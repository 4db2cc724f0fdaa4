"""One look at a live tree, as a value that the preflight judges."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Final, Literal

from msgspec import Struct

from crckpt.host import network, proc
from crckpt.host.borrowed import SocketKind, socket_kinds, unread_bytes
from crckpt.host.unix_sockets import UnixSocket, unix_sockets

_IN_FLIGHT: Final = re.compile(r"^scm_fds:\s*[1-9]", re.MULTILINE)


class OutsideEnd(Struct, frozen=True):
    """A descriptor that is one end of a unix connection; the other, bound to `name` if to any, is not in the tree."""

    pid: int
    fd: int
    name: str


class Unread(Struct, frozen=True):
    """A descriptor in which data waits that no image holds: `what` is a socket or a watch."""

    pid: int
    fd: int
    what: Literal["UDP", "inotify"]


class Observed(Struct, frozen=True):
    """What was seen of a live tree and of ourselves, at one time, without stopping it.

    `deleted_maps` are (path, bytes, links) of mapped files whose name is gone, `own_namespaces` ours by kind, `memory`
    is how many bytes of the tree's memory are in no file.
    """

    tree: proc.Tree
    descriptors: tuple[proc.Descriptor, ...]
    deleted_maps: tuple[tuple[str, int, int], ...]
    connections: tuple[network.Connection, ...]
    datagram_sockets: frozenset[int]
    own_namespaces: tuple[tuple[str, int], ...]
    own_capabilities: frozenset[int]
    memory: int
    outside_ends: tuple[OutsideEnd, ...] = ()
    sockets: tuple[SocketKind, ...] = ()
    unread: tuple[Unread, ...] = ()


def observe(root: proc.Process, own: proc.Process) -> Observed:
    """Look at the tree below `root`; `own` is crckpt's process."""
    tree = proc.read_tree(root)
    descriptors = _descriptors(tree)
    sockets = tuple(_kinds(descriptors))
    with_sockets = {found.pid for found in descriptors if found.target.startswith("socket:")}
    return Observed(
        tree=tree,
        descriptors=descriptors,
        deleted_maps=tuple(found for pid in tree.pids for found in proc.mapped_deleted_files(pid)),
        connections=network.tcp_connections(sorted(with_sockets)) if with_sockets else (),
        datagram_sockets=network.unix_datagram_sockets(root.pid) if with_sockets else frozenset(),
        own_namespaces=own.namespaces,
        own_capabilities=proc.effective_capabilities(),
        memory=sum(proc.memory(pid) for pid in tree.pids),
        outside_ends=_outside_ends(root, descriptors) if with_sockets and _same_network(root, own) else (),
        sockets=sockets,
        unread=tuple(_unread(descriptors, sockets)),
    )


def _unread(descriptors: tuple[proc.Descriptor, ...], sockets: tuple[SocketKind, ...]) -> Iterator[Unread]:
    for held in sockets:
        if held.protocol == socket.IPPROTO_UDP and unread_bytes(held.pid, held.fd):
            yield Unread(held.pid, held.fd, "UDP")
    for found in descriptors:
        if found.target == "anon_inode:inotify" and unread_bytes(found.pid, found.fd):
            yield Unread(found.pid, found.fd, "inotify")


def _descriptors(tree: proc.Tree) -> tuple[proc.Descriptor, ...]:
    return tuple(found for pid in tree.pids for found in proc.descriptors(pid))


def _kinds(descriptors: tuple[proc.Descriptor, ...]) -> Iterator[SocketKind]:
    for found in _by_inode(descriptors).values():
        yield from socket_kinds(found.pid, (found.fd,))


def _by_inode(descriptors: tuple[proc.Descriptor, ...]) -> dict[int, proc.Descriptor]:
    """Each socket once, however many descriptors it has: the first of them."""
    return {found.socket_inode: found for found in reversed(descriptors) if found.socket_inode}


def _same_network(one: proc.Process, other: proc.Process) -> bool:
    """Of another network namespace the kernel tells us nothing."""
    return dict(one.namespaces).get("net") == dict(other.namespaces).get("net")


def _outside_ends(root: proc.Process, descriptors: tuple[proc.Descriptor, ...]) -> tuple[OutsideEnd, ...]:
    """The tree runs on and makes connections: one is outside that was there before and after a look for its ends."""
    try:
        before = unix_sockets()
        if not any(_ends(before, descriptors)):
            return ()
        descriptors = _descriptors(proc.read_tree(root))
        stayed = dict(before.items() & unix_sockets().items())
    except OSError:  # a kernel without unix_diag: CRIU needs it, too, and says so
        return ()
    # What waits in a socket of the tree to be received, CRIU saves: the other end may be there.
    return () if any(_IN_FLIGHT.search(found.info) for found in descriptors) else tuple(_ends(stayed, descriptors))


def _ends(known: dict[int, UnixSocket], descriptors: tuple[proc.Descriptor, ...]) -> Iterator[OutsideEnd]:
    """Of connections, not of datagram sockets: those can do without a peer."""
    inside = _by_inode(descriptors)
    for inode, found in reversed(inside.items()):
        end = known.get(inode)
        if end is not None and end.kind != socket.SOCK_DGRAM and end.peer and end.peer not in inside:
            other = known.get(end.peer)
            yield OutsideEnd(found.pid, found.fd, other.name if other else "")
