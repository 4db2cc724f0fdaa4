"""End crckpt by the signal that ended the program which it ran."""

from __future__ import annotations

import os
import signal

from crckpt.host.syscalls import prctl


def end_by_signal(number: int) -> None:
    """End as a program that this signal ended: the shell says so, and ^C ends a loop that runs us."""
    # No core file of ours.
    prctl.forbid_core_dump()
    # SIGKILL has no handler.
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
