"""The messages between a restore and the helper that fills a tree's memory, and parts of packs that this asks for."""

from __future__ import annotations

import socket
import struct
import threading
from typing import Final

from msgspec import Struct

from crckpt.errors import CrckptError, IntegrityError
from crckpt.host.proc import Identity
from crckpt.host.process.signals import start_thread
from crckpt.model import CheckpointId, PackId
from crckpt.ops.lazy.plan import ProcessPlan
from crckpt.store.late_backend import Fetch, Fetched


class Plan(Struct, frozen=True, tag=True):
    """The store, the checkpoint, and what is to be filled of its processes.

    `hot` are packs whose pages are there before the tree runs. Until the first socket is closed, the helper fills only
    what threads wait for. With `manifest` the store does not have the checkpoint yet: then it does so until Arrived,
    fetches pages over its second socket, and ends the tree if the first one is closed before that.
    """

    store: str
    checkpoint: CheckpointId
    processes: tuple[ProcessPlan, ...]
    hot: frozenset[PackId]
    manifest: bytes = b""


class Started(Struct, frozen=True, tag=True):
    """The first message: all PIDs and TIDs of the helper."""

    tids: tuple[int, ...]


class Attach(Struct, frozen=True, tag=True):
    """The tree's `tasks`, by the PID in the checkpoint, wait in the hold. Answered by Attached, then Planned."""

    root: int
    tasks: dict[int, Identity]


class Attached(Struct, frozen=True, tag=True):
    """The tree's missing pages are ours. `whole`: PIDs of processes that were filled, as they could not be entered."""

    whole: tuple[int, ...] = ()


class Planned(Struct, frozen=True, tag=True):
    """The helper knows where the pages lie: the tree may run."""


class Arrived(Struct, frozen=True, tag=True):
    """All packs are in the store. Answered by Filled."""


class Filled(Struct, frozen=True, tag=True):
    """The memory of the tree is complete."""


class FillFailed(Struct, frozen=True, tag=True):
    """The helper ends, before the tree runs."""

    message: str


class FillerMessage(Struct, frozen=True):
    """A message, as it is sent."""

    content: Started | Plan | Planned | Attach | Attached | Arrived | Filled | FillFailed


# The digest, the offset, the number of bytes.
_REQUEST: Final = struct.Struct("=64sQQ")
# The size of the pack, and of the part that follows.
_ANSWER: Final = struct.Struct("=QQ")


class Fetcher:
    """Asks, for several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def fetch(self, digest: PackId, offset: int, size: int) -> Fetched:
        """Fetch a part of a pack. Raises OSError, IntegrityError if nobody answers any more."""
        with self._lock:
            self._connection.sendall(_REQUEST.pack(digest.encode(), offset, size))
            whole, length = _ANSWER.unpack(_receive(self._connection, _ANSWER.size))
            return Fetched(whole, _receive(self._connection, length))


def serve_fetches(connection: socket.socket, fetch: Fetch) -> None:
    """Answer in a thread, which closes the connection at its end or if a part cannot be fetched."""

    def serve() -> None:
        with connection:
            try:
                while True:
                    digest, offset, size = _REQUEST.unpack(_receive(connection, _REQUEST.size))
                    found = fetch(digest.decode(), offset, size)
                    connection.sendall(_ANSWER.pack(found.size, len(found.content)) + found.content)
            except (CrckptError, OSError):
                # The helper has ended, or will find that nobody answers.
                return

    start_thread(serve)


def _receive(connection: socket.socket, size: int) -> bytes:
    content = bytearray(size)
    done = 0
    while done < size:
        count = connection.recv_into(memoryview(content)[done:])
        if not count:
            raise IntegrityError("the connection to the other host was lost")
        done += count
    return bytes(content)
