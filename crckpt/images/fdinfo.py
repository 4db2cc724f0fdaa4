"""`fdinfo-N.img` and `fs-PID.img`: a process's descriptors and directories (images/fdinfo.proto, fs.proto)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.decode import Field, read_all, read_one


class ImageDescriptor(Struct, frozen=True):
    """Descriptor `fd` is the open file `file_id` of `files.img`."""

    fd: Annotated[int, 4]
    file_id: Annotated[int, 1]
    # FD_CLOEXEC (fcntl(2)).
    close_on_exec: Annotated[bool, Field(2, default=0, convert=lambda flags: bool(flags & 1))]


class Directories(Struct, frozen=True):
    """The file ids of a process's working and root directory, and its umask (None if the image has none)."""

    cwd_id: Annotated[int, 1]
    root_id: Annotated[int, 2]
    umask: Annotated[int | None, 3]


def read_descriptors(data: bytes, name: str = "fdinfo.img") -> tuple[ImageDescriptor, ...]:
    """Decode a descriptor table, sorted by number. Raises IntegrityError if the image is damaged."""
    return tuple(sorted(read_all(ImageDescriptor, data, name, magics.FDINFO), key=lambda descriptor: descriptor.fd))


def read_directories(data: bytes, name: str = "fs.img") -> Directories:
    """Decode the directories of a process. Raises IntegrityError if the image is damaged."""
    return read_one(Directories, data, name, magics.FS)
