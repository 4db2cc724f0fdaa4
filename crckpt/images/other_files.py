"""Other open files in `files.img`: epoll, inotify, fanotify, pidfd, and those of which only the kind matters."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from crckpt.images.wire import Message


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


def decode_event_poll(message: Message) -> EventPoll:
    """From a record of `files.img`."""
    watched = tuple(target.required(2) for target in message.messages(4))
    return EventPoll(message.required(1), message.required(2), watched)


def decode_pidfd(message: Message) -> PidFd:
    """From a record of `files.img`."""
    return PidFd(message.required(1), message.uint(3), message.signed(4))
