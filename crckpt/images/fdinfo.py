"""`fdinfo-N.img` and `fs-PID.img`: a process's descriptors and directories (images/fdinfo.proto, fs.proto)."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.framing import read_messages, read_single

# FD_CLOEXEC (fcntl(2)).
_CLOSE_ON_EXEC: Final = 1


class ImageDescriptor(Struct, frozen=True):
    """Descriptor `fd` is the open file `file_id` of `files.img`."""

    fd: int
    file_id: int
    close_on_exec: bool


class Directories(Struct, frozen=True):
    """The file ids of a process's working and root directory, and its umask (None if the image has none)."""

    cwd_id: int
    root_id: int
    umask: int | None


def read_descriptors(data: bytes, name: str = "fdinfo.img") -> tuple[ImageDescriptor, ...]:
    """Decode a descriptor table, sorted by number. Raises IntegrityError if the image is damaged."""
    messages = read_messages(data, name, magics.FDINFO)
    table = (
        ImageDescriptor(message.required(4), message.required(1), bool(message.uint(2) & _CLOSE_ON_EXEC))
        for message in messages
    )
    return tuple(sorted(table, key=lambda descriptor: descriptor.fd))


def read_directories(data: bytes, name: str = "fs.img") -> Directories:
    """Decode the directories of a process. Raises IntegrityError if the image is damaged."""
    message = read_single(data, name, magics.FS)
    return Directories(message.required(1), message.required(2), message.optional(3))
