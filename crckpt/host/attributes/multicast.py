"""Multicast memberships of sockets: find them, and join the groups again. Source: ip(7), RFC 3678."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Annotated, Final

from msgspec import Meta, Struct

from crckpt.host.proc.net import read_multicast_groups
from crckpt.host.syscalls.libc import getsockopt

Name = Annotated[str, Meta(max_length=64)]

_IP, _IPV6 = 0, 41
_SIOCGIFNAME, _SIOCGIFINDEX = 0x8910, 0x8933
_INTERFACE: Final = struct.Struct("16si20x")  # struct ifreq
# linux/in.h: MCAST_*, and struct group_req, group_source_req, group_filter on hosts of 64 bits
_JOIN_GROUP, _BLOCK_SOURCE, _JOIN_SOURCE, _FILTER = 42, 43, 46, 48
_GROUP: Final = struct.Struct("@I4x128s")
_MODE: Final = struct.Struct("@II")
_ADDRESS_BYTES: Final = 128
_EXCLUDES: Final = 0
_MOST_SOURCES: Final = 1024
# Groups that every interface is a member of, once.
_BY_KERNEL: Final = ("224.0.0.1", "ff01::1", "ff02::1")


class Membership(Struct, frozen=True):
    """A multicast group that a socket is a member of on `interface`.

    It receives packets from `sources` only, or with `excludes` from all others.
    """

    interface: Name
    group: Name
    excludes: bool = True
    sources: Annotated[tuple[Name, ...], Meta(max_length=_MOST_SOURCES)] = ()


def find_groups(pid: int) -> Iterator[tuple[int, int, str]]:
    """Level, interface and address of the groups of which sockets of the process may be members."""
    # These are all groups of its network namespace. Which socket is a member, only the socket itself can tell.
    for group, index, users in read_multicast_groups(pid):
        if users > (group in _BY_KERNEL):
            yield _IPV6 if ":" in group else _IP, index, group


def find_memberships(held: socket.socket, groups: Iterable[tuple[int, int, str]]) -> Iterator[Membership]:
    """Find memberships by trying each group and interface: the kernel does not list them."""
    for level, index, group in groups:
        with suppress(OSError):  # EADDRNOTAVAIL: it is no member
            excludes, sources = _filter(held, level, index, group)
            yield Membership(interface_name(held, index), group, excludes, sources)


def join(held: socket.socket, memberships: tuple[Membership, ...]) -> Iterator[tuple[str, str]]:
    """Join groups; yield (title, why) of the memberships that fail."""
    for member in memberships:
        level = _IPV6 if ":" in member.group else _IP
        try:
            group = _GROUP.pack(interface_index(held, member.interface), _address(member.group))
            if member.excludes:
                held.setsockopt(level, _JOIN_GROUP, group)
            # MCAST_BLOCK_SOURCE needs a membership; MCAST_JOIN_SOURCE_GROUP makes one.
            for source in member.sources:
                held.setsockopt(level, _BLOCK_SOURCE if member.excludes else _JOIN_SOURCE, group + _address(source))
        except (OSError, ValueError) as error:
            title = f"the membership in {member.group} on {member.interface}"
            yield title, str(getattr(error, "strerror", None) or error)


def interface_name(held: socket.socket, number: int) -> str:
    """The name of an interface in the socket's network namespace."""
    said = fcntl.ioctl(held, _SIOCGIFNAME, _INTERFACE.pack(b"", number))
    return os.fsdecode(_INTERFACE.unpack(said)[0].rstrip(b"\0"))


def interface_index(held: socket.socket, name: str) -> int:
    """The number of an interface in the socket's network namespace. Raises OSError."""
    said = fcntl.ioctl(held, _SIOCGIFINDEX, _INTERFACE.pack(os.fsencode(name), 0))
    return int(_INTERFACE.unpack(said)[1])


def _filter(held: socket.socket, level: int, index: int, group: str) -> tuple[bool, tuple[str, ...]]:
    """Read whether a membership excludes sources, and which. Raises OSError if the socket is no member."""
    # The kernel returns as many sources as fit, and the number of all.
    sources = 16
    while True:
        head = _GROUP.pack(index, _address(group)) + _MODE.pack(0, sources)
        buffer = ctypes.create_string_buffer(head, len(head) + sources * _ADDRESS_BYTES)
        getsockopt(held.fileno(), level, _FILTER, buffer, len(buffer))
        mode, count = _MODE.unpack_from(buffer.raw, _GROUP.size)
        if count <= sources or sources >= _MOST_SOURCES:
            packed = (buffer.raw[len(head) + _ADDRESS_BYTES * place :] for place in range(min(count, sources)))
            return mode == _EXCLUDES, tuple(map(_host, packed))
        sources = min(count, _MOST_SOURCES)


def _address(host: str) -> bytes:
    """An address as struct sockaddr_storage. Raises OSError if it is none."""
    if ":" in host:
        packed = struct.pack("=HHI16sI", socket.AF_INET6, 0, 0, socket.inet_pton(socket.AF_INET6, host), 0)
    else:
        packed = struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_pton(socket.AF_INET, host))
    return packed.ljust(_ADDRESS_BYTES, b"\0")


def _host(address: bytes) -> str:
    family = int.from_bytes(address[:2], sys.byteorder)
    return socket.inet_ntop(family, address[8:24] if family == socket.AF_INET6 else address[4:8])
