"""The frames that announce an address, byte by byte."""

from __future__ import annotations

import socket
import struct

from crckpt.host.network.address import HostAddress
from crckpt.host.network.announcements import make_announcements

MAC = bytes.fromhex("020000000002")
IPV4 = HostAddress("10.77.0.100", 24, "eth0")
IPV6 = HostAddress("fd77::100", 64, "eth0")


def test_ipv4_address_is_announced_by_arp_request_and_reply() -> None:
    request, reply = make_announcements(IPV4, MAC, is_router=False)
    ip = "0a4d0064"
    begin = "ffffffffffff 020000000002 0806 0001 0800 06 04"
    assert request == bytes.fromhex(f"{begin} 0001 020000000002 {ip} 000000000000 {ip}")
    assert reply == bytes.fromhex(f"{begin} 0002 020000000002 {ip} 020000000002 {ip}")


def test_ipv6_address_is_announced_to_all_nodes() -> None:
    (frame,) = make_announcements(IPV6, MAC, is_router=False)
    ip = socket.inet_pton(socket.AF_INET6, IPV6.ip)
    all_nodes = socket.inet_pton(socket.AF_INET6, "ff02::1")
    assert frame[:14] == bytes.fromhex("333300000001 020000000002 86dd")
    assert frame[14:54] == bytes.fromhex("60000000 0020 3a ff") + ip + all_nodes
    message = frame[54:]
    assert message[:2] + message[4:] == bytes.fromhex("8800 20000000") + ip + bytes.fromhex("0201 020000000002")
    # With the checksum, the sum of all words is all ones.
    summed = ip + all_nodes + struct.pack("!II", len(message), 58) + message
    total = sum(struct.unpack(f"!{len(summed) // 2}H", summed))
    assert total % 0xFFFF == 0


def test_announcement_of_an_ipv6_router_has_the_router_flag() -> None:
    (frame,) = make_announcements(IPV6, MAC, is_router=True)
    assert frame[58:62] == bytes.fromhex("a0000000")
