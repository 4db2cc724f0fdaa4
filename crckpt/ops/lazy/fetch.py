"""Parts of packs that the helper asks of the process that has started it, over a socket."""

from __future__ import annotations

import socket
import struct
import threading
from typing import Final

from crckpt.errors import CrckptError, IntegrityError
from crckpt.host.process.signals import start_thread
from crckpt.model import PackId
from crckpt.store.late_backend import Fetch, Fetched

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
