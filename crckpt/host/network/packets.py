"""Packets that crckpt sends for moved addresses: announcements, and TCP packets that came while the tree was frozen.

Gratuitous ARP and unsolicited neighbour advertisements tell the neighbours on a link that an address is here now.
The source's host drops packets for a frozen tree. A peer would send them again only after 0.2 s, 0.6 s, 1.4 s and so on
(RFC 6298), so that it would notice up to twice the pause of the tree. So the source keeps them, and the destination
delivers them: TCP takes a packet that comes twice, or late, as a repeated one. Without it the peer only waits longer.
"""

from __future__ import annotations

import array
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Final

from msgspec import Struct

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

_MOST_PACKETS: Final = 256
_MOST_BYTES: Final = 256 << 10
_LONGEST: Final = 40 + 0xFFFF
# What waits is read, and no more: anybody may send faster than we read, and the tree is frozen meanwhile.
_MOST_READ: Final = 8192
_READ_WITHIN_S: Final = 0.1
# Of so many connections, those that were heard of last: anybody may send from any address.
_MOST_CONNECTIONS: Final = 256
_MOST_KEPT_BYTES: Final = 4 << 20
# Of each connection, the last: a peer that waits sends again the first one that was not acknowledged.
_MOST_OF_CONNECTION: Final = 8

_SO_ATTACH_FILTER: Final = 26  # asm-generic/socket.h
_SO_RCVBUFFORCE: Final = 33
_BUFFER_BYTES: Final = 4 << 20
_PROTOCOLS: Final = {4: 0x0800, 6: 0x86DD}
_FAMILIES: Final = {4: socket.AF_INET, 6: socket.AF_INET6}
# Where a packet names its protocol, and its destination. Source: RFC 791, RFC 8200.
_PROTOCOL_AT: Final = {4: 9, 6: 6}
_TARGET_AT: Final = {4: 16, 6: 24}
_FIN, _SYN, _RST, _ACK = 0x01, 0x02, 0x04, 0x10

# Instructions of a classic BPF program. Source: linux/filter.h.
_LOAD_WORD, _LOAD_BYTE, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x30, 0x15, 0x06


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


class TcpPacket(Struct, frozen=True):
    """An IP packet with a TCP segment: `connection` is its source, the ports, and its destination."""

    content: bytes
    family: int
    source: bytes
    target: bytes
    segment: bytes
    has_data: bool

    @property
    def connection(self) -> tuple[bytes, bytes, bytes]:
        """What packets of one connection have in common."""
        return self.source, self.target, self.segment[:4]


class Capture:
    """Copies of the packets that come for addresses."""

    def __init__(self, links: Sequence[socket.socket]) -> None:
        self._links = links
        # The connection that was heard of last comes last.
        self._packets: dict[tuple[bytes, bytes, bytes], deque[bytes]] = {}
        self._bytes = 0

    def take(self) -> tuple[bytes, ...]:
        """Return the last packets with data of each connection, in order: at most 256, and 256 KiB."""
        for link in self._links:
            end = time.monotonic() + _READ_WITHIN_S
            with suppress(OSError):
                for _ in range(_MOST_READ):
                    self._keep(link.recv(_LONGEST))
                    if time.monotonic() > end:
                        break
        found = [content for packets in self._packets.values() for content in packets][:_MOST_PACKETS]
        fits = accumulate(map(len, found))
        return tuple(content for content, size in zip(found, fits, strict=True) if size <= _MOST_BYTES)

    def _keep(self, content: bytes) -> None:
        packet = parse_packet(content)
        if packet is not None and packet.has_data:
            packets = self._packets.pop(packet.connection, deque[bytes]())
            self._packets[packet.connection] = packets
            packets.append(packet.content)
            self._bytes += len(packet.content)
            if len(packets) > _MOST_OF_CONNECTION:
                self._bytes -= len(packets.popleft())
            while len(self._packets) > _MOST_CONNECTIONS or self._bytes > _MOST_KEPT_BYTES:
                self._bytes -= sum(map(len, self._packets.pop(next(iter(self._packets)))))


