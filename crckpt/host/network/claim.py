"""Take over addresses from another host that still has them, in steps that this host's neighbours do not notice.

`claim` fences the addresses off and adds them: programs here can bind them, and nobody else sees a difference.
`release` opens the fence, then an `Announcer` tells the neighbours. `finish_release` makes the addresses ordinary ones,
and removes the fence. `give_up` undoes all of it.

The fence is an nftables table, and for IPv4 another one of the family `arp`, both named by the move. While it is up,
this host neither gets nor sends an IP packet for the addresses, also over loopback, nor what asks for them or announces
them: ARP, and neighbour solicitations and advertisements. Packets in raw sockets (packet(7)) pass, and those that CRIU
sends to this host itself in place of a peer, to close the peer's side of a connection again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import Final

from crckpt.errors import HostCannot
from crckpt.host.network.address import HostAddress, find_rows
from crckpt.host.network.devices import add_silently, find_holder, find_route, make_ordinary, remove
from crckpt.host.network.packet_filter import CRIU_MARK, find_nft
from crckpt.host.process import run
from crckpt.model import MoveId

_WITHIN_S: Final = 10.0
# With the 16 digits of an id 28 characters. Kernels before 4.14 allow 31 (NFT_TABLE_MAXNAMELEN).
_PREFIX: Final = "crckpt-move-"
_CHAINS: Final = ("incoming", "outgoing")
# Before connection tracking (-200), and before any rule of the host that answers a packet with a reset.
_EARLY: Final = -450
# Neighbour solicitation and advertisement. Their target follows 8 bytes of ICMPv6 (RFC 4861, 4.3 and 4.4). nft knows
# the field by a name (`taddr`) only since 1.0.8.
_NEIGHBOURS: Final = "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } @th,64,128"

# The kernel sends nothing for these by itself, or only answers.
_QUIET: Final = ("LISTEN", "CLOSE", "TIME_WAIT")
_SOCKETS_END_S: Final = 30.0
_LOOK_S: Final = 0.05


def table_name(move_id: MoveId) -> str:
    if not re.fullmatch("[0-9a-f]{16}", move_id):
        raise ValueError(f"{move_id!r} is not the id of a move")
    return f"{_PREFIX}{move_id}"


def raise_fence(addresses: Sequence[HostAddress], move_id: MoveId) -> None:
    """Put the fence up, all of it at once; replace one of this move that is up. Raises HostCannot."""
    table = table_name(move_id)
    commands = [*_lifting(addresses, table)]
    for family in _families(addresses):
        commands.append(f"add table {family} {table}")
        for chain, hook in zip(_CHAINS, ("input" if family == "arp" else "prerouting", "output"), strict=True):
            commands.append(f"add chain {family} {table} {chain} {{ type filter hook {hook} priority {_EARLY}; }}")
            if family != "arp":
                device = "iifname" if chain == "incoming" else "oifname"
                commands.append(f'add rule {family} {table} {chain} {device} "lo" meta mark {CRIU_MARK} accept')
            for address in addresses:
                ends, protocol = (f"saddr {address.ip}", f"daddr {address.ip}"), "ip" if address.family == 4 else "ip6"
                rules = [f"arp {end.replace(' ', ' ip ')}" for end in ends if address.family == 4]
                if family != "arp":
                    rules = [f"{protocol} {end}" for end in ends]
                    rules += [f"{_NEIGHBOURS} 0x{address.packed.hex()}"] if address.family == 6 else []
                commands += (f"add rule {family} {table} {chain} {rule} drop" for rule in rules)
    _nft("\n".join(commands))  # all of them or none


def lift_fence(addresses: Sequence[HostAddress], move_id: MoveId) -> None:
    """Remove the fence of a move, if it is up. Raises HostCannot."""
    _nft("\n".join(_lifting(addresses, table_name(move_id))))


def find_fences() -> frozenset[MoveId]:
    """The ids of moves whose fence is up in this network namespace. Raises HostCannot."""
    listed = (line.split()[-1] for line in _nft("list tables").output.splitlines() if line)
    return frozenset(MoveId(name.removeprefix(_PREFIX)) for name in listed if name.startswith(_PREFIX))


def _lifting(addresses: Sequence[HostAddress], table: str) -> Iterator[str]:
    for family in _families(addresses):
        # `delete` fails if there is no table.
        yield f"add table {family} {table}"
        yield f"delete table {family} {table}"


def _families(addresses: Sequence[HostAddress]) -> tuple[str, ...]:
    # Not every kernel has the family arp (CONFIG_NF_TABLES_ARP).
    return ("inet", "arp") if any(address.family == 4 for address in addresses) else ("inet",)


def _nft(commands: str) -> run.Finished:
    tool = find_nft()
    if tool is None:
        raise HostCannot("nft is not installed", hint="apt-get install nftables")
    done = run.run([tool, commands], timeout=_WITHIN_S)
    if not done.ok:
        first = next(iter(done.output.strip().splitlines()), "it failed and said nothing")
        raise HostCannot(f"the moved address cannot be fenced off ({tool}): {first}")
    return done


def claim(addresses: Sequence[HostAddress], move_id: MoveId) -> tuple[HostAddress, ...]:
    """Fence the addresses off, then add them. Return those whose network has no route on their device yet.

    Raises HostCannot; nothing is left then.
    """
    for address in addresses:
        if (holder := find_holder(address.ip)) is not None:
            raise HostCannot(f"{address.ip} is already on {holder[0].name}")
    routes = {address: find_route(address) for address in addresses if not address.is_single}
    unrouted = tuple(address for address, route in routes.items() if route is None or route.gateway)
    unreachable = tuple(address for address in unrouted if routes[address] is None)
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
    # Open the fence: much faster than to lift it, which the kernel waits for. The verdict ends the chain of the fence,
    # not those of the host.
    chains = ((family, chain) for family in _families(addresses) for chain in _CHAINS)
    _nft("\n".join(f"insert rule {family} {table_name(move_id)} {chain} accept" for family, chain in chains))


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
    # Wait until no connection has one of these as its own address. Only a tree that is being ended has some.
    until = time.monotonic() + _SOCKETS_END_S
    while time.monotonic() < until and any(find_rows(addresses, lambda row: row.state not in _QUIET)):
        time.sleep(_LOOK_S)
    lift_fence(addresses, move_id)
