"""Check whether a checkpoint can be rehearsed, and what the rehearsal needs."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from typing import Final

from crckpt.causes import Finding, cause
from crckpt.images.sockets import PacketSocket
from crckpt.images.tree import ImageTree
from crckpt.preflight.restore.checks import RestoreVerdict
from crckpt.preflight.restore.files import find_needed_path, find_shared_maps
from crckpt.preflight.restore.host import FileState

# A tree with one of these would need another inside that of the rehearsal.
_NOT_NESTED: Final = ("mnt", "pid", "user")
# The number of `lo` in each network namespace.
_LOOPBACK: Final = 1
_BROADCAST: Final = "255.255.255.255"


def find_rehearsal_blockers(tree: ImageTree, *, needs_terminal: bool) -> Iterator[Finding]:
    """Find what the temporary namespaces of a rehearsal cannot give."""
    for kind in _NOT_NESTED:
        if tree.is_apart(kind):
            yield cause("namespace-rehearsed").finding(kind=kind)
    for socket in tree.inet_sockets:
        # SO_BINDTODEVICE: a new network namespace has `lo` alone.
        if socket.interface not in ("", "lo"):
            yield cause("interface-rehearsed").finding(socket=socket.title, interface=socket.interface)
    for file in tree.files:
        if isinstance(file, PacketSocket) and file.interface > _LOOPBACK:
            yield cause("interface-rehearsed").finding(socket=file.title, interface=f"number {file.interface}")
    if needs_terminal:
        yield cause("terminal-rehearsed").finding()


def find_needed_addresses(tree: ImageTree) -> tuple[str, ...]:
    """Return the addresses that its sockets use, without those that every loopback interface has."""
    used = {end.host for socket in tree.inet_sockets for end in (socket.source, socket.destination)}
    # A link-local address may name its interface: `fe80::1%eth0`. An IPv6 socket may use an IPv4 address.
    named = (ip_address(host.partition("%")[0]) for host in used if host)
    found = {(isinstance(each, IPv6Address) and each.ipv4_mapped) or each for each in named}
    needed = (one for one in found if not (one.is_unspecified or one.is_loopback or one.is_multicast))
    return tuple(sorted(str(one) for one in needed if str(one) != _BROADCAST))


def writable_bytes(tree: ImageTree, files: dict[str, FileState | None]) -> int:
    """Return the size of all files that the tree can write to: an overlay copies each when it is opened."""
    shared = find_shared_maps(tree)
    writable = {find_needed_path(file) for file in tree.regular_files if file.is_writable or file.id in shared}
    return sum(found.size for path, found in files.items() if path in writable and found is not None)


def rehearsal_warnings(verdict: RestoreVerdict) -> tuple[Finding, ...]:
    """Return the verdict's warnings; those about files to cut back say that this happens in the rehearsal only."""
    # Nobody checkpoints the program of a rehearsal.
    others = (finding for finding in verdict.warnings if finding.key != "file-rewound")
    cuts = (cause("file-cut-rehearsed").finding(path=path, size=size) for path, size in verdict.rewinds)
    return (*others, *cuts)
