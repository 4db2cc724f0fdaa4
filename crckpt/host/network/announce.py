"""Tell the neighbours on a link that an address is here now: gratuitous ARP, unsolicited neighbour advertisements."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
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
                _announce(address, link)
            except OSError as error:
                failed = failed or error
        if failed is not None:
            raise failed


def _announce(address: HostAddress, link: socket.socket) -> None:
    _, _, _, kind, hardware = link.getsockname()
    # Loopback and tunnels have no neighbours to tell.
    if kind == _ETHERNET:
        for frame in make_announcements(address, hardware, is_router=_is_router(address)):
            link.send(frame)


def make_announcements(address: HostAddress, hardware: bytes, *, is_router: bool) -> Iterator[bytes]:
    """Make the Ethernet frames that announce an address. `is_router`: this host forwards packets of others."""
    if address.family == 6:
        yield _advertisement(address.packed, hardware, is_router=is_router)
    else:
        # Some devices learn from one form only (RFC 5227, 3).
        yield _arp(_REQUEST, address.packed, hardware, bytes(6))
        yield _arp(_REPLY, address.packed, hardware, hardware)


def _arp(operation: int, ip: bytes, hardware: bytes, target: bytes) -> bytes:
    """An ARP packet in which sender and target have the same IP address. Source: RFC 826."""
    header = struct.pack("!HHBBH", _ETHERNET, 0x0800, 6, 4, operation)
    return _ethernet(_BROADCAST, hardware, _ARP) + header + hardware + ip + target + ip


def _advertisement(ip: bytes, hardware: bytes, *, is_router: bool) -> bytes:
    """An unsolicited neighbour advertisement to all nodes. Source: RFC 4861, 4.4 and 7.2.6."""
    flags = _OVERRIDE | (_OF_ROUTER if is_router else 0)
    option = struct.pack("!BB6s", _TARGET_LINK_ADDRESS, 1, hardware)
    message = struct.pack("!BBHI16s", _ADVERTISEMENT, 0, 0, flags, ip) + option
    # The pseudo-header: RFC 8200, 8.1.
    checksum = make_checksum(ip + _ALL_NODES + struct.pack("!II", len(message), _ICMPV6) + message)
    message = message[:2] + struct.pack("!H", checksum) + message[4:]
    header = struct.pack("!IHBB16s16s", 6 << 28, len(message), _ICMPV6, _HOPS, ip, _ALL_NODES)
    return _ethernet(_ALL_NODES_ON_ETHERNET, hardware, _IPV6) + header + message


def _ethernet(target: bytes, source: bytes, protocol: int) -> bytes:
    return target + source + struct.pack("!H", protocol)


def make_checksum(data: bytes) -> int:
    """Make the Internet checksum of data of an even length. Source: RFC 1071."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _is_router(address: HostAddress) -> bool:
    """Return whether this host is an IPv6 router on the device: neighbours forget a default router that denies it."""
    with suppress(OSError):
        return Path(f"/proc/sys/net/ipv6/conf/{address.device}/forwarding").read_text().strip() != "0"
    return False
