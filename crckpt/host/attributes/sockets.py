"""Properties of sockets that CRIU does not save: read and set them through borrowed descriptors.

`OPTIONS` lists options that CRIU loses. Only values that differ from those of a new socket of its kind are recorded.

The kernel does not report these, so they are not in the list: an IPv4 multicast interface that was chosen by its number
(IP_MULTICAST_IF), programs that select a socket of a group (SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF),
IPsec policies, IP_ROUTER_ALERT, anycast memberships. Nor is TCP_QUICKACK, which changes with the traffic.
Sources: socket(7), ip(7), ipv6(7), tcp(7), udp(7), packet(7), netlink(7), RFC 3678, and the headers named below.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from crckpt.host.attributes import multicast
from crckpt.host.observe.sock_diag import find_renamed, find_sockets_with_keys, rename_again
from crckpt.host.observe.socket_kinds import Loss, find_losses
from crckpt.host.opened import as_socket, count_option_memory, is_listening, read_credentials, read_kind
from crckpt.host.proc.fd import read_targets, socket_inode
from crckpt.host.process.pidfd import borrow_each

Number = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]
Value = Annotated[tuple[Number, ...], Meta(max_length=64)]
User = Annotated[int, Meta(ge=0, lt=(1 << 32) - 1)]

_SOCKET, _IP, _TCP, _UDP, _IPV6, _PACKET, _NETLINK = 1, 0, 6, 17, 41, 263, 270

_LEVELS: Final[dict[int, tuple[int, ...]]] = {
    socket.AF_INET: (_SOCKET, _IP, _TCP, _UDP),
    socket.AF_INET6: (_SOCKET, _IP, _IPV6, _TCP, _UDP),
    socket.AF_PACKET: (_SOCKET, _PACKET),
    socket.AF_NETLINK: (_SOCKET, _NETLINK),
}

_INET: Final = (socket.AF_INET, socket.AF_INET6)
_SO_PRIORITY: Final = 12
_NOBODY: Final = (1 << 32) - 1


class Option(Struct, frozen=True):
    """An option by its level and number.

    `size` is in bytes, 0 for a number. `interface`: it is the number of a network interface, in the byte order of the
    host or of the network. `when`: in other states the value is not the program's choice, or cannot be set.
    `protects`: without it the program or the host is less secure.
    """

    level: int
    number: int
    size: int = 0
    interface: Literal["", "host", "network"] = ""
    when: Literal["", "closed", "unconnected", "datagram"] = ""
    protects: bool = False


def _numbers(level: int, *, size: int = 0, when: Literal["", "unconnected"] = "", **options: int) -> dict[str, Option]:
    return {name: Option(level, number, size, when=when) for name, number in options.items()}


OPTIONS: Final = {
    # asm-generic/socket.h. A later kind of timestamps in this order replaces an earlier one.
    **_numbers(_SOCKET, SO_DEBUG=1, SO_RXQ_OVFL=40, SO_WIFI_STATUS=41, SO_PEEK_OFF=42, SO_NOFCS=43),
    **_numbers(_SOCKET, SO_SELECT_ERR_QUEUE=45, SO_BUSY_POLL=46, SO_ZEROCOPY=60, SO_PREFER_BUSY_POLL=69),
    **_numbers(_SOCKET, SO_BUSY_POLL_BUDGET=70, SO_TXREHASH=74, SO_RCVMARK=75, SO_PASSPIDFD=76, SO_RCVPRIORITY=82),
    "SO_PASSRIGHTS": Option(_SOCKET, 83, protects=True),
    **_numbers(_SOCKET, SO_INQ=84),
    "SO_MAX_PACING_RATE": Option(_SOCKET, 47, size=8),
    "SO_INCOMING_CPU": Option(_SOCKET, 49, when="unconnected"),
    **_numbers(_SOCKET, size=8, SO_TXTIME=61, SO_TIMESTAMPING=37, SO_TIMESTAMPING_NEW=65),
    **_numbers(_SOCKET, SO_TIMESTAMP=29, SO_TIMESTAMPNS=35, SO_TIMESTAMP_NEW=63, SO_TIMESTAMPNS_NEW=64),
    # linux/in.h
    **_numbers(_IP, IP_TOS=1, IP_TTL=2, IP_RECVOPTS=6, IP_RETOPTS=7, IP_PKTINFO=8, IP_MTU_DISCOVER=10, IP_RECVERR=11),
    **_numbers(_IP, IP_RECVTTL=12, IP_RECVTOS=13, IP_FREEBIND=15, IP_PASSSEC=18, IP_TRANSPARENT=19),
    **_numbers(_IP, IP_RECVORIGDSTADDR=20, IP_CHECKSUM=23, IP_BIND_ADDRESS_NO_PORT=24, IP_RECVFRAGSIZE=25),
    "IP_OPTIONS": Option(_IP, 4, size=40),
    "IP_MINTTL": Option(_IP, 21, protects=True),
    **_numbers(_IP, IP_RECVERR_RFC4884=26, IP_MULTICAST_LOOP=34, IP_MULTICAST_ALL=49, IP_LOCAL_PORT_RANGE=51),
    "IP_MULTICAST_IF": Option(_IP, 32, size=4, when="datagram"),
    "IP_MULTICAST_TTL": Option(_IP, 33, when="datagram"),
    "IP_UNICAST_IF": Option(_IP, 50, size=4, interface="network"),
    # linux/in6.h, linux/ipv6.h
    **_numbers(
        _IPV6, IPV6_2292PKTINFO=2, IPV6_CHECKSUM=7, IPV6_FLOWINFO=11, IPV6_UNICAST_HOPS=16, IPV6_MULTICAST_LOOP=19
    ),
    "IPV6_MULTICAST_IF": Option(_IPV6, 17, interface="host", when="datagram"),
    "IPV6_MULTICAST_HOPS": Option(_IPV6, 18, when="datagram"),
    **_numbers(_IPV6, IPV6_MTU_DISCOVER=23, IPV6_RECVERR=25, IPV6_MULTICAST_ALL=29, IPV6_RECVERR_RFC4884=31),
    **_numbers(_IPV6, IPV6_FLOWINFO_SEND=33, IPV6_RECVPKTINFO=49, IPV6_RECVHOPLIMIT=51, IPV6_RECVHOPOPTS=53),
    **_numbers(_IPV6, IPV6_RECVRTHDR=56, IPV6_RECVDSTOPTS=58, IPV6_RECVPATHMTU=60, IPV6_DONTFRAG=62),
    **_numbers(_IPV6, IPV6_RECVTCLASS=66, IPV6_TCLASS=67, IPV6_AUTOFLOWLABEL=70, IPV6_ADDR_PREFERENCES=72),
    "IPV6_MINHOPCOUNT": Option(_IPV6, 73, protects=True),
    **_numbers(_IPV6, IPV6_RECVORIGDSTADDR=74, IPV6_TRANSPARENT=75, IPV6_RECVFRAGSIZE=77, IPV6_FREEBIND=78),
    "IPV6_UNICAST_IF": Option(_IPV6, 76, size=4, interface="network"),
    # linux/tcp.h
    **_numbers(_TCP, when="unconnected", TCP_MAXSEG=2, TCP_FASTOPEN=23, TCP_FASTOPEN_NO_COOKIE=34),
    "TCP_FASTOPEN_CONNECT": Option(_TCP, 30, when="closed"),
    "TCP_CONGESTION": Option(_TCP, 13, size=16),
    **_numbers(_TCP, TCP_SYNCNT=7, TCP_LINGER2=8, TCP_DEFER_ACCEPT=9, TCP_WINDOW_CLAMP=10, TCP_USER_TIMEOUT=18),
    **_numbers(_TCP, TCP_THIN_LINEAR_TIMEOUTS=16, TCP_NOTSENT_LOWAT=25, TCP_SAVE_SYN=27),
    **_numbers(_TCP, TCP_INQ=36, TCP_TX_DELAY=37, TCP_RTO_MAX_MS=44, TCP_RTO_MIN_US=45, TCP_DELACK_MAX_US=46),
    # linux/udp.h
    **_numbers(_UDP, UDP_NO_CHECK6_TX=101, UDP_NO_CHECK6_RX=102, UDP_SEGMENT=103, UDP_GRO=104),
    # linux/if_packet.h, linux/netlink.h
    **_numbers(_PACKET, PACKET_TX_HAS_OFF=19, PACKET_QDISC_BYPASS=20, PACKET_IGNORE_OUTGOING=23),
    **_numbers(_NETLINK, NETLINK_PKTINFO=3, NETLINK_BROADCAST_ERROR=4, NETLINK_NO_ENOBUFS=5, NETLINK_LISTEN_ALL_NSID=8),
    **_numbers(_NETLINK, NETLINK_CAP_ACK=10, NETLINK_EXT_ACK=11, NETLINK_GET_STRICT_CHK=12),
    # Last: a locked socket takes no other filter.
    "SO_LOCK_FILTER": Option(_SOCKET, 44, protects=True),
}


class SocketRecord(Struct, frozen=True, omit_defaults=True):
    """Properties of a socket that CRIU does not save.

    `pid` and `fd` name one of its descriptors. `options` differ from those of a new socket; `interfaces` are options
    that name a network interface.

    `owner` is the user and group that SO_PEERCRED reports: of a unix socket that `is_listening` its own, as clients see
    them, of a connected one those of its peer. It is empty if there is none; in older checkpoints also for root, and
    for a peer of the same user. `maker` is the user and group that the kernel takes for the socket's own, for example
    in rules of the packet filter; older checkpoints have none. A socket that `has_keys` accepts only signed TCP
    segments. `new_name` is what the file of a unix socket was renamed to after bind(2). `losses` are of what waited in
    it, only of a frozen process.
    """

    pid: int
    fd: int
    inode: int
    family: int
    kind: int
    protocol: int
    is_connected: bool = False
    options: dict[str, Value] = {}
    interfaces: dict[str, multicast.Name] = {}
    memberships: tuple[multicast.Membership, ...] = ()
    owner: Annotated[tuple[User, ...], Meta(max_length=2)] = ()
    is_listening: bool = False
    has_keys: bool = False
    new_name: Annotated[str, Meta(max_length=255)] = ""
    losses: tuple[Loss, ...] = ()
    maker: Annotated[tuple[User, ...], Meta(max_length=2)] = ()

    @property
    def is_tcp(self) -> bool:
        return self.family in _INET and self.kind == socket.SOCK_STREAM

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to restore in a tree of root's: all that CRIU makes there is root's, too."""
        has_settings = self.options or self.interfaces or self.memberships
        is_of_user = any(self.owner) or any(self.maker)
        return not (has_settings or is_of_user or self.has_keys or self.new_name or self.losses)


