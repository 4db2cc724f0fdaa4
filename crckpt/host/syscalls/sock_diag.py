"""Ask the kernel for its sockets. Source: sock_diag(7), linux/{netlink,sock_diag}.h."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_ERROR: Final = 2
_DONE: Final = 3
_REQUEST_DUMP: Final = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
# The kernel puts at most 32 KiB into an answer, so none is truncated.
_ANSWER_BYTES: Final = 1 << 18

# struct nlmsghdr: length, type, flags, sequence number, port.
_HEADER: Final = struct.Struct("=IHHII")


def ask_for_sockets(request: bytes) -> Iterator[memoryview]:
    """Request all sockets of a kind in our network namespace; yield a message for each.

    Raises OSError if the kernel refuses; ENOENT if the module for such sockets is missing.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as asked:
        size = _HEADER.size + len(request)
        asked.sendto(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + request, (0, 0))
        while True:
            answer = memoryview(asked.recv(_ANSWER_BYTES))
            while answer:
                size, kind, *_ = _HEADER.unpack_from(answer)
                content, answer = answer[_HEADER.size : size], answer[align(size) :]
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    error = -struct.unpack_from("=i", content)[0]
                    raise OSError(error, os.strerror(error))
                yield content


def align(size: int) -> int:
    """The offset of the next message or attribute after one of `size` bytes."""
    return (size + 3) & ~3