@contextmanager
def capturing(addresses: Sequence[HostAddress]) -> Iterator[Capture]:
    """Copy packets that come for `addresses` during the block, as far as that is possible."""
    with ExitStack() as stack:
        links = []
        with suppress(OSError):
            for address in addresses:
                # Protocol 0: it receives nothing before it has its filter.
                link = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0))
                link.setblocking(False)
                link.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
                program = array.array("B", make_filter(address))
                count, where = len(program) // 8, program.buffer_info()[0]
                link.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", count, where))
                link.bind((address.device, _PROTOCOLS[address.family]))
                links.append(link)
        yield Capture(links)


def deliver(packets: Sequence[bytes], addresses: Sequence[HostAddress]) -> None:
    """Give packets to the sockets of this host that they are for, if they are for one of `addresses`."""
    targets = {address.packed for address in addresses}
    with ExitStack() as stack:
        links: dict[int, socket.socket] = {}
        for packet in filter(None, map(parse_packet, packets)):
            if packet.target not in targets:
                continue
            with suppress(OSError):
                if packet.family not in links:
                    # With this protocol the kernel takes the packet's own header.
                    link = socket.socket(_FAMILIES[packet.family], socket.SOCK_RAW, socket.IPPROTO_RAW)
                    links[packet.family] = stack.enter_context(link)
                host = socket.inet_ntop(_FAMILIES[packet.family], packet.target)
                # Where a device computes the checksum of a segment, it was not there yet.
                segment, length = bytearray(packet.segment), len(packet.segment)
                segment[16:18] = bytes(2)
                pseudo = packet.source + packet.target + struct.pack("!II", length, socket.IPPROTO_TCP)
                segment[16:18] = make_checksum(pseudo + segment + bytes(length % 2)).to_bytes(2)
                links[packet.family].sendto(packet.content[: len(packet.content) - length] + segment, (host, 0))


def parse_packet(content: bytes) -> TcpPacket | None:
    """Parse a whole IP packet with a TCP segment; None if it is something else."""
    if not content or len(content) > _LONGEST:
        return None
    family = content[0] >> 4
    if family == 4 and len(content) >= 20:
        start, length = content[0] % 16 * 4, int.from_bytes(content[2:4])
        # No fragments: neither "more fragments" nor an offset.
        if start < 20 or content[9] != socket.IPPROTO_TCP or int.from_bytes(content[6:8]) & 0x3FFF:
            return None
        source, target = content[12:16], content[16:20]
    elif family == 6 and len(content) >= 40:
        start, length = 40, 40 + int.from_bytes(content[4:6])
        if content[6] != socket.IPPROTO_TCP:
            return None
        source, target = content[8:24], content[24:40]
    else:
        return None
    # The rest is padding of the link.
    segment = content[start:length]
    if length > len(content) or len(segment) < 20 or not 20 <= (header := segment[12] // 16 * 4) <= len(segment):
        return None
    flags = segment[13]
    has_data = bool(flags & _ACK) and not flags & (_SYN | _RST) and bool(len(segment) > header or flags & _FIN)
    return TcpPacket(content[:length], family, source, target, segment, has_data)


def make_filter(address: HostAddress) -> bytes:
    """Make the BPF program that takes whole TCP packets for an address, and nothing else."""
    at = _TARGET_AT[address.family]
    words = [int.from_bytes(address.packed[part : part + 4]) for part in range(0, len(address.packed), 4)]
    checks = [(_LOAD_BYTE, _PROTOCOL_AT[address.family], socket.IPPROTO_TCP)]
    checks += [(_LOAD_WORD, at + 4 * number, word) for number, word in enumerate(words)]
    program = []
    for number, (load, offset, wanted) in enumerate(checks):
        # To the last instruction if it is something else.
        away = 2 * (len(checks) - number) - 1
        program += [(load, 0, 0, offset), (_JUMP_IF_EQUAL, 0, away, wanted)]
    program += [(_RETURN, 0, 0, _LONGEST), (_RETURN, 0, 0, 0)]
    return b"".join(struct.pack("@HBBI", *instruction) for instruction in program)
