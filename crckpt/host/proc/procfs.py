"""Read files of /proc as text. Programs may put any bytes into names there: only a line feed ends a line."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Final

DELETED: Final = " (deleted)"
"""The end of what the kernel calls a file whose name was removed."""

_READ_BYTES: Final = 1 << 16
# A program of any user can make its `maps` so long: with paths of 100 kB and 65,530 maps it would take all memory.
_MOST_BYTES: Final = 512 << 20
# A program can map a file 65,530 times that lies in as many directories, one in another: its `maps` are as long.
_LONGEST_LINE: Final = 1 << 17


def text(path: str, most: int = _MOST_BYTES) -> str:
    """The content of a file. Bytes that are not UTF-8, as where the kernel has cut a name short, are replaced.

    Raises OSError, also if it has more than `most` bytes, or a longer line than anything that CRIU could dump.
    """
    # There are many such files: a `Path` of each takes longer than the kernel's answer.
    parts = []
    total = line = 0
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while part := os.read(file, _READ_BYTES):
            parts.append(part)
            total += len(part)
            line = len(part) - 1 - end if (end := part.rfind(b"\n")) >= 0 else line + len(part)
            if total > most or line > _LONGEST_LINE:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    finally:
        os.close(file)
    return b"".join(parts).decode(errors="replace")


def lines(path: str) -> list[str]:
    """The lines that the kernel wrote. Raises OSError."""
    # Names in them may hold what else is taken to end a line.
    found = text(path).split("\n")
    return found if found[-1] else found[:-1]


def parse_fields(content: str) -> dict[str, str]:
    """Name -> text of the lines `NAME: TEXT` of a file. Of several with one name it has the last."""
    return {
        name: found.strip() for name, colon, found in (each.partition(":") for each in content.split("\n")) if colon
    }


def head(path: str, most: int) -> bytes:
    """The first `most` bytes of a file, or fewer. Raises OSError."""
    found = bytearray()
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while len(found) < most and (part := os.read(file, min(_READ_BYTES, most - len(found)))):
            found += part
    finally:
        os.close(file)
    return bytes(found)


def pids() -> Iterator[int]:
    """The PIDs of all processes that we can see."""
    yield from (int(name) for name in os.listdir("/proc") if name.isdecimal())


def has_visitors() -> bool:
    """Return whether a process with a parent outside our PID namespace runs in it (nsenter): its parent is 0."""
    for pid in pids():
        with suppress(OSError):
            # Not `stat`: the kernel may keep that back (`status.ask_of`).
            status = parse_fields(text(f"/proc/{pid}/status"))
            if pid != 1 and status["PPid"] == "0" and not status["State"].startswith("Z"):
                return True
    return False


def threads(pid: int) -> tuple[int, ...]:
    """The thread ids of a process, ascending. Raises OSError if it has ended."""
    return tuple(sorted(int(name) for name in os.listdir(f"/proc/{pid}/task")))


def living_threads(pid: int) -> tuple[int, ...]:
    """The thread ids of a process, ascending; none if it has ended."""
    with suppress(OSError):
        return threads(pid)
    return ()


def children(pid: int, tid: int) -> tuple[int, ...]:
    """PIDs of the children that a thread has made. Raises OSError if it has ended."""
    return tuple(map(int, text(f"/proc/{pid}/task/{tid}/children").split()))


@cache
def boot_id() -> str:
    """The name of this boot of this kernel."""
    return text("/proc/sys/kernel/random/boot_id").strip()


def uptime_ticks() -> int:
    """The time since the boot, in the unit and by the clock of start times in /proc/PID/stat."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
