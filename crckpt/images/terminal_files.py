"""Put other files in the place of open terminals, in the images that CRIU reads (images/fdinfo.proto, tty.proto).

The images then have regular files, which CRIU gets by `--inherit-fd`, under the names NO_INPUT and OUTPUT.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.framing import edit_image
from crckpt.images.wire import BYTES, VARINT, Message, encode, fields

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
