"""Owners of pipes: the kernel lets nobody else open an end anew, by /dev/stdout or /proc/PID/fd."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Meta, Struct

from crckpt.host.proc.fd import read_link, read_targets

_PIPE: Final = "pipe:["

User = Annotated[int, Meta(ge=0, lt=(1 << 32) - 1)]


class PipeRecord(Struct, frozen=True):
    """A pipe by its inode, and its user and group."""

    inode: int
    owner: tuple[User, User]


def read_pipes(pid: int) -> Iterator[PipeRecord]:
    """Read the owners of a process's pipes. Raises OSError if the process has ended."""
    for fd, target in read_targets(pid):
        found = read_link(f"/proc/{pid}/fd/{fd}") if target.startswith(_PIPE) else None
        if found is not None and found[0] == target:
            yield PipeRecord(found[1].st_ino, (found[1].st_uid, found[1].st_gid))


def restore_owner(ours: int, record: PipeRecord) -> None:
    """Give the pipe of our descriptor its owner again; do nothing to another file. Raises OSError."""
    found = read_link(f"/proc/self/fd/{ours}")
    if found is None or not found[0].startswith(_PIPE):
        return
    if (found[1].st_uid, found[1].st_gid) != record.owner:
        os.fchown(ours, *record.owner)
