"""Blocked and pending signals, for the process and for one thread, and timers of three kinds."""

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

import native
from selfcheck import Program

QUEUED, POSIX, LONG = signal.SIGRTMIN + 1, signal.SIGRTMIN + 2, signal.SIGRTMIN + 3
VALUES = [11, 22, 33]
BLOCKED = [signal.SIGUSR1, signal.SIGTERM, QUEUED]
PERIOD_S = 0.05
HOUR_S = 3600.0


class TimerCounts:
    """How often the signal of each periodic timer has arrived."""

    def __init__(self) -> None:
        """Install the handler for both."""
        self.times = {int(signal.SIGALRM): 0, POSIX: 0}
        for number in self.times:
            signal.signal(number, self._count)

    def _count(self, number: int, _frame: FrameType | None) -> None:
        self.times[number] += 1


class Sleeper(threading.Thread):
    """A thread with a signal pending for itself alone."""

    def __init__(self) -> None:
        """Make the thread without starting it."""
        super().__init__(daemon=True)
        self.pending = threading.Event()
        self.asked = threading.Event()
        self.took: int | None = None

    def run(self) -> None:
        """Block SIGUSR2, send it to this thread, and take it only on request."""
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
        self.pending.set()
        self.asked.wait()
        taken = signal.sigtimedwait([signal.SIGUSR2], 0)
        self.took = taken.si_signo if taken else 0


def main() -> None:
    """Set all up, check it at each tick, and take the pending signals on request."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    sleeper = Sleeper()
    sleeper.start()
    sleeper.pending.wait()
    fired = TimerCounts()
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGTERM)
    for value in VALUES:
        native.queue_signal(QUEUED, value)
    signal.setitimer(signal.ITIMER_REAL, PERIOD_S, PERIOD_S)
    signal.setitimer(signal.ITIMER_VIRTUAL, HOUR_S)
    native.create_timer(POSIX, PERIOD_S, PERIOD_S)
    hour = native.create_timer(LONG, HOUR_S, 0)
    program = Program(Path(sys.argv[1]))
    before: dict[int, int] = {}

    def step() -> None:
        if not before:
            program.facts["pending"] = sorted(signal.sigpending())
        program.facts["signals"] = _signal_state()
        program.ready = min(fired.times.values()) > 1
        for left in (native.timer_left(hour), signal.getitimer(signal.ITIMER_VIRTUAL)[0]):
            program.expect(HOUR_S / 2 < left <= HOUR_S + 1, f"a long timer has {left} s left")

    def verify() -> bool:
        if not before:
            before.update(fired.times)
            _take_pending(program)
            sleeper.asked.set()
        program.expect(sleeper.took in (None, signal.SIGUSR2), "the thread's own signal was lost")
        return sleeper.took is not None and all(now > before[key] + 2 for key, now in fired.times.items())

    program.run(step, verify)


def _take_pending(program: Program) -> None:
    for number in (signal.SIGUSR1, signal.SIGTERM):
        taken = signal.sigtimedwait([number], 0)
        program.expect(taken is not None and taken.si_pid == os.getpid(), f"signal {number} was lost")
    values = [native.take_signal(QUEUED) for _ in VALUES]
    program.expect(values == VALUES, f"queued signals came with {values}")
    program.expect(native.take_signal(QUEUED) is None, "a queued signal came twice")


def _signal_state() -> list[str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return [line for line in lines if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]


if __name__ == "__main__":
    main()
