"""Read logs of any size in bounded memory: keep the first and the last part of a long log."""

from __future__ import annotations

import os
import stat
from collections import deque
from pathlib import Path
from typing import Final

from crckpt.host.disk.checked_files import open_regular
from crckpt.host.opened import opened

MOST: Final = 16 << 20
"""Bytes of a log that are kept: half at its start, half at its end."""
MOST_STREAMED: Final = 256 << 20
"""Bytes after which reading a pipe or terminal stops with an error."""
_CHUNK: Final = 1 << 20
_KINDS: Final = (
    (stat.S_ISDIR, "is a directory"),
    (stat.S_ISFIFO, "is a named pipe, not a file"),
    (stat.S_ISCHR, "is a device, not a file"),
    (stat.S_ISBLK, "is a device, not a file"),
    (stat.S_ISSOCK, "is a socket, not a file"),
)


class NoFileError(OSError):
    """The path is not a regular file: `strerror` says what it is."""


class EndlessError(OSError):
    """A stream is longer than MOST_STREAMED."""


def read_file_ends(path: Path, most: int = MOST) -> bytes:
    """Read the first and the last part of a regular file, without blocking.

    Raises NoFileError if it is not a regular file, OSError.
    """
    # Follows links: the user named the file.
    descriptor, mode = open_regular(path)
    if descriptor is None:
        raise NoFileError(0, next((words for is_kind, words in _KINDS if is_kind(mode)), "is not a file"))
    with opened(descriptor):
        return _ends(descriptor, most)


def read_stream_ends(descriptor: int, most: int = MOST) -> bytes:
    """Read a stream to its end and keep its first and last part. Raises EndlessError after MOST_STREAMED bytes."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise NoFileError(0, "is a directory")
    if stat.S_ISREG(mode) and os.lseek(descriptor, 0, os.SEEK_CUR) == 0:
        return _ends(descriptor, most)
    begin = bytearray()
    last: deque[bytes] = deque(maxlen=most // 2 // _CHUNK + 1)
    total = 0
    # Buffered: a pipe returns small pieces.
    with open(descriptor, "rb", closefd=False) as stream:
        while chunk := stream.read(_CHUNK):
            total += len(chunk)
            if total > MOST_STREAMED:
                raise EndlessError(0, f"is longer than {MOST_STREAMED >> 20} MiB")
            if len(begin) < most // 2:
                begin += chunk
            else:
                last.append(chunk)
    end = b"".join(last)[-(most // 2) :]
    # End the line between the two parts, so that halves of two lines are not read as one.
    return bytes(begin) + (b"\n" if total > most else b"") + end


def _ends(descriptor: int, most: int) -> bytes:
    size = os.fstat(descriptor).st_size
    with open(descriptor, "rb", closefd=False) as file:
        if size <= most:
            return file.read(most)
        begin = file.read(most // 2)
        file.seek(size - most // 2)
        return begin + b"\n" + file.read(most // 2)
