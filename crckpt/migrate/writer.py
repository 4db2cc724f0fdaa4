"""The thread that writes frames, and a heartbeat every second."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from crckpt.host.process.signals import interrupts_deferred, start_thread
from crckpt.migrate import frames
from crckpt.migrate.events import Event

_BEAT_S: Final = 1.0
# The reader may find out why nothing can be written: an error that the other side has sent before it ended.
_REASON_S: Final = 1.0
_FOREVER_S: Final = 86400.0

_LARGEST_DATA: Final = 256 << 10
_SMALLEST_DATA: Final = 4 << 10


class Writer:
    """Writes what is `put` to a descriptor, from a thread: frames are written whole, whatever interrupts its users."""

    def __init__(
        self,
        descriptor: int,
        bandwidth: int | None,
        on_written: Callable[[], None],
        on_failure: Callable[[OSError], None],
    ) -> None:
        """`bandwidth` is for data, in bytes per second. The callables are called by the thread."""
        self.data_bytes = min(_LARGEST_DATA, max(_SMALLEST_DATA, bandwidth // 8)) if bandwidth else _LARGEST_DATA
        self.queued = 0
        self._descriptor = descriptor
        self._on_written, self._on_failure = on_written, on_failure
        self._queue: deque[tuple[bytes, bytes | memoryview, bool]] = deque()
        self._lock = threading.Lock()
        self._has_work, self._end = Event(), Event()
        self._bucket = _Bucket(bandwidth)
        # Others may use the same open file later.
        self._was_blocking = os.get_blocking(descriptor)
        os.set_blocking(descriptor, False)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = start_thread(self._write_all)

    def put(self, header: bytes, payload: bytes | memoryview, *, is_data: bool) -> None:
        """Let a frame be written; data waits for the bandwidth."""
        with interrupts_deferred():
            with self._lock:
                self._queue.append((header, payload, is_data))
                self.queued += len(header) + len(payload)
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
                self.queued -= len(header) + len(payload)
            self._on_written()

    def _pause(self, seconds: float) -> None:
        """Wait so long, or until there may be work."""
        self._has_work.wait(seconds)
        self._has_work.clear()
        if self._end.is_set():
            raise _Stopped

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
