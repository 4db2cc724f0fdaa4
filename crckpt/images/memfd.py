"""Memory files in `files.img`, and their inodes in `memfd.img` (images/memfd.proto)."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.framing import read_messages
from crckpt.images.wire import Message


class MemFd(Struct, frozen=True):
    """A memory file. Name, size in bytes and `shmid` (`pagemap-shmem-<shmid>.img`) come from its inode.

    CRIU also dumps anonymous memory that is shared with children as a memory file named `/dev/zero` (seen).
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
    """The inode of memory files; `size` in bytes."""

    id: int
    name: str
    size: int
    shmid: int


def decode_memfd(message: Message) -> MemFd:
    """Decode an entry of `files.img`, without what the inode has."""
    # Field 4 is the owner of its signals (fown).
    file_id, flags, pos, inode = (message.required(number) for number in (1, 2, 3, 5))
    return MemFd(file_id, flags, pos, inode)


def read_memfd_inodes(data: bytes, name: str = "memfd.img") -> tuple[MemFdInode, ...]:
    """Decode the inodes. Raises IntegrityError if the image is damaged."""
    return tuple(
        MemFdInode(message.required(7), message.text(1), message.required(4), message.required(5))
        for message in read_messages(data, name, magics.MEMFD_INODE)
    )
