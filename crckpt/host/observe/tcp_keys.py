"""Find TCP sockets that check segments with a key (TCP_MD5SIG). Source: sock_diag(7)."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from crckpt.host.syscalls.sock_diag import align, ask_for_sockets

# linux/inet_diag.h: INET_DIAG_INFO, INET_DIAG_MD5SIG (Linux 4.14)
_INFO: Final = 2
_MD5SIG: Final = 18
# struct inet_diag_req_v2: family, protocol, extensions, states, an id of zeros
_REQUEST: Final = struct.Struct("=BBBxI48x")
_INODE_AT: Final = 68  # the last word of struct inet_diag_msg
_MESSAGE_BYTES: Final = 72
_ATTRIBUTE: Final = struct.Struct("=HH")  # struct nlattr: length, type


def find_sockets_with_keys() -> frozenset[int]:
    """Find their inodes in our network namespace; none if the kernel does not list keys, as without CAP_NET_ADMIN."""
    found: set[int] = set()
    with suppress(OSError):
        for family in (socket.AF_INET, socket.AF_INET6):
            # The kernel lists keys only with the state of the connection.
            for message in ask_for_sockets(_REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0xFFFFFFFF)):
                if _MD5SIG in _attributes(message[_MESSAGE_BYTES:]):
                    found.add(struct.unpack_from("=I", message, _INODE_AT)[0])
    return frozenset(found)


def _attributes(rest: memoryview) -> Iterator[int]:
    while len(rest) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(rest)
        yield kind
        # A length of 0 would never end.
        rest = rest[max(align(size), _ATTRIBUTE.size) :]
