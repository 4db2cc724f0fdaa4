"""The SHA-256 of a file's content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Final

_AT_ONCE: Final = 1 << 20


def ignore_bytes(_count: int) -> None:
    """Report read bytes to nobody."""


def read_digest(descriptor: int, size: int, report: Callable[[int], None] = ignore_bytes) -> str:
    """The digest of an open file, in hexadecimal; empty if it does not have `size` bytes. Raises OSError.

    `report` is called with the number of bytes after each read.
    """
    found = hashlib.sha256()
    position = 0
    # Read one byte more than expected: the file may grow.
    while content := os.pread(descriptor, min(_AT_ONCE, size + 1 - position), position):
        found.update(content)
        position += len(content)
        report(len(content))
        if position > size:
            return ""
    return found.hexdigest() if position == size else ""
