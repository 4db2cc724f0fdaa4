"""^C, SIGTERM and SIGHUP as an exception, put off while something must not be cut short; and ^Z put off."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from crckpt.errors import Interrupted

FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
"""Signals that the restored program gets when its parent, crckpt or this init, gets them."""

_TYPED = (signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH)
_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def handle_signal(number: int, handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    """Handle a signal, unless whoever started us has had it ignored: nohup SIGHUP, shells ^C in the background."""
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, handler)


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


def handle_interrupts() -> None:
    """From now on the first SIGINT, SIGTERM or SIGHUP raises Interrupted in the main thread.

    One that whoever started us has ignored (nohup) stays so.
    """
    for number in _ASKING:
        handle_signal(number, _interrupts.arrive)


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Interruptions that come in this block are raised when it ends (or where `interrupts_allowed` allows them).

    Only the main thread is interrupted: in another one nothing is put off.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _deferral(value=True):
        yield
    _deliver_unless_deferred()


def start_thread(work: Callable[[], object]) -> threading.Thread:
    """Start a daemon thread that does `work`.

    An interruption waits until it runs: in the middle of its start, the locks of `threading` make another error of it.
    """
    thread = threading.Thread(target=work, daemon=True)
    with interrupts_deferred():
        thread.start()
    return thread


@contextmanager
def interrupts_allowed() -> Iterator[None]:
    """Inside a block that puts interruptions off: let them through again, those that came meanwhile at once."""
    with _deferral(value=False):
        _interrupts.deliver()
        yield


@contextmanager
def stops_deferred() -> Iterator[None]:
    """A ^Z in this block stops us when it ends: a tree may be frozen that waits for us. In the main thread only."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:
        yield
        return
    come: list[int] = []
    signal.signal(signal.SIGTSTP, lambda number, _frame: come.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        if come:
            os.kill(os.getpid(), signal.SIGTSTP)


def interrupt_is_waiting() -> bool:
    """Whether an interruption came that is put off."""
    return _interrupts.pending is not None


def interruption(what: str) -> Interrupted:
    """Of the interruption that is waiting, what to raise: it cannot be put off any longer."""
    name = _interrupts.pending.name if _interrupts.pending is not None else "nobody"
    ignore_interrupts()
    return Interrupted(f"interrupted by {name}; {what}")


def ignore_interrupts() -> None:
    """What was to be interrupted is done: an interruption that came meanwhile, or comes yet, changes nothing."""
    _interrupts.pending, _interrupts.is_over = None, True


def forward_signals(pid: int, *, on_our_terminal: bool) -> None:
    """From now on signals that come to us go to `pid`; an interruption that came meanwhile goes there at once.

    Those that whoever started us has ignored (nohup) go nowhere. A program on our terminal gets those that are typed
    there (^C, ^\\) from the terminal itself.
    """

    def pass_on(number: int, _frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in FORWARDED:
        typed = on_our_terminal and number in _TYPED
        handle_signal(number, signal.SIG_IGN if typed else pass_on)
    if _interrupts.pending is not None:
        late, _interrupts.pending = _interrupts.pending, None
        pass_on(late, None)


def _deliver_unless_deferred() -> None:
    if not _interrupts.put_off:
        _interrupts.deliver()


@contextmanager
def _deferral(*, value: bool) -> Iterator[None]:
    before, _interrupts.put_off = _interrupts.put_off, value
    try:
        yield
    finally:
        _interrupts.put_off = before
