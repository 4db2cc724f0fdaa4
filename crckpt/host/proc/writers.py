"""Who can write to files. Source: proc_pid_fd(5), proc_pid_fdinfo(5), proc_pid_maps(5)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from crckpt.host import proc
from crckpt.host.proc import procfs


class Writer(Struct, frozen=True):
    """A process, and its name."""

    pid: int
    comm: str


def writers(paths: Iterable[str]) -> dict[str, Writer]:
    """By path, one of those who can write to it, for those that have any, under whatever name they opened it.

    We and our ancestors do not count where we can only append: that is our output, which may well go to that file.
    """
    identities = {path: identity for path in paths if (identity := _identity(Path(path)))}
    wanted = set(identities.values())
    us = (os.getpid(), *proc.ancestors(os.getpid()))
    found: dict[tuple[int, int], Writer] = {}
    for process in Path("/proc").iterdir() if wanted else ():
        for place in _writable(process, appends=int(process.name) not in us) if process.name.isdecimal() else ():
            identity = _identity(place)
            if identity is not None and identity in wanted - found.keys():
                found[identity] = Writer(int(process.name), proc.title(int(process.name)))
    return {path: found[identity] for path, identity in identities.items() if identity in found}


def _identity(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        status = path.stat()
        return status.st_dev, status.st_ino
    return None


def _writable(process: Path, *, appends: bool) -> Iterator[Path]:
    """What it has open for writing, also by appending alone if `appends`; and mapped so."""
    with suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            flags = procfs.open_flags(int(process.name), int(descriptor.name))
            if flags & os.O_ACCMODE != os.O_RDONLY and (appends or not flags & os.O_APPEND):
                yield descriptor
    with suppress(OSError):
        for line in procfs.lines(f"{process}/maps"):
            where, _, rest = line.partition(" ")
            if rest[1:4:2] == "ws":
                start, end = (int(number, 16) for number in where.split("-"))
                yield process / "map_files" / f"{start:x}-{end:x}"
