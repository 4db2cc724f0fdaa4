"""Announcements of moved addresses: they tell the neighbours on a link that an address is here now.

These are gratuitous ARP and unsolicited neighbour advertisements.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from crckpt.host.network.address import HostAddress

_ETHERNET: Final = 1  # ARPHRD_ETHER, linux/if_arp.h

_BROADCAST: Final = b"\xff" * 6
_ARP: Final = 0x0806
_REQUEST, _REPLY = 1, 2

_IPV6: Final = 0x86DD
_ALL_NODES: Final = socket.inet_pton(socket.AF_INET6, "ff02::1")
# 33:33 and the last four bytes of the group (RFC 2464, 7).
_ALL_NODES_ON_ETHERNET: Final = b"\x33\x33" + _ALL_NODES[-4:]
_ICMPV6: Final = 58
_ADVERTISEMENT: Final = 136
_OF_ROUTER: Final = 1 << 31
_OVERRIDE: Final = 1 << 29
_TARGET_LINK_ADDRESS: Final = 2
# Neighbours drop what a router may have forwarded (RFC 4861, 7.1.2).
_HOPS: Final = 255


class Announcer:
    """Announces addresses. Its sockets stay open: the kernel takes 10 ms to close each. Raises OSError."""

    def __init__(self, addresses: Sequence[HostAddress]) -> None:
        self._links: list[tuple[HostAddress, socket.socket]] = []
        for address in addresses:
            # Protocol 0: it receives nothing.
            link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            self._links.append((address, link))
            link.bind((address.device, 0))

    def announce(self) -> None:
        """Send the announcements of each address once. Raises OSError for the first that fails, after the others."""
        failed: OSError | None = None
        for address, link in self._links:
            try:
                _, _, _, kind, hardware = link.getsockname()
                # Loopback and tunnels have no neighbours to tell. They forget a default router that denies it is one.
                forwarding = Path(f"/proc/sys/net/ipv6/conf/{address.device}/forwarding")
                is_router = forwarding.exists() and forwarding.read_text().strip() != "0"
                for frame in make_announcements(address, hardware, is_router=is_router) if kind == _ETHERNET else ():
                    link.send(frame)
            except OSError as error:
                failed = failed or error
        if failed is not None:
            raise failed


def make_announcements(address: HostAddress, hardware: bytes, *, is_router: bool) -> Iterator[bytes]:
    """Make the Ethernet frames that announce an address. `is_router`: this host forwards packets of others."""
    ip = address.packed
    if address.family == 6:
        # An unsolicited neighbour advertisement to all nodes (RFC 4861, 4.4 and 7.2.6).
        flags = _OVERRIDE | (_OF_ROUTER if is_router else 0)
        option = struct.pack("!BB6s", _TARGET_LINK_ADDRESS, 1, hardware)
        message = struct.pack("!BBHI16s", _ADVERTISEMENT, 0, 0, flags, ip) + option
        # The pseudo-header: RFC 8200, 8.1.
        checksum = make_checksum(ip + _ALL_NODES + struct.pack("!II", len(message), _ICMPV6) + message)
        message = message[:2] + struct.pack("!H", checksum) + message[4:]
        header = struct.pack("!IHBB16s16s", 6 << 28, len(message), _ICMPV6, _HOPS, ip, _ALL_NODES)
        yield _ALL_NODES_ON_ETHERNET + hardware + struct.pack("!H", _IPV6) + header + message
    else:
        # Sender and target have the same IP address (RFC 826). Some devices learn from one form only (RFC 5227, 3).
        for operation, target in ((_REQUEST, bytes(6)), (_REPLY, hardware)):
            header = struct.pack("!HHBBH", _ETHERNET, 0x0800, 6, 4, operation)
            yield _BROADCAST + hardware + struct.pack("!H", _ARP) + header + hardware + ip + target + ip


def make_checksum(data: bytes) -> int:
    """Make the Internet checksum of data of an even length. Source: RFC 1071."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
