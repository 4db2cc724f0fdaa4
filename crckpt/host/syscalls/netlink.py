"""Ask the kernel by messages. Source: netlink(7)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

# linux/netlink.h. struct nlmsghdr: length, type, flags, sequence number, port.
_HEADER: Final = struct.Struct("=IHHII")
_ERROR, _DONE = 2, 3
LIST: Final = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
CHANGE: Final = 1 | 4  # NLM_F_REQUEST | NLM_F_ACK
# The kernel puts at most 32 KiB into an answer, so none is truncated.
_ANSWER_BYTES: Final = 1 << 18


def ask(protocol: int, kind: int, flags: int, request: bytes) -> Iterator[memoryview]:
    """Send a message of this kind, with `LIST` or `CHANGE`; yield those of the answer. Raises OSError if refused."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol) as asked:
        asked.sendto(_HEADER.pack(_HEADER.size + len(request), kind, flags, 1, 0) + request, (0, 0))
        while True:
            answer = memoryview(asked.recv(_ANSWER_BYTES))
            while answer:
                size, kind, *_ = _HEADER.unpack_from(answer)
                content, answer = answer[_HEADER.size : size], answer[align(size) :]
                if kind == _ERROR and (code := struct.unpack_from("=i", content)[0]):
                    raise OSError(-code, os.strerror(-code))
                if kind in (_DONE, _ERROR):  # an error of 0: it is done
                    return
                yield content


def align(size: int) -> int:
    """The offset of the next message or attribute after one of `size` bytes."""
    return (size + 3) & ~3
