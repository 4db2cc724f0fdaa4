"""Read unix sockets and their peers. Source: sock_diag(7)."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from crckpt.host.syscalls.sock_diag import align, ask_for_sockets

# include/uapi/linux/unix_diag.h
_NAME: Final = 0
_PEER: Final = 2
_ICONS: Final = 3
_QUEUES: Final = 4
_SHOWN: Final = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 4  # UDIAG_SHOW_NAME, _PEER, _ICONS, _RQLEN
_ESTABLISHED: Final = 1  # include/net/tcp_states.h
_SIOCUNIXFILE: Final = 0x89E0  # linux/un.h

_TYPES: Final[dict[int, str]] = {
    socket.SOCK_STREAM: "stream",
    socket.SOCK_DGRAM: "datagram",
    socket.SOCK_SEQPACKET: "seqpacket",
}

# struct unix_diag_req: family, protocol, padding, states, inode, show, cookie of two words
_REQUEST: Final = struct.Struct("=BBHIIIII")
# struct unix_diag_msg: family, type, state, inode, cookie
_MESSAGE: Final = struct.Struct("=BBBxIII")
_ATTRIBUTE: Final = struct.Struct("=HH")  # struct nlattr: length, type
_INODE: Final = struct.Struct("=I")
_QUEUE_LENGTHS: Final = struct.Struct("=II")  # struct unix_diag_rqlen: received, sent


class LiveUnixSocket(Struct, frozen=True):
    """A socket by its inode. `peer` is the inode of the other end, 0 if there is none; `name` what it is bound to.

    Abstract names begin with `@`. `is_connected`: also if the other end is closed. `clients`: the other ends of
    connections that it has not accepted, 0 for one that is closed or has sent something.
    """

    inode: int
    kind: int
    peer: int
    name: str
    is_connected: bool = False
    clients: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        """Type and name; the inode if it has no name."""
        return f"unix {_TYPES.get(self.kind, self.kind)} {self.name or f'#{self.inode}'}"


def read_unix_sockets() -> dict[int, LiveUnixSocket]:
    """Read all unix sockets in our network namespace, by inode. Raises OSError if the kernel has no unix_diag."""
    request = _REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOWN, 0, 0)
    read = [_read(message) for message in ask_for_sockets(request)]
    sending = {found.inode for found, sent in read if sent}
    return {
        found.inode: replace(found, clients=tuple(0 if each in sending else each for each in found.clients))
        if found.clients
        else found
        for found, _ in read
    }


def _read(message: memoryview) -> tuple[LiveUnixSocket, int]:
    """Read a socket, and how much of what it has sent was not read by its peer."""
    _, kind, state, inode, *_ = _MESSAGE.unpack_from(message)
    attributes = dict(_attributes(message[_MESSAGE.size :]))
    # A path ends with a zero byte, an abstract name begins with one.
    name = bytes(attributes.get(_NAME, b"")).rstrip(b"\0").replace(b"\0", b"@", 1)
    peer = _INODE.unpack(attributes[_PEER])[0] if _PEER in attributes else 0
    clients = tuple(memoryview(bytes(attributes.get(_ICONS, b""))).cast("I"))
    _, sent = _QUEUE_LENGTHS.unpack(attributes.get(_QUEUES, bytes(_QUEUE_LENGTHS.size)))
    return LiveUnixSocket(inode, kind, peer, os.fsdecode(name), state == _ESTABLISHED, clients), sent


@contextmanager
def opened_file(held: int | socket.socket) -> Iterator[int]:
    """The file of a bound unix socket, opened with O_PATH. Raises OSError."""
    file = fcntl.ioctl(held, _SIOCUNIXFILE)
    try:
        yield file
    finally:
        os.close(file)


def read_path(file: int) -> str:
    """Read the path of an open file, as a link of /proc/PID/fd has it. Raises OSError."""
    return str(Path(f"/proc/self/fd/{file}").readlink())


def _attributes(rest: memoryview) -> Iterator[tuple[int, memoryview]]:
    while len(rest) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(rest)
        yield kind, rest[_ATTRIBUTE.size : size]
        rest = rest[align(size) :]
