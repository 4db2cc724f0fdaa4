"""Processes that a CRIU which was killed in mid-restore left behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress

from crckpt.host import proc


def now() -> int:
    """This moment as a start time of processes: clock ticks after boot."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def end(pids: Iterable[int], began: int) -> None:
    """End those of these processes that were started after `began`, a time of `now`. Their PIDs were free then."""
    for pid in pids:
        process = proc.read_process(pid)
        if process is not None and process.start >= began:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
