"""Continue in the background once the first part has succeeded."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from crckpt.host.process.signals import (
    FORWARDED,
    ignore_interrupts,
    interrupt_is_waiting,
    interrupts_deferred,
    woken_by_signals,
)


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
