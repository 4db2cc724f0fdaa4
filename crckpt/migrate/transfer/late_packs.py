"""Packs that the destination reads from the source's store, because they are not in its own yet."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillWaiting
from contextlib import suppress
from typing import Final

from crckpt.errors import IntegrityError, RemoteError, error_text
from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.messages import MOST_READ, Content, Read
from crckpt.model import PackId
from crckpt.store.backend.protocol import Backend
from crckpt.store.late_backend import Fetched
from crckpt.store.layout import pack_name
from crckpt.store.names import SHORT

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
        """Take the answers from now on."""
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
            return self._wait(found)
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def _wait(self, found: Future[Content]) -> Content:
        while True:
            try:
                return found.result(_POLL_S)
            except StillWaiting:
                self._connection.check()

    def _take(self, content: Content) -> None:
        with self._lock:
            found = self._waiting.pop(content.number, None)
        if found is not None:
            found.set_result(content)
