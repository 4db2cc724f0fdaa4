"""Memory files in `files.img`, and their inodes in `memfd.img` (images/memfd.proto)."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.framing import read_messages
from crckpt.images.wire import Message


class MemFd(Struct, frozen=True):
    """A memory file (images/memfd.proto). Name, size (bytes) and `shmid` (`pagemap-shmem-<shmid>.img`) are its inode's.

    CRIU also dumps anonymous memory shared with children as one, named `/dev/zero` (seen).
    """

    kind: ClassVar[str] = "memfd"

    id: int
    flags: int
    pos: int
    inode_id: int
    name: str = ""
    size: int = 0
    shmid: int = 0

    @property
    def title(self) -> str:
        """Its name."""
        return f"memfd:{self.name}"


class MemFdInode(Struct, frozen=True):
    """What memory files with this `id` share; `size` in bytes."""

    id: int
    name: str
    size: int
    shmid: int


def decode_memfd(message: Message) -> MemFd:
    """From a record of `files.img`; what its inode says is left empty."""
    file_id, flags, pos, inode = (message.required(number) for number in (1, 2, 3, 5))
    return MemFd(file_id, flags, pos, inode)


def read_memfd_inodes(data: bytes, name: str = "memfd.img") -> tuple[MemFdInode, ...]:
    """Raises IntegrityError when the image is damaged."""
    return tuple(
        MemFdInode(message.required(7), message.text(1), message.required(4), message.required(5))
        for message in read_messages(data, name, magics.MEMFD_INODE)
    )
