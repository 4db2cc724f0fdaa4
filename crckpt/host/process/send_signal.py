"""Send a signal to a process that is no child of ours: its PID may belong to another one at any moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress

from crckpt.host.proc.stat import start_time


def send_signal(pid: int, number: int, start: int | None) -> None:
    """Send it to the process that was started as `pid` then, in clock ticks after boot, unless it has ended."""
    send_signal_if(pid, number, lambda: start_time(pid) == start)


def send_signal_if(pid: int, number: int, is_meant: Callable[[], bool]) -> None:
    """Send it to the process `pid` if that `is_meant`, unless it has ended or is not ours to signal."""
    with suppress(OSError):
        # The pidfd keeps naming one process: ask only now whether that is the one, whoever gets the number later.
        descriptor = os.pidfd_open(pid)
        try:
            if is_meant():
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
