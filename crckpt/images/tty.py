"""Terminals in `files.img`, and their state in `tty-info.img` (images/tty.proto)."""

from __future__ import annotations

from typing import ClassVar, Final

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.framing import read_messages
from crckpt.images.wire import Message

_TERMINAL_KINDS: Final = ("unknown", "pty", "console", "virtual console", "current", "external", "serial")


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


def decode_terminal(message: Message) -> Terminal:
    """From a record of `files.img`; `path` is left empty."""
    file_id, info_id, flags = (message.required(number) for number in range(1, 4))
    return Terminal(file_id, info_id, flags, message.optional(6))


def read_terminals(data: bytes, name: str = "tty-info.img") -> tuple[TerminalInfo, ...]:
    """Raises IntegrityError when the image is damaged."""
    return tuple(_terminal_info(message) for message in read_messages(data, name, magics.TTY_INFO))


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
