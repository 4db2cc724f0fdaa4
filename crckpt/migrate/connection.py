"""The connection between the two sides of a migration: messages and data in frames over two descriptors.

A thread reads all the time and another one writes: so two sides that send at once never wait for each other, and an
interruption of the main thread never leaves half a frame. Both sides give a sign of life every second.

What the other side sends is bounded before memory is taken for it: a frame, a message, and the messages that wait to be
received.
"""

from __future__ import annotations

import fcntl
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar, overload

from crckpt.criu.hold import PATIENCE_S
from crckpt.errors import CrckptError, RemoteError
from crckpt.host.process.signals import interrupts_deferred, start_thread
from crckpt.host.steps import step
from crckpt.migrate import frames, messages
from crckpt.migrate.messages import Abort, AnyMessage, Failed, Message, Pack

_BEAT_S: Final = 1.0
# A wait of the main thread ends after so long, and begins again: a signal that comes just before a system call is
# handled only after it.
_WAIT_MS: Final = 500
# Bytes that wait to be written: an abort must not come behind more.
_MOST_QUEUED: Final = 1 << 20
_LARGEST_DATA: Final = 256 << 10
_SMALLEST_DATA: Final = 4 << 10
_MOST_RECEIVED: Final = 64
_PIPE_BYTES: Final = 1 << 20
# Of text that comes where messages should.
_MOST_TEXT: Final = 4 << 10
_TEXT_S: Final = 1.0
_REASON_S: Final = 1.0
_FIRST_S: Final = 300

A = TypeVar("A", bound=Message)
B = TypeVar("B", bound=Message)
C = TypeVar("C", bound=Message)


class ConnectionLost(RemoteError):
    """The connection to the other side has ended, is silent, or carried what crckpt does not send."""


class ProtocolError(ConnectionLost):
    """The other side sent what crckpt does not send, or does not send now. The connection is of no use any more."""


class PackReceiver(Protocol):
    """Takes packs as they come, in the thread that reads. What it raises is raised by the next `receive`."""

    def begin(self, pack: Pack) -> None:
        """A pack begins on its channel."""

    def add(self, channel: int, content: memoryview) -> None:
        """The next bytes of the pack on that channel; valid during the call."""


