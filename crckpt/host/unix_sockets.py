"""Unix sockets and who is at their other end, as the kernel tells by sock_diag(7)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_ERROR: Final = 2
_DONE: Final = 3
_REQUEST_DUMP: Final = 0x301
_ANSWER_BYTES: Final = 1 << 18

# include/uapi/linux/unix_diag.h
_NAME: Final = 0
_PEER: Final = 2
_SHOW_NAME_AND_PEER: Final = 1 << 0 | 1 << 2

_TYPES: Final[dict[int, str]] = {
    socket.SOCK_STREAM: "stream",
    socket.SOCK_DGRAM: "datagram",
    socket.SOCK_SEQPACKET: "seqpacket",
}

_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBHIIIII")
_MESSAGE: Final = struct.Struct("=BBBxIII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_INODE: Final = struct.Struct("=I")


class UnixSocket(Struct, frozen=True):
    """A socket by its inode. `peer` is the inode of the other end, 0 if there is none; `name` what it is bound to.

    Abstract names begin with `@`.
    """

    inode: int
    kind: int
    peer: int
    name: str

    @property
    def title(self) -> str:
        """Type and name; the inode if it has no name."""
        return f"unix {_TYPES.get(self.kind, self.kind)} {self.name or f'#{self.inode}'}"


def unix_sockets() -> dict[int, UnixSocket]:
    """All in our network namespace, by inode. Raises OSError where the kernel has no unix_diag."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as asked:
        request = _REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_NAME_AND_PEER, 0, 0)
        size = _HEADER.size + len(request)
        asked.sendto(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + request, (0, 0))
        return {found.inode: found for found in _answers(asked)}


def _answers(asked: socket.socket) -> Iterator[UnixSocket]:
    while True:
        answer = memoryview(asked.recv(_ANSWER_BYTES))
        while answer:
            size, kind, *_ = _HEADER.unpack_from(answer)
            content, answer = answer[_HEADER.size : size], answer[_aligned(size) :]
            if kind == _DONE:
                return
            if kind == _ERROR:
                error = -struct.unpack_from("=i", content)[0]
                raise OSError(error, os.strerror(error))
            yield _socket(content)


def _socket(message: memoryview) -> UnixSocket:
    _, kind, _, inode, *_ = _MESSAGE.unpack_from(message)
    attributes = dict(_attributes(message[_MESSAGE.size :]))
    # The name of a file ends with a zero byte, an abstract one begins with it.
    name = bytes(attributes.get(_NAME, b"")).rstrip(b"\0").replace(b"\0", b"@", 1)
    peer = _INODE.unpack(attributes[_PEER])[0] if _PEER in attributes else 0
    return UnixSocket(inode, kind, peer, os.fsdecode(name))


def _attributes(rest: memoryview) -> Iterator[tuple[int, memoryview]]:
    while len(rest) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(rest)
        yield kind, rest[_ATTRIBUTE.size : size]
        rest = rest[_aligned(size) :]


def _aligned(size: int) -> int:
    return (size + 3) & ~3
