"""Send packs of a store to another store, which gets only what it lacks; or let it read them before they are sent."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillWaiting
from contextlib import ExitStack, suppress
from typing import Final

from crckpt.errors import IntegrityError, RemoteError, error_text
from crckpt.host.process.signals import interrupts_deferred
from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.messages import MOST_READ, Content, Lacking, Offer, PackMessage, Read, Sent, Stored
from crckpt.model import PackId
from crckpt.store.backend.local import Backend, Fetched, StoreFile
from crckpt.store.layout import SHORT, pack_name
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
        self._file: StoreFile = self._stack.enter_context(backend.open(pack_name(digest)))
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


_POLL_S: Final = 0.2
# Bytes. What was read while the tree ran at the source is read again while it is frozen: tables of packs, above all.
_MOST_KEPT: Final = 64 << 20
# Bytes of answers: each thread of the other side waits for its own.
_MOST_UNREAD: Final = 32 * MOST_READ
_MOST_FRAMES: Final = 4096


def serve_reads(connection: Connection, backend: Backend, allowed: AbstractSet[str]) -> None:
    """Answer each Read of the other side from this store, from now on. It may read packs of `allowed` only."""

    def answer(read: Read) -> None:
        if read.digest not in allowed:
            connection.reject(f"Read of pack {read.digest[:SHORT]}, which was not offered")
            return
        # This thread cannot wait until the other side has read the answers.
        frames, size = connection.queued
        if frames > _MOST_FRAMES or size > _MOST_UNREAD:
            connection.reject("more messages Read without reading the answers")
            return
        try:
            with backend.open(pack_name(PackId(read.digest))) as file:
                content = Content(read.number, file.size, file.read(read.size, read.offset))
        except (OSError, IntegrityError) as error:
            content = Content(read.number, 0, b"", error_text(error))
        # If the connection is lost, nobody waits for it.
        with suppress(RemoteError):
            connection.post(content)

    connection.handle(Read, answer)


class SourcePacks:
    """The packs of the source, read over the connection. Several threads may read."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._number = 0
        self._waiting: dict[int, Future[Content]] = {}
        self._kept: OrderedDict[tuple[str, int, int], Fetched] = OrderedDict()
        self._kept_bytes = 0
        connection.handle(Content, self._take)

    def fetch(self, digest: PackId, offset: int, size: int) -> Fetched:
        """Read bytes of a pack. Raises ConnectionLost; IntegrityError if the source cannot read them."""
        key = digest, offset, size
        with self._lock:
            if (kept := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return kept
        content = self._ask(digest, offset, size)
        if content.why:
            raise IntegrityError(f"pack {digest[:SHORT]} of {self._connection.peer}: {content.why}")
        found = Fetched(content.pack_bytes, content.content)
        with self._lock:
            self._kept[key] = found
            self._kept_bytes += len(found.content)
            while self._kept_bytes > _MOST_KEPT:
                self._kept_bytes -= len(self._kept.popitem(last=False)[1].content)
        return found

    def _ask(self, digest: PackId, offset: int, size: int) -> Content:
        found: Future[Content] = Future()
        with self._lock:
            self._number += 1
            number = self._number
            self._waiting[number] = found
        try:
            self._connection.post(Read(number, digest, offset, size))
            while True:
                try:
                    return found.result(_POLL_S)
                except StillWaiting:
                    self._connection.check()
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def _take(self, content: Content) -> None:
        with self._lock:
            found = self._waiting.pop(content.number, None)
        if found is not None:
            found.set_result(content)
