"""Multicast memberships of sockets: find them, and join the groups again. Source: ip(7), RFC 3678."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from crckpt.host.budget import Budget
from crckpt.host.opened import count_option_memory
from crckpt.host.proc.net import read_multicast_groups
from crckpt.host.syscalls.libc import getsockopt

Name = Annotated[str, Meta(max_length=64)]
Group: TypeAlias = tuple[int, int, str]
"""Level, interface and address of a multicast group."""

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


class GroupSearch:
    """Finds the groups of sockets by trying each of their network namespace: the kernel does not list them.

    The groups `joined` are tried first. Any user may join a million groups, so all tries together take `seconds` at
    most.
    """

    def __init__(self, seconds: float, joined: Iterable[Group] = ()) -> None:
        self._left_s = seconds
        self._joined = dict.fromkeys(joined)
        self._groups: dict[int, list[Group]] = {}

    @property
    def joined(self) -> tuple[Group, ...]:
        """The groups that sockets were found to be members of."""
        return tuple(self._joined)

    def find(self, pid: int, held: socket.socket) -> tuple[tuple[Membership, ...], bool]:
        """Find the memberships of a socket of the process, and return whether these may not be all."""
        budget = Budget(self._left_s)
        found: dict[Group, Membership] = {}
        is_all = False
        try:
            for group in self._candidates(pid, budget):
                if group not in found and (joined := _find_membership(held, *group)) is not None:
                    found[group] = joined
                    is_all = _is_all(held, found)
                if is_all or budget.is_spent():
                    break
            is_cut = not is_all and budget.is_spent()
        finally:
            self._left_s = 0.0 if budget.was_spent else budget.left_s
        self._joined |= dict.fromkeys(found)
        return tuple(found.values()), is_cut

    def _candidates(self, pid: int, budget: Budget) -> Iterator[Group]:
        yield from self.joined
        namespace = Path(f"/proc/{pid}/ns/net").stat().st_ino
        if namespace not in self._groups:
            self._groups[namespace] = list(find_groups(pid, budget))
        yield from self._groups[namespace]


def find_groups(pid: int, budget: Budget) -> Iterator[Group]:
    """Find the groups of which sockets of the process may be members: all of its network namespace."""
    for group, index, users in read_multicast_groups(pid, budget):
        if users > (group in _BY_KERNEL):
            yield _IPV6 if ":" in group else _IP, index, group


def _find_membership(held: socket.socket, level: int, index: int, group: str) -> Membership | None:
    with suppress(OSError):  # EADDRNOTAVAIL: it is no member
        excludes, sources = _filter(held, level, index, group)
        return Membership(interface_name(held, index), group, excludes, sources)
    return None


def _is_all(held: socket.socket, found: Mapping[Group, Membership]) -> bool:
    """Return whether memberships of these groups take all memory that the socket has for options."""
    # Lists of sources take memory of different sizes.
    if any(each.sources or not each.excludes for each in found.values()):
        return False
    return count_option_memory(held) == sum(_bytes_of_membership(level) for level, *_ in found)


@cache
def _bytes_of_membership(level: int) -> int:
    """The memory that this kernel takes for a membership; 0 if that is not known."""
    family, group, index = (socket.AF_INET6, "ff02::1:3", 1) if level == _IPV6 else (socket.AF_INET, "224.0.0.252", 1)
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as fresh:
        fresh.setsockopt(level, _JOIN_GROUP, _GROUP.pack(index, _address(group)))
        return count_option_memory(fresh)
    return 0


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
    # The kernel returns as many sources as fit, and the number of all. Most memberships have none.
    sources = 0
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
