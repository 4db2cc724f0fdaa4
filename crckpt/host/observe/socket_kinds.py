"""Read the kinds and options of a live process's sockets, and whether they have unread data.

crckpt borrows each descriptor for a moment: the process does not notice. Source: pidfd_getfd(2), socket(7).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import socket
import struct
import termios
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from msgspec import Struct

from crckpt.host.observe.renamed_sockets import RenamedSocket, find_renamed
from crckpt.host.observe.socket_losses import Loss, find_losses
from crckpt.host.syscalls.libc import getsockopt
from crckpt.host.syscalls.pidfd_getfd import borrow_each

_SO_GET_FILTER: Final = 26
_SO_PROTOCOL: Final = 38
_SO_DOMAIN: Final = 39
_SO_MEMINFO: Final = 55
_OPTION_MEMORY: Final = 6  # linux/sock_diag.h: SK_MEMINFO_OPTMEM
_PEER: Final = struct.Struct("=iII")  # struct ucred
_NO_USER: Final = (1 << 32) - 1
_UDP_CORK: Final = 1  # linux/udp.h
_TCP_ULP: Final = 31  # linux/tcp.h
_SIOCGSKNS: Final = 0x894C  # linux/sockios.h
_SOL_NETLINK: Final = 270
_NETLINK_LIST_MEMBERSHIPS: Final = 9  # linux/netlink.h
_WORD: Final = 4
_TWO_WORDS: Final = 8
_GROUPS_BYTES: Final = 8192


class SocketKind(Struct, frozen=True):
    """A socket's family, type and protocol as numbers, and properties that CRIU refuses or loses.

    `corked`: it holds data back (UDP). `has_bpf_filter`: an extended BPF program filters it. `layer` names what the
    kernel runs above TCP (tls). `unsavable_groups`: it is in netlink groups that CRIU cannot save. `namespace` is the
    network namespace in which it was opened, 0 if unknown. `uses_option_memory`: it has memory for options, such as
    keys of TCP. `peer_user` is the user of a connected unix socket's peer, 0 if there is none. `losses` are what a
    restore loses of what waits in it.
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
    losses: tuple[Loss, ...] = ()
    renamed: RenamedSocket | None = None

    @property
    def is_tcp(self) -> bool:
        return self.family in (socket.AF_INET, socket.AF_INET6) and self.kind == socket.SOCK_STREAM


def read_socket_kinds(pid: int, descriptors: Iterable[int]) -> Iterator[SocketKind]:
    """Read the kinds of these sockets. Skip those that the process closes at the same time, or that we may not see."""
    for descriptor, borrowed in borrow_each(pid, descriptors):
        with suppress(OSError):  # by now it is no socket
            yield _kind(pid, descriptor, borrowed)


def unread_bytes(pid: int, descriptor: int) -> int:
    """Bytes that wait to be read: the next datagram of a UDP socket, all events of an inotify; 0 if unknown."""
    for _, borrowed in borrow_each(pid, (descriptor,)):
        with suppress(OSError):
            (count,) = struct.unpack("i", fcntl.ioctl(borrowed, termios.FIONREAD, bytes(4)))
            return int(count)
    return 0


def is_readable(pid: int, descriptor: int) -> bool:
    """Return whether data waits to be read; False if unknown."""
    waiting = select.poll()
    for _, borrowed in borrow_each(pid, (descriptor,)):
        waiting.register(borrowed, select.POLLIN)
        return bool(waiting.poll(0))
    return False


def _kind(pid: int, descriptor: int, borrowed: int) -> SocketKind:
    # Given a family, Python does not ask the socket for it: not every socket has an address.
    found = socket.socket(socket.AF_UNIX, fileno=borrowed)
    try:
        options = (_SO_DOMAIN, socket.SO_TYPE, _SO_PROTOCOL)
        family, kind, protocol = (found.getsockopt(socket.SOL_SOCKET, option) for option in options)
        return SocketKind(
            pid,
            descriptor,
            family,
            kind,
            protocol,
            corked=_is_corked(found, kind, protocol),
            has_bpf_filter=_has_bpf_filter(borrowed),
            layer=_layer(found) if protocol == socket.IPPROTO_TCP else "",
            unsavable_groups=family == socket.AF_NETLINK and _has_unsavable_groups(borrowed),
            namespace=_namespace(borrowed),
            uses_option_memory=protocol == socket.IPPROTO_TCP and _uses_option_memory(found),
            peer_user=_peer_user(found) if family == socket.AF_UNIX else 0,
            losses=find_losses(found, family, kind),
            renamed=find_renamed(found) if family == socket.AF_UNIX else None,
        )
    finally:
        found.detach()


def _namespace(borrowed: int) -> int:
    try:
        namespace = fcntl.ioctl(borrowed, _SIOCGSKNS)
    except OSError:  # it takes CAP_NET_ADMIN
        return 0
    try:
        return os.fstat(namespace).st_ino
    finally:
        os.close(namespace)


def _uses_option_memory(found: socket.socket) -> bool:
    # Padded with ones: if the kernel does not report it, assume that it is used.
    memory = struct.unpack("9I", found.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 36).ljust(36, b"\1"))
    return bool(memory[_OPTION_MEMORY])


def _peer_user(found: socket.socket) -> int:
    # SO_PEERCRED of a listening socket is its own maker, not a peer (unix(7)).
    if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return 0
    _, user, _ = _PEER.unpack(found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return 0 if user == _NO_USER else user


def _is_corked(found: socket.socket, kind: int, protocol: int) -> bool:
    udp = kind == socket.SOCK_DGRAM and protocol in (socket.IPPROTO_UDP, socket.IPPROTO_UDPLITE)
    return udp and bool(found.getsockopt(socket.IPPROTO_UDP, _UDP_CORK))


def _has_bpf_filter(borrowed: int) -> bool:
    """Return whether an extended BPF program filters a socket."""
    # The kernel reports the length of a classic filter, but nothing of a BPF program (EACCES). CRIU then fails with
    # "Can't get socket filter len: Permission denied".
    try:
        getsockopt(borrowed, socket.SOL_SOCKET, _SO_GET_FILTER, None, 0)
    except OSError as error:
        return error.errno == errno.EACCES
    return False


def _layer(found: socket.socket) -> str:
    try:
        return found.getsockopt(socket.IPPROTO_TCP, _TCP_ULP, 16).rstrip(b"\0").decode(errors="replace")
    except OSError:
        return ""


def _has_unsavable_groups(borrowed: int) -> bool:
    """Return whether a netlink socket is in more groups than CRIU saves, or is not bound."""
    # 32 groups, of a bound socket. Source: criu/sk-netlink.c, dump_one_netlink_fd.
    buffer = ctypes.create_string_buffer(_GROUPS_BYTES)
    try:
        size = getsockopt(borrowed, _SOL_NETLINK, _NETLINK_LIST_MEMBERSHIPS, buffer, _GROUPS_BYTES)
    except OSError:
        return False
    groups = buffer.raw[:size]
    if not size:
        return False
    # The kernel reports groups in words of 8 bytes; CRIU saves the first 4 bytes if the other 4 are empty.
    return size > _TWO_WORDS or any(groups[_WORD:]) or not _port(borrowed)


def _port(borrowed: int) -> int:
    named = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, fileno=borrowed)
    try:
        return int(named.getsockname()[0])
    finally:
        named.detach()
