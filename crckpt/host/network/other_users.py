"""Sockets of other programs at addresses that move: they are cut off when their address leaves this host."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Sequence
from typing import Final

from crckpt.causes import Finding, cause
from crckpt.host.network.address import HostAddress
from crckpt.host.proc.net import InetTable, read_inet

_TABLES: Final[tuple[InetTable, ...]] = ("tcp", "tcp6", "udp", "udp6")


def find_other_users(addresses: Sequence[HostAddress], own: Container[int]) -> Iterator[Finding]:
    """Find, for each address, a socket of this network namespace whose inode is not one of our `own`."""
    ips = {host: address.ip for address in addresses for host in address.in_tables}
    found: dict[str, Finding] = {}
    for table in _TABLES if ips else ():
        for row in read_inet(os.getpid(), table):
            # Nobody has closed connections, and those that wait to be accepted, open.
            ip = ips.get(row.local.rpartition(":")[0]) if row.inode and row.inode not in own else None
            if ip is not None:
                socket = f"{table.rstrip('6')} {row.local}{f' -> {row.remote}' if row.has_peer else ''}"
                found.setdefault(ip, cause("address-used").finding(ip=ip, socket=socket))
    return iter(found.values())
