"""Pin a process by a pidfd, so that crckpt does not mistake another process with the same PID for it."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from crckpt.errors import TargetNotRunning, UsageError
from crckpt.host import proc
from crckpt.host.proc.fd import parse_info, read_info
from crckpt.host.target import resolve


class PinnedProcess:
    """The process that had the PID `pid` when this object was made."""

    def __init__(self, pid: int) -> None:
        """Open a pidfd. If there is no such process, `keeps_pid` is false."""
        self.pid = pid
        self._descriptor = -1
        with suppress(OSError):
            self._descriptor = os.pidfd_open(pid)

    @property
    def keeps_pid(self) -> bool:
        """Whether the PID still belongs to this process: it runs, or is a zombie."""
        if self._descriptor < 0:
            return False
        # -1 once it was reaped. Source: kernel/fork.c, pidfd_show_fdinfo
        return parse_info(read_info("self", self._descriptor)).get("Pid") == str(self.pid)

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        if self._descriptor < 0:
            return False
        looking = select.poll()
        looking.register(self._descriptor, select.POLLIN)
        return not looking.poll(0)

    def check(self) -> None:
        """Raise TargetNotRunning unless the PID has belonged to this process all the time."""
        if self.keeps_pid:
            return
        now = proc.read_process(self.pid)
        whose = f", and another process ({now.comm}) now has its PID" if now is not None else ""
        raise TargetNotRunning(f"PID {self.pid} ended{whose}", hint="find its new PID: pgrep -af NAME (package procps)")

    @property
    def is_replaced(self) -> bool:
        """Whether another process has its number."""
        return not self.keeps_pid and proc.start_time(self.pid) is not None

    def close(self) -> None:
        """Close the pidfd."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@contextmanager
def pinned(target: str) -> Iterator[PinnedProcess]:
    """Pin the root that `target` names while the block runs. Raises what `resolve` raises.

    Raises UsageError if the process of a unit, pidfile or control group was started after the look-up: then another
    process may have got the PID before the pidfd was open.
    """
    asked = time.clock_gettime(time.CLOCK_BOOTTIME)  # the clock of start times in /proc/PID/stat
    process = PinnedProcess(resolve.resolve(target))
    try:
        started = proc.start_time(process.pid)
        # Allow one more tick, as both are rounded. A bare PID needs no look-up: the user typed it.
        if ":" in target and started is not None and started > asked * os.sysconf("SC_CLK_TCK") + 1:
            raise UsageError(f"the process of {target} has just been started", hint="try again")
        yield process
    finally:
        process.close()
