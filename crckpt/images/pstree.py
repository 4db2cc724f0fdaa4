"""`pstree.img`: the processes and threads of a tree (images/pstree.proto), the root first."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from crckpt.errors import IntegrityError
from crckpt.images import magics
from crckpt.images.framing import read_messages
from crckpt.images.wire import Message

LARGEST_PID: Final = (1 << 31) - 1
"""The largest pid_t. CRIU cuts larger numbers off, and would restore another PID than crckpt looks for."""


class ProcessEntry(Struct, frozen=True):
    """One process: its ids as it sees them in its own PID namespace.

    `threads` has the leader first. Of a zombie CRIU writes one thread id that means nothing (seen with 4.2.1):
    ask `Core.state` first.
    """

    pid: int
    ppid: int
    pgid: int
    sid: int
    threads: tuple[int, ...]


def read_pstree(data: bytes, name: str = "pstree.img") -> tuple[ProcessEntry, ...]:
    """Raises IntegrityError when the image is damaged, or has a process twice."""
    entries = tuple(_entry(message) for message in read_messages(data, name, magics.PSTREE))
    if len({entry.pid for entry in entries}) != len(entries):
        raise IntegrityError(f"{name}: a process is named twice")
    return entries


def _entry(message: Message) -> ProcessEntry:
    pid, ppid, pgid, sid = (message.required(number) for number in range(1, 5))
    threads = message.uints(5)
    # Of a zombie CRIU writes as its thread whatever was in memory: only threads that come back are checked (tree.py).
    if not pid or max(pid, ppid, pgid, sid) > LARGEST_PID:
        raise IntegrityError(f"{message.where}: a process has a number that no process can have")
    return ProcessEntry(pid, ppid, pgid, sid, threads)
