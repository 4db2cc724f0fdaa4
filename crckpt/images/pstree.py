"""`pstree.img`: the processes and threads of a tree (images/pstree.proto), the root first."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.decode import read_all

LARGEST_PID: Final = (1 << 31) - 1
"""The largest pid_t. CRIU truncates larger numbers, and would restore another PID than crckpt expects."""


class ProcessEntry(Struct, frozen=True):
    """One process, with ids of its own PID namespace.

    `threads` has the leader first. For a zombie CRIU writes one meaningless thread id (seen with 4.2.1): check
    `Core.state` first.
    """

    pid: Annotated[int, 1]
    ppid: Annotated[int, 2]
    pgid: Annotated[int, 3]
    sid: Annotated[int, 4]
    threads: Annotated[tuple[int, ...], 5]


def read_pstree(data: bytes, name: str = "pstree.img") -> tuple[ProcessEntry, ...]:
    """Decode the image. Raises IntegrityError if it is damaged, or has a process twice."""
    entries = read_all(ProcessEntry, data, name, magics.PSTREE)
    for entry in entries:
        # A zombie's thread id is whatever CRIU had in memory. tree.py checks the threads that a restore brings back.
        if not entry.pid or max(entry.pid, entry.ppid, entry.pgid, entry.sid) > LARGEST_PID:
            raise IntegrityError(f"{name}: a process has an impossible PID")
    if len({entry.pid for entry in entries}) != len(entries):
        raise IntegrityError(f"{name}: a process appears twice")
    return entries
