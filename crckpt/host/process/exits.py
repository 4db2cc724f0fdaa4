"""Wait for processes that are not children of crckpt. Source: pidfd_open(2), linux/pidfd.h, proc_pid_stat(5)."""

from __future__ import annotations

import fcntl
import math
import os
import select
import signal
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from msgspec import Struct

from crckpt.host import proc
from crckpt.host.proc.stat import read_stat

# struct pidfd_info: mask, cgroupid; pid, tgid, ppid, eight user and group ids; exit_code.
_INFO: Final = struct.Struct("<QQ11Ii")
_GET_INFO: Final = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11  # _IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)
# PIDFD_GET_INFO and PIDFD_INFO_EXIT (Linux 6.15): filled once the parent has reaped the process.
_EXIT: Final = 1 << 3


class _Watched(Struct, frozen=True):
    inside: int
    outside: int
    pidfd: int


class ExitWatch:
    """Processes of a pid namespace, by their PIDs there."""

    def __init__(self, watched: Iterable[_Watched]) -> None:
        self._left = {each.pidfd: each for each in watched}
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
        for pidfd in self._left:
            poll.register(pidfd, select.POLLIN)
        # A pidfd can be read once its process is a zombie, whoever its parent is. Round up: with 0, `wait` would spin.
        for pidfd, _ in poll.poll(math.ceil(seconds * 1000)):
            each = self._left.pop(pidfd)
            self._ended[each.inside] = _status(each)


@contextmanager
def watched_exits(init: int, wanted: Iterable[int]) -> Iterator[ExitWatch]:
    """Watch those of the wanted PIDs that exist in the pid namespace of the process `init`."""
    found: list[_Watched] = []
    try:
        for inside, outside in proc.outer_pids(wanted, init).items():
            found.append(_Watched(inside, outside, os.pidfd_open(outside)))
        yield ExitWatch(found)
    finally:
        for each in found:
            os.close(each.pidfd)


def _status(each: _Watched) -> int | None:
    # /proc has its status until it is reaped; later the kernel reports it, if it is new enough.
    with suppress(OSError):
        status = read_stat(each.outside).wait_status
        signal.pidfd_send_signal(each.pidfd, 0)  # it is not reaped: what was read is its own
        return os.waitstatus_to_exitcode(status)
    asked = bytearray(_INFO.pack(_EXIT, *[0] * 13))
    with suppress(OSError):
        fcntl.ioctl(each.pidfd, _GET_INFO, asked)
        mask, *_, status = _INFO.unpack(asked)
        return os.waitstatus_to_exitcode(status) if mask & _EXIT else None
    return None