class SocketFailure(Struct, frozen=True):
    """A property that could not be restored, and why."""

    title: str
    protects: bool
    why: str


def read_sockets(
    pid: int,
    inside: int,
    skip: set[int],
    groups: multicast.GroupSearch,
    *,
    everything: bool = False,
    is_frozen: bool = False,
) -> Iterator[SocketRecord]:
    """Read the sockets of a process; unless `everything`, only those that have properties to restore.

    `inside` is its PID in its own namespace. Skip the inodes in `skip`, and add those that were read. `groups` finds
    the multicast groups of its sockets. Raises OSError if the process has ended.
    """
    inodes: dict[int, int] = {}
    for fd, target in read_targets(pid):
        if (inode := socket_inode(target)) and inode not in skip:
            skip.add(inode)
            inodes[fd] = inode
    with_keys: frozenset[int] | None = None
    for fd, ours in borrow_each(pid, inodes):
        with suppress(OSError), as_socket(ours) as held:
            kind = read_kind(held)
            options, interfaces, is_connected = _read_options(held, kind)
            memberships: tuple[multicast.Membership, ...] = ()
            is_cut = False
            # A socket with keys or memberships uses option memory. The kernel's tables of them are slow to read: read
            # them only then, and once.
            uses_memory = kind[0] in _INET and count_option_memory(held) > 0
            if uses_memory and kind[1] == socket.SOCK_STREAM:
                with_keys = find_sockets_with_keys() if with_keys is None else with_keys
            elif uses_memory:
                memberships, is_cut = groups.find(pid, held)
            of_unix = kind[0] == socket.AF_UNIX
            status = os.fstat(ours)
            renamed = find_renamed(held) if of_unix else None
            found = SocketRecord(
                inside,
                fd,
                inodes[fd],
                *kind,
                is_connected,
                options,
                interfaces,
                memberships,
                owner(ours) if of_unix else (),
                of_unix and is_listening(held),
                inodes[fd] in (with_keys or ()),
                renamed.new if renamed is not None else "",
                _find_losses(held, kind, is_cut=is_cut) if is_frozen else (),
                (status.st_uid, status.st_gid),
            )
            if everything or not found.is_empty:
                yield found


