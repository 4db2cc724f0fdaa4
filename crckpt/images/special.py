"""Descriptors that are neither files nor sockets, as `files.img` has them: pipes, terminals, event sources."""

from __future__ import annotations

from typing import ClassVar, Final

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.framing import read_image, read_messages
from crckpt.images.wire import Message


class Pipe(Struct, frozen=True):
    """One end of a pipe; ends of the same pipe have the same `pipe_id`, the pipe's inode (images/pipe.proto)."""

    kind: ClassVar[str] = "pipe"

    id: int
    pipe_id: int
    flags: int

    @property
    def title(self) -> str:
        """As /proc/PID/fd has it."""
        return f"pipe:[{self.pipe_id}]"


class PipeContent(Struct, frozen=True):
    """The bytes that wait in the pipe `pipe_id`, and how many it takes (images/pipe-data.proto)."""

    pipe_id: int
    size: int
    content: bytes


class Fifo(Struct, frozen=True):
    """A named pipe; its path and open flags are those of the file `file_id` (images/fifo.proto)."""

    kind: ClassVar[str] = "fifo"

    id: int
    pipe_id: int
    file_id: int | None
    path: str = ""

    @property
    def title(self) -> str:
        """Its path."""
        return self.path or f"fifo:[{self.pipe_id}]"


class Terminal(Struct, frozen=True):
    """An open terminal (images/tty.proto): `info_id` leads to its TerminalInfo, `file_id` to the path."""

    kind: ClassVar[str] = "terminal"

    id: int
    info_id: int
    flags: int
    file_id: int | None
    path: str = ""

    @property
    def title(self) -> str:
        """Its path."""
        return self.path or f"terminal {self.info_id}"


class TerminalInfo(Struct, frozen=True):
    """A terminal as such: `kind` is `pty`, `console` and so on, `index` the N of /dev/pts/N, None if it is no pty.

    `session` and `group` are the ids of the session and the foreground process group on it, 0 if none. Who had the
    other side of one that `is_hung_up` has closed it; CRIU makes another for it.
    """

    id: int
    kind: str
    session: int
    group: int
    rdev: int
    index: int | None
    is_hung_up: bool = False

    @property
    def is_master(self) -> bool:
        """Whether it is a pty's master side: the lowest bit of a pty's id says so (criu/tty.c:387)."""
        return self.index is not None and bool(self.id & 1)


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


class EventPoll(Struct, frozen=True):
    """An epoll descriptor; `watched` are the descriptors (numbers, of the process that added them) it waits for."""

    kind: ClassVar[str] = "epoll"

    id: int
    flags: int
    watched: tuple[int, ...]

    @property
    def title(self) -> str:
        """How many it watches."""
        return f"epoll on {len(self.watched)}"


class PidFd(Struct, frozen=True):
    """A descriptor of process `pid` (images/pidfd.proto)."""

    kind: ClassVar[str] = "pidfd"

    id: int
    flags: int
    pid: int

    @property
    def title(self) -> str:
        """Whom it means."""
        return f"pidfd of {self.pid}"


class Watch(Struct, frozen=True):
    """An inotify or fanotify descriptor with `watches` marks; events that wait in it are lost in a dump (seen)."""

    id: int
    kind: str
    flags: int
    watches: int

    @property
    def title(self) -> str:
        """How many it watches."""
        return f"{self.kind} on {self.watches}"


class OtherFile(Struct, frozen=True):
    """A descriptor of which nothing but `kind` and flags matters here: eventfd, signalfd, timerfd, namespace, ..."""

    id: int
    kind: str
    flags: int

    @property
    def title(self) -> str:
        """What it is."""
        return self.kind


_TERMINAL_KINDS: Final = ("unknown", "pty", "console", "virtual console", "current", "external", "serial")


def pipe(message: Message) -> Pipe:
    """From a record of `files.img`."""
    return Pipe(*(message.required(number) for number in range(1, 4)))


def fifo(message: Message) -> Fifo:
    """From a record of `files.img`; `path` is left empty."""
    return Fifo(message.required(1), message.required(2), message.optional(3))


def terminal(message: Message) -> Terminal:
    """From a record of `files.img`; `path` is left empty."""
    file_id, info_id, flags = (message.required(number) for number in range(1, 4))
    return Terminal(file_id, info_id, flags, message.optional(6))


def memfd(message: Message) -> MemFd:
    """From a record of `files.img`; what its inode says is left empty."""
    file_id, flags, pos, inode = (message.required(number) for number in (1, 2, 3, 5))
    return MemFd(file_id, flags, pos, inode)


def event_poll(message: Message) -> EventPoll:
    """From a record of `files.img`."""
    watched = tuple(target.required(2) for target in message.messages(4))
    return EventPoll(message.required(1), message.required(2), watched)


def pidfd(message: Message) -> PidFd:
    """From a record of `files.img`."""
    return PidFd(message.required(1), message.uint(3), message.signed(4))


def read_terminals(data: bytes, name: str = "tty-info.img") -> tuple[TerminalInfo, ...]:
    """Raises IntegrityError when the image is damaged."""
    return tuple(_terminal_info(message) for message in read_messages(data, name, magics.TTY_INFO))


def read_pipe_contents(data: bytes, name: str = "pipes-data.img") -> tuple[PipeContent, ...]:
    """Raises IntegrityError when the image is damaged."""
    records = read_image(data, name, magics.PIPES_DATA).records
    found = ((Message(record.payload, name), record.extra) for record in records)
    return tuple(PipeContent(message.required(1), message.uint(3), content) for message, content in found)


def read_memfd_inodes(data: bytes, name: str = "memfd.img") -> tuple[MemFdInode, ...]:
    """Raises IntegrityError when the image is damaged."""
    return tuple(
        MemFdInode(message.required(7), message.text(1), message.required(4), message.required(5))
        for message in read_messages(data, name, magics.MEMFD_INODE)
    )


def _terminal_info(message: Message) -> TerminalInfo:
    kind = message.required(2)
    return TerminalInfo(
        id=message.required(1),
        kind=_TERMINAL_KINDS[kind] if kind < len(_TERMINAL_KINDS) else "unknown",
        session=message.uint(6),
        group=message.uint(7),
        rdev=message.uint(8),
        index=message.message(12).optional(1),
        # CRIU could not ask for its settings (criu/tty.c, tty_is_hung).
        is_hung_up=not message.messages(9),
    )
