"""Terminals in `files.img`, and their state in `tty-info.img` (images/tty.proto)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, ClassVar, Final

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.decode import Field, read_all
from crckpt.images.framing import edit_image
from crckpt.images.wire import VARINT, Message, encode

# TtyType (images/tty.proto). CTTY is /dev/tty: the current terminal of a process.
_TERMINAL_KINDS: Final = ("unknown", "pty", "console", "virtual console", "current", "external", "serial")
# Of tty_info_entry.
_SESSION, _GROUP = 6, 7


class Terminal(Struct, frozen=True):
    """An open terminal: `info_id` is the id of its TerminalInfo, the file `file_id` has the path."""

    kind: ClassVar[str] = "terminal"

    id: Annotated[int, 1]
    info_id: Annotated[int, 2]
    flags: Annotated[int, 3]
    file_id: Annotated[int | None, 6]
    path: str = ""

    @property
    def title(self) -> str:
        return self.path or f"terminal {self.info_id}"


def _kind_of(number: int) -> str:
    return _TERMINAL_KINDS[number] if number < len(_TERMINAL_KINDS) else "unknown"


class TerminalInfo(Struct, frozen=True):
    """The state of a terminal.

    - `kind`: `pty`, `console` ...
    - `index`: the N of /dev/pts/N, None if it is no pty
    - `session`: the id of its session, 0 if there is none
    - `group`: the process group that gets what is typed
    - `is_hung_up`: its other side was closed; CRIU makes a new one for it
    """

    id: Annotated[int, 1]
    kind: Annotated[str, Field(2, convert=_kind_of)]
    session: Annotated[int, Field(_SESSION, default=0)]
    index: Annotated[int | None, Field(12, 1)]
    # CRIU could not read its settings (criu/tty.c, tty_is_hung).
    is_hung_up: Annotated[bool, Field(convert=lambda message: not message.messages(9))] = False
    group: Annotated[int, Field(_GROUP, default=0)] = 0

    @property
    def is_master(self) -> bool:
        """Whether it is the master side of a pty."""
        # criu/tty.c:387, tty_gen_id.
        return self.index is not None and bool(self.id & 1)


def read_terminals(data: bytes, name: str = "tty-info.img") -> tuple[TerminalInfo, ...]:
    """Decode the image. Raises IntegrityError if it is damaged."""
    return read_all(TerminalInfo, data, name, magics.TTY_INFO)


def replace_ended_groups(data: bytes, groups: Collection[int], name: str = "tty-info.img") -> bytes:
    """Give each terminal whose foreground group is none of the tree's `groups` to its session's leader.

    Only if that is in the tree. CRIU fails at a group without a process (criu/tty.c, tty_set_prgp). Raises
    IntegrityError.
    """

    def edit(payload: bytes, name: str) -> bytes:
        session, group = (Message(payload, name).uint(number) for number in (_SESSION, _GROUP))
        if group in groups or session not in groups:
            return payload
        # The last of several fields with the same number counts.
        return payload + encode(((_GROUP, VARINT, session),))

    return edit_image(data, name, magics.TTY_INFO, edit)
