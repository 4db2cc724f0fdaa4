"""Descriptors of ours: close them, whatever happens, and ask for what waits in them."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def opened(descriptor: int) -> Iterator[int]:
    """Close this descriptor after the block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def closed_on_failure(descriptor: int) -> Iterator[int]:
    """Close this descriptor if the block fails."""
    try:
        yield descriptor
    except BaseException:
        os.close(descriptor)
        raise


def poll_now(file: int | socket.socket, events: int = 0) -> int:
    """Find which of these events a file has now, as of poll(2); errors and hang-ups in any case."""
    waiting = select.poll()
    waiting.register(file, events)
    return next((found for _, found in waiting.poll(0)), 0)


def count_unread(file: int | socket.socket) -> int:
    """Bytes that wait to be read: of a UDP socket the next datagram, of an inotify all events. Raises OSError."""
    (count,) = struct.unpack("i", fcntl.ioctl(file, termios.FIONREAD, bytes(4)))
    return int(count)
