"""Read sockets of live processes, what they are connected to, and find out whether addresses are free.

CRIU loses the keys of TCP (TCP_MD5SIG). It makes all sockets as root, so that the peer of a connected unix socket seems
to be root.
"""

from __future__ import annotations

import errno
import math
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, Literal

from msgspec import Struct

from crckpt.errors import PreflightRefused
from crckpt.host import proc
from crckpt.host.observe.sock_diag import find_sockets_with_keys, read_unix_sockets
from crckpt.host.observe.socket_kinds import SocketKind
from crckpt.host.proc.fd import Details, read_info, read_targets, socket_inode
from crckpt.host.proc.net import InetRow, InetTable, LiveUnixSocket, read_inet, read_unix

_IP_FREEBIND = 15  # linux/in.h

_REFUSALS: Final[dict[int, Literal["taken", "missing"]]] = {
    errno.EADDRINUSE: "taken",
    errno.EADDRNOTAVAIL: "missing",
}

_TCP: Final[tuple[InetTable, ...]] = ("tcp", "tcp6")
_INET: Final[tuple[InetTable, ...]] = (*_TCP, "udp", "udp6")

Binding = Literal["listen", "datagram", "connection"]
"""How a socket uses its address: a TCP socket that listens or is connected, or a UDP socket."""
# In the fdinfo of a unix socket (Linux 5.10): descriptors that were sent and wait there.
_IN_FLIGHT: Final = re.compile(r"^scm_fds:\s*[1-9]", re.MULTILINE)


class TcpConnection(Struct, frozen=True):
    """A TCP socket of a live process that has a peer."""

    pid: int
    fd: int
    local: str
    remote: str
    status: str


def tcp_connections(pids: Iterable[int]) -> tuple[TcpConnection, ...]:
    """The TCP sockets with a peer of these processes, each in its own network namespace."""
    return tuple(
        TcpConnection(pid, fd, row.local, row.remote, row.state) for pid, fd, row in _tcp_sockets(pids) if row.has_peer
    )


def find_waiting_listeners(pids: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """(PID, descriptor) of every listening TCP socket at which a connection waits to be accepted."""
    return tuple((pid, fd) for pid, fd, row in _tcp_sockets(pids) if row.state == "LISTEN" and row.unread)


def socket_titles(pid: int) -> dict[int, str]:
    """A title for each internet and unix socket in a process's network namespace, by inode.

    Like `tcp 127.0.0.1:80 (listen)`, as for the sockets of images.
    """
    titles = {row.inode: row.title for row in read_unix(pid)}
    for table in _INET:
        for row in read_inet(pid, table):
            to = f" -> {row.remote}" if row.has_peer else ""
            state = row.state.lower().replace("_", "-")
            titles[row.inode] = f"{table.rstrip('6')} {row.local}{to} ({state})"
    titles.pop(0, None)  # connections that no process has open any more
    return titles


def find_bind_refusal(
    address: str, port: int, use: Binding, *, may_come_later: bool = True
) -> Literal["taken", "missing"] | None:
    """Find out why a restore could not bind a socket: the address is taken, or this host does not have it. None if it
    could.

    An IPv6 address of a socket that is no connection `may_come_later`: CRIU binds the socket all the same. Only a
    restore detects other reasons.
    """
    bind = partial(_try_to_bind, address, port, use, is_free=may_come_later and use != "connection")
    refusal = bind(shares=use == "datagram")
    # CRIU shares the port, with another server, too. The closed connections of one that shared it do not matter.
    if use == "listen" and refusal == "taken" and find_port_release(port) is not None:
        return bind(shares=True)
    return refusal


def _try_to_bind(
    address: str, port: int, use: Binding, *, is_free: bool, shares: bool
) -> Literal["taken", "missing"] | None:
    # A connection shares its port with the listener: it only needs the address.
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = socket.SOCK_DGRAM if use == "datagram" else socket.SOCK_STREAM
    try:
        with socket.socket(family, kind) as trial:
            # As CRIU does it (criu/sk-inet.c:897-907, 1045).
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shares)
            if family == socket.AF_INET6:
                trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                trial.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, is_free)
            trial.bind((address, 0 if use == "connection" else port))
            if use == "listen":
                trial.listen(1)
    except OSError as error:
        return _REFUSALS.get(error.errno or 0)
    return None


def find_port_release(port: int) -> int | None:
    """Find out when a taken TCP port is free again, in seconds; None if a program has it.

    That is known if only closed connections have it, which wait for late packets (TIME_WAIT).
    """
    rows = [row for table in _TCP for row in read_inet(os.getpid(), table) if row.local_port == port]
    ends = [row.ends_in_s for row in rows]
    known = [end for end in ends if end is not None]
    return math.ceil(max(known)) if known and len(known) == len(ends) else None


def unix_datagram_sockets(pid: int) -> frozenset[int]:
    """Inodes of the unix datagram sockets in a process's network namespace."""
    return frozenset(row.inode for row in read_unix(pid) if row.kind == socket.SOCK_DGRAM)


def _tcp_sockets(pids: Iterable[int]) -> Iterator[tuple[int, int, InetRow]]:
    """(PID, descriptor, row of the kernel's table)."""
    # Each table is read once: the kernel takes milliseconds for it.
    tables: dict[int, dict[int, InetRow]] = {}
    for pid in pids:
        with suppress(OSError):
            descriptors = {inode: fd for fd, target in read_targets(pid) if (inode := socket_inode(target))}
            space = proc.namespace(pid, "net") if descriptors else 0
            if descriptors and space not in tables:
                tables[space] = {row.inode: row for table in _TCP for row in read_inet(pid, table)}
            for inode, fd in descriptors.items():
                if row := tables[space].get(inode):
                    yield pid, fd, row


