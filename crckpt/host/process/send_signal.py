"""Send a signal to a process that is no child of ours: its PID may belong to another one at any moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress

from crckpt.host.proc.process import Identity


def send_signal(process: Identity, number: int) -> None:
    """Send it to this process, unless it has ended."""
    send_signal_if(process.pid, number, lambda: process.keeps_pid)


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
