"""Files that a move sends (`--send-files`), and what logs have gained, as they travel. Pure.

A log is a file that the tree has opened only to append to it. Unlike other files that it writes, it can be sent: what
was sent before never changes, so only the gained bytes, its tail, follow while the tree is frozen.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from crckpt.errors import IntegrityError
from crckpt.host.disk import placed_files
from crckpt.host.disk.files import write
from crckpt.host.disk.placed_files import Ownership
from crckpt.migrate.preflight.questions import FilePath, Identifier, Nanoseconds, Text
from crckpt.migrate.preflight.report import SPECIAL_BITS
from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.frames import BadFrame
from crckpt.migrate.wire.messages import Files, Lacking, PackMessage, Sent, Stored, Tails, decode_content
from crckpt.model import MEBIBYTE, Count

AT_ONCE: Final = 256
"""Files that are sent together: each is open at the destination until all are there."""

_MOST_BYTES: Final = 16 * MEBIBYTE
_MOST_PARTS: Final = 2048


class SentFile(Struct, frozen=True):
    """A file or directory that is sent. `above`: the directories of its path, from the one in the root on, for the case
    that they are missing.

    `user` and `group`: the names of its owner at the source; empty if there are none.
    """

    path: FilePath
    mode: Identifier
    uid: Identifier
    gid: Identifier
    above: Annotated[tuple[Ownership, ...], Meta(max_length=_MOST_PARTS)]
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
    """The bytes of a log from `start` on. `before`: the digest of what is before them, if not compared yet."""

    file: SentFile
    start: Count
    before: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")] = ""


_FILES: Final = msgspec.msgpack.Decoder(Annotated[tuple[SentFile, ...], Meta(max_length=AT_ONCE)])
_TAILS: Final = msgspec.msgpack.Decoder(Annotated[tuple[SentTail, ...], Meta(max_length=AT_ONCE)])


def decode_files(content: bytes) -> tuple[SentFile, ...]:
    """Decode files of another host. Raises IntegrityError."""
    files = decode_content(content, _FILES, "the list of sent files", _MOST_BYTES)
    for file in files:
        _check_sent_file(file)
    return files


def decode_tails(content: bytes) -> tuple[SentTail, ...]:
    """Decode tails of another host. Raises IntegrityError."""
    tails = decode_content(content, _TAILS, "the list of sent logs", _MOST_BYTES)
    for tail in tails:
        _check_sent_file(tail.file)
        if tail.file.is_directory:
            raise IntegrityError("the list of sent logs has a directory")
    return tails


def _check_sent_file(file: SentFile) -> None:
    """Raise IntegrityError unless it may be sent, and its path is absolute and plain."""
    parts = file.path.split(b"/")
    is_plain = parts[0] == b"" and len(parts) > 1 and not {b"", b".", b".."} & set(parts[1:])
    if not is_plain or b"\0" in file.path or len(file.above) != len(parts) - 2:
        raise IntegrityError("the list of sent files has a path that is not absolute, or not plain")
    is_regular = stat.S_ISREG(file.mode) and not file.mode & SPECIAL_BITS and file.digest
    if not (is_regular or (file.is_directory and not file.size)):
        raise IntegrityError("the list of sent files has a file that may not be sent")


CHANNEL: Final = 0
"""The channel on which all contents come."""


def send_contents(
    connection: Connection,
    announced: Files | Tails,
    files: Sequence[SentFile],
    read: Callable[[SentFile], Generator[bytes]],
) -> None:
    """Announce files, and send their contents; then the destination has them, durably."""
    connection.send(announced)
    if connection.receive(Lacking).digests != tuple(file.digest for file in files):
        raise connection.reject(f"Lacking with other files than those of {type(announced).__name__}")
    for file in files:
        connection.send(PackMessage(CHANNEL, file.digest, file.size))
        # Closed at once, if sending fails.
        with closing(read(file)) as contents:
            for content in contents:
                connection.send_data(CHANNEL, content)
    connection.send(Sent())
    connection.receive(Stored)


def receive_contents(
    connection: Connection, files: Sequence[SentFile], open_file: Callable[[int], int], word: str
) -> SentFile | None:
    """Ask for the contents of files, and receive them. Return the first that did not come; None if all have.

    `open_file` returns a descriptor to write the file of that number to. `word` names one in messages. Raises what
    `Connection` raises, and IntegrityError if one did not come whole.
    """
    incoming = _IncomingFiles(files, open_file, word)
    with connection.receiving(incoming):
        connection.send(Lacking(tuple(file.digest for file in files)))
        connection.receive(Sent)
    incoming.check_last()
    return incoming.missing


class _IncomingFiles:
    """Contents that come one after the other. `begin` and `add` are called by the thread that reads the connection."""

    def __init__(self, files: Sequence[SentFile], open_file: Callable[[int], int], word: str) -> None:
        self._files = files
        self._open_file = open_file
        self._word = word
        self._descriptor = -1
        self._begun = 0
        self._current = hashlib.sha256()
        self._received = 0

    @property
    def missing(self) -> SentFile | None:
        """The first file that has not begun to come; None if all have."""
        return self._files[self._begun] if self._begun < len(self._files) else None

    def begin(self, pack: PackMessage) -> None:
        self.check_last()
        file = self.missing
        if file is None or (pack.channel, pack.digest, pack.size) != (CHANNEL, file.digest, file.size):
            raise BadFrame(f"{self._word} {pack.digest[:12]}, which was not asked for now")
        self._descriptor = self._open_file(self._begun)
        self._begun += 1
        self._current, self._received = hashlib.sha256(), 0

    def add(self, channel: int, content: memoryview) -> None:
        if channel != CHANNEL or not self._begun:
            raise BadFrame(f"data on channel {channel}, where no {self._word} has begun")
        file = self._files[self._begun - 1]
        if self._received + len(content) > file.size:
            raise BadFrame(f"more data of {self._word} {file.digest[:12]} than it has bytes")
        write(self._descriptor, content, placed_files.WHAT)
        self._current.update(content)
        self._received += len(content)

    def check_last(self) -> None:
        """Raise IntegrityError if the last content did not come whole."""
        if self._begun and self._current.hexdigest() != (file := self._files[self._begun - 1]).digest:
            raise IntegrityError(f"{os.fsdecode(file.path)} was changed on the way, or while it was read")
