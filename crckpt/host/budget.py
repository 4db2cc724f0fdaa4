"""Limit the time and the size of what crckpt reads of other users' making: anybody may make as much as they like."""

from __future__ import annotations

import os
import time
from typing import Final

_MOST_BYTES: Final = 64 << 20
_READ_BYTES: Final = 1 << 16


class Budget:
    """Seconds and bytes for one look at what others have made, however many files it is in.

    `was_spent`: it did not suffice, so that something was left out.
    """

    def __init__(self, seconds: float, size: int = _MOST_BYTES) -> None:
        self._end = time.monotonic() + seconds
        self._left_bytes = size
        self.was_spent = False

    @property
    def left_s(self) -> float:
        """The seconds that are left."""
        return max(0.0, self._end - time.monotonic())

    def is_spent(self) -> bool:
        """Return whether nothing is left. Ask only before more work: the answer is remembered."""
        self.was_spent = self.was_spent or self._left_bytes <= 0 or time.monotonic() >= self._end
        return self.was_spent

    def read(self, path: str, most: int = _MOST_BYTES) -> bytes:
        """Read at most `most` bytes of a file, and no more than the budget allows. Raises OSError."""
        found = bytearray()
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # The kernel answers a read of a file of /proc with a page: it may search long for where that page begins.
            while len(found) < most and not self.is_spent():
                part = os.read(file, min(_READ_BYTES, most - len(found)))
                if not part:
                    break
                found += part
                self._left_bytes -= len(part)
        finally:
            os.close(file)
        return bytes(found)

    def read_lines(self, path: str) -> list[str]:
        """Read the lines of a file, without one that is incomplete. Raises OSError."""
        return self.read(path).decode(errors="replace").split("\n")[:-1]
