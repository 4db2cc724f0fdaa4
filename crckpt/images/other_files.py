"""Other open files in `files.img`: pipes, memfd, epoll, inotify, fanotify, pidfd; and those whose kind alone matters.

The inodes of memory files are in `memfd.img` (images/memfd.proto), the content of pipes in `pipes-data.img`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.decode import Field, read_all
from crckpt.images.framing import read_image
from crckpt.images.wire import Message, decode_signed
from crckpt.model import Count


class Pipe(Struct, frozen=True):
    """One end of a pipe. `pipe_id` is the pipe's inode, which both ends have (images/pipe.proto)."""

    kind: ClassVar[str] = "pipe"

    id: Annotated[Count, 1]
    pipe_id: Annotated[Count, 2]
    flags: Annotated[Count, 3]

    @property
    def title(self) -> str:
        """Its name in /proc/PID/fd."""
        return f"pipe:[{self.pipe_id}]"


class PipeContent(Struct, frozen=True):
    """The unread bytes in the pipe `pipe_id`, and the `size` of its buffer in bytes (images/pipe-data.proto)."""

    pipe_id: int
    size: int
    content: bytes


class Fifo(Struct, frozen=True):
    """A named pipe; the file `file_id` has its path and open flags (images/fifo.proto)."""

    kind: ClassVar[str] = "fifo"

    id: Annotated[int, 1]
    pipe_id: Annotated[int, 2]
    file_id: Annotated[int | None, 3]
    path: str = ""

    @property
    def title(self) -> str:
        return self.path or f"fifo:[{self.pipe_id}]"


def read_pipe_contents(data: bytes, name: str = "pipes-data.img") -> tuple[PipeContent, ...]:
    """Decode the image. Raises IntegrityError if it is damaged."""
    records = read_image(data, name, magics.PIPES_DATA).records
    found = ((Message(record.payload, name), record.extra) for record in records)
    return tuple(PipeContent(message.required(1), message.uint(3), content) for message, content in found)


class MemFd(Struct, frozen=True):
    """A memory file. Name, size in bytes and `shmid` (`pagemap-shmem-<shmid>.img`) come from its inode.

    CRIU also dumps anonymous memory that is shared with children as a memory file named `/dev/zero` (seen).
    """

    kind: ClassVar[str] = "memfd"

    # Field 4 is the owner of its signals (fown).
    id: Annotated[int, 1]
    flags: Annotated[int, 2]
    pos: Annotated[int, 3]
    inode_id: Annotated[int, 5]
    name: str = ""
    size: int = 0
    shmid: int = 0

    @property
    def title(self) -> str:
        return f"memfd:{self.name}"


class MemFdInode(Struct, frozen=True):
    """The inode of memory files; `size` in bytes."""

    id: Annotated[int, 7]
    name: Annotated[str, 1]
    size: Annotated[int, 4]
    shmid: Annotated[int, 5]


def read_memfd_inodes(data: bytes, name: str = "memfd.img") -> tuple[MemFdInode, ...]:
    """Decode the inodes. Raises IntegrityError if the image is damaged."""
    return read_all(MemFdInode, data, name, magics.MEMFD_INODE)


class EventPoll(Struct, frozen=True):
    """An epoll descriptor. `watched`: the numbers of the descriptors it waits for, in the process that added them."""

    kind: ClassVar[str] = "epoll"

    id: Annotated[int, 1]
    flags: Annotated[int, 2]
    watched: Annotated[
        tuple[int, ...], Field(convert=lambda poll: tuple(target.required(2) for target in poll.messages(4)))
    ]

    @property
    def title(self) -> str:
        return f"epoll on {len(self.watched)}"


class PidFd(Struct, frozen=True):
    """A descriptor of process `pid` (images/pidfd.proto)."""

    kind: ClassVar[str] = "pidfd"

    id: Annotated[int, 1]
    flags: Annotated[int, Field(3, default=0)]
    pid: Annotated[int, Field(4, default=0, convert=decode_signed)]

    @property
    def title(self) -> str:
        return f"pidfd of {self.pid}"


class Watch(Struct, frozen=True):
    """An inotify or fanotify descriptor with `watches` marks. A dump loses its unread events (seen).

    `paths`: what it watches, as far as CRIU has found paths.
    """

    id: int
    kind: str
    flags: int
    watches: int
    paths: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.kind} on {self.watches}"


class OtherFile(Struct, frozen=True):
    """A descriptor of which only `kind` and flags matter: eventfd, signalfd, timerfd, namespace ..."""

    id: int
    kind: str
    flags: int

    @property
    def title(self) -> str:
        return self.kind


def decode_inotify(message: Message) -> Watch:
    """Decode an entry of `files.img`."""
    return _watch(message, "inotify", [mark.message(7).text(4) for mark in message.messages(5)])


def decode_fanotify(message: Message) -> Watch:
    """Decode an entry of `files.img`."""
    # A mark is of a file, which has a handle, or of a mount.
    marks = message.messages(6)
    paths = [mark.message(7, 2).text(4) if 7 in mark else mark.message(8).text(2) for mark in marks]
    return _watch(message, "fanotify", paths)


def _watch(message: Message, kind: str, paths: list[str]) -> Watch:
    return Watch(message.required(1), kind, message.uint(2), len(paths), tuple(dict.fromkeys(filter(None, paths))))
