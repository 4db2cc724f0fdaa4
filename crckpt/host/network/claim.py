"""Take over addresses from another host that still has them, in steps that this host's neighbours do not notice.

`claim` fences the addresses off and adds them: programs here can bind them, and nobody else sees a difference.
`release` opens the fence, then an `Announcer` tells the neighbours. `finish_release` makes the addresses ordinary ones,
and removes the fence. `give_up` undoes all of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from typing import Final

from crckpt.errors import HostCannot
from crckpt.host.network.address import HostAddress
from crckpt.host.network.devices import add_silently, find_holder, find_route, make_ordinary, remove
from crckpt.host.network.fence import lift_fence, open_fence, raise_fence
from crckpt.host.proc.net import read_inet
from crckpt.model import MoveId

# The kernel sends nothing for these by itself, or only answers.
_QUIET: Final = ("LISTEN", "CLOSE", "TIME_WAIT")
_SOCKETS_END_S: Final = 30.0
_LOOK_S: Final = 0.05


def claim(addresses: Sequence[HostAddress], move_id: MoveId) -> tuple[HostAddress, ...]:
    """Fence the addresses off, then add them. Return those whose network has no route on their device yet.

    Raises HostCannot; nothing is left then.
    """
    for address in addresses:
        if (holder := find_holder(address.ip)) is not None:
            raise HostCannot(f"{address.ip} is already on {holder[0].name}")
    unrouted = tuple(address for address in addresses if _needs_route(address))
    unreachable = tuple(address for address in unrouted if find_route(address) is None)
    try:
        raise_fence(addresses, move_id)
        for address in addresses:
            add_silently(address)
        for address in unreachable:
            # Without any route to its peers, CRIU could not restore a connection. It takes no route from others here.
            make_ordinary(address, needs_route=True)
    except BaseException:
        give_up(addresses, move_id)
        raise
    return unrouted


def release(addresses: Sequence[HostAddress], move_id: MoveId, unrouted: Sequence[HostAddress]) -> None:
    """Let packets of the claimed addresses through. `unrouted` is the result of `claim`. Raises HostCannot."""
    # A route changes how this host reaches others: not before the addresses are here for good.
    for address in unrouted:
        make_ordinary(address, needs_route=True)
    open_fence(addresses, move_id)


def finish_release(addresses: Sequence[HostAddress], move_id: MoveId, unrouted: Sequence[HostAddress]) -> None:
    """Do what the clients need not wait for: make the released addresses ordinary ones, and lift the fence.

    Raises HostCannot.
    """
    for address in addresses:
        if address not in unrouted:
            make_ordinary(address, needs_route=False)
    lift_fence(addresses, move_id)


def give_up(addresses: Sequence[HostAddress], move_id: MoveId) -> None:
    """Remove the addresses, then the fence. May be called at any time, and again. Raises HostCannot.

    If an address cannot be removed, the fence stays. It also stays, up to half a minute, while the kernel has
    connections of these addresses: it would end them at their peers.
    """
    # After `release`, too, no connection may be reset while the address goes.
    raise_fence(addresses, move_id)
    for address in addresses:
        remove(address)
    _wait_for_sockets(addresses)
    lift_fence(addresses, move_id)


def _needs_route(address: HostAddress) -> bool:
    if address.is_single:
        return False
    route = find_route(address)
    return route is None or bool(route.gateway)


def _wait_for_sockets(addresses: Sequence[HostAddress]) -> None:
    """Wait until no connection has one of these as its own address. Only a tree that is being ended has some."""
    names = {name for address in addresses for name in _names(address)}
    until = time.monotonic() + _SOCKETS_END_S
    while _have_sockets(names) and time.monotonic() < until:
        time.sleep(_LOOK_S)


def _have_sockets(names: set[str]) -> bool:
    rows = (row for table in ("tcp", "tcp6") for row in read_inet(os.getpid(), table))
    return any(row.state not in _QUIET and row.local.rpartition(":")[0] in names for row in rows)


def _names(address: HostAddress) -> Iterator[str]:
    """The address as `InetRow.local` has it: also in sockets of IPv6 that have an IPv4 address."""
    if address.family == 4:
        yield address.ip
        yield f"[{ip_address(f'::ffff:{address.ip}')}]"
    else:
        yield f"[{address.ip}]"
