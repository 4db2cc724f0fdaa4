"""Check the addresses, names and interfaces of a checkpoint's sockets before a restore."""

from __future__ import annotations

from collections.abc import Iterator

from crckpt.causes import Finding, cause
from crckpt.host.observe.sockets import Binding
from crckpt.images.sockets import DATAGRAM, InetSocket, NetlinkSocket, PacketSocket, UnixSocket
from crckpt.preflight.restore.host import HostState, PlannedRestore


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


def find_named_sockets(planned: PlannedRestore) -> Iterator[UnixSocket]:
    """Return the unix sockets that a restore binds to their names, and the peers outside the tree that it looks for."""
    # A socket whose file had been removed has it for a moment only (criu/sk-unix.c, bind_on_deleted).
    for file in planned.tree.files:
        if isinstance(file, UnixSocket) and file.is_bound and not file.deleted:
            has_name = file.is_abstract or file.path
            if has_name and not planned.tree.is_apart("net" if file.is_abstract else "mnt"):
                yield file


def find_netlink_sockets(planned: PlannedRestore) -> Iterator[NetlinkSocket]:
    """Return the netlink sockets whose port a restore must bind."""
    if not planned.tree.is_apart("net"):
        yield from (file for file in planned.tree.files if isinstance(file, NetlinkSocket) and file.port_id)


def judge_sockets(planned: PlannedRestore, host: HostState) -> Iterator[Finding]:
    """Find addresses, names and interfaces that another program has, or that this host lacks."""
    for socket in (socket for socket, _ in find_bound_sockets(planned) if socket.id in host.refused):
        is_taken, address = host.refused[socket.id] == "taken", socket.source
        if is_taken and socket.id in host.released:
            yield cause("port-closing").finding(address=address, seconds=host.released[socket.id])
            continue
        protocol, options = ("UDP", "-lunp") if socket.type == DATAGRAM else ("TCP", "-ltnp")
        values = {"host": address.ip or address.host, "port": address.port, "options": options}
        key = "port-taken" if is_taken else "address-missing"
        yield cause(key).finding(protocol=protocol, address=address, **values)
    for named in (named for named in find_named_sockets(planned) if named.id in host.refused):
        name, directory = named.path or named.name, named.path.rpartition("/")[0] or "/"
        yield cause(f"unix-{host.refused[named.id]}").finding(name=name, path=name, directory=directory)
    for netlink in (netlink for netlink in find_netlink_sockets(planned) if netlink.id in host.refused):
        yield cause("netlink-taken").finding(port=netlink.port_id, protocol=netlink.protocol)
    if not planned.tree.is_apart("net"):
        names = {socket.interface for socket in planned.tree.inet_sockets if socket.interface}
        for name in sorted(names - {name for _, name in host.interfaces}):
            yield cause("interface-missing").finding(interface=name)
        # CRIU saves a packet socket with the number of its interface.
        numbers = {file.interface for file in planned.tree.files if isinstance(file, PacketSocket) and file.interface}
        for number in sorted(numbers):
            name = planned.devices.get(number, "")
            if not any(name == each if name else number == known for known, each in host.interfaces):
                yield cause("packet-interface").finding(interface=name or f"number {number}")
