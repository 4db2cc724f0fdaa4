"""`pstree.img`: the processes and threads of a tree (images/pstree.proto), the root first."""

from __future__ import annotations

from msgspec import Struct

from crckpt.images import magics
from crckpt.images.framing import read_messages
from crckpt.images.wire import Message


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
    """Raises IntegrityError when the image is damaged."""
    return tuple(_entry(message) for message in read_messages(data, name, magics.PSTREE))


def _entry(message: Message) -> ProcessEntry:
    pid, ppid, pgid, sid = (message.required(number) for number in range(1, 5))
    return ProcessEntry(pid, ppid, pgid, sid, message.uints(5))
