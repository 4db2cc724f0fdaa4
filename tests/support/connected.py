"""Connections between two sides in one process, over pipes as ssh has them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import FileIO

from crckpt.migrate.connection import Connection
from crckpt.migrate.messages import Hello

HELLO = Hello(1, "0.4.0", "here", "boot", 1.5, 2.5, "x86_64", "6.18", ("avx2",), "4.2.1", 7)


@contextmanager
def connected(*, patience_s: float = 60, bandwidth: int | None = None) -> Iterator[tuple[Connection, Connection]]:
    """Two sides, named `source` and `destination` to each other. `bandwidth` is that of the source."""
    (to_destination, from_source), (to_source, from_destination) = os.pipe(), os.pipe()
    with ExitStack() as stack:
        source = Connection(to_source, from_source, "destination", patience_s=patience_s, bandwidth=bandwidth)
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
