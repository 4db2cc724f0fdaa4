"""Sockets of many kinds, each with every option that can be set to something unusual; all are read at each tick.

`socket_options.py WORKDIR KIND...` makes one socket of each kind named. Each has a status of its own, in
status-KIND.json. `WORKDIR/unusual.json` says of each kind which options have another value than a new socket.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from selfcheck import LIFETIME_TICKS, TICK_S, Program
from system_calls import LIBC

SOL_PACKET, SOL_NETLINK = 263, 270
LOOPBACK: Final = 1
TCP_MD5SIG: Final = 14
INTERFACE: Final = "crckpt-m0"
GROUP, SOURCES = "239.7.7.7", ("127.0.0.9", "127.0.0.8")
GROUP_6, SOURCE_6 = "ff15::7777", "fe80::9"
MCAST_JOIN, MCAST_JOIN_SOURCE, MCAST_BLOCK, MCAST_FILTER = 42, 46, 43, 48
LOCK_FILTER, ATTACH_FILTER, GET_FILTER = 44, 26, 26


class Option(NamedTuple):
    """`values` are tried in this order; bytes are for options that are no number."""

    level: int
    number: int
    values: tuple[int | bytes, ...] = (1, 0)
    size: int = 0


def flags(level: int, **numbers: int) -> dict[str, Option]:
    """Make options that are on or off."""
    return {name: Option(level, number) for name, number in numbers.items()}


OPTIONS: Final = {
    # asm-generic/socket.h
    **flags(
        1, SO_DEBUG=1, SO_KEEPALIVE=9, SO_PASSCRED=16, SO_PASSSEC=34, SO_RXQ_OVFL=40, SO_WIFI_STATUS=41, SO_NOFCS=43
    ),
    **flags(
        1,
        SO_SELECT_ERR_QUEUE=45,
        SO_ZEROCOPY=60,
        SO_PREFER_BUSY_POLL=69,
        SO_TXREHASH=74,
        SO_RCVMARK=75,
        SO_PASSPIDFD=76,
        SO_RCVPRIORITY=82,
        SO_PASSRIGHTS=83,
        SO_INQ=84,
    ),
    "SO_BINDTODEVICE": Option(1, 25, (b"lo\0",), 16),
    "SO_PRIORITY": Option(1, 12, (3,)),
    "SO_RCVLOWAT": Option(1, 18, (7,)),
    "SO_MARK": Option(1, 36, (77,)),
    "SO_TIMESTAMPING": Option(1, 37, (struct.pack("=ii", 0x18, 0),), 8),
    "SO_TIMESTAMPING_NEW": Option(1, 65, (), 8),
    "SO_TIMESTAMP": Option(1, 29, ()),
    "SO_TIMESTAMPNS": Option(1, 35, ()),
    "SO_TIMESTAMP_NEW": Option(1, 63, ()),
    "SO_TIMESTAMPNS_NEW": Option(1, 64),
    "SO_PEEK_OFF": Option(1, 42, (3,)),
    "SO_BUSY_POLL": Option(1, 46, (5,)),
    "SO_MAX_PACING_RATE": Option(1, 47, (struct.pack("=Q", 5_000_000),), 8),
    "SO_INCOMING_CPU": Option(1, 49, (1,)),
    "SO_TXTIME": Option(1, 61, (struct.pack("=iI", 1, 0),), 8),
    "SO_BUSY_POLL_BUDGET": Option(1, 70, (9,)),
    # linux/in.h
    **flags(
        0,
        IP_RECVOPTS=6,
        IP_RETOPTS=7,
        IP_PKTINFO=8,
        IP_RECVERR=11,
        IP_RECVTTL=12,
        IP_RECVTOS=13,
        IP_FREEBIND=15,
        IP_PASSSEC=18,
        IP_TRANSPARENT=19,
        IP_RECVORIGDSTADDR=20,
        IP_NODEFRAG=22,
        IP_CHECKSUM=23,
    ),
    **flags(
        0,
        IP_BIND_ADDRESS_NO_PORT=24,
        IP_RECVFRAGSIZE=25,
        IP_RECVERR_RFC4884=26,
        IP_MULTICAST_LOOP=34,
        IP_MULTICAST_ALL=49,
    ),
    "IP_TOS": Option(0, 1, (0x28,)),
    "IP_OPTIONS": Option(0, 4, (b"\1\1\1\0",), 40),
    "IP_TTL": Option(0, 2, (33,)),
    "IP_MTU_DISCOVER": Option(0, 10, (3,)),
    "IP_MINTTL": Option(0, 21, (9,)),
    "IP_MULTICAST_IF": Option(0, 32, (socket.inet_aton("127.0.0.1"),), 4),
    "IP_MULTICAST_TTL": Option(0, 33, (17,)),
    "IP_UNICAST_IF": Option(0, 50, (struct.pack(">I", LOOPBACK),), 4),
    "IP_LOCAL_PORT_RANGE": Option(0, 51, (31_000 << 16 | 30_000,)),
    # linux/in6.h
    **flags(
        41,
        IPV6_MULTICAST_LOOP=19,
        IPV6_RECVERR=25,
        IPV6_MULTICAST_ALL=29,
        IPV6_RECVERR_RFC4884=31,
        IPV6_FLOWINFO_SEND=33,
        IPV6_RECVPKTINFO=49,
        IPV6_RECVHOPLIMIT=51,
        IPV6_RECVHOPOPTS=53,
        IPV6_RECVRTHDR=56,
        IPV6_RECVDSTOPTS=58,
        IPV6_RECVPATHMTU=60,
        IPV6_DONTFRAG=62,
        IPV6_RECVTCLASS=66,
        IPV6_AUTOFLOWLABEL=70,
    ),
    **flags(
        41,
        IPV6_RECVORIGDSTADDR=74,
        IPV6_TRANSPARENT=75,
        IPV6_RECVFRAGSIZE=77,
        IPV6_FREEBIND=78,
        IPV6_2292PKTINFO=2,
        IPV6_FLOWINFO=11,
    ),
    "IPV6_CHECKSUM": Option(41, 7, (12,)),
    "IPV6_UNICAST_HOPS": Option(41, 16, (44,)),
    "IPV6_MULTICAST_IF": Option(41, 17, (LOOPBACK,)),
    "IPV6_MULTICAST_HOPS": Option(41, 18, (18,)),
    "IPV6_MTU_DISCOVER": Option(41, 23, (3,)),
    "IPV6_TCLASS": Option(41, 67, (0x2C,)),
    "IPV6_ADDR_PREFERENCES": Option(41, 72, (2,)),
    "IPV6_MINHOPCOUNT": Option(41, 73, (8,)),
    "IPV6_UNICAST_IF": Option(41, 76, (struct.pack(">I", LOOPBACK),), 4),
    # linux/tcp.h
    **flags(6, TCP_NODELAY=1, TCP_THIN_LINEAR_TIMEOUTS=16, TCP_SAVE_SYN=27, TCP_FASTOPEN_CONNECT=30),
    **flags(6, TCP_FASTOPEN_NO_COOKIE=34, TCP_INQ=36),
    "TCP_KEEPIDLE": Option(6, 4, (77,)),
    "TCP_SYNCNT": Option(6, 7, (4,)),
    "TCP_LINGER2": Option(6, 8, (11,)),
    "TCP_DEFER_ACCEPT": Option(6, 9, (15,)),
    "TCP_WINDOW_CLAMP": Option(6, 10, (50_000,)),
    "TCP_CONGESTION": Option(6, 13, (b"reno",), 16),
    "TCP_MAXSEG": Option(6, 2, (777,)),
    "TCP_USER_TIMEOUT": Option(6, 18, (12_345,)),
    "TCP_FASTOPEN": Option(6, 23, (5,)),
    "TCP_NOTSENT_LOWAT": Option(6, 25, (9_999,)),
    "TCP_TX_DELAY": Option(6, 37, (3,)),
    "TCP_RTO_MAX_MS": Option(6, 44, (60_000,)),
    "TCP_RTO_MIN_US": Option(6, 45, (90_000,)),
    "TCP_DELACK_MAX_US": Option(6, 46, (30_000,)),
    # linux/udp.h
    **flags(17, UDP_NO_CHECK6_TX=101, UDP_NO_CHECK6_RX=102, UDP_GRO=104),
    "UDP_SEGMENT": Option(17, 103, (1000,)),
    # linux/if_packet.h, linux/netlink.h
    **flags(SOL_PACKET, PACKET_AUXDATA=8, PACKET_TX_HAS_OFF=19, PACKET_QDISC_BYPASS=20, PACKET_IGNORE_OUTGOING=23),
    **flags(
        SOL_NETLINK,
        NETLINK_PKTINFO=3,
        NETLINK_BROADCAST_ERROR=4,
        NETLINK_NO_ENOBUFS=5,
        NETLINK_LISTEN_ALL_NSID=8,
        NETLINK_CAP_ACK=10,
        NETLINK_EXT_ACK=11,
        NETLINK_GET_STRICT_CHK=12,
    ),
}


class Kind(NamedTuple):
    """How to make a socket. Options are set before `use` and again after it; `without` are left alone."""

    family: int
    type: int
    protocol: int = 0
    use: Callable[[socket.socket], object] = lambda _: None
    without: tuple[str, ...] = ()


KEPT: list[socket.socket] = []


def bind(made: socket.socket) -> None:
    """Bind to its own port on the loopback interface."""
    made.bind(("::1" if made.family == socket.AF_INET6 else "127.0.0.1", 0))


def listen(made: socket.socket) -> None:
    """Accept connections."""
    bind(made)
    made.listen(5)


def connect(made: socket.socket) -> None:
    """Connect to a socket of ours."""
    other = socket.socket(made.family, made.type)
    bind(other)
    if made.type == socket.SOCK_STREAM:
        # Its end leaves no port in TIME-WAIT.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other.listen()
    made.settimeout(30)
    made.connect(other.getsockname())
    made.settimeout(None)
    KEPT.append(other)
    if made.type == socket.SOCK_STREAM:
        KEPT.append(other.accept()[0])


def sign(made: socket.socket) -> None:
    """Accept connections with a key only."""
    made.setsockopt(
        socket.IPPROTO_TCP, TCP_MD5SIG, _address("127.0.0.1") + struct.pack("=BBHi80s", 0, 0, 4, 0, b"key!")
    )
    listen(made)


def lock_filter(made: socket.socket) -> None:
    """Set a filter that passes everything, permanently."""
    instruction = struct.pack("=HBBI", 6, 0, 0, 0xFFFF)
    buffer = ctypes.create_string_buffer(instruction)
    made.setsockopt(1, ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(buffer)))
    made.setsockopt(1, LOCK_FILTER, 1)
    bind(made)


def _address(host: str) -> bytes:
    """Return struct sockaddr_storage."""
    if ":" in host:
        packed = struct.pack("=HHI16sI", socket.AF_INET6, 0, 0, socket.inet_pton(socket.AF_INET6, host), 0)
    else:
        packed = struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton(host))
    return packed.ljust(128, b"\0")


def join(
    made: socket.socket,
    *,
    level: int,
    group: str,
    interface: int = LOOPBACK,
    only: tuple[str, ...] = (),
    never: tuple[str, ...] = (),
) -> None:
    """Join a group: all of it, or only the sources `only`, or all but `never`."""
    head = struct.pack("@I4x", interface)
    if not only:
        made.setsockopt(level, MCAST_JOIN, head + _address(group))
    for source in only:
        made.setsockopt(level, MCAST_JOIN_SOURCE, head + _address(group) + _address(source))
    for source in never:
        made.setsockopt(level, MCAST_BLOCK, head + _address(group) + _address(source))


def join_4(made: socket.socket) -> None:
    """Join a group, another from two sources only, and one without a source."""
    made.bind(("", 0))
    join(made, level=0, group=GROUP)
    join(made, level=0, group="239.7.7.8", only=SOURCES)
    join(made, level=0, group="239.7.7.9", never=SOURCES[:1])


def join_elsewhere(made: socket.socket) -> None:
    """Join a group on another interface."""
    made.bind(("", 0))
    join(made, level=0, group=GROUP, interface=socket.if_nametoindex(INTERFACE))


def join_6(made: socket.socket) -> None:
    """Join groups as for IPv4, and a group of IPv4, which such a socket may join too."""
    made.bind(("::", 0))
    join(made, level=41, group=GROUP_6)
    join(made, level=41, group="ff15::7778", only=(SOURCE_6,))
    join(made, level=41, group="ff15::7779", never=(SOURCE_6,))
    join(made, level=0, group="239.7.7.6", only=SOURCES[:1])


def memberships(made: socket.socket) -> list[object]:
    """Return mode and sources of each group that may have been joined."""
    found: list[object] = []
    for level, groups in ((0, [f"239.7.7.{n}" for n in (6, 7, 8, 9)]), (41, [f"ff15::777{n}" for n in (7, 8, 9)])):
        for group in groups:
            try:
                filtered = _filter(made, level, group)
            except OSError:
                continue
            found.append([group, *filtered])
    return found


def _filter(made: socket.socket, level: int, group: str) -> tuple[int, list[str]]:
    """Call getsockopt(2) with a request in its buffer, which Python does not offer."""
    buffer = ctypes.create_string_buffer(
        struct.pack("@I4x", LOOPBACK) + _address(group) + struct.pack("=II", 0, 8), 144 + 8 * 128
    )
    size = ctypes.c_uint32(len(buffer))
    if LIBC.getsockopt(made.fileno(), level, MCAST_FILTER, buffer, ctypes.byref(size)):
        raise OSError(ctypes.get_errno(), "getsockopt")
    mode, count = struct.unpack_from("=II", buffer, 136)
    sources = []
    for number in range(count):
        packed = buffer.raw[144 + 128 * number :][:24]
        family = int.from_bytes(packed[:2], sys.byteorder)
        there = packed[8:24] if family == socket.AF_INET6 else packed[4:8]
        sources.append(socket.inet_ntop(family, there))
    return mode, sorted(sources)


# Lost packets, or a connection to nowhere, would be what these bring about.
DISTURBING: Final = (
    "TCP_FASTOPEN_CONNECT",
    "TCP_MAXSEG",
    "TCP_TX_DELAY",
    "IP_MINTTL",
    "IPV6_MINHOPCOUNT",
    "SO_BINDTODEVICE",
    "SO_RCVLOWAT",
)
KINDS: Final = {
    "tcp4-new": Kind(socket.AF_INET, socket.SOCK_STREAM),
    "tcp4-listening": Kind(socket.AF_INET, socket.SOCK_STREAM, use=listen, without=("TCP_FASTOPEN_CONNECT",)),
    "tcp4-connected": Kind(
        socket.AF_INET,
        socket.SOCK_STREAM,
        use=connect,
        without=DISTURBING,
    ),
    "tcp6-listening": Kind(socket.AF_INET6, socket.SOCK_STREAM, use=listen, without=("TCP_FASTOPEN_CONNECT",)),
    "tcp6-connected": Kind(socket.AF_INET6, socket.SOCK_STREAM, use=connect, without=DISTURBING),
    "udp4-bound": Kind(socket.AF_INET, socket.SOCK_DGRAM, use=bind),
    "udp4-connected": Kind(socket.AF_INET, socket.SOCK_DGRAM, use=connect),
    "udp6-bound": Kind(socket.AF_INET6, socket.SOCK_DGRAM, use=bind),
    "udp6-connected": Kind(socket.AF_INET6, socket.SOCK_DGRAM, use=connect),
    "udp4-member": Kind(socket.AF_INET, socket.SOCK_DGRAM, use=join_4, without=tuple(OPTIONS)),
    "udp6-member": Kind(socket.AF_INET6, socket.SOCK_DGRAM, use=join_6, without=tuple(OPTIONS)),
    "tcp4-signed": Kind(socket.AF_INET, socket.SOCK_STREAM, use=sign, without=tuple(OPTIONS)),
    "udp4-elsewhere": Kind(socket.AF_INET, socket.SOCK_DGRAM, use=join_elsewhere, without=tuple(OPTIONS)),
    "udp4-filtered": Kind(socket.AF_INET, socket.SOCK_DGRAM, use=lock_filter, without=tuple(OPTIONS)),
    "raw4": Kind(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW),
    "raw6": Kind(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW),
    "unix-stream": Kind(socket.AF_UNIX, socket.SOCK_STREAM),
    "unix-datagram": Kind(socket.AF_UNIX, socket.SOCK_DGRAM),
    "netlink": Kind(socket.AF_NETLINK, socket.SOCK_RAW, 0),
    "packet": Kind(socket.AF_PACKET, socket.SOCK_RAW, 0),
}


def read_option(made: socket.socket, option: Option) -> int | str | None:
    """Return its value, as hexadecimal digits if it is no number; None if this socket has no such option."""
    try:
        if option.size:
            return made.getsockopt(option.level, option.number, option.size).hex()
        return made.getsockopt(option.level, option.number)
    except OSError:
        return None


def set_options(made: socket.socket, usual: dict[str, object], without: tuple[str, ...]) -> None:
    """Set each option with the usual value to the first value that changes it."""
    for name, option in OPTIONS.items():
        for value in () if name in without else option.values:
            if read_option(made, option) != usual[name]:
                break
            try:
                made.setsockopt(option.level, option.number, value)
            except OSError:
                continue


def read_all(made: socket.socket) -> dict[str, object]:
    """Return all options of this socket."""
    return {name: read_option(made, option) for name, option in OPTIONS.items()}


def make(kind: Kind) -> tuple[socket.socket, list[str]]:
    """Make such a socket; return it and the names of its unusual options."""
    made, fresh = (socket.socket(kind.family, kind.type, kind.protocol) for _ in range(2))
    usual = read_all(fresh)
    fresh.close()
    set_options(made, usual, kind.without)
    kind.use(made)
    set_options(made, usual, kind.without)
    return made, [name for name, value in read_all(made).items() if value != usual[name]]


def main() -> None:
    """Make the sockets and report their options."""
    workdir = Path(sys.argv[1])
    names = sys.argv[2:]
    made = {name: make(KINDS[name]) for name in names}
    (workdir / "unusual.json").write_text(json.dumps({name: unusual for name, (_, unusual) in made.items()}))
    programs = {name: Program(workdir, name, memory=4096) for name in names}
    root = Program(workdir, parts=tuple(names))

    def step(name: str) -> None:
        held = made[name][0]
        facts = {key: value for key, value in read_all(held).items() if value is not None}
        facts["memberships"] = memberships(held)
        facts["SO_LOCK_FILTER"] = held.getsockopt(1, LOCK_FILTER)
        facts["filter"] = held.getsockopt(1, GET_FILTER, 64).hex()
        programs[name].facts["options"] = facts

    while root.counter < LIFETIME_TICKS:
        for name in names:
            programs[name].tick(lambda name=name: step(name))  # type: ignore[misc]
        root.tick(lambda: None)
        time.sleep(TICK_S)
    os._exit(1)


if __name__ == "__main__":
    main()
