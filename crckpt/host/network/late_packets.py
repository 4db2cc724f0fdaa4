"""TCP packets that came for moved addresses while the tree was frozen: the destination delivers them.

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
from typing import Final

from msgspec import Struct

from crckpt.host.network.address import HostAddress
from crckpt.host.network.announcements import make_checksum

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


class TcpPacket(Struct, frozen=True):
    """An IP packet with a TCP segment. It `is_kept` if it has data, or begins or ends a connection."""

    content: bytes
    family: int
    source: bytes
    target: bytes
    segment: bytes
    is_kept: bool

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
        """Return the last packets that are kept of each connection, in order: at most 256, and 256 KiB."""
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
        if packet is not None and packet.is_kept:
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
    begins = flags & (_SYN | _ACK | _RST | _FIN) == _SYN
    return TcpPacket(content[:length], family, source, target, segment, has_data or begins)


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
