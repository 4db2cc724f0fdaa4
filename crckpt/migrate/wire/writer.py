"""The thread that writes frames, and a heartbeat every second; the bandwidth that it may share with other processes."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from crckpt.host.process.signals import interrupts_deferred, start_thread
from crckpt.migrate.wire import frames
from crckpt.migrate.wire.events import Event

_TIME: Final = struct.Struct("<d")


class Bandwidth:
    """Says when data may be sent, so that all who share a clock stay below a number of bytes per second.

    The clock is a file that has the time (CLOCK_MONOTONIC) from which on the next data may be sent. Each process opens
    it by itself, because a lock belongs to a process.
    """

    def __init__(self, bytes_per_s: int, clock: Path | None = None) -> None:
        """Without a `clock`, this process alone has the bandwidth. Raises OSError if the clock cannot be opened."""
        self.bytes_per_s = bytes_per_s
        self._clock = os.open(clock, os.O_RDWR | os.O_CLOEXEC) if clock is not None else _make_clock()

    def reserve(self, size: int) -> float:
        """Reserve the next free time for this many bytes; return when it begins."""
        fcntl.lockf(self._clock, fcntl.LOCK_EX)
        try:
            (free_at,) = _TIME.unpack(os.pread(self._clock, _TIME.size, 0))
            # Time in which nothing was sent is not made up for.
            begin = max(free_at, time.monotonic())
            os.pwrite(self._clock, _TIME.pack(begin + size / self.bytes_per_s), 0)
        finally:
            fcntl.lockf(self._clock, fcntl.LOCK_UN)
        return float(begin)

    def close(self) -> None:
        """Close the clock."""
        os.close(self._clock)


@contextmanager
def shared_clock() -> Iterator[Path]:
    """Make a clock; other processes can open it by its path during the block. It is on no disk."""
    descriptor = _make_clock()
    try:
        yield Path(f"/proc/{os.getpid()}/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _make_clock() -> int:
    descriptor = os.memfd_create("crckpt-bandwidth", os.MFD_CLOEXEC)
    os.write(descriptor, _TIME.pack(0.0))
    return descriptor


_BEAT_S: Final = 1.0
# The reader may find out why nothing can be written: an error that the other side has sent before it ended.
_REASON_S: Final = 1.0
_FOREVER_S: Final = 86400.0

_LARGEST_DATA: Final = 256 << 10
_SMALLEST_DATA: Final = 4 << 10
# Who shares a bandwidth waits for one frame of each other.
_FRAMES_A_SECOND: Final = 32

# Bytes. Pipes and ssh take the first ones at once, however slow the connection is; and the speed may change.
_SPEED_AFTER: Final = 4 << 20
_SPEED_OF: Final = 16 << 20


class _Frame(NamedTuple):
    header: bytes
    payload: bytes | memoryview
    is_data: bool

    @property
    def size(self) -> int:
        return len(self.header) + len(self.payload)


class ConnectionWriter:
    """Writes what is `put` to a descriptor, from a thread: frames are written whole, whatever interrupts its users."""

    def __init__(
        self,
        descriptor: int,
        bandwidth: Bandwidth | None,
        on_written: Callable[[], None],
        on_failure: Callable[[OSError], None],
    ) -> None:
        """`bandwidth` is for data. The callables are called by the thread."""
        at_most = bandwidth.bytes_per_s // _FRAMES_A_SECOND if bandwidth is not None else _LARGEST_DATA
        self.data_bytes = min(_LARGEST_DATA, max(_SMALLEST_DATA, at_most))
        self.queued = 0
        self.written = 0
        self._descriptor = descriptor
        self._on_written, self._on_failure = on_written, on_failure
        self._queue: deque[_Frame] = deque()
        self._lock = threading.Lock()
        self._has_work, self._end = Event(), Event()
        self._bandwidth = bandwidth
        # When the first frame of the queue may be written; 0 if it has reserved no time yet.
        self._due = 0.0
        # Bytes of the frame that is being written; `queued` has them, too.
        self._writing = 0
        self._speed = _Speed()
        # Others may use the same open file later.
        self._was_blocking = os.get_blocking(descriptor)
        os.set_blocking(descriptor, False)
        self._thread: threading.Thread | None = None

    @property
    def queued_frames(self) -> int:
        """The frames that wait to be written."""
        return len(self._queue)

    @property
    def bytes_per_s(self) -> float | None:
        """The speed of the connection, and of the bandwidth; None if it is not known yet."""
        measured = self._speed.bytes_per_s
        if self._bandwidth is None or (measured is not None and measured < self._bandwidth.bytes_per_s):
            return measured
        return self._bandwidth.bytes_per_s

    def start(self) -> None:
        """Start the thread."""
        self._thread = start_thread(self._write_all)

    def put(self, header: bytes, payload: bytes | memoryview, *, is_data: bool) -> None:
        """Let a frame be written; data waits for the bandwidth, and what is put later waits for it."""
        with interrupts_deferred():
            with self._lock:
                self._queue.append(_Frame(header, payload, is_data))
                self.queued += self._queue[-1].size
            self._has_work.set()

    def drop_data(self) -> None:
        """Drop the data that waits."""
        with interrupts_deferred():
            with self._lock:
                self._queue = deque(frame for frame in self._queue if not frame.is_data)
                self.queued = self._writing + sum(frame.size for frame in self._queue)
                self._due = 0.0
            self._has_work.set()

    def stop(self) -> None:
        """Write no more: what is queued is dropped."""
        self._end.set()
        self._has_work.set()

    def close(self) -> None:
        """Stop, wait for the end of the thread, and close the descriptor."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
        os.set_blocking(self._descriptor, self._was_blocking)
        os.close(self._descriptor)
        if self._bandwidth is not None:
            self._bandwidth.close()
        self._has_work.close()
        self._end.close()

    def _write_all(self) -> None:
        try:
            self._write_frames()
        except _Stopped:
            return
        except OSError as error:
            self._end.wait(_REASON_S)
            self._on_failure(error)

    def _write_frames(self) -> None:
        next_beat = time.monotonic()
        while True:
            if time.monotonic() >= next_beat:
                self._write(*frames.make_frame(frames.BEAT))
                next_beat = time.monotonic() + _BEAT_S
            frame, delay = self._take()
            if frame is None:
                self._has_work.wait(min(delay, next_beat - time.monotonic()))
                self._has_work.clear()
                if self._end.is_set():
                    raise _Stopped
                continue
            self._write(frame.header, frame.payload)
            with self._lock:
                self.written += frame.size
                self.queued -= frame.size
                self._writing = 0
                self._speed.add(frame.size)
            self._on_written()

    def _take(self) -> tuple[_Frame | None, float]:
        """Take the first frame if it may be written now; else return for how long at most there is nothing to do."""
        with self._lock:
            if not self._queue:
                self._speed.stop()
                return None, _FOREVER_S
            self._speed.start()
            if self._queue[0].is_data and self._bandwidth is not None:
                self._due = self._due or self._bandwidth.reserve(self._queue[0].size)
                if (delay := self._due - time.monotonic()) > 0:
                    return None, delay
                self._due = 0.0
            self._writing = self._queue[0].size
            return self._queue.popleft(), 0

    def _write(self, header: bytes, payload: bytes | memoryview) -> None:
        parts = [memoryview(header), memoryview(payload)]
        while parts:
            self._end.wait(_FOREVER_S, self._descriptor, select.POLLOUT)
            if self._end.is_set():
                raise _Stopped
            with suppress(BlockingIOError):
                count = os.writev(self._descriptor, parts)
                while parts and count >= len(parts[0]):
                    count -= len(parts.pop(0))
                if parts:
                    parts[0] = parts[0][count:]


class _Stopped(Exception):
    """Nothing is to be written any more."""


class _Speed:
    """Measures how fast bytes are written while some wait to be written."""

    def __init__(self) -> None:
        self._bytes = 0
        self._seconds = 0.0
        self._since: float | None = None

    @property
    def bytes_per_s(self) -> float | None:
        """The speed; None as long as too little was written."""
        return self._bytes / self._seconds if self._bytes >= _SPEED_AFTER and self._seconds else None

    def start(self) -> None:
        """Begin to measure, if that is not done already: there is something to write."""
        self._since = time.monotonic() if self._since is None else self._since

    def stop(self) -> None:
        """Measure no more: there is nothing to write."""
        self._since = None

    def add(self, size: int) -> None:
        """Count what was written since `start`, or since the last call."""
        now = time.monotonic()
        self._seconds += now - (self._since or now)
        self._bytes += size
        self._since = now
        if self._bytes > _SPEED_OF:
            # What was long ago counts less.
            self._bytes //= 2
            self._seconds /= 2
