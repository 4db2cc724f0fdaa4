"""Check the sockets of a tree before a dump."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Final

from crckpt.causes import Finding, cause
from crckpt.host.observe.socket_kinds import Loss, SocketKind
from crckpt.host.observe.tree import Observed

# Source: criu/sockets.c:767.
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET)
_INTERNET = (socket.AF_INET, socket.AF_INET6)
# Of internet sockets that are not raw. Source: criu/sk-inet.c, can_dump_ipproto.
_PROTOCOLS = (
    *(socket.IPPROTO_IP, socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_UDPLITE),
    *(socket.IPPROTO_ICMP, socket.IPPROTO_ICMPV6),
)

_LOSSES: Final[dict[Loss, str]] = {
    "error": "an error that the program has not been told yet (SO_ERROR, MSG_ERRQUEUE)",
    "urgent": "which byte was sent out of band (MSG_OOB)",
    "sender": "the sender's address of messages that it has not read yet, so that it cannot answer them",
    "empty": "an empty message that it has not read yet, and all messages behind it",
}
_CREDENTIALS: Final = "credentials"
_JOURNAL = "/run/systemd/journal/"


def judge_sockets(
    observed: Observed, tcp: str | None, *, locks_by_nftables: bool, skip_in_flight: bool
) -> Iterator[Finding]:
    """Find sockets that CRIU cannot save, connections for which the user must choose, and what a restore loses."""
    # A socket stays in the network namespace in which it was made. CRIU looks in that of its process.
    networks = {process.pid: dict(process.namespaces).get("net", 0) for process in observed.tree.processes}
    for found in observed.sockets:
        yield from _find_unsaved(found)
        if found.namespace and found.namespace != networks.get(found.pid, found.namespace):
            yield cause("socket-namespace").finding()
    if observed.transient.messages:
        yield cause("netlink-data").finding()
    if any(loss == _CREDENTIALS for *_, loss in observed.transient.losses):
        yield cause("in-message-descriptors").finding()
    if any(end.is_waiting for end in observed.outside_ends):
        yield cause("unix-in-flight").finding()
    for end in observed.outside_ends:
        if end.is_waiting:
            continue
        peer = f" to {end.name}" if end.name else ""
        key = "unix-journal" if end.name.startswith(_JOURNAL) else "unix-outside"
        yield cause(key).finding(socket=f"descriptor {end.fd} of PID {end.pid} (a unix socket{peer})")
    yield from _judge_connections(observed, tcp, locks_by_nftables=locks_by_nftables, skip_in_flight=skip_in_flight)
    yield from _find_losses(observed)


def _find_unsaved(found: SocketKind) -> Iterator[Finding]:
    if found.family not in _FAMILIES:
        yield cause("socket-family").finding(number=found.family)
    elif found.family in _INTERNET and found.kind != socket.SOCK_RAW and found.protocol not in _PROTOCOLS:
        yield cause("protocol").finding(number=found.protocol)
    # CRIU finds the directory by taking the name from the end of the path (criu/sk-unix.c, cut_path_ending).
    if found.renamed and not found.renamed.name.startswith("/"):
        yield cause("unix-renamed").finding(fd=found.fd, pid=found.pid, name=found.renamed.name)
    if found.corked:  # criu/sk-inet.c:152
        yield cause("corked").finding()
    if found.has_bpf_filter:
        yield cause("socket-program").finding()
    if found.unsavable_groups:
        yield cause("netlink-groups").finding()


def _judge_connections(
    observed: Observed, tcp: str | None, *, locks_by_nftables: bool, skip_in_flight: bool
) -> Iterator[Finding]:
    # Connections that wait to be accepted (criu/sk-inet.c:185).
    for pid, fd in sorted(observed.transient.queues) if skip_in_flight else ():
        yield cause("in-flight-skipped").finding(pid=pid, fd=fd)
    if observed.transient.queues and not skip_in_flight:
        yield cause("tcp-in-flight").finding()
    # The user must choose: `close` loses the connections; `keep` needs the same addresses at the restore, and after
    # --stop blocks the peers until then.
    for link in observed.connections if tcp is None else ():
        yield cause("tcp").finding(pid=link.pid, fd=link.fd, local=link.local, remote=link.remote, status=link.status)
    for found in observed.sockets if tcp == "keep" else ():
        # Restored without TLS, the connection would send in plain text what the program writes.
        if found.layer:
            yield cause("tcp-layer").finding(pid=found.pid, fd=found.fd, layer=found.layer)
    # Without the lock, the kernel would answer the peers with resets as soon as the sockets are gone.
    if tcp == "keep" and observed.connections and not locks_by_nftables:
        yield cause("network-lock").finding()


def _find_losses(observed: Observed) -> Iterator[Finding]:
    """Find protection, names, and what waits in sockets that a restore loses."""
    comms = {process.pid: process.comm for process in observed.tree.processes}
    keys = {"keys": "tcp-keys", "peer": "peer-of-another", "maker": "maker-is-another"}
    for found in observed.weak_sockets:
        user = {"user": found.user} if found.what != "keys" else {}
        values = {"fd": found.fd, "pid": found.pid, "comm": comms.get(found.pid, "?"), **user}
        yield cause(keys[found.what]).finding(**values)
    for pid, fd, loss in sorted(observed.transient.losses):
        if loss != _CREDENTIALS:  # CRIU refuses it
            yield loses(pid, fd, comms.get(pid, "?"), loss)
    for held in observed.sockets:
        # One that was bound by a relative path is refused.
        if held.renamed and held.renamed.name.startswith("/") and not held.renamed.new:
            yield cause("unix-moved").finding(fd=held.fd, pid=held.pid, comm=comms[held.pid], name=held.renamed.name)


def loses(pid: int, fd: int, comm: str, loss: Loss) -> Finding:
    """Name what a restore loses of a socket."""
    key = "multicast-groups" if loss == "groups" else "socket-loses"
    return cause(key).finding(fd=fd, pid=pid, comm=comm, **({"what": _LOSSES[loss]} if loss in _LOSSES else {}))
