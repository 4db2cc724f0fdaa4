"""Read the kinds and options of a live process's sockets, and what waits in them that CRIU does not save.

CRIU reads the messages of unix sockets until one is empty, and sends them again from a socket without a name
(criu/sk-queue.c); it refuses those that come with credentials (SO_PASSCRED). It knows nothing of errors and urgent
data. crckpt borrows each descriptor for a moment: the process does not notice.
Source: pidfd_getfd(2), socket(7), unix(7), poll(2).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, Literal

from msgspec import Struct

from crckpt.host.observe.sock_diag import RenamedSocket, find_renamed
from crckpt.host.opened import (
    as_socket,
    count_option_memory,
    count_unread,
    is_listening,
    opened,
    poll_now,
    read_credentials,
    read_kind,
)
from crckpt.host.process.pidfd import borrow_each
from crckpt.host.syscalls.libc import getsockopt

Loss = Literal["error", "urgent", "sender", "empty", "credentials", "groups"]

_SO_GET_FILTER, _SO_PEEK_OFF = 26, 42
_NO_USER: Final = (1 << 32) - 1
_UDP_CORK: Final = 1  # linux/udp.h
_TCP_ULP: Final = 31  # linux/tcp.h
_SIOCGSKNS: Final = 0x894C  # linux/sockios.h
_SOL_NETLINK, _NETLINK_LIST_MEMBERSHIPS = 270, 9  # linux/netlink.h
_GROUPS_BYTES: Final = 8192
_NOT_SET: Final = -1
_LONGEST: Final = 1 << 20
_INET: Final = (socket.AF_INET, socket.AF_INET6)
_MESSAGES: Final = (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)


class SocketKind(Struct, frozen=True):
    """A socket's family, type and protocol as numbers, and properties that CRIU refuses or loses.

    `corked`: it holds data back (UDP). `has_bpf_filter`: an extended BPF program filters it. `layer` names what the
    kernel runs above TCP (tls). `unsavable_groups`: it is in netlink groups that CRIU cannot save. `namespace` is the
    network namespace in which it was opened, 0 if unknown. `uses_option_memory`: an internet socket has memory for
    options, such as keys of TCP or multicast groups. `peer_user` is the user of a connected unix socket's peer, 0 if
    there is none. `maker` is the user for whom others take the socket itself; 0 for a unix socket that does not listen.
    `losses` are what a restore loses of what waits in it.
    """

    pid: int
    fd: int
    family: int
    kind: int
    protocol: int
    corked: bool = False
    has_bpf_filter: bool = False
    layer: str = ""
    unsavable_groups: bool = False
    namespace: int = 0
    uses_option_memory: bool = False
    peer_user: int = 0
    maker: int = 0
    losses: tuple[Loss, ...] = ()
    renamed: RenamedSocket | None = None

    @property
    def is_tcp(self) -> bool:
        return self.family in _INET and self.kind == socket.SOCK_STREAM


def read_socket_kinds(pid: int, descriptors: Iterable[int]) -> Iterator[SocketKind]:
    """Read the kinds of these sockets. Skip those that the process closes at the same time, or that we may not see."""
    for descriptor, borrowed in borrow_each(pid, descriptors):
        with suppress(OSError), as_socket(borrowed) as held:  # by now it is no socket
            family, kind, protocol = read_kind(held)
            is_udp = kind == socket.SOCK_DGRAM and protocol in (socket.IPPROTO_UDP, socket.IPPROTO_UDPLITE)
            is_tcp, is_unix = protocol == socket.IPPROTO_TCP, family == socket.AF_UNIX
            layer, peer_user, maker = b"", 0, 0 if is_unix else os.fstat(borrowed).st_uid
            with suppress(OSError):
                layer = held.getsockopt(socket.IPPROTO_TCP, _TCP_ULP, 16).rstrip(b"\0") if is_tcp else b""
            namespace, has_bpf_filter = 0, False
            # It takes CAP_NET_ADMIN.
            with suppress(OSError), opened(fcntl.ioctl(borrowed, _SIOCGSKNS)) as file:
                namespace = os.fstat(file).st_ino
            # The kernel reports the length of a classic filter, but nothing of a BPF program (EACCES). CRIU then fails
            # with "Can't get socket filter len: Permission denied".
            try:
                getsockopt(borrowed, socket.SOL_SOCKET, _SO_GET_FILTER, None, 0)
            except OSError as error:
                has_bpf_filter = error.errno == errno.EACCES
            if is_unix and is_listening(held):
                maker = read_credentials(held)[1]  # who clients are told has called listen(2)
            elif is_unix:
                peer_user = read_credentials(held)[1]
            yield SocketKind(
                pid,
                descriptor,
                family,
                kind,
                protocol,
                corked=is_udp and bool(held.getsockopt(socket.IPPROTO_UDP, _UDP_CORK)),
                has_bpf_filter=has_bpf_filter,
                layer=layer.decode(errors="replace"),
                unsavable_groups=family == socket.AF_NETLINK and _has_unsavable_groups(held),
                namespace=namespace,
                uses_option_memory=family in _INET and bool(count_option_memory(held)),
                peer_user=0 if peer_user == _NO_USER else peer_user,
                maker=maker,
                losses=find_losses(held, family, kind),
                renamed=find_renamed(held) if is_unix else None,
            )


def unread_bytes(pid: int, descriptor: int) -> int:
    """Bytes that wait to be read, as `count_unread`; 0 if unknown."""
    for _, borrowed in borrow_each(pid, (descriptor,)):
        with suppress(OSError):
            return count_unread(borrowed)
    return 0


def is_readable(pid: int, descriptor: int) -> bool:
    """Return whether data waits to be read; False if unknown."""
    return any(poll_now(borrowed, select.POLLIN) for _, borrowed in borrow_each(pid, (descriptor,)))


def _has_unsavable_groups(held: socket.socket) -> bool:
    """Return whether a netlink socket is in more groups than CRIU saves, or is not bound."""
    # 32 groups, of a bound socket. Source: criu/sk-netlink.c, dump_one_netlink_fd.
    buffer = ctypes.create_string_buffer(_GROUPS_BYTES)
    try:
        size = getsockopt(held.fileno(), _SOL_NETLINK, _NETLINK_LIST_MEMBERSHIPS, buffer, _GROUPS_BYTES)
    except OSError:
        return False
    port = held.getsockname()[0]
    # The kernel reports groups in words of 8 bytes; CRIU saves the first 4 bytes if the other 4 are empty.
    return size > 0 and (size > 8 or any(buffer.raw[4:size]) or not port)


def find_losses(held: socket.socket, family: int, kind: int, *, is_frozen: bool = False) -> tuple[Loss, ...]:
    """Find what a restore loses of a socket; `held` must be of the family AF_UNIX for Python.

    Only of a process that `is_frozen` all messages are looked at. Of another, only the first of each socket: the offset
    that is needed for more is the program's (SO_PEEK_OFF).
    """
    events = poll_now(held, select.POLLIN | select.POLLPRI | select.POLLRDHUP)
    found: list[Loss] = []
    if events & select.POLLERR:
        found.append("error")
    if events & select.POLLPRI:
        found.append("urgent")
    # What waits at a listener are connections.
    if family == socket.AF_UNIX and events & select.POLLIN and not is_listening(held):
        if held.getsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED) and count_unread(held):
            found.append("credentials")
        if kind in _MESSAGES:
            is_ended = bool(events & (select.POLLHUP | select.POLLRDHUP))
            found += sorted(_find_in_messages(held, is_ended=is_ended, is_frozen=is_frozen))
    return tuple(found)


def _find_in_messages(held: socket.socket, *, is_ended: bool, is_frozen: bool) -> set[Loss]:
    found: set[Loss] = set()
    offset = held.getsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF)
    if is_frozen:
        held.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, 0)
    elif offset != _NOT_SET:
        return found
    try:
        while True:
            # Without room for them, descriptors that were sent stay where they are.
            content, _, _, sender = held.recvmsg(_LONGEST if is_frozen else 1, 0, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            found |= {"sender"} if sender else set()
            if not content and not is_ended:
                found.add("empty")
            if not content or not is_frozen:
                break
    except BlockingIOError:
        pass
    except OSError:  # an error was pending, and is told to us instead of the program
        found.add("error")
    finally:
        if is_frozen:
            held.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, offset)
    return found
