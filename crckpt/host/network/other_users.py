"""Sockets of other programs at addresses that move: they are cut off when their address leaves this host."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Final

from crckpt.causes import Finding, cause
from crckpt.host.network.address import TCP_TABLES, HostAddress, find_rows
from crckpt.host.proc.net import InetTable

_TABLES: Final[tuple[InetTable, ...]] = (*TCP_TABLES, "udp", "udp6")


def find_other_users(addresses: Sequence[HostAddress], own: Container[int]) -> Iterator[Finding]:
    """Find, for each address, a socket of this network namespace whose inode is not one of our `own`."""
    found: dict[str, Finding] = {}
    # Nobody has closed connections, and those that wait to be accepted, open.
    rows = find_rows(addresses, lambda row: row.inode and row.inode not in own, _TABLES)
    for address, table, row in rows:
        socket = f"{table.rstrip('6')} {row.local}{f' -> {row.remote}' if row.has_peer else ''}"
        found.setdefault(address.ip, cause("address-used").finding(ip=address.ip, socket=socket))
    return iter(found.values())
