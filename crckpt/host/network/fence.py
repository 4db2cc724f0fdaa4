"""The fence around addresses of a move: while it is up, this host neither gets nor sends a packet for them.

It is an nftables table, and for IPv4 another one of the family `arp`, both named by the move. It drops IP packets from
and to the addresses, also over loopback, and what asks for them or announces them: ARP, and neighbour solicitations and
advertisements. Packets in raw sockets (packet(7)) pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from crckpt.errors import HostCannot
from crckpt.host.namespaces.network_locks import find_nft
from crckpt.host.network.address import HostAddress
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


def table_name(move_id: MoveId) -> str:
    if not re.fullmatch("[0-9a-f]{16}", move_id):
        raise ValueError(f"{move_id!r} is not the id of a move")
    return f"{_PREFIX}{move_id}"


def raise_fence(addresses: Sequence[HostAddress], move_id: MoveId) -> None:
    """Put the fence up, all of it at once; replace one of this move that is up. Raises HostCannot."""
    _nft("\n".join(_raising(addresses, table_name(move_id))))


def open_fence(addresses: Sequence[HostAddress], move_id: MoveId) -> None:
    """Let all packets through a fence that is up. Much faster than to lift it, which the kernel waits for.

    Raises HostCannot.
    """
    # The verdict ends the chain of the fence, not those of the host.
    table = table_name(move_id)
    chains = ((family, chain) for family in _families(addresses) for chain in _CHAINS)
    _nft("\n".join(f"insert rule {family} {table} {chain} accept" for family, chain in chains))


def lift_fence(addresses: Sequence[HostAddress], move_id: MoveId) -> None:
    """Remove the fence of a move, if it is up. Raises HostCannot."""
    _nft("\n".join(_lifting(addresses, table_name(move_id))))


def find_fences() -> frozenset[MoveId]:
    """The ids of moves whose fence is up in this network namespace. Raises HostCannot."""
    listed = (line.split()[-1] for line in _nft("list tables").output.splitlines() if line)
    return frozenset(MoveId(name.removeprefix(_PREFIX)) for name in listed if name.startswith(_PREFIX))


def _raising(addresses: Sequence[HostAddress], table: str) -> Iterator[str]:
    """The commands that put it up. nft does all of them or none."""
    yield from _lifting(addresses, table)
    for family in _families(addresses):
        yield f"add table {family} {table}"
        for chain, hook in zip(_CHAINS, ("input" if family == "arp" else "prerouting", "output"), strict=True):
            yield f"add chain {family} {table} {chain} {{ type filter hook {hook} priority {_EARLY}; }}"
            for address in addresses:
                yield from (f"add rule {family} {table} {chain} {rule} drop" for rule in _matches(address, family))


def _matches(address: HostAddress, family: str) -> Iterator[str]:
    if family == "arp":
        if address.family == 4:
            yield from (f"arp {end} ip {address.ip}" for end in ("saddr", "daddr"))
        return
    protocol = "ip" if address.family == 4 else "ip6"
    yield from (f"{protocol} {end} {address.ip}" for end in ("saddr", "daddr"))
    if address.family == 6:
        yield f"{_NEIGHBOURS} 0x{address.packed.hex()}"


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