def _find_losses(held: socket.socket, kind: tuple[int, int, int], *, is_cut: bool) -> tuple[Loss, ...]:
    losses = find_losses(held, *kind[:2], is_frozen=True)
    return (*losses, "groups") if is_cut else losses


def owner(ours: int) -> tuple[int, ...]:
    """User and group that a unix socket reports of its maker or its peer; empty if there is none. Raises OSError."""
    with as_socket(ours) as held:
        found = read_credentials(held)[1:]
    return found if found[0] != _NOBODY else ()


def restore_socket(ours: int, record: SocketRecord) -> Iterator[SocketFailure]:
    """Restore the properties of a record to the socket of our descriptor; yield those that could not be set.

    Do nothing to a socket of another kind. Ignore errors of a connection that is closed by now.
    """
    with as_socket(ours) as held:
        if read_kind(held) != (record.family, record.kind, record.protocol):
            return
        # With --tcp close CRIU closes the connection. Then many options cannot be set, and nobody needs them.
        is_gone = record.is_connected and record.kind == socket.SOCK_STREAM and not _is_connected(held)
        failed = [
            *(SocketFailure(title, protects=False, why=why) for title, why in multicast.join(held, record.memberships)),
            *_set_options(held, record),
        ]
        try:
            if record.new_name:
                rename_again(held, record.new_name)
        except (OSError, ValueError) as error:
            failed.append(SocketFailure(f"the name {record.new_name}", protects=False, why=_reason(error)))
    if not is_gone:
        yield from failed
    yield from _restore_owners(ours, record)


