"""Files that a move sends (`--send-files`), and what logs have gained, as they travel. Pure.

A log is a file that the tree has opened only to append to it. Unlike other files that it writes, it can be sent: what
was sent before never changes, so only the gained bytes, its tail, follow while the tree is frozen.
"""

from __future__ import annotations

import stat
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from crckpt.errors import IntegrityError
from crckpt.migrate.preflight.questions import FilePath, Identifier, Nanoseconds, Text
from crckpt.migrate.preflight.sendable import SPECIAL_BITS
from crckpt.model import MEBIBYTE, Count

T = TypeVar("T")

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


class SentTail(Struct, frozen=True):
    """The bytes of a log from `start` on: size and digest of `file` are theirs.

    `before`: the digest of what is before them; empty if this connection has sent or compared that.
    """

    file: SentFile
    start: Count
    before: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")] = ""


_FILES: Final = msgspec.msgpack.Decoder(Annotated[tuple[SentFile, ...], Meta(max_length=AT_ONCE)])
_TAILS: Final = msgspec.msgpack.Decoder(Annotated[tuple[SentTail, ...], Meta(max_length=AT_ONCE)])


def encode_sent(sent: tuple[SentFile, ...] | tuple[SentTail, ...]) -> bytes:
    """Encode files or tails, without their content."""
    return msgspec.msgpack.encode(sent)


def decode_files(content: bytes) -> tuple[SentFile, ...]:
    """Decode files of another host. Raises IntegrityError."""
    files = _decode(content, _FILES, "the list of sent files")
    for file in files:
        _check_sent_file(file)
    return files


def decode_tails(content: bytes) -> tuple[SentTail, ...]:
    """Decode tails of another host. Raises IntegrityError."""
    tails = _decode(content, _TAILS, "the list of sent logs")
    for tail in tails:
        _check_sent_file(tail.file)
        if tail.file.is_directory:
            raise IntegrityError("the list of sent logs has a directory")
    return tails


def _decode(content: bytes, decoder: msgspec.msgpack.Decoder[T], what: str) -> T:
    if len(content) > _MOST_BYTES:
        raise IntegrityError(f"{what} has {len(content)} bytes; at most {_MOST_BYTES} are allowed")
    try:
        return decoder.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise IntegrityError(f"{what} cannot be read: {error}") from error


def _check_sent_file(file: SentFile) -> None:
    """Raise IntegrityError unless it may be sent, and its path is absolute and plain."""
    parts = file.path.split(b"/")
    is_plain = parts[0] == b"" and len(parts) > 1 and not {b"", b".", b".."} & set(parts[1:])
    if not is_plain or b"\0" in file.path or len(file.above) != len(parts) - 2:
        raise IntegrityError("the list of sent files has a path that is not absolute, or not plain")
    is_regular = stat.S_ISREG(file.mode) and not file.mode & SPECIAL_BITS and file.digest
    if not (is_regular or (file.is_directory and not file.size)):
        raise IntegrityError("the list of sent files has a file that may not be sent")
