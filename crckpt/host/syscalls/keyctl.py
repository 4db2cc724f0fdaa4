"""The session keyring that our child processes inherit. Source: keyctl(2), session-keyring(7)."""

from __future__ import annotations

import ctypes
import os
from typing import Final

from msgspec import Struct

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_KEYCTL: Final = {"x86_64": 250}.get(os.uname().machine, 219)
_GET_ID, _JOIN, _DESCRIBE = 0, 1, 6
_SESSION: Final = -3
_OF_USER: Final = "_uid_ses."
_MOST: Final = 4096


class SessionKeyring(Struct, frozen=True):
    """Our session keyring: its serial number and the user that it belongs to."""

    id: int
    uid: int


def own_session() -> SessionKeyring | None:
    """None if we have none: then each process uses that of its own user. Also where the kernel has no keyrings."""
    serial = int(_LIBC.syscall(_KEYCTL, _GET_ID, _SESSION, 0))
    if serial < 0:
        return None
    buffer = ctypes.create_string_buffer(_MOST)
    if int(_LIBC.syscall(_KEYCTL, _DESCRIBE, serial, buffer, _MOST)) < 0:
        return None
    _, uid, _, _, name = buffer.value.decode(errors="replace").split(";", 4)
    return None if name.startswith(_OF_USER) else SessionKeyring(serial, int(uid))


def join_new() -> None:
    """Give this thread, and what it starts, a new, empty session keyring. Raises OSError."""
    if int(_LIBC.syscall(_KEYCTL, _JOIN, None)) < 0:
        raise OSError(ctypes.get_errno(), f"cannot make a session keyring: {os.strerror(ctypes.get_errno())}")
