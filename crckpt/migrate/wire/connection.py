"""The connection between the two sides of a migration: messages and data in frames over two descriptors.

A thread reads all the time and another one writes: so two sides that send at once never wait for each other, and an
interruption of the main thread never leaves half a frame. Both sides send a heartbeat every second.

What the other side sends is bounded before memory is taken for it: a frame, a message, and the messages that wait to be
received.
"""

from __future__ import annotations

import fcntl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from crckpt.criu.hold import PATIENCE_S
from crckpt.errors import CrckptError, RemoteError
from crckpt.host.process.signals import interrupts_deferred
from crckpt.host.steps import step
from crckpt.migrate.wire import frames, messages
from crckpt.migrate.wire.connection_errors import (
    AbortReceived,
    ConnectionEnded,
    ConnectionLost,
    PrintedText,
    ProtocolError,
    make_broken_error,
)
from crckpt.migrate.wire.events import Event
from crckpt.migrate.wire.frames import Compressor
from crckpt.migrate.wire.messages import Abort, Aborted, Failed, MoveMessage, PackMessage
from crckpt.migrate.wire.reader import ConnectionReader
from crckpt.migrate.wire.writer import Bandwidth, ConnectionWriter

__all__ = ["AbortReceived", "Connection", "ConnectionLost", "PackReceiver", "PrintedText", "ProtocolError"]

# The main thread waits at most this long, then waits again: a signal that comes just before a system call is
# handled only after it.
_WAIT_S: Final = 0.5
# Bytes that wait to be written, and keep the thread that writes busy.
_MOST_QUEUED: Final = 1 << 20
_MOST_RECEIVED: Final = 64
_PIPE_BYTES: Final = 1 << 20

A = TypeVar("A", bound=MoveMessage)


class PackReceiver(Protocol):
    """Takes packs as they come, in the thread that reads. What it raises is raised by the next `receive`."""

    def begin(self, pack: PackMessage) -> None:
        """A pack begins on its channel. May raise BadFrame, which ends the connection."""

    def add(self, channel: int, content: memoryview) -> None:
        """The next bytes of the pack on that channel; valid during the call. May raise BadFrame, too."""


