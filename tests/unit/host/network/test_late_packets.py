"""Packets are parsed strictly: they come from the network, and from the other side of a move."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crckpt.host.network.address import parse_address
from crckpt.host.network.late_packets import deliver, parse_packet

SOURCE, TARGET = bytes([10, 77, 0, 3]), bytes([10, 77, 0, 100])
FIN, SYN, RST, ACK = 1, 2, 4, 16


def segment(flags: int, data: bytes) -> bytes:
    return struct.pack("!HHIIBBHHH", 40000, 9000, 1, 2, 5 << 4, flags, 1000, 0, 0) + data


def ipv4(content: bytes, *, fragment: int = 0, protocol: int = 6) -> bytes:
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(content), 7, fragment, 64, protocol, 0)
    return header + SOURCE + TARGET + content


def ipv6(content: bytes) -> bytes:
    return struct.pack("!IHBB", 6 << 28, len(content), 6, 64) + SOURCE * 4 + TARGET * 4 + content


@pytest.mark.parametrize("make", [ipv4, ipv6])
def test_padding_of_the_link_layer_is_removed_from_a_packet(make: Callable[[bytes], bytes]) -> None:
    packet = parse_packet(make(segment(ACK, b"data")) + bytes(6))
    assert packet is not None
    assert packet.content == make(segment(ACK, b"data"))
    assert packet.segment == segment(ACK, b"data")
    assert packet.is_kept


@pytest.mark.parametrize(
    ("flags", "data", "is_kept"),
    [
        (ACK, b"", False),
        (ACK | FIN, b"", True),
        (SYN, b"", True),
        (SYN | ACK, b"early", False),
        (RST | ACK, b"why", False),
        (0, b"data", False),
    ],
)
def test_only_what_a_peer_waits_with_is_kept(flags: int, data: bytes, is_kept: bool) -> None:
    packet = parse_packet(ipv4(segment(flags, data)))
    assert packet is not None
    assert packet.is_kept == is_kept


@pytest.mark.parametrize(
    "content",
    [
        b"",
        ipv4(segment(ACK, b"data"))[:-1],
        ipv4(segment(ACK, b"data"), fragment=0x2000),
        ipv4(segment(ACK, b"data"), fragment=10),
        ipv4(segment(ACK, b"data"), protocol=17),
        ipv4(segment(ACK, b"")[:12] + b"\x40" + segment(ACK, b"")[13:]),
        ipv4(segment(ACK, b"")[:12] + b"\x60" + segment(ACK, b"")[13:]),
        b"\x44" + ipv4(segment(ACK, b"data"))[1:],
    ],
)
def test_incomplete_tcp_segment_is_refused(content: bytes) -> None:
    assert parse_packet(content) is None


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=80).map(lambda end: b"\x45" + end)))
def test_any_bytes_in_place_of_a_packet_cause_no_error(content: bytes) -> None:
    packet = parse_packet(content)
    assert packet is None or packet.content == content[: len(packet.content)]
    # For no address, nothing is sent.
    deliver((content,), (parse_address("10.77.0.200/24@eth0"),))
