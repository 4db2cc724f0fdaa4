"""Ask the kernel for unix sockets with their peers, and for TCP sockets with keys. Source: sock_diag(7)."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from crckpt.host.opened import opened
from crckpt.host.proc.net import LiveUnixSocket
from crckpt.host.syscalls import netlink

# linux/{netlink,sock_diag}.h. struct nlattr: length, type.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_ATTRIBUTE: Final = struct.Struct("=HH")

# linux/inet_diag.h: INET_DIAG_INFO, INET_DIAG_MD5SIG (Linux 4.14)
_INFO, _MD5SIG = 2, 18
# struct inet_diag_req_v2: family, protocol, extensions, states, an id of zeros. The inode is the last word of struct
# inet_diag_msg.
_TCP_REQUEST: Final = struct.Struct("=BBBxI48x")
_TCP_MESSAGE: Final = struct.Struct("=68xI")

# linux/unix_diag.h
_NAME, _PEER, _ICONS, _QUEUES = 0, 2, 3, 4
_SHOWN: Final = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 4  # UDIAG_SHOW_NAME, _PEER, _ICONS, _RQLEN
# struct unix_diag_req: family, protocol, padding, states, inode, show, cookie of two words. struct unix_diag_msg:
# family, type, state, inode, cookie. struct unix_diag_rqlen: received, sent.
_UNIX_REQUEST: Final = struct.Struct("=BBHIIIII")
_UNIX_MESSAGE: Final = struct.Struct("=BBBxIII")
_QUEUE_LENGTHS: Final = struct.Struct("=II")
_ESTABLISHED: Final = 1  # include/net/tcp_states.h
_SIOCUNIXFILE: Final = 0x89E0  # linux/un.h


def ask_for_sockets(request: bytes) -> Iterator[memoryview]:
    """Request all sockets of a kind in our network namespace; yield a message for each.

    Raises OSError if the kernel refuses; ENOENT if the module for such sockets is missing.
    """
    return netlink.ask(_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, netlink.LIST, request)


def _attributes(rest: memoryview) -> Iterator[tuple[int, memoryview]]:
    while len(rest) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(rest)
        yield kind, rest[_ATTRIBUTE.size : size]
        # A length of 0 would never end.
        rest = rest[max(netlink.align(size), _ATTRIBUTE.size) :]


def find_sockets_with_keys() -> frozenset[int]:
    """Find the inodes of TCP sockets in our network namespace that check segments with a key (TCP_MD5SIG).

    None if the kernel does not list keys, as without CAP_NET_ADMIN.
    """
    found: set[int] = set()
    with suppress(OSError):
        for family in (socket.AF_INET, socket.AF_INET6):
            # The kernel lists keys only with the state of the connection.
            request = _TCP_REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0xFFFFFFFF)
            for message in ask_for_sockets(request):
                if any(kind == _MD5SIG for kind, _ in _attributes(message[_TCP_MESSAGE.size :])):
                    found.add(_TCP_MESSAGE.unpack_from(message)[0])
    return frozenset(found)


def read_unix_sockets() -> dict[int, LiveUnixSocket]:
    """Read all unix sockets in our network namespace, by inode. Raises OSError if the kernel has no unix_diag."""
    found: list[LiveUnixSocket] = []
    sending: set[int] = set()  # what they have sent was not read by their peers
    for message in ask_for_sockets(_UNIX_REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOWN, 0, 0)):
        _, kind, state, inode, *_ = _UNIX_MESSAGE.unpack_from(message)
        attributes = dict(_attributes(message[_UNIX_MESSAGE.size :]))
        # A path ends with a zero byte, an abstract name begins with one.
        name = bytes(attributes.get(_NAME, b"")).rstrip(b"\0").replace(b"\0", b"@", 1)
        peer = struct.unpack("=I", attributes[_PEER])[0] if _PEER in attributes else 0
        clients = tuple(memoryview(bytes(attributes.get(_ICONS, b""))).cast("I"))
        _, sent = _QUEUE_LENGTHS.unpack(attributes.get(_QUEUES, bytes(_QUEUE_LENGTHS.size)))
        found.append(LiveUnixSocket(inode, kind, peer, os.fsdecode(name), state == _ESTABLISHED, clients))
        sending |= {inode} if sent else set()
    return {
        each.inode: replace(each, clients=tuple(0 if one in sending else one for one in each.clients))
        if each.clients
        else each
        for each in found
    }


def opened_file(held: int | socket.socket) -> AbstractContextManager[int]:
    """The file of a bound unix socket, opened with O_PATH. Raises OSError."""
    return opened(fcntl.ioctl(held, _SIOCUNIXFILE))


def read_path(file: int) -> str:
    """Read the path of an open file, as a link of /proc/PID/fd has it. Raises OSError."""
    return str(Path(f"/proc/self/fd/{file}").readlink())
