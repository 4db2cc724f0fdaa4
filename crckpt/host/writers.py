"""Who has files open for writing. Source: proc_pid_fd(5), proc_pid_fdinfo(5)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from crckpt.host.proc import title


class Writer(Struct, frozen=True):
    """A process, and its name."""

    pid: int
    comm: str


def writers(paths: Iterable[str]) -> dict[str, Writer]:
    """By path, one of those who can write to it, for those that have any, under whatever name they opened it."""
    identities = {path: identity for path in paths if (identity := _identity(Path(path)))}
    wanted = set(identities.values())
    found: dict[tuple[int, int], Writer] = {}
    for process in Path("/proc").iterdir() if wanted else ():
        for descriptor in _descriptors(process) if process.name.isdecimal() else ():
            identity = _identity(descriptor)
            if identity is not None and identity in wanted - found.keys() and _writes(process, descriptor.name):
                found[identity] = Writer(int(process.name), title(int(process.name)))
    return {path: found[identity] for path, identity in identities.items() if identity in found}


def _identity(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        status = path.stat()
        return status.st_dev, status.st_ino
    return None


def _descriptors(process: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from (process / "fd").iterdir()


def _writes(process: Path, descriptor: str) -> bool:
    with suppress(OSError):
        for line in (process / "fdinfo" / descriptor).read_text().splitlines():
            name, _, value = line.partition(":\t")
            if name == "flags":
                return int(value, 8) & os.O_ACCMODE != os.O_RDONLY
    return False
