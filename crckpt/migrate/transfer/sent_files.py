"""Files that a move sends (`--send-files`), as they travel. Pure."""

from __future__ import annotations

import stat
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from crckpt.errors import IntegrityError
from crckpt.migrate.preflight.questions import FilePath, Identifier, Nanoseconds, Text
from crckpt.migrate.preflight.sendable import SPECIAL_BITS
from crckpt.model import MEBIBYTE, Count

AT_ONCE: Final = 256
"""Files that are sent together: each is open at the destination until all are there."""

_MOST_BYTES: Final = 16 * MEBIBYTE
_MOST_PARTS: Final = 2048


class SentDirectory(Struct, frozen=True):
    """Permissions and owner of a directory above a file, for the case that it is missing."""

    mode: Annotated[int, Meta(ge=0, le=0o7777)]
    uid: Identifier
    gid: Identifier


class SentFile(Struct, frozen=True):
    """A file or directory that is sent. `above`: the directories of its path, from the one in the root on.

    `user` and `group`: the names of its owner at the source; empty if there are none.
    """

    path: FilePath
    mode: Identifier
    uid: Identifier
    gid: Identifier
    above: Annotated[tuple[SentDirectory, ...], Meta(max_length=_MOST_PARTS)]
    modified: Nanoseconds = 0
    size: Count = 0
    digest: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")] = ""
    user: Text = ""
    group: Text = ""

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)


SentFiles = Annotated[tuple[SentFile, ...], Meta(max_length=AT_ONCE)]


def encode_files(files: tuple[SentFile, ...]) -> bytes:
    """Encode files, without their content."""
    return msgspec.msgpack.encode(files)


def decode_files(content: bytes) -> tuple[SentFile, ...]:
    """Decode files of another host. Raises IntegrityError."""
    if len(content) > _MOST_BYTES:
        raise IntegrityError(f"the list of sent files has {len(content)} bytes; at most {_MOST_BYTES} are allowed")
    try:
        files: tuple[SentFile, ...] = msgspec.msgpack.decode(content, type=SentFiles)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise IntegrityError(f"the list of sent files cannot be read: {error}") from error
    for file in files:
        check_sent_file(file)
    return files


def check_sent_file(file: SentFile) -> None:
    """Raise IntegrityError unless it may be sent, and its path is absolute and plain."""
    parts = file.path.split(b"/")
    is_plain = parts[0] == b"" and len(parts) > 1 and not {b"", b".", b".."} & set(parts[1:])
    if not is_plain or b"\0" in file.path or len(file.above) != len(parts) - 2:
        raise IntegrityError("the list of sent files has a path that is not absolute, or not plain")
    is_regular = stat.S_ISREG(file.mode) and not file.mode & SPECIAL_BITS and file.digest
    if not (is_regular or (file.is_directory and not file.size)):
        raise IntegrityError("the list of sent files has a file that may not be sent")
