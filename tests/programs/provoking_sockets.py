"""Kinds for provoking.py: sockets. Each returns what must be kept."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from pathlib import Path

INTERFACE = b"crckpt0"
# linux/if_packet.h, linux/netlink.h, linux/udp.h, linux/if_tun.h
SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_MR_UNICAST = 263, 1, 3
SOL_NETLINK, NETLINK_ADD_MEMBERSHIP = 270, 1
RTM_GETLINK, NLM_F_REQUEST_DUMP = 18, 0x301
UDP_CORK = 1
TUNSETIFF, IFF_TUN_NO_PI = 0x400454CA, 0x1001

Pair = tuple[socket.socket, socket.socket]


def tcp_pair(_: Path) -> tuple[socket.socket, ...]:
    """A TCP connection with both ends here."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        return listener.accept()[0], client


def tcp_in_flight(_: Path) -> Pair:
    """A TCP connection that nobody has accepted yet."""
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, socket.create_connection(listener.getsockname())


def mptcp(_: Path) -> socket.socket:
    """Multipath TCP."""
    return socket.socket(proto=socket.IPPROTO_MPTCP)


def vsock(_: Path) -> socket.socket:
    """A socket to the host of this virtual machine."""
    return socket.socket(socket.AF_VSOCK)


def corked(_: Path) -> socket.socket:
    """UDP that holds back what it sends."""
    held = socket.socket(type=socket.SOCK_DGRAM)
    held.setsockopt(socket.IPPROTO_UDP, UDP_CORK, 1)
    return held


def packet_membership_twice(_workdir: Path) -> socket.socket:
    """A packet socket that has joined one hardware address twice."""
    held = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    request = struct.pack("=iHH8s", socket.if_nametoindex("lo"), PACKET_MR_UNICAST, 6, b"\2\0\0\0\0\1")
    for _ in range(2):
        held.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, request)
    return held


def unix_sends_outside(workdir: Path) -> socket.socket:
    """A datagram socket that sends to WORKDIR/peer.sock."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    held.connect(str(workdir / "peer.sock"))
    return held


def credentials_on_their_way(_: Path) -> Pair:
    """A datagram with the credentials of its sender, unread."""
    one, other = socket.socketpair(type=socket.SOCK_DGRAM)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    one.send(b"x")
    return one, other


def unix_in_flight(workdir: Path) -> socket.socket:
    """A connection that waits to be accepted, whose other end has been closed."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(workdir / "listening.sock"))
    listener.listen()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(workdir / "listening.sock"))
    return listener


def netlink_unread(_: Path) -> socket.socket:
    """An unread list of network interfaces."""
    held = netlink()
    held.send(struct.pack("=IHHIIB3x", 20, RTM_GETLINK, NLM_F_REQUEST_DUMP, 1, 0, 0))
    return held


def netlink_groups(_: Path) -> socket.socket:
    """A member of group 33."""
    held = netlink()
    held.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, 33)
    return held


def netlink() -> socket.socket:
    """A socket to the kernel's routing tables."""
    held = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    held.bind((0, 0))
    return held


def tun(_: Path) -> int:
    """A tun device in the network namespace of CRIU."""
    held = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(held, TUNSETIFF, struct.pack("16sH22x", b"", IFF_TUN_NO_PI))
    return held


def bound_to_interface(_: Path) -> socket.socket:
    """A TCP socket for one interface only."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, INTERFACE)
    return held


def packets_of_interface(_: Path) -> socket.socket:
    """A packet socket for one interface only."""
    held = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    held.bind((INTERFACE.decode(), 3))
    return held
