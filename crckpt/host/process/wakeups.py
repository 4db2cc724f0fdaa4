"""Wait for descriptors and for signals, without a moment in which a signal is missed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from select import select
from typing import Final

_MOST: Final = 4096


class Wakeups:
    """Each signal that Python handles ends the wait, or the next one if no wait is going on."""

    def __init__(self, awake: int) -> None:
        self._awake = awake

    def wait(self, *readable: int, writable: Sequence[int] = (), seconds: float | None = None) -> list[int]:
        """Wait until one of `readable` or `writable` is so, or a signal has come; return those that are readable."""
        ready, _, _ = select([self._awake, *readable], writable, [], seconds)
        with suppress(BlockingIOError):
            os.read(self._awake, _MOST)
        return [descriptor for descriptor in ready if descriptor != self._awake]


@contextmanager
def woken_by_signals() -> Iterator[Wakeups]:
    """Let signals wake the main thread during the block: look at what their handlers did before each wait.

    A handler of Python alone does not: a signal that comes just before a call that blocks, or to another thread, is
    not seen until the call returns.
    """
    awake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        yield Wakeups(awake)
    finally:
        signal.set_wakeup_fd(before)
        os.close(awake)
        os.close(wake)
