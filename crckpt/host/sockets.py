"""What kinds of sockets a live process holds, as the sockets themselves tell."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from msgspec import Struct

_PIDFD_GETFD: Final = 438
_SO_PROTOCOL: Final = 38
_SO_DOMAIN: Final = 39

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class SocketKind(Struct, frozen=True):
    """A socket's numbers for family, type and protocol."""

    pid: int
    fd: int
    family: int
    kind: int
    protocol: int


def socket_kinds(pid: int, descriptors: Iterable[int]) -> Iterator[SocketKind]:
    """Of these sockets of a process, which does not notice. Source: pidfd_getfd(2).

    Those that it closes meanwhile, or that we may not see, are left out.
    """
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return
    try:
        for descriptor in descriptors:
            borrowed = _LIBC.syscall(_PIDFD_GETFD, process, descriptor, 0)
            if borrowed >= 0:
                with suppress(OSError):
                    yield _kind(pid, descriptor, borrowed)
    finally:
        os.close(process)


def _kind(pid: int, descriptor: int, borrowed: int) -> SocketKind:
    try:
        # Named a family, Python asks for none: not every socket can tell its address.
        found = socket.socket(socket.AF_UNIX, fileno=borrowed)
    except OSError:  # by now it is no socket
        os.close(borrowed)
        raise
    with found:
        options = (_SO_DOMAIN, socket.SO_TYPE, _SO_PROTOCOL)
        return SocketKind(pid, descriptor, *(found.getsockopt(socket.SOL_SOCKET, option) for option in options))
