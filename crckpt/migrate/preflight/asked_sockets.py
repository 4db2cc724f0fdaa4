"""Ask about the sockets of a live tree."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from crckpt.host import proc
from crckpt.host.observe.sock_diag import LiveUnixSocket, opened_file, read_path
from crckpt.host.observe.socket_kinds import SocketKind
from crckpt.host.opened import as_socket
from crckpt.host.proc import Descriptor
from crckpt.host.proc.net import InetRow, InetTable, read_inet, read_netlink
from crckpt.host.proc.procfs import DELETED
from crckpt.host.process.pidfd import borrow_each
from crckpt.images import sockets

_TABLES: Final[tuple[InetTable, ...]] = ("tcp", "tcp6", "udp", "udp6")
_TYPES: Final[dict[int, str]] = {
    socket.SOCK_STREAM: sockets.STREAM,
    socket.SOCK_DGRAM: sockets.DATAGRAM,
    socket.SOCK_RAW: sockets.RAW,
    socket.SOCK_SEQPACKET: sockets.SEQPACKET,
}
_PROTOCOLS: Final[dict[int, str]] = {socket.IPPROTO_TCP: "tcp", socket.IPPROTO_UDP: "udp"}
_ASKED: Final = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_PACKET, socket.AF_NETLINK)
_ANY: Final[dict[int, str]] = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}  # noqa: S104
_LONGEST_INTERFACE: Final = 16  # IFNAMSIZ, linux/if.h


class SocketAsker:
    """Collects a tree's sockets, of these `kinds`, each inode once. `known`: the unix sockets of the host."""

    def __init__(self, ids: Iterator[int], known: Mapping[int, LiveUnixSocket], kinds: Iterable[SocketKind]) -> None:
        self._ids = ids
        self._known = known
        # CRIU saves the listener as the peer of a client that was not accepted.
        self._listeners = {client: each.inode for each in known.values() for client in each.clients}
        self._kinds = {(kind.pid, kind.fd): kind for kind in kinds}
        self._by_inode: dict[int, int] = {}
        self._asked: dict[int, sockets.Socket] = {}
        self._rows: dict[int, dict[int, InetRow]] = {}

    def ask(self, found: Descriptor) -> int:
        """Return the id of a socket; 0 for one of a kind that needs nothing of the host."""
        inode = found.socket_inode
        kind = self._kinds.get((found.pid, found.fd))
        if inode not in self._by_inode and kind is not None and kind.family in _ASKED:
            self._by_inode[inode] = next(self._ids)
            self._asked[inode] = self._describe(self._by_inode[inode], inode, kind)
        return self._by_inode.get(inode, 0)

    def list(self) -> tuple[sockets.Socket, ...]:
        """Return all sockets that were asked about, and those outside the tree to which they are connected."""
        found = [*self._asked.values()]
        # CRIU connects a datagram socket to the name of its peer again.
        unix = [each for each in found if isinstance(each, sockets.UnixSocket)]
        for inode in {each.peer for each in unix if each.type == sockets.DATAGRAM} - self._by_inode.keys():
            if (live := self._known.get(inode)) is not None and live.name.startswith(("/", "@")):
                name, number = os.fsencode(live.name), next(self._ids)
                found.append(sockets.UnixSocket(number, inode, sockets.DATAGRAM, sockets.CLOSE, name, external=True))
        return tuple(found)

    def _describe(self, number: int, inode: int, kind: SocketKind) -> sockets.Socket:
        word = _TYPES.get(kind.kind, str(kind.kind))
        match kind.family:
            case socket.AF_UNIX:
                live = self._known.get(inode)
                state = sockets.ESTABLISHED if live and (live.peer or live.is_connected) else sockets.CLOSE
                name = os.fsencode(_find_name(kind, live)) if live else b""
                peer = live.peer if live and live.peer else self._listeners.get(inode, 0)
                return sockets.UnixSocket(number, inode, word, state, name, peer=peer)
            case socket.AF_PACKET:
                return sockets.PacketSocket(number, word)
            case socket.AF_NETLINK:
                port = next((row.port for row in read_netlink(kind.pid) if row.inode == inode), 0)
                return sockets.NetlinkSocket(number, inode, kind.protocol, port)
        row, nowhere, state = self._row(kind.pid, inode), sockets.Address(_ANY[kind.family], 0), sockets.CLOSE
        if row:
            # The kernel's table has other words.
            state = row.state.lower().replace("_", "-").replace("wait1", "wait-1").replace("wait2", "wait-2")
        return sockets.InetSocket(
            id=number,
            inode=inode,
            family=kind.family,
            type=word,
            protocol=_PROTOCOLS.get(kind.protocol, str(kind.protocol)),
            state=state,
            source=_address(row.local) if row else nowhere,
            destination=_address(row.remote) if row else nowhere,
            interface=_interface(kind),
        )

    def _row(self, pid: int, inode: int) -> InetRow | None:
        with suppress(OSError):
            space = proc.namespace(pid, "net")
            if space not in self._rows:
                self._rows[space] = {row.inode: row for table in _TABLES for row in read_inet(pid, table)}
            return self._rows[space].get(inode)
        return None


def _find_name(kind: SocketKind, live: LiveUnixSocket) -> str:
    """The name to which a restore binds the socket: the path is absolute; empty if there is none."""
    if not live.name or live.name.startswith("@"):
        return live.name
    for _, borrowed in borrow_each(kind.pid, (kind.fd,)):
        with suppress(OSError), opened_file(borrowed) as file:
            path = read_path(file)
            # CRIU takes the name of bind(2), and the directory in which its file is now.
            if path.endswith(DELETED):
                return ""
            return live.name if live.name.startswith("/") else f"{path.removesuffix(live.name)}{live.name}"
    return ""


def _address(text: str) -> sockets.Address:
    host, _, port = text.rpartition(":")
    return sockets.Address(host.strip("[]"), int(port))


def _interface(kind: SocketKind) -> str:
    """The interface that an internet socket is bound to; empty if it is bound to none."""
    for _, borrowed in borrow_each(kind.pid, (kind.fd,)):
        with suppress(OSError), as_socket(borrowed) as held:
            name = held.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _LONGEST_INTERFACE)
            return name.partition(b"\0")[0].decode(errors="replace")
    return ""
