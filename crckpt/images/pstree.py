"""`pstree.img`: the processes and threads of a tree (images/pstree.proto), the root first."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.framing import read_messages
from crckpt.images.wire import Message

LARGEST_PID: Final = (1 << 31) - 1
"""The largest pid_t. CRIU truncates larger numbers, and would restore another PID than crckpt expects."""


class ProcessEntry(Struct, frozen=True):
    """One process, with ids of its own PID namespace.

    `threads` has the leader first. For a zombie CRIU writes one meaningless thread id (seen with 4.2.1): check
    `Core.state` first.
    """

    pid: int
    ppid: int
    pgid: int
    sid: int
    threads: tuple[int, ...]


def read_pstree(data: bytes, name: str = "pstree.img") -> tuple[ProcessEntry, ...]:
    """Decode the image. Raises IntegrityError if it is damaged, or has a process twice."""
    entries = tuple(_entry(message) for message in read_messages(data, name, magics.PSTREE))
    if len({entry.pid for entry in entries}) != len(entries):
        raise IntegrityError(f"{name}: a process appears twice")
    return entries


def _entry(message: Message) -> ProcessEntry:
    pid, ppid, pgid, sid = (message.required(number) for number in range(1, 5))
    threads = message.uints(5)
    # A zombie's thread id is whatever CRIU had in memory. tree.py checks the threads that a restore brings back.
    if not pid or max(pid, ppid, pgid, sid) > LARGEST_PID:
        raise IntegrityError(f"{message.where}: a process has an impossible PID")
    return ProcessEntry(pid, ppid, pgid, sid, threads)
