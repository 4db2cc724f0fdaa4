"""Terminals in `files.img`, and their state in `tty-info.img` (images/tty.proto); files in their place for a restore.

The images then have regular files (images/fdinfo.proto), which CRIU gets by `--inherit-fd`, under the names NO_INPUT
and OUTPUT.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Annotated, ClassVar, Final

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.decode import Field, read_all
from crckpt.images.framing import edit_image
from crckpt.images.wire import BYTES, VARINT, Message, encode, fields

# TtyType (images/tty.proto). CTTY is /dev/tty: the current terminal of a process.
_TERMINAL_KINDS: Final = dict(
    enumerate(("unknown", "pty", "console", "virtual console", "current", "external", "serial"))
)
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


class TerminalInfo(Struct, frozen=True):
    """The state of a terminal.

    - `kind`: `pty`, `console` ...
    - `index`: the N of /dev/pts/N, None if it is no pty
    - `session`: the id of its session, 0 if there is none
    - `group`: the process group that gets what is typed
    - `is_hung_up`: its other side was closed; CRIU makes a new one for it
    """

    id: Annotated[int, 1]
    kind: Annotated[str, Field(2, convert=lambda number: _TERMINAL_KINDS.get(number, "unknown"))]
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


NO_INPUT: Final = "crckpt-terminal-input"
OUTPUT: Final = "crckpt-terminal-output"

# fd_types, and fields of file_entry, reg_file_entry, fdinfo_entry.
_REG, _TTY = 1, 11
_TYPE, _ID, _REG_ENTRY, _TTY_ENTRY = 1, 2, 3, 19
_FD_ID, _FD_TYPE, _FD = 1, 3, 4
_OWNER_OF_TTY = 4
_READ_WRITE = 2
# CRIU numbers files from 1.
_SPARE_ID = 1 << 30


class TerminalFiles(Struct, frozen=True):
    """The terminals to replace: the ids of their open files, and of their infos."""

    files: frozenset[int]
    infos: frozenset[int]

    def edit(self, name: str) -> Callable[[bytes], bytes] | None:
        """Return what replaces the terminals in the image of that name; None if it has none."""
        if name == "files.img":
            # fown_entry: nobody gets signals of it.
            owner = encode((number, VARINT, 0) for number in range(1, 6))
            spare = _regular_file(_SPARE_ID, NO_INPUT, owner)
            return lambda data: edit_image(data, name, magics.FILES, self._edit_file, spare)
        if name.startswith("fdinfo-"):
            return lambda data: edit_image(data, name, magics.FDINFO, self._edit_descriptor)
        if name != "tty-data.img":
            return None
        # What nobody had read yet.
        return lambda data: edit_image(
            data, name, None, lambda unread, name: None if Message(unread, name).required(1) in self.infos else unread
        )

    def _edit_file(self, payload: bytes, name: str) -> bytes:
        message = Message(payload, name)
        if message.required(_TYPE) != _TTY or message.required(_ID) not in self.files:
            return payload
        return _regular_file(message.required(_ID), OUTPUT, message.message(_TTY_ENTRY).octets(_OWNER_OF_TTY))

    def _edit_descriptor(self, payload: bytes, name: str) -> bytes:
        message = Message(payload, name)
        if message.required(_FD_TYPE) != _TTY or message.required(_FD_ID) not in self.files:
            return payload
        changed = {_FD_TYPE: _REG} | ({_FD_ID: _SPARE_ID} if message.required(_FD) == 0 else {})
        return encode((number, kind, changed.get(number, value)) for number, kind, value in fields(payload, name))


def _regular_file(file_id: int, name: str, owner: bytes) -> bytes:
    """Encode a file_entry. CRIU looks for a name without the first slash among those that it inherits."""
    path = f"/{name}".encode()
    entry = encode(
        (
            (1, VARINT, file_id),
            (2, VARINT, _READ_WRITE),
            (3, VARINT, 0),
            (5, BYTES, owner),
            (6, BYTES, path),
        )
    )
    return encode(((_TYPE, VARINT, _REG), (_ID, VARINT, file_id), (_REG_ENTRY, BYTES, entry)))