class OutsideEnd(Struct, frozen=True):
    """One end of a unix connection whose other end is outside the tree. That is bound to `name`, if not empty.

    `is_waiting`: it is a listener that has not accepted the connection, and its client is outside, has gone, or has
    sent something.
    """

    pid: int
    fd: int
    name: str
    is_waiting: bool = False


def find_names(descriptors: tuple[proc.Descriptor, ...]) -> tuple[str, ...]:
    """Find what the unix sockets of the tree are bound to, as far as they are in our network namespace."""
    with suppress(OSError):
        known = read_unix_sockets()
        return tuple(known[inode].name for inode in sockets_by_inode(descriptors) if inode in known)
    return ()


def find_outside_ends(root: proc.Process, descriptors: tuple[proc.Descriptor, ...]) -> tuple[OutsideEnd, ...]:
    """Find connections to the outside that existed before and after we read the descriptors: the tree still runs."""
    try:
        before = read_unix_sockets()
        if not any(_ends(before, descriptors)):
            return ()
        descriptors = read_descriptors(proc.read_tree(root))
        stayed = dict(before.items() & read_unix_sockets().items())
    except OSError:  # a kernel without unix_diag: CRIU needs it, too, and says so
        return ()
    # CRIU saves descriptors that wait in a socket of the tree: the other end may be there.
    return () if any(_IN_FLIGHT.search(found.info) for found in descriptors) else tuple(_ends(stayed, descriptors))


def find_descriptors_in_flight(descriptors: Iterable[proc.Descriptor]) -> tuple[proc.Descriptor, ...]:
    """Find the unix sockets in which descriptors waited, both when these were read and now."""
    waiting = []
    for found in descriptors:
        if _IN_FLIGHT.search(found.info):
            with suppress(OSError):
                if _IN_FLIGHT.search(read_info(found.pid, found.fd)):
                    waiting.append(found)
    return tuple(waiting)


def _ends(known: dict[int, LiveUnixSocket], descriptors: tuple[proc.Descriptor, ...]) -> Iterator[OutsideEnd]:
    """Find ends of connections, and of datagram sockets whose peer has no name: CRIU finds a named peer again."""
    inside = sockets_by_inode(descriptors)
    for inode, found in reversed(inside.items()):
        end = known.get(inode)
        if end is not None and any(client not in inside for client in end.clients):
            yield OutsideEnd(found.pid, found.fd, "", is_waiting=True)
        if end is not None and end.peer and end.peer not in inside:
            other = known.get(end.peer)
            if end.kind == socket.SOCK_DGRAM and (other is None or other.name):
                continue
            yield OutsideEnd(found.pid, found.fd, other.name if other else "")


def sockets_by_inode(descriptors: tuple[proc.Descriptor, ...]) -> dict[int, proc.Descriptor]:
    """Inode of each socket -> its first descriptor."""
    return {found.socket_inode: found for found in reversed(descriptors) if found.socket_inode}


def read_descriptors(tree: proc.Tree) -> tuple[proc.Descriptor, ...]:
    """Read the descriptors of all processes of a tree. Raises PreflightRefused if they watch too much."""
    details, found = Details(), list[proc.Descriptor]()
    for pid in tree.pids:
        try:
            found.extend(proc.descriptors(pid, details))
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            raise PreflightRefused(
                f"PID {pid} has descriptors that watch or lock more than crckpt examines ({error.filename})",
                hint="let the program remove from its epolls and inotify instances what it does not wait for, or close "
                "some",
            ) from error
    return tuple(found)


class WeakSocket(Struct, frozen=True):
    """A socket with keys, with a peer of `user` that is in the tree, too, or that CRIU will not make as its `user`."""

    pid: int
    fd: int
    what: Literal["keys", "peer", "maker"]
    user: int = 0


def find_weak_sockets(
    kinds: Iterable[SocketKind], inodes: Mapping[tuple[int, int], int], users: Mapping[int, int]
) -> Iterator[WeakSocket]:
    """Find weak sockets among `kinds`. `inodes` are all sockets of the tree by PID and descriptor, `users` its users by
    PID.
    """
    # Read the kernel's tables only if there may be such a socket.
    found = tuple(kinds)
    signed = [held for held in found if held.is_tcp and held.uses_option_memory]
    with_keys = find_sockets_with_keys() if signed else frozenset()
    yield from (WeakSocket(held.pid, held.fd, "keys") for held in signed if inodes[held.pid, held.fd] in with_keys)
    # Nothing is lost where the peer is root's, or of the socket's own user.
    strange = [held for held in found if held.peer_user not in (0, users.get(held.pid, held.peer_user))]
    # CRIU makes a shared socket in the process with the lowest PID.
    first = {inodes[place]: users.get(place[0], 0) for place in sorted(inodes, reverse=True)}
    for held in found:
        if held.maker not in (0, first.get(inodes[held.pid, held.fd])):
            yield WeakSocket(held.pid, held.fd, "maker", held.maker)
    known, inside = {}, frozenset(inodes.values())
    if strange:
        with suppress(OSError):
            known = read_unix_sockets()
    for held in strange:
        end = known.get(inodes[held.pid, held.fd])
        if end is not None and end.peer in inside:
            yield WeakSocket(held.pid, held.fd, "peer", held.peer_user)
