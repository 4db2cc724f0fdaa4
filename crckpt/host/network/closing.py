"""Connections that their program has closed while its last bytes are on their way: no descriptor leads to them.

They cannot move with their address. Without it the kernel of this host sends nothing more, and the host that gets it
answers their peers with a reset.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final, Literal

from msgspec import Struct

from crckpt.causes import Finding, cause
from crckpt.host.network.address import HostAddress, find_rows
from crckpt.host.steps import limit

_WAIT_S: Final = limit("CRCKPT_CLOSING_S", 5)
# Reading long tables takes long.
_LOOK_S: Final = 0.1
_CLOSING: Final = ("FIN_WAIT1", "CLOSING", "LAST_ACK")
# The end of the data counts as a byte.
_END: Final = 1


class ClosingConnection(Struct, frozen=True):
    """Its two ends, and how many bytes its peer has not acknowledged."""

    local: str
    remote: str
    bytes_left: int


def find_closing(addresses: Sequence[HostAddress]) -> Iterator[ClosingConnection]:
    """Find those of addresses of this network namespace that still have bytes to send."""
    for _, _, row in find_rows(addresses, lambda row: not row.inode and row.state in _CLOSING and row.unsent > _END):
        yield ClosingConnection(row.local, row.remote, row.unsent - _END)


def wait_for_closing(addresses: Sequence[HostAddress]) -> None:
    """Wait up to 5 s until those that are there now have sent all."""
    until = time.monotonic() + _WAIT_S
    waiting = {(each.local, each.remote) for each in find_closing(addresses)}
    while waiting and time.monotonic() < until:
        time.sleep(_LOOK_S)
        waiting &= {(each.local, each.remote) for each in find_closing(addresses)}


def report_closing(
    key: Literal["connections-closing", "connections-cut"], addresses: Sequence[HostAddress]
) -> tuple[Finding, ...]:
    """Report those of these addresses as one finding, if there are any."""
    found = tuple(find_closing(addresses))
    if not found:
        return ()
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    connections = f"{found[0].local} -> {found[0].remote}{more}"
    return (cause(key).finding(bytes=f"{sum(each.bytes_left for each in found):,}", connections=connections),)
