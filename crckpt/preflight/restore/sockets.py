"""Check the addresses of a checkpoint's sockets before a restore."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from crckpt.causes import Finding, cause
from crckpt.host.observe.sockets import Binding
from crckpt.images.sockets import DATAGRAM, InetSocket
from crckpt.preflight.restore.host import HostState
from crckpt.preflight.restore.plan import PlannedRestore


def find_bound_sockets(planned: PlannedRestore) -> Iterator[tuple[InetSocket, Binding]]:
    """Return the sockets whose addresses a restore must bind, and for what. None if the tree brings its own network."""
    if planned.tree.is_apart("net"):
        return
    for socket in planned.tree.inet_sockets:
        if socket.is_listening:
            yield socket, "listen"
        # A connection that is closed needs no address.
        elif socket.is_established_tcp and planned.keeps_connections:
            yield socket, "connection"
        # One that is bound to an interface may share its address with one on another interface.
        elif socket.type == DATAGRAM and socket.source.port and not socket.interface:
            yield socket, "datagram"


def find_blockers(planned: PlannedRestore, host: HostState) -> Iterator[Finding]:
    """Find addresses that another program has, or that this host lacks."""
    for socket, _ in find_bound_sockets(planned):
        if socket.id in host.refused:
            yield _report_refusal(socket, host.refused[socket.id], host.released.get(socket.id))


def _report_refusal(socket: InetSocket, why: Literal["taken", "missing"], seconds: int | None) -> Finding:
    if why == "taken" and seconds is not None:
        return cause("port-closing").finding(address=socket.source, seconds=seconds)
    protocol, options = ("UDP", "-lunp") if socket.type == DATAGRAM else ("TCP", "-ltnp")
    return cause("port-taken" if why == "taken" else "address-missing").finding(
        protocol=protocol,
        address=socket.source,
        host=socket.source.host,
        port=socket.source.port,
        options=options,
    )
