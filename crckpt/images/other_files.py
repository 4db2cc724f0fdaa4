"""Other open files in `files.img`: epoll, inotify, fanotify, pidfd, and those of which only the kind matters."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from crckpt.images.wire import Message


class EventPoll(Struct, frozen=True):
    """An epoll descriptor. `watched`: the numbers of the descriptors it waits for, in the process that added them."""

    kind: ClassVar[str] = "epoll"

    id: int
    flags: int
    watched: tuple[int, ...]

    @property
    def title(self) -> str:
        """The number of descriptors that it watches."""
        return f"epoll on {len(self.watched)}"


class PidFd(Struct, frozen=True):
    """A descriptor of process `pid` (images/pidfd.proto)."""

    kind: ClassVar[str] = "pidfd"

    id: int
    flags: int
    pid: int

    @property
    def title(self) -> str:
        """The PID of its process."""
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
        """Its kind and the number of its marks."""
        return f"{self.kind} on {self.watches}"


class OtherFile(Struct, frozen=True):
    """A descriptor of which only `kind` and flags matter: eventfd, signalfd, timerfd, namespace ..."""

    id: int
    kind: str
    flags: int

    @property
    def title(self) -> str:
        """The kind, for display."""
        return self.kind


def decode_event_poll(message: Message) -> EventPoll:
    """Decode an entry of `files.img`."""
    watched = tuple(target.required(2) for target in message.messages(4))
    return EventPoll(message.required(1), message.required(2), watched)


def decode_inotify(message: Message) -> Watch:
    """Decode an entry of `files.img`."""
    marks = message.messages(5)
    return _watch(message, "inotify", len(marks), [mark.message(7).text(4) for mark in marks])


def decode_fanotify(message: Message) -> Watch:
    """Decode an entry of `files.img`."""
    marks = message.messages(6)
    # A mark is of a file, which has a handle, or of a mount.
    paths = [mark.message(7).message(2).text(4) if 7 in mark else mark.message(8).text(2) for mark in marks]
    return _watch(message, "fanotify", len(marks), paths)


def _watch(message: Message, kind: str, watches: int, paths: list[str]) -> Watch:
    return Watch(message.required(1), kind, message.uint(2), watches, tuple(dict.fromkeys(filter(None, paths))))


def decode_pidfd(message: Message) -> PidFd:
    """Decode an entry of `files.img`."""
    return PidFd(message.required(1), message.uint(3), message.signed(4))
