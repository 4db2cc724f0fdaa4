"""Find processes that can write to files. Source: proc_pid_fd(5), proc_pid_fdinfo(5), proc_pid_maps(5)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

from msgspec import Struct

from crckpt.host.proc import procfs
from crckpt.host.proc.command import title
from crckpt.host.proc.fd import open_flags
from crckpt.host.proc.maps import read_maps
from crckpt.host.proc.tree import ancestors


class FileWriter(Struct, frozen=True):
    """A process, and its name."""

    pid: int
    comm: str


def find_writers(paths: Iterable[str]) -> dict[str, FileWriter]:
    """Find a process that can write to each of these files, under whatever name it opened it. By path."""
    # A file to which we and our ancestors can only append is not counted: it may be our output.
    identities = {path: identity for path in paths if (identity := _identity(path))}
    wanted = set(identities.values())
    us = (os.getpid(), *ancestors(os.getpid()))
    found: dict[tuple[int, int], FileWriter] = {}
    for pid in procfs.pids() if wanted else ():
        for link in list_writable(pid, appends=pid not in us):
            identity = _identity(link)
            if identity is not None and identity in wanted - found.keys():
                found[identity] = FileWriter(pid, title(pid))
    return {path: found[identity] for path, identity in identities.items() if identity in found}


def list_writable(pid: int, *, appends: bool = True) -> Iterator[str]:
    """List links to what a process has open for writing, and mapped so; `appends`: also what it only appends to."""
    with suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            flags = open_flags(pid, int(fd))
            if flags & os.O_ACCMODE != os.O_RDONLY and (appends or not flags & os.O_APPEND):
                yield f"/proc/{pid}/fd/{fd}"
    with suppress(OSError):
        # Writes to a private map go to a copy, and never reach the file.
        yield from (each.link(pid) for each in read_maps(pid) if each.is_writable and each.is_shared)


def _identity(path: str) -> tuple[int, int] | None:
    with suppress(OSError):
        status = os.stat(path)
        return status.st_dev, status.st_ino
    return None
