"""Modes that programs set in their terminal: set them in a terminal that attaches, and reset them when it detaches.

Source: xterm's control sequences, DEC private mode set and reset (CSI ? Pm h, CSI ? Pm l).
"""

from __future__ import annotations

import re
from typing import Final

_CHANGE: Final = re.compile(rb"\x1b\[\?([0-9;]{1,32})([hl])")
_LONGEST: Final = 36
# Cursor keys, the alternate screen, the mouse, focus events, bracketed paste.
_OFF_AT_FIRST: Final = frozenset({1, 47, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 1047, 1049, 2004})
_CURSOR: Final = 25


class ScreenModes:
    """The modes that differ from those of a new terminal."""

    def __init__(self) -> None:
        self._changed: dict[int, bool] = {}
        self._end = b""

    def read(self, output: bytes) -> None:
        """Note what this output changes."""
        data = self._end + output
        # A change may be in two parts.
        self._end = data[-_LONGEST:]
        for found in _CHANGE.finditer(data):
            for number in map(int, filter(None, found[1].split(b";"))):
                is_set = found[2] == b"h"
                if number in _OFF_AT_FIRST or number == _CURSOR:
                    self._changed.pop(number, None)
                    if is_set != (number == _CURSOR):
                        self._changed[number] = is_set

    def set_sequence(self) -> bytes:
        """Return the control sequences that set these modes in a new terminal."""
        return b"".join(_change(number, is_set=is_set) for number, is_set in self._changed.items())

    def reset_sequence(self) -> bytes:
        """Return the control sequences that reset these modes, and the colours."""
        changes = (_change(number, is_set=not is_set) for number, is_set in reversed(self._changed.items()))
        return b"".join(changes) + b"\x1b[m"


def _change(number: int, *, is_set: bool) -> bytes:
    return b"\x1b[?%d%c" % (number, b"h" if is_set else b"l")
