"""Connections between two sides in one process, over pipes as ssh has them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import FileIO

from crckpt.migrate.wire import messages
from crckpt.migrate.wire.connection import Connection
from crckpt.migrate.wire.frames import MESSAGE, make_frame
from crckpt.migrate.wire.messages import Hello, MoveMessage, PackMessage
from crckpt.migrate.wire.writer import Bandwidth

HELLO = Hello(messages.PROTOCOL, "0.4.0", "here", "boot", 1.5, 2.5, "x86_64", "6.18", ("avx2",), "4.2.1", 7)
MOVE = "0123456789abcdef"
DIGEST = "cd" * 32
PACK = PackMessage(3, DIGEST, 1000)


@contextmanager
def connected(*, patience_s: float = 60, bandwidth: int | None = None) -> Iterator[tuple[Connection, Connection]]:
    """Two sides, named `source` and `destination` to each other. `bandwidth` is that of the source."""
    (to_destination, from_source), (to_source, from_destination) = os.pipe(), os.pipe()
    with ExitStack() as stack:
        source = Connection(
            to_source,
            from_source,
            "destination",
            patience_s=patience_s,
            bandwidth=Bandwidth(bandwidth) if bandwidth else None,
        )
        stack.callback(source.close)
        destination = Connection(to_destination, from_destination, "source", patience_s=patience_s)
        stack.callback(destination.close)
        yield source, destination


@contextmanager
def half_connected(*, patience_s: float = 60) -> Iterator[tuple[Connection, FileIO, FileIO]]:
    """One side, to which the other is `destination`; and the pipes of that one: what it reads from, and writes to."""
    (reads, from_source), (to_source, writes) = os.pipe(), os.pipe()
    with (
        FileIO(reads, "rb") as incoming,
        FileIO(writes, "wb") as outgoing,
        Connection(to_source, from_source, "destination", patience_s=patience_s) as source,
    ):
        yield source, incoming, outgoing


def in_thread(work: Callable[[], object]) -> threading.Thread:
    """Start a thread."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


class PackCollector:
    """A receiver of packs that keeps their content."""

    def __init__(self) -> None:
        self.packs: list[PackMessage] = []
        self.content = bytearray()
        self.largest = 0

    def begin(self, pack: PackMessage) -> None:
        """See `PackReceiver`."""
        self.packs.append(pack)

    def add(self, channel: int, content: memoryview) -> None:
        """See `PackReceiver`."""
        self.content += content
        self.largest = max(self.largest, len(content))


def frame(kind: int, payload: bytes = b"", channel: int = 0) -> bytes:
    """A frame as it is sent."""
    header, content = make_frame(kind, payload, channel)
    return header + bytes(content)


def message_frame(message: MoveMessage) -> bytes:
    """A small message as it is sent."""
    return frame(MESSAGE, messages.encode(message))


def repeat(work: Callable[[], object]) -> None:
    """Call this function until it raises."""
    while True:
        work()


def send_forever(side: Connection) -> None:
    """Send data on the channel of PACK until that raises."""
    repeat(lambda: side.send_data(PACK.channel, bytes(side.data_bytes)))


class SlowPackCollector(PackCollector):
    """A receiver that reads no data before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun, self.go = threading.Event(), threading.Event()

    def add(self, channel: int, content: memoryview) -> None:
        """See `PackReceiver`."""
        self.has_begun.set()
        self.go.wait()
