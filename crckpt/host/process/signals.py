"""Wait for signals, raise ^C, SIGTERM and SIGHUP as an exception, defer them and ^Z, forward and send signals.

And continue in the background, with a parent that forwards signals until then.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from select import select
from types import FrameType
from typing import Final

from crckpt.errors import Interrupted
from crckpt.host.proc.process import Identity, identify
from crckpt.host.process.pidfd import HeldProcess

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


TYPED = (signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH)
"""Signals that a terminal sends to its foreground group, and that crckpt forwards."""

FORWARDED = (*TYPED, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that crckpt, or the init of a namespace, forwards to the restored program."""

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def handle_signal(number: int, handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    """Handle a signal, unless our parent had it ignored: nohup SIGHUP, shells ^C in the background."""
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, handler)


class _Interrupts:
    """Whether interruptions are deferred, and which one is pending. Only the first one counts."""

    def __init__(self) -> None:
        self.put_off = False
        self.pending: signal.Signals | None = None
        self.has_stop = False
        self.is_over = False

    def arrive(self, number: int, _frame: FrameType | None) -> None:
        # A second ^C must not stop the clean-up after the first one.
        self.pending = None if self.is_over else signal.Signals(number)
        if not self.put_off:
            self.deliver()

    def note_stop(self, _number: int, _frame: FrameType | None) -> None:
        self.has_stop = True

    def deliver(self) -> None:
        if self.pending is None:
            return
        name, self.pending, self.is_over = self.pending.name, None, True
        raise Interrupted(f"interrupted by {name}")


_interrupts = _Interrupts()


def handle_interrupts() -> None:
    """Let the first SIGINT, SIGTERM or SIGHUP raise Interrupted in the main thread.

    A signal that our parent had ignored (nohup) stays ignored.
    """
    for number in _ASKING:
        handle_signal(number, _interrupts.arrive)


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Raise interruptions of this block when it ends, or within `interrupts_allowed`.

    Other threads than the main one are not interrupted: there this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _deferral(value=True):
        yield
    # If the block has failed, this is skipped: its error says more than the interruption.
    if not _interrupts.put_off:
        _interrupts.deliver()


def start_thread(work: Callable[[], object]) -> threading.Thread:
    """Start a daemon thread that does `work`."""
    thread = threading.Thread(target=work, daemon=True)
    # Interrupted in the middle of the start, the locks of `threading` raise another error.
    with interrupts_deferred():
        thread.start()
    return thread


@contextmanager
def interrupts_allowed() -> Iterator[None]:
    """Allow interruptions inside a block of `interrupts_deferred`; raise a pending one at once."""
    with _deferral(value=False):
        _interrupts.deliver()
        yield


@contextmanager
def stops_deferred() -> Iterator[None]:
    """Defer ^Z to the end of the block: a frozen tree may wait for us. In the main thread only."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTSTP, _interrupts.note_stop)
    try:
        yield
    finally:
        # With the default action, the signal stops us during this call.
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        if take_stop():
            os.kill(os.getpid(), signal.SIGTSTP)


def defer_stop() -> None:
    """Defer ^Z from now on, for `take_stop`: it is meant for a program that runs, and must not stop us alone."""
    handle_signal(signal.SIGTSTP, _interrupts.note_stop)


def take_stop() -> bool:
    """Return whether ^Z was deferred, and forget it: the caller stops what it is meant for."""
    found, _interrupts.has_stop = _interrupts.has_stop, False
    return found


def interrupt_is_waiting() -> bool:
    """Return whether a deferred interruption is pending."""
    return _interrupts.pending is not None


def interruption(what: str) -> Interrupted:
    """The exception for the pending interruption, with what happened because of it."""
    name = _interrupts.pending.name if _interrupts.pending is not None else "nobody"
    ignore_interrupts()
    return Interrupted(f"interrupted by {name}; {what}")


def ignore_interrupts() -> None:
    """Ignore pending and later interruptions: the work that they would interrupt is done."""
    _interrupts.pending, _interrupts.is_over = None, True


def forward_signals(pid: int, *, on_our_terminal: bool) -> None:
    """Forward our signals to `pid`, a pending interruption at once.

    Signals that our parent had ignored (nohup) stay ignored. A program on our terminal gets those that are typed
    (^C, ^\\) from the terminal.
    """

    process = identify(pid)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if process is not None:
            send_signal(process, number)

    for number in FORWARDED:
        typed = on_our_terminal and number in TYPED
        # Not SIG_IGN: that is for signals that our parent had ignored.
        handle_signal(number, (lambda *_: None) if typed else pass_on)
    if _interrupts.pending is not None:
        late, _interrupts.pending = _interrupts.pending, None
        pass_on(late, None)


@contextmanager
def _deferral(*, value: bool) -> Iterator[None]:
    before, _interrupts.put_off = _interrupts.put_off, value
    try:
        yield
    finally:
        _interrupts.put_off = before


def send_signal(process: Identity, number: int) -> None:
    """Send it to this process, unless it has ended."""
    send_signal_if(process.pid, number, lambda: process.keeps_pid)


def send_signal_if(pid: int, number: int, is_meant: Callable[[], bool]) -> None:
    """Send it to the process `pid` if that `is_meant`, unless it has ended or is not ours to signal."""
    # Ask only now whether that is the one, whoever gets the number later.
    with suppress(OSError), HeldProcess(pid) as process:
        if is_meant():
            process.send(number)


def continue_in_background() -> Callable[[], None]:
    """Fork: the child continues as this program, in its own session, with our terminal.

    The parent waits until the child calls the returned function, and exits with 0; or until the child has ended, and
    exits with its status. After that call the child has no terminal and no output. The parent forwards interruptions.
    """
    reading, writing = os.pipe()
    # Otherwise both processes would write what is still buffered.
    sys.stdout.flush()
    sys.stderr.flush()
    # From before the fork: no interruption may end the parent alone, nor come unnoticed.
    with interrupts_deferred(), woken_by_signals() as wakeups:
        # Python in the child drops the signals that come while it starts. So the kernel keeps them until then.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        try:
            child = os.fork()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if child:
            os.close(writing)
            ready: list[int] = []
            while reading not in ready:
                if interrupt_is_waiting():
                    ignore_interrupts()  # the first one is enough
                    os.kill(child, signal.SIGINT)
                ready = wakeups.wait(reading)
            if os.read(reading, 1):
                os._exit(0)
            _, status = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)  # as a shell reports a signal
    os.close(reading)
    os.setsid()

    def detach() -> None:
        # The parent may have ended.
        with suppress(OSError):
            sys.stdout.flush()
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.chdir("/")  # our directory may be on a mount that somebody wants to unmount
        with suppress(BrokenPipeError):
            os.write(writing, b".")
        os.close(writing)

    return detach
