"""Processes that we hold by a pidfd: signal them, wait for them, find how they ended, borrow their descriptors.

Sources: pidfd_open(2), pidfd_getfd(2), linux/pidfd.h, proc_pid_stat(5).
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import select
import signal
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final, Self

from crckpt.errors import TargetNotRunning
from crckpt.host import proc
from crckpt.host.opened import opened
from crckpt.host.proc.status import read_stat
from crckpt.host.syscalls.libc import syscall

# struct pidfd_info: mask, cgroupid; pid, tgid, ppid, eight user and group ids; exit_code.
_INFO: Final = struct.Struct("<QQ11Ii")
_GET_INFO: Final = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11  # _IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)
# PIDFD_GET_INFO and PIDFD_INFO_EXIT (Linux 6.15): filled once the parent has reaped the process.
_EXIT: Final = 1 << 3


class HeldProcess:
    """The process that had the PID `pid` when this object was made: no later one with that PID is mistaken for it.

    If there was none, or we may not hold it, `pidfd` is -1, and it counts as ended.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = -1
        with suppress(OSError):
            self.pidfd = os.pidfd_open(pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def keeps_pid(self) -> bool:
        """Whether the PID still belongs to this process: it runs, or is a zombie."""
        return self.pidfd >= 0 and proc.read_pidfd(self.pidfd) == self.pid

    @property
    def is_replaced(self) -> bool:
        """Whether another process has its number."""
        return not self.keeps_pid and proc.start_time(self.pid) is not None

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return not self.ends_within(0)

    def check(self) -> None:
        """Raise TargetNotRunning unless the PID has belonged to this process all the time."""
        if self.keeps_pid:
            return
        now = proc.read_process(self.pid)
        whose = f", and another process ({now.comm}) now has its PID" if now is not None else ""
        raise TargetNotRunning(f"PID {self.pid} ended{whose}", hint="find its new PID: pgrep -af NAME (package procps)")

    def ends_within(self, seconds: float) -> bool:
        """Wait at most that long for its end; return whether it has ended. A child still has to be waited for."""
        # Not select(2): it takes no descriptor above 1023.
        poll = select.poll()
        if self.pidfd >= 0:
            poll.register(self.pidfd, select.POLLIN)
        return self.pidfd < 0 or bool(poll.poll(max(seconds, 0) * 1000))

    def send(self, number: int) -> None:
        """Send it a signal, unless it has ended. Raises OSError."""
        if self.pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def borrow(self, descriptor: int) -> int:
        """Duplicate a descriptor of it; it does not notice. The caller closes ours. Raises OSError."""
        if self.pidfd < 0:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        # Linux 5.6. It needs the rights of ptrace(2), but stops nothing.
        return syscall("pidfd_getfd", self.pidfd, descriptor, 0)

    def find_status(self) -> int | None:
        """The exit status of one that has ended, or minus the signal; None if the kernel has none."""
        # /proc has its status until it is reaped; later the kernel reports it, if it is new enough.
        with suppress(OSError):
            status = read_stat(self.pid).wait_status
            signal.pidfd_send_signal(self.pidfd, 0)  # it is not reaped: what was read is its own
            return os.waitstatus_to_exitcode(status)
        asked = bytearray(_INFO.pack(_EXIT, *[0] * 13))
        with suppress(OSError):
            fcntl.ioctl(self.pidfd, _GET_INFO, asked)
            mask, *_, status = _INFO.unpack(asked)
            return os.waitstatus_to_exitcode(status) if mask & _EXIT else None
        return None

    def close(self) -> None:
        """Hold it no longer."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def borrow(pid: int, descriptor: int) -> int:
    """Duplicate a descriptor of a process; the caller closes it. Raises OSError."""
    with HeldProcess(pid) as process:
        return process.borrow(descriptor)


def borrow_each(pid: int, descriptors: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Duplicate descriptors one after the other: (number in the process, ours). Skip those that we may not have.

    Ours is closed when the next one is asked for.
    """
    with HeldProcess(pid) as process:
        for descriptor in descriptors:
            try:
                borrowed = process.borrow(descriptor)
            except OSError:
                continue
            # Hold it for a moment only: while we have it, a pipe gets no end of file, and a closed port stays in use.
            with opened(borrowed):
                yield descriptor, borrowed


class ExitWatch:
    """Processes of a pid namespace, by their PIDs there, which are not our children."""

    def __init__(self, watched: dict[int, HeldProcess]) -> None:
        self._left = watched
        self._ended: dict[int, int | None] = {}

    def wait(self, pid: int, seconds: float) -> float:
        """Wait that long, or until process `pid` has ended; return the seconds that it took."""
        began = time.monotonic()
        while pid not in self._ended and (rest := began + seconds - time.monotonic()) > 0:
            self._note(rest)
        return time.monotonic() - began

    def find_ended(self) -> dict[int, int | None]:
        """PID -> exit status or minus the signal of processes that have ended; None if the kernel has no status."""
        self._note(0)
        return self._ended

    def _note(self, seconds: float) -> None:
        poll = select.poll()
        insides = {process.pidfd: inside for inside, process in self._left.items() if process.pidfd >= 0}
        for pidfd in insides:
            poll.register(pidfd, select.POLLIN)
        # A pidfd can be read once its process is a zombie, whoever its parent is. Round up: with 0, `wait` would spin.
        for pidfd, _ in poll.poll(math.ceil(seconds * 1000)):
            inside = insides[pidfd]
            self._ended[inside] = self._left.pop(inside).find_status()


@contextmanager
def watched_exits(init: int, wanted: Iterable[int]) -> Iterator[ExitWatch]:
    """Watch those of the wanted PIDs that exist in the pid namespace of the process `init`."""
    with ExitStack() as stack:
        found = proc.outer_pids(wanted, init).items()
        yield ExitWatch({inside: stack.enter_context(HeldProcess(outside)) for inside, outside in found})
