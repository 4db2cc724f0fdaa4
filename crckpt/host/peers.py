"""The process at the other end of a Unix socket. Source: unix(7), SO_PEERCRED."""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

# struct ucred: PID, user and group (unix(7)).
_PEER: Final = struct.Struct("iII")


def peer_pid(connection: socket.socket) -> int:
    """Return the PID of the process at the other end."""
    return _read_credentials(connection)[0]


def is_trusted(connection: socket.socket) -> bool:
    """Return whether root or the user of this process is at the other end."""
    return _read_credentials(connection)[1] in (0, os.geteuid())


def _read_credentials(connection: socket.socket) -> tuple[int, int]:
    pid, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return int(pid), int(user)
