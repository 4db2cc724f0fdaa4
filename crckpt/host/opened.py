"""Descriptors of ours: close them, whatever happens, and ask what waits in them, and what sockets report.

Source: socket(7), unix(7).
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SO_PROTOCOL, _SO_DOMAIN, _SO_MEMINFO = 38, 39, 55
_OPTION_MEMORY: Final = 6  # linux/sock_diag.h: SK_MEMINFO_OPTMEM
_CREDENTIALS: Final = struct.Struct("=iII")  # struct ucred: PID, user and group


@contextmanager
def opened(descriptor: int) -> Iterator[int]:
    """Close this descriptor after the block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def closed_on_failure(descriptor: int) -> Iterator[int]:
    """Close this descriptor if the block fails."""
    try:
        yield descriptor
    except BaseException:
        os.close(descriptor)
        raise


def poll_now(file: int | socket.socket, events: int = 0) -> int:
    """Find which of these events a file has now, as of poll(2); errors and hang-ups in any case."""
    waiting = select.poll()
    waiting.register(file, events)
    return next((found for _, found in waiting.poll(0)), 0)


def count_unread(file: int | socket.socket) -> int:
    """Bytes that wait to be read: of a UDP socket the next datagram, of an inotify all events. Raises OSError."""
    (count,) = struct.unpack("i", fcntl.ioctl(file, termios.FIONREAD, bytes(4)))
    return int(count)


@contextmanager
def as_socket(descriptor: int) -> Iterator[socket.socket]:
    """Use a descriptor as a socket, which stays open."""
    # Given a family, Python does not ask the socket for it: not every socket has an address.
    held = socket.socket(socket.AF_UNIX, fileno=descriptor)
    try:
        yield held
    finally:
        held.detach()


def read_kind(held: socket.socket) -> tuple[int, int, int]:
    """Family, type and protocol, as of socket(2). Raises OSError if it is no socket."""
    family, kind, protocol = (
        held.getsockopt(socket.SOL_SOCKET, option) for option in (_SO_DOMAIN, socket.SO_TYPE, _SO_PROTOCOL)
    )
    return family, kind, protocol


def is_listening(held: socket.socket) -> bool:
    """Return whether it accepts connections."""
    return bool(held.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def count_option_memory(held: socket.socket) -> int:
    """Bytes that it takes for options, such as memberships and keys of TCP. Not 0 if the kernel does not report it."""
    memory = struct.unpack("9I", held.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 36).ljust(36, b"\1"))
    return int(memory[_OPTION_MEMORY])


def read_credentials(held: socket.socket) -> tuple[int, int, int]:
    """PID, user and group of the peer of a unix socket; of one that listens, of its own maker (SO_PEERCRED)."""
    pid, user, group = _CREDENTIALS.unpack(held.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, user, group


def peer_pid(connection: socket.socket) -> int:
    """Return the PID of the process at the other end."""
    return read_credentials(connection)[0]


def is_trusted(connection: socket.socket) -> bool:
    """Return whether root or the user of this process is at the other end."""
    return read_credentials(connection)[1] in (0, os.geteuid())
