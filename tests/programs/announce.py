"""Announce an address to the neighbours: `announce.py DEVICE ADDRESS`.

By gratuitous ARP (RFC 5227), or by an unsolicited neighbour advertisement (RFC 4861, 7.2.6).
"""

import socket
import struct
import sys
from typing import Final

ARP: Final = 0x0806
NEIGHBOUR_ADVERTISEMENT: Final = 136
OVERRIDE: Final = 0x20000000
TARGET_LINK_LAYER_ADDRESS: Final = 2


def main(device: str, address: str) -> None:
    """Send the announcement once."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ARP)) as ethernet:
        ethernet.bind((device, 0))
        hardware: bytes = ethernet.getsockname()[4]
        if ":" not in address:
            ip, everybody = socket.inet_aton(address), b"\xff" * 6
            head = everybody + hardware + struct.pack(">HHHBBH", ARP, 1, 0x0800, 6, 4, 1)
            ethernet.send(head + hardware + ip + everybody + ip)
            return
    with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as icmp:  # the kernel adds the checksum
        icmp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        icmp.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        icmp.bind((address, 0))
        message = struct.pack(">BBHI", NEIGHBOUR_ADVERTISEMENT, 0, 0, OVERRIDE) + socket.inet_pton(
            socket.AF_INET6, address
        )
        icmp.sendto(message + bytes((TARGET_LINK_LAYER_ADDRESS, 1)) + hardware, ("ff02::1", 0))


main(*sys.argv[1:])
