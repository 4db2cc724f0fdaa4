"""^C, SIGTERM and SIGHUP as an exception, put off while something must not be cut short."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from crckpt.errors import Interrupted

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Interrupts:
    """Whether an interruption is put off, and which one has come meanwhile. Only the first one counts."""

    def __init__(self) -> None:
        self.put_off = False
        self.pending: signal.Signals | None = None
        self.is_over = False

    def arrive(self, number: int, _frame: FrameType | None) -> None:
        # A second ^C must not cut short what the first one has begun to clean up.
        self.pending = None if self.is_over else signal.Signals(number)
        if not self.put_off:
            self.deliver()

    def deliver(self) -> None:
        if self.pending is None:
            return
        name, self.pending, self.is_over = self.pending.name, None, True
        raise Interrupted(f"interrupted by {name}")


_interrupts = _Interrupts()


def interruptible() -> None:
    """From now on the first SIGINT, SIGTERM or SIGHUP raises Interrupted in the main thread."""
    for number in _ASKING:
        signal.signal(number, _interrupts.arrive)


@contextmanager
def interrupts_put_off() -> Iterator[None]:
    """Interruptions that come in this block are raised when it ends (or where `interrupts_let_in` allows them)."""
    with _put_off(value=True):
        yield
    _deliver_unless_put_off()


@contextmanager
def interrupts_let_in() -> Iterator[None]:
    """Inside a block that puts interruptions off: let them through again, those that came meanwhile at once."""
    with _put_off(value=False):
        _interrupts.deliver()
        yield


def _deliver_unless_put_off() -> None:
    if not _interrupts.put_off:
        _interrupts.deliver()


@contextmanager
def _put_off(*, value: bool) -> Iterator[None]:
    before, _interrupts.put_off = _interrupts.put_off, value
    try:
        yield
    finally:
        _interrupts.put_off = before
