"""The session keyring that our child processes inherit. Source: keyctl(2), session-keyring(7)."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

from msgspec import Struct

from crckpt.host.syscalls.libc import syscall

_GET_ID, _JOIN, _DESCRIBE = 0, 1, 6
_SESSION: Final = -3  # KEY_SPEC_SESSION_KEYRING
# A process without a session keyring uses this one. Source: user-session-keyring(7).
_OF_USER: Final = "_uid_ses."
# The longest name (4095 bytes and a zero, add_key(2)), and before it "keyring;", two ids and the permissions.
# The kernel writes nothing into a smaller buffer, and reports no error.
_MOST: Final = 4096 + 64


class SessionKeyring(Struct, frozen=True):
    """Our session keyring: its serial number and the user that it belongs to."""

    id: int
    uid: int


def own_session() -> SessionKeyring | None:
    """Our session keyring; None if we use our user's, or the kernel has no keyrings."""
    buffer = ctypes.create_string_buffer(_MOST)
    with suppress(OSError):
        serial = syscall("keyctl", _GET_ID, _SESSION, 0)  # 0: create none
        # type;uid;gid;perm;name, as of keyctl_describe(3)
        syscall("keyctl", _DESCRIBE, serial, buffer, _MOST)
        _, uid, _, _, name = buffer.value.decode(errors="replace").split(";", 4)
        return None if name.startswith(_OF_USER) else SessionKeyring(serial, int(uid))
    return None


def join_new() -> None:
    """Give this thread, and its children, a new, empty session keyring. Raises OSError."""
    try:
        syscall("keyctl", _JOIN, None)
    except OSError as error:
        raise OSError(error.errno, f"cannot make a session keyring: {error.strerror}") from error
