"""Files of /proc as text. What programs name themselves in them may be any bytes: only a line feed ends a line."""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from typing import Final

_AT_ONCE: Final = 1 << 16
_MOST: Final = 512 << 20
_LONGEST_LINE: Final = 1 << 17
"""A program can map a file 65,530 times that lies in as many directories, one in another: its `maps` are as long."""
_FLAGS: Final = re.compile(r"^flags:\s*(\d+)", re.MULTILINE)


def text(path: str) -> str:
    """What such a file says. There are many of them: a `Path` of each takes longer than the kernel's answer.

    What is no UTF-8, as a name is that the kernel has cut short, is replaced. Raises OSError, also if it takes more
    memory than anything that CRIU could dump, or has a longer line.
    """
    parts = []
    total = line = 0
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while part := os.read(file, _AT_ONCE):
            parts.append(part)
            total += len(part)
            line = len(part) - 1 - end if (end := part.rfind(b"\n")) >= 0 else line + len(part)
            if total > _MOST or line > _LONGEST_LINE:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    finally:
        os.close(file)
    return b"".join(parts).decode(errors="replace")


def begin(path: str, most: int) -> bytes:
    """Its first `most` bytes, or fewer. Raises OSError."""
    found = bytearray()
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while len(found) < most and (part := os.read(file, min(_AT_ONCE, most - len(found)))):
            found += part
    finally:
        os.close(file)
    return bytes(found)


def behind_the_name(stat: str) -> list[str]:
    """The fields of a task's `stat` from the third on. The name may hold anything, but ends at the last parenthesis."""
    return stat[stat.rindex(")") + 2 :].split()


def open_flags(pid: int, descriptor: int) -> int:
    """The flags with which a process has a file open, as of open(2); 0 if that has gone. Source: proc_pid_fdinfo(5)."""
    with suppress(OSError):
        found = _FLAGS.search(text(f"/proc/{pid}/fdinfo/{descriptor}"))
        return int(found[1], 8) if found else 0
    return 0


def lines(path: str) -> list[str]:
    """Its lines: those that the kernel wrote. Names may hold what else is taken to end one. Raises OSError."""
    found = text(path).split("\n")
    return found if found[-1] else found[:-1]