class Connection:
    """A connection, for one thread that sends and receives. `peer` names the other side in messages.

    Close it, or use it as a context manager. Its descriptors are closed with it.
    """

    def __init__(
        self,
        incoming: int,
        outgoing: int,
        peer: str,
        *,
        bandwidth: int | None = None,
        patience_s: float = PATIENCE_S,
        explain_end: Callable[[], CrckptError | None] = lambda: None,
    ) -> None:
        """`bandwidth` limits data, in bytes per second. `explain_end` knows why the other side has ended, perhaps."""
        self.peer = peer
        self.data_bytes = min(_LARGEST_DATA, max(_SMALLEST_DATA, bandwidth // 8)) if bandwidth else _LARGEST_DATA
        self._incoming, self._outgoing = incoming, outgoing
        # ssh may ask the user for a password before anything comes.
        self._patience_s, self._later_patience_s = max(patience_s, _FIRST_S), patience_s
        self._explain_end = explain_end
        self._lock, self._receiving = threading.Lock(), threading.Lock()
        self._lost: CrckptError | None = None
        self._is_closed = False
        # Of the main thread, the writer and the reader: readable when there may be something new for them.
        self._changed, self._to_write, self._to_end = _make_event(), _make_event(), _make_event()
        self._queue: deque[tuple[bytes, bytes | memoryview, bool]] = deque()
        self._queued = 0
        self._received: deque[tuple[AnyMessage | Exception, int]] = deque()
        self._pack_receiver: PackReceiver | None = None
        self._bucket = _Bucket(bandwidth)
        for descriptor in (incoming, outgoing):
            # Fewer system calls, where the descriptor is a pipe and the user may have such pipes.
            with suppress(OSError):
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        # Others may use the same open file later.
        self._was_blocking = os.get_blocking(outgoing)
        os.set_blocking(outgoing, False)
        self._threads = [start_thread(self._read_all), start_thread(self._write_all)]

    def __enter__(self) -> Self:
        """Close it at the end of the block."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        """See `close`."""
        self.close()

    def close(self) -> None:
        """End the threads, and close the descriptors. May be called again."""
        with interrupts_deferred():
            with self._lock:
                was_closed, self._is_closed = self._is_closed, True
            if was_closed:
                return
            for event in (self._to_end, self._to_write):
                os.eventfd_write(event, 1)
            for thread in self._threads:
                thread.join()
            os.set_blocking(self._outgoing, self._was_blocking)
            for descriptor in {self._incoming, self._outgoing, self._changed, self._to_write, self._to_end}:
                os.close(descriptor)

    def send(self, message: AnyMessage) -> None:
        """Send a message. When it returns the system has it: the other side may never get it.

        Raises ConnectionLost, or what the other side has sent instead: its error.
        """
        kind = type(message).__name__
        step(f"send.{kind}")
        for header, payload in frames.cut_message(messages.encode(message)):
            self._put(header, payload, is_data=False)
        self._wait(lambda: not self._queued)
        step(f"sent.{kind}")

    def send_data(self, channel: int, content: memoryview | bytes) -> None:
        """Send up to `data_bytes` of what lies on a channel; `content` must not change any more.

        Raises what `send` raises, and RemoteError if the other side has sent an error.
        """
        self._wait(lambda: self._queued < _MOST_QUEUED)
        self._raise_if_refused()
        self._put(*frames.make_frame(frames.DATA, content, channel), is_data=True)

    @overload
    def receive(self, kind: type[A], /, *, timeout: float | None = None) -> A: ...
    @overload
    def receive(self, kind: type[A], other: type[B], /, *, timeout: float | None = None) -> A | B: ...
    @overload
    def receive(
        self, kind: type[A], other: type[B], third: type[C], /, *, timeout: float | None = None
    ) -> A | B | C: ...
    def receive(self, *kinds: type[Message], timeout: float | None = None) -> Message:
        """Wait for the next message, which must be of one of these kinds.

        Raises RemoteError if the other side sent Failed or Abort, and none of these is wanted; ConnectionLost, also if
        no message comes within `timeout` seconds; and what a PackReceiver has raised.
        """
        if not self._wait(lambda: bool(self._received), timeout):
            raise ConnectionLost(
                f"{self.peer} gave no answer for {timeout:g} s", hint=f"look for what keeps it busy on {self.peer}"
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

    def reject(self, what: str) -> ProtocolError:
        """End the connection because of what the other side has sent; return the error to raise."""
        error = self._protocol_error(what)
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

    # The main thread

    def _put(self, header: bytes, payload: bytes | memoryview, *, is_data: bool) -> None:
        with interrupts_deferred():
            with self._lock:
                self._queue.append((header, payload, is_data))
                self._queued += len(header) + len(payload)
            os.eventfd_write(self._to_write, 1)

    def _wait(self, is_met: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until this is met; return whether it is. Raises what has ended the connection."""
        until = None if timeout is None else time.monotonic() + timeout
        poll = select.poll()
        poll.register(self._changed, select.POLLIN)
        while True:
            with suppress(BlockingIOError):
                os.eventfd_read(self._changed)
            with interrupts_deferred(), self._lock:
                if is_met():
                    return True
                lost = self._lost
            if lost is not None:
                self._raise_if_refused()
                raise self._explained(lost)
            if until is not None and time.monotonic() >= until:
                return False
            # No lock is held here: an interruption is raised at once.
            poll.poll(_WAIT_MS)

    def _raise_if_refused(self) -> None:
        with interrupts_deferred(), self._lock:
            waiting = [found for found, _ in self._received]
        for found in waiting:
            if isinstance(found, Exception):
                raise found
            self._raise_refusal(found)

    def _raise_refusal(self, message: AnyMessage) -> None:
        if isinstance(message, Failed):
            raise message.to_error(self.peer)
        if isinstance(message, Abort):
            raise RemoteError(f"{self.peer} gave up: {message.why}")

    def _explained(self, lost: CrckptError) -> CrckptError:
        return (None if isinstance(lost, ProtocolError) else self._explain_end()) or lost

    # The threads

    def _lose(self, error: CrckptError) -> None:
        with interrupts_deferred(), self._lock:
            self._lost = self._lost or error
        for event in (self._changed, self._to_write, self._to_end):
            os.eventfd_write(event, 1)

    def _protocol_error(self, what: str) -> ProtocolError:
        return ProtocolError(
            f"{self.peer} sent {what}",
            hint="install the same version of crckpt on both hosts; if they have it, please report this as a bug",
        )

    def _silence_error(self) -> ConnectionLost:
        return ConnectionLost(
            f"no sign of life from {self.peer} for {self._patience_s:g} s",
            hint=f"check the network, and whether crckpt is stopped on {self.peer}",
        )

    def _read_all(self) -> None:
        try:
            self._read_frames()
        except _Closed:
            return
        except CrckptError as error:
            self._lose(error)
        except frames.BadFrame as error:
            self._lose(self._protocol_error(str(error)))
        except OSError as error:
            self._lose(ConnectionLost(f"the connection to {self.peer} broke: {error.strerror}"))

    def _read_frames(self) -> None:
        buffer = memoryview(bytearray(frames.MOST_PAYLOAD))
        header_buffer = memoryview(bytearray(frames.HEADER_BYTES))
        parts = bytearray()
        is_first = True
        while True:
            self._read_into(header_buffer)
            try:
                header = frames.read_header(header_buffer)
            except frames.BadFrame:
                if is_first:
                    raise self._read_printed_text(header_buffer) from None
                raise
            is_first, self._patience_s = False, self._later_patience_s
            payload = buffer[: header.length]
            self._read_into(payload)
            frames.check_payload(header, payload)
            if header.kind == frames.DATA:
                self._take_data(header.channel, payload)
            elif header.kind in (frames.PART, frames.MESSAGE):
                if len(parts) + len(payload) > messages.MOST_BYTES:
                    raise frames.BadFrame(f"a message of more than {messages.MOST_BYTES} bytes")
                parts += payload
                if header.kind == frames.MESSAGE:
                    self._take_message(bytes(parts))
                    parts = bytearray()

    def _take_message(self, content: bytes) -> None:
        try:
            message = messages.decode(content)
        except messages.OtherProtocol as error:
            raise RemoteError(
                f"{self.peer} has crckpt {error.version}, which speaks version {error.protocol} of the migration "
                f"protocol; crckpt on this host speaks version {messages.PROTOCOL}",
                hint="install the same version of crckpt on both hosts",
            ) from error
        except ValueError as error:
            raise frames.BadFrame(f"what is no message: {error}") from error
        if isinstance(message, Pack):
            self._with_receiver(f"Pack {message.digest[:12]}", lambda receiver: receiver.begin(message))
            return
        with self._lock:
            waiting = sum(size for _, size in self._received)
            if len(self._received) >= _MOST_RECEIVED or waiting + len(content) > 2 * messages.MOST_BYTES:
                raise frames.BadFrame(f"{type(message).__name__} before earlier messages were answered")
            self._received.append((message, len(content)))
        os.eventfd_write(self._changed, 1)

    def _take_data(self, channel: int, content: memoryview) -> None:
        self._with_receiver(f"data on channel {channel}", lambda receiver: receiver.add(channel, content))

    def _with_receiver(self, name: str, use: Callable[[PackReceiver], None]) -> None:
        with self._receiving:
            if self._pack_receiver is None:
                raise frames.BadFrame(f"{name}, for which nobody asked")
            try:
                use(self._pack_receiver)
            except frames.BadFrame:
                raise
            except Exception as error:
                # What still comes is thrown away: the other side must be able to send until it reads of the error.
                self._pack_receiver = _Discard()
                with self._lock:
                    self._received.append((error, 0))
                os.eventfd_write(self._changed, 1)

    def _read_into(self, memory: memoryview) -> None:
        """Fill `memory`. Raises ConnectionLost at the end of the connection, or after too long a silence."""
        while memory:
            self._wait_for_bytes(self._patience_s)
            count = os.readv(self._incoming, [memory])
            if not count:
                raise ConnectionLost(
                    f"the connection to {self.peer} has ended", hint="check the network, and the other host's log"
                )
            memory = memory[count:]

    def _wait_for_bytes(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._incoming, select.POLLIN)
        poll.register(self._to_end, select.POLLIN)
        ready = dict(poll.poll(seconds * 1000))
        if self._to_end in ready:
            raise _Closed
        if not ready:
            raise self._silence_error()

    def _read_printed_text(self, begun: memoryview) -> ProtocolError:
        text = bytearray(begun)
        with suppress(ConnectionLost, OSError):
            until = time.monotonic() + _TEXT_S
            while len(text) < _MOST_TEXT and (left := until - time.monotonic()) > 0:
                self._wait_for_bytes(left)
                if not (some := os.read(self._incoming, _MOST_TEXT - len(text))):
                    break
                text += some
        return PrintedText(self.peer, text.decode(errors="replace"))

    def _write_all(self) -> None:
        try:
            self._write_frames()
        except _Closed:
            return
        except OSError as error:
            # The reader may find out why: an error that the other side has sent before it ended.
            poll = select.poll()
            poll.register(self._to_end, select.POLLIN)
            poll.poll(_REASON_S * 1000)
            self._lose(ConnectionLost(f"the connection to {self.peer} broke: {error.strerror}"))

    def _write_frames(self) -> None:
        next_beat = time.monotonic()
        while True:
            if time.monotonic() >= next_beat:
                self._write(*frames.make_frame(frames.BEAT))
                next_beat = time.monotonic() + _BEAT_S
            with self._lock:
                frame = self._queue.popleft() if self._queue else None
            if frame is None:
                self._pause(next_beat - time.monotonic())
                continue
            header, payload, is_data = frame
            if is_data:
                while (delay := self._bucket.delay()) > 0:
                    self._pause(delay)
                self._bucket.take(len(payload))
            self._write(header, payload)
            with self._lock:
                self._queued -= len(header) + len(payload)
            os.eventfd_write(self._changed, 1)

    def _pause(self, seconds: float) -> None:
        """Wait until there may be something to write, or so long. Raises _Closed at the end."""
        poll = select.poll()
        poll.register(self._to_write, select.POLLIN)
        poll.poll(max(0.0, seconds) * 1000)
        with suppress(BlockingIOError):
            os.eventfd_read(self._to_write)
        with self._lock:
            if self._is_closed or self._lost is not None:
                raise _Closed

    def _write(self, header: bytes, payload: bytes | memoryview) -> None:
        parts = [memoryview(header), memoryview(payload)]
        poll = select.poll()
        poll.register(self._outgoing, select.POLLOUT)
        poll.register(self._to_end, select.POLLIN)
        while parts:
            ready = dict(poll.poll())
            if self._to_end in ready:
                raise _Closed
            with suppress(BlockingIOError):
                count = os.writev(self._outgoing, parts)
                while parts and count >= len(parts[0]):
                    count -= len(parts.pop(0))
                if parts:
                    parts[0] = parts[0][count:]


class PrintedText(ProtocolError):
    """The other side printed text where messages should begin; perhaps a shell's greeting, or an error message."""

    def __init__(self, peer: str, text: str) -> None:
        shown = " ".join(text.split())[:500]
        super().__init__(
            f"{peer} printed text before crckpt's first message: {shown}",
            hint=f"change what its shell reads at the start (.bashrc on {peer}): print nothing if there is no terminal",
        )
        self.text = text


def _make_event() -> int:
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


class _Closed(Exception):
    """This side has closed the connection, or the other thread has lost it."""


class _Discard:
    """Throws packs away."""

    def begin(self, pack: Pack) -> None:
        """See `PackReceiver`."""

    def add(self, channel: int, content: memoryview) -> None:
        """See `PackReceiver`."""


class _Bucket:
    """A token bucket: says how long data must wait to stay below a number of bytes per second; None for no limit."""

    def __init__(self, bytes_per_s: int | None) -> None:
        self._rate = bytes_per_s
        self._free_at = time.monotonic()

    def delay(self) -> float:
        """Seconds until the next data may be sent."""
        return self._free_at - time.monotonic()

    def take(self, size: int) -> None:
        """Count data that is sent now."""
        if self._rate is not None:
            # Time in which nothing was sent is not made up for.
            self._free_at = max(self._free_at, time.monotonic()) + size / self._rate
