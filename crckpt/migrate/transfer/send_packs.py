"""Send packs of a store to another store, which gets only what it lacks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Final

from crckpt.errors import IntegrityError
from crckpt.host.process.signals import interrupts_deferred
from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.messages import Lacking, Offer, PackMessage, Sent, Stored
from crckpt.model import PackId
from crckpt.store.backend.protocol import Backend, OpenFile
from crckpt.store.layout import pack_name
from crckpt.store.names import SHORT
from crckpt.store.workers import Workers, wait_for_result, workers

# Packs that are sent at once: their files are read at the same time.
_CHANNELS: Final = 4


def send_packs(
    connection: Connection,
    backend: Backend,
    digests: Iterable[PackId],
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> int:
    """Send those of these packs that the other store lacks; return how many bytes. Then all are there, durably.

    The caller holds the lock of the store, so that no pack is removed. `progress` gets (bytes sent, bytes in all).

    Raises what `Connection` raises, IntegrityError for a pack that is missing or cut short, OSError.
    """
    offered = tuple(dict.fromkeys(digests))
    connection.send(Offer(offered))
    lacking = tuple(map(PackId, connection.receive(Lacking).digests))
    if not set(lacking) <= set(offered) or len(set(lacking)) < len(lacking):
        raise connection.reject("Lacking with packs that were not offered")
    if not lacking:
        return 0
    done, total = 0, sum(_read_size(backend, digest) for digest in lacking)
    with workers() as pool:
        for size in _send_all(connection, backend, lacking, pool):
            done += size
            progress(done, total)
    connection.send(Sent())
    connection.receive(Stored)
    return done


def _send_all(connection: Connection, backend: Backend, digests: tuple[PackId, ...], pool: Workers) -> Iterator[int]:
    """Send packs, some at once; yield how many bytes of one were sent."""
    waiting, free = deque(digests), deque(range(_CHANNELS))
    streams: deque[_Stream] = deque()
    try:
        while waiting or streams:
            while waiting and free:
                stream = _Stream(backend, waiting.popleft(), free.popleft(), pool, connection.data_bytes)
                streams.append(stream)
                connection.send(PackMessage(stream.channel, stream.digest, stream.size))
            stream = streams[0]
            content = stream.read()
            connection.send_data(stream.channel, content)
            yield len(content)
            if stream.is_at_end:
                stream.close()
                streams.popleft()
                free.append(stream.channel)
            streams.rotate(-1)
    finally:
        for stream in streams:
            stream.close()


class _Stream:
    """A pack that is read piece by piece, each piece by a thread before it is asked for."""

    def __init__(self, backend: Backend, digest: PackId, channel: int, pool: Workers, piece: int) -> None:
        self.digest, self.channel = digest, channel
        self._stack = ExitStack()
        self._pool, self._piece = pool, piece
        self._file: OpenFile = self._stack.enter_context(backend.open(pack_name(digest)))
        self._offset = 0
        self.size = self._file.size
        self._next: Future[bytes] = self._read_ahead()

    @property
    def is_at_end(self) -> bool:
        """Whether all was read."""
        return self._offset >= self.size

    def read(self) -> bytes:
        """Return the next piece. Raises IntegrityError if the file is shorter than it was."""
        content = wait_for_result(self._next)
        if len(content) != self._next_size():
            raise IntegrityError(f"pack {self.digest[:SHORT]}: the file is cut short")
        self._offset += len(content)
        if not self.is_at_end:
            self._next = self._read_ahead()
        return content

    def close(self) -> None:
        """Close the file. May be called again."""
        with interrupts_deferred():
            # Not while a thread reads: its descriptor could be another file's.
            if not self._next.cancel():
                self._next.exception()
            self._stack.close()

    def _next_size(self) -> int:
        return min(self._piece, self.size - self._offset)

    def _read_ahead(self) -> Future[bytes]:
        return self._pool.submit(self._file.read, self._next_size(), self._offset)


def _read_size(backend: Backend, digest: PackId) -> int:
    try:
        with backend.open(pack_name(digest)) as file:
            return file.size
    except FileNotFoundError:
        raise IntegrityError(f"pack {digest[:SHORT]} is missing ({backend.location}/{pack_name(digest)})") from None
