"""`filelocks.img`: the file locks that a tree holds (images/file-lock.proto)."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.framing import read_messages

LockKind = Literal["flock", "POSIX", "OFD"]

# Source: criu/include/file-lock.h.
_KINDS: Final[dict[int, LockKind]] = {1: "POSIX", 2: "flock", 4: "OFD"}
# F_WRLCK. CRIU writes an exclusive flock(2) the same way (criu/proc_parse.c).
_WRITE: Final = 1


class FileLock(Struct, frozen=True):
    """A lock of process `pid` on the file of its descriptor `fd`.

    It covers the bytes `start` to `end`, both included. `end` None: to the end of the file, however long it grows.
    """

    kind: LockKind
    exclusive: bool
    pid: int
    fd: int
    start: int
    end: int | None


def read_locks(data: bytes, name: str = "filelocks.img") -> tuple[FileLock, ...]:
    """Decode all locks, without leases. Raises IntegrityError if the image is damaged."""
    return tuple(
        FileLock(
            kind=_KINDS[message.required(1)],
            exclusive=message.required(2) == _WRITE,
            pid=message.required(3),
            fd=message.required(4),
            start=message.required(5),
            # A length of 0 reaches to the end of the file (criu/file-lock.c:120, and struct flock in fcntl(2)).
            end=message.required(5) + message.required(6) - 1 if message.required(6) else None,
        )
        for message in read_messages(data, name, magics.FILE_LOCKS)
        if message.required(1) in _KINDS
    )
