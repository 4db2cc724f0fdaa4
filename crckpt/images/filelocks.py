"""`filelocks.img`: the file locks that a tree holds (images/file-lock.proto)."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.decode import Field, decode
from crckpt.images.framing import read_messages
from crckpt.images.wire import Message

LockKind = Literal["flock", "POSIX", "OFD"]

# Source: criu/include/file-lock.h.
_KINDS: Final[dict[int, LockKind]] = {1: "POSIX", 2: "flock", 4: "OFD"}
# F_WRLCK. CRIU writes an exclusive flock(2) the same way (criu/proc_parse.c).
_WRITE: Final = 1


def _last_byte(message: Message) -> int | None:
    # A length of 0 reaches to the end of the file (criu/file-lock.c:120, and struct flock in fcntl(2)).
    return message.required(5) + message.required(6) - 1 if message.required(6) else None


class FileLock(Struct, frozen=True):
    """A lock of process `pid` on the file of its descriptor `fd`.

    It covers the bytes `start` to `end`, both included. `end` None: to the end of the file, however long it grows.
    """

    kind: Annotated[LockKind, Field(1, convert=_KINDS.__getitem__)]
    exclusive: Annotated[bool, Field(2, convert=lambda kind: kind == _WRITE)]
    pid: Annotated[int, 3]
    fd: Annotated[int, 4]
    start: Annotated[int, 5]
    end: Annotated[int | None, Field(convert=_last_byte)]


def read_locks(data: bytes, name: str = "filelocks.img") -> tuple[FileLock, ...]:
    """Decode all locks, without leases. Raises IntegrityError if the image is damaged."""
    messages = read_messages(data, name, magics.FILE_LOCKS)
    return tuple(decode(FileLock, message) for message in messages if message.required(1) in _KINDS)