def _is_connected(held: socket.socket) -> bool:
    with suppress(OSError):
        held.getpeername()
        return True
    return False


def _restore_owners(ours: int, record: SocketRecord) -> Iterator[SocketFailure]:
    """Compare the maker of a socket, and its peer, with the record, and set the maker."""
    # Of a shared socket CRIU makes the process with the lowest PID the maker, whoever that was.
    status, of_unix = os.fstat(ours), record.family == socket.AF_UNIX
    maker, error = (status.st_uid, status.st_gid), ""
    if record.maker and maker != record.maker and record.family != socket.AF_NETLINK:
        try:
            os.fchown(ours, *record.maker)
        except OSError as failure:
            error = _reason(failure)
    # The kernel judges packets, and what is written to netlink, also by who has opened the socket. That stays.
    if record.maker and _is_other(maker, record.maker) and (error or not of_unix):
        protects = record.maker[0] != 0
        if protects or record.family == socket.AF_NETLINK:
            why = f"user {maker[0]} has made it, instead of user {record.maker[0]}" + (error and f": {error}")
            yield SocketFailure("the owner", protects=protects, why=why)
    if of_unix and record.owner and not record.is_listening:
        peer = owner(ours)
        if peer and _is_other(peer, record.owner):
            why = f"it is user {peer[0]} instead of user {record.owner[0]}"
            yield SocketFailure("the peer's user (SO_PEERCRED)", protects=record.owner[0] != 0, why=why)


def _is_other(now: tuple[int, ...], before: tuple[int, ...]) -> bool:
    """Return whether this is another user than before, or has got root's group."""
    return now[0] != before[0] or (now[1:] == (0,) and now != before)


@cache
def _usual(kind: tuple[int, int, int]) -> tuple[tuple[str, int, int, int, int | bytes], ...]:
    """Name, level, number, size and default of each option that such a socket has."""
    family, form, protocol = kind
    levels = _LEVELS.get(family, (_SOCKET,))
    found = []
    # A packet socket with a protocol would receive packets at once.
    with socket.socket(family, form, 0 if family == socket.AF_PACKET else protocol) as fresh:
        for name, option in OPTIONS.items():
            if option.level not in levels or (option.when == "datagram" and form == socket.SOCK_STREAM):
                continue
            with suppress(OSError):
                # Asked with another size than 0, Python gives bytes.
                asked = (option.level, option.number, *((option.size,) if option.size else ()))
                found.append((name, option.level, option.number, option.size, fresh.getsockopt(*asked)))
    return tuple(found)


def _read_options(held: socket.socket, kind: tuple[int, int, int]) -> tuple[dict[str, Value], dict[str, str], bool]:
    options: dict[str, Value] = {}
    interfaces: dict[str, str] = {}
    get, is_connected = held.getsockopt, False
    for name, level, number, size, usual in _usual(kind):
        found = get(level, number, size) if size else get(level, number)
        if found == usual:
            continue
        is_connected = is_connected or (kind[0] in _INET and _is_connected(held))
        option = OPTIONS[name]
        if option.when in ("unconnected", "closed") and is_connected:
            continue
        if option.when == "closed" and is_listening(held):
            continue
        value = tuple(found) if isinstance(found, bytes) else (found,)
        if option.interface:
            with suppress(OSError):
                number = value[0] if option.interface == "host" else int.from_bytes(bytes(value), "big")
                interfaces[name] = multicast.interface_name(held, number)
        else:
            options[name] = value
    return options, interfaces, is_connected


def _set_options(held: socket.socket, record: SocketRecord) -> Iterator[SocketFailure]:
    priority = held.getsockopt(_SOCKET, _SO_PRIORITY)
    # Use the order of the table, not that of the record: some options change others.
    for name, option in OPTIONS.items():
        if name not in record.options and name not in record.interfaces:
            continue
        try:
            if option.interface:
                index = multicast.interface_index(held, record.interfaces[name])
                value = index.to_bytes(4, sys.byteorder if option.interface == "host" else "big")
            else:
                given = record.options[name]
                value = bytes(given) if option.size else struct.pack("=i", *given)
            # Skip a value that the socket has already: setting it may need a capability, or fail in this state.
            if held.getsockopt(option.level, option.number, option.size or 4) != value:
                held.setsockopt(option.level, option.number, value)
        except (OSError, ValueError, KeyError, struct.error) as error:
            yield SocketFailure(name, option.protects, _reason(error))
    # IP_TOS sets it, too.
    if held.getsockopt(_SOCKET, _SO_PRIORITY) != priority:
        held.setsockopt(_SOCKET, _SO_PRIORITY, priority)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