class Connection:
    """A connection, for one thread, to the side `peer`. It is closed, with its descriptors, at the end of a block."""

    def __init__(
        self,
        incoming: int,
        outgoing: int,
        peer: str,
        *,
        bandwidth: Bandwidth | None = None,
        patience_s: float = PATIENCE_S,
        explain_end: Callable[[], CrckptError | None] = lambda: None,
    ) -> None:
        """`bandwidth` limits data. `explain_end` knows why the other side has ended, perhaps."""
        self.peer = peer
        self._explain_end = explain_end
        self._lock, self._receiving, self._putting = threading.Lock(), threading.Lock(), threading.Lock()
        self._handlers: dict[type[MoveMessage], Callable[[Any], None]] = {}
        self._lost: CrckptError | None = None
        self._deadline: float | None = None
        self._limit_s = 0.0
        self._is_closed = False
        # Something was received or written, or the connection was lost.
        self._changed = Event()
        self._received: deque[tuple[MoveMessage | Exception, int]] = deque()
        self._pack_receiver: PackReceiver | None = None
        for descriptor in (incoming, outgoing):
            # Fewer system calls, where the descriptor is a pipe and the user may have such pipes.
            with suppress(OSError):
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._writer = ConnectionWriter(
            outgoing, bandwidth, self._changed.set, lambda error: self._lose(make_broken_error(peer, error))
        )
        self._reader = ConnectionReader(incoming, peer, patience_s, self._take_message, self._take_data, self._lose)
        self._compressor = Compressor()
        self._reader.start()
        self._writer.start()
        # Bytes of data that are sent at once.
        self.data_bytes = self._writer.data_bytes

    @property
    def sent_bytes(self) -> int:
        """The bytes that were sent, all in all."""
        return self._writer.written

    @property
    def queued(self) -> tuple[int, int]:
        """The frames that wait to be sent, and their bytes."""
        return self._writer.queued_frames, self._writer.queued

    @property
    def bytes_per_s(self) -> float | None:
        """How fast data goes out; None if that is not known yet."""
        return self._writer.bytes_per_s

    def __enter__(self) -> Self:
        """Close it at the end of the block."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the threads, and close the descriptors. May be called again."""
        with interrupts_deferred():
            with self._lock:
                was_closed, self._is_closed = self._is_closed, True
            if not was_closed:
                self._reader.close()
                self._writer.close()
                self._changed.close()

    def send(self, message: MoveMessage) -> None:
        """Send a message. When it returns the system has it: the other side may never get it.

        Raises ConnectionLost, or what the other side has sent instead: its error; RemoteError for a message that is too
        large, as of a tree of a million processes.
        """
        kind = type(message).__name__
        content = messages.encode(message)
        if len(content) > messages.MOST_BYTES:
            raise RemoteError(f"{kind} for {self.peer} has {len(content)} bytes, more than a message may have")
        step(f"send.{kind}")
        self._put(content)
        self._wait(lambda: not self._writer.queued)
        step(f"sent.{kind}")

    def post(self, message: MoveMessage) -> None:
        """Let a message be sent, from any thread, without waiting. Raises what has ended the connection."""
        self.check()
        self._put(messages.encode(message))

    def check(self) -> None:
        """Raise what has ended the connection, if anything has."""
        with self._lock:
            lost = self._lost
        if lost is not None:
            raise lost

    def handle(self, kind: type[A], take: Callable[[A], None]) -> None:
        """From now on, call this in the thread that reads for each message of that kind: they are not received."""
        self._handlers[kind] = take

    def _put(self, content: bytes) -> None:
        # The frames of a message follow each other.
        with interrupts_deferred(), self._putting:
            left = memoryview(content)
            while len(left) > frames.MOST_DATA:
                self._writer.put(*frames.make_frame(frames.PART, left[: frames.MOST_DATA]), is_data=False)
                left = left[frames.MOST_DATA :]
            self._writer.put(*frames.make_frame(frames.MESSAGE, left), is_data=False)

    def send_data(self, channel: int, content: memoryview | bytes) -> None:
        """Send up to `data_bytes`, which must not change any more; compressed if that pays. Raises as `send`."""
        self._wait(lambda: self._writer.queued < _MOST_QUEUED)
        self._raise_if_refused()
        step("send.data")
        packed = self._compressor.compress(content, self._writer.bytes_per_s)
        frame = (frames.DATA, content) if packed is None else (frames.PACKED, packed)
        self._writer.put(*frames.make_frame(*frame, channel), is_data=True)

    def receive(self, *kinds: type[A], timeout: float | None = None) -> A:
        """Wait for the next message, which must be of one of these kinds.

        Raises RemoteError if the other side sent Failed, and AbortReceived if it sent Abort, where these are not
        wanted; ConnectionLost, also if no message comes within `timeout` seconds; and what a PackReceiver has raised.
        """
        if not self._wait(lambda: bool(self._received), timeout):
            raise ConnectionLost(
                f"{self.peer} did not answer for {timeout:g} s", hint=f"find out what keeps {self.peer} busy"
            )
        with interrupts_deferred(), self._lock:
            found, _ = self._received.popleft()
        if isinstance(found, Exception):
            raise found
        step(f"receive.{type(found).__name__}")
        if isinstance(found, kinds):
            return found
        self._raise_refusal(found)
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise self.reject(f"{type(found).__name__} instead of {expected}")

    def abort(self, why: str, timeout: float) -> None:
        """Send Abort, dropping data that waits; wait until it is answered. Raises ConnectionLost."""
        self._writer.drop_data()
        self.send(Abort(messages.cut_text(why)))
        until = time.monotonic() + timeout
        # One that sends messages all the time must not keep us.
        while not isinstance(self.receive(MoveMessage, timeout=until - time.monotonic()), Aborted):
            if time.monotonic() >= until:
                raise ConnectionLost(f"{self.peer} did not confirm within {timeout:g} s that the move was aborted")

    def reject(self, what: str) -> ProtocolError:
        """End the connection because of what the other side has sent; return the error to raise."""
        error = ProtocolError(self.peer, what)
        self._lose(error)
        return error

    @contextmanager
    def receiving(self, receiver: PackReceiver) -> Iterator[None]:
        """Give packs to `receiver` while the block runs; outside of such blocks the other side may send none."""
        with interrupts_deferred(), self._receiving:
            self._pack_receiver = receiver
        after: PackReceiver | None = _Discard()
        try:
            yield
            after = None
        finally:
            # After a failure the other side sends on until it reads of that. The reader may be in a call.
            with interrupts_deferred(), self._receiving:
                self._pack_receiver = after

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Let all that the block sends and receives take so long at most, all together; then raise ConnectionLost.

        A peer can give signs of life, and do nothing, for ever. The connection can still be used after the block.
        """
        self._limit_s, self._deadline = seconds, time.monotonic() + seconds
        try:
            yield
        finally:
            self._deadline = None

    def _wait(self, is_met: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until this is met; return whether it is. Raises what has ended the connection."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            self._changed.clear()
            with interrupts_deferred(), self._lock:
                if is_met():
                    return True
                lost = self._lost
            if lost is not None:
                self._raise_if_refused()
                # Not of a silent one: ssh may try for hours to reach it, and a frozen tree waits here.
                raise (self._explain_end() if isinstance(lost, ConnectionEnded) else None) or lost
            now = time.monotonic()
            if until is not None and now >= until:
                return False
            if self._deadline is not None and now >= self._deadline:
                raise ConnectionLost(
                    f"{self.peer} did not finish its part within {self._limit_s:.0f} s",
                    hint=f"look for what keeps it busy on {self.peer}",
                )
            # No lock is held here: an interruption is raised at once.
            self._changed.wait(_WAIT_S)

    def _raise_if_refused(self) -> None:
        with interrupts_deferred(), self._lock:
            waiting = [found for found, _ in self._received]
        for found in waiting:
            if isinstance(found, Exception):
                raise found
            self._raise_refusal(found)

    def _raise_refusal(self, message: MoveMessage) -> None:
        if isinstance(message, Failed):
            raise message.to_error(self.peer)
        if isinstance(message, Abort):
            raise AbortReceived(self.peer, message.why)

    def _lose(self, error: CrckptError) -> None:
        with interrupts_deferred(), self._lock:
            self._lost = self._lost or error
            # `close` stops them by itself, and closes what one of their threads would set here.
            if not self._is_closed:
                self._reader.stop()
                self._writer.stop()
                self._changed.set()

    # Called by the reader

    def _take_message(self, message: MoveMessage, size: int) -> None:
        if isinstance(message, PackMessage):
            self._with_receiver(f"Pack {message.digest[:12]}", lambda receiver: receiver.begin(message))
            return
        if (take := self._handlers.get(type(message))) is not None:
            take(message)
            return
        with self._lock:
            waiting = sum(size for _, size in self._received)
            if len(self._received) >= _MOST_RECEIVED or waiting + size > 2 * messages.MOST_BYTES:
                raise frames.BadFrame(f"{type(message).__name__} before earlier messages were answered")
            self._received.append((message, size))
        self._changed.set()

    def _take_data(self, channel: int, content: memoryview) -> None:
        self._with_receiver(f"data on channel {channel}", lambda receiver: receiver.add(channel, content))

    def _with_receiver(self, name: str, use: Callable[[PackReceiver], None]) -> None:
        with self._receiving:
            if self._pack_receiver is None:
                raise frames.BadFrame(f"{name}, which was not asked for")
            try:
                use(self._pack_receiver)
            except frames.BadFrame:
                raise
            except Exception as error:
                # What still comes is thrown away: the other side must be able to send until it reads of the error.
                self._pack_receiver = _Discard()
                with self._lock:
                    self._received.append((error, 0))
                self._changed.set()


class _Discard:
    def begin(self, pack: PackMessage) -> None:
        """See `PackReceiver`."""

    def add(self, channel: int, content: memoryview) -> None:
        """See `PackReceiver`."""
