"""State of timers and terminals that CRIU does not save: read and set it through borrowed descriptors.

Sources: timerfd_create(2), ioctl_tty(2), proc_pid_fdinfo(5).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import stat
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Annotated, Final

from msgspec import Meta, Struct

from crckpt.host.observe.descriptors import is_pseudo_terminal
from crckpt.host.opened import poll_now
from crckpt.host.proc import Descriptor
from crckpt.host.proc.fd import read_info
from crckpt.host.proc.procfs import parse_fields
from crckpt.host.process.pidfd import borrow_each
from crckpt.host.syscalls.libc import LIBC, check

_TIMER: Final = "anon_inode:[timerfd]"
_WALL_CLOCKS: Final = ("0", "8")  # CLOCK_REALTIME, CLOCK_REALTIME_ALARM
_ABSOLUTE: Final = 1  # TFD_TIMER_ABSTIME
_TIMES: Final = struct.Struct("=4q")  # struct itimerspec: interval, value
_SECOND: Final = 1_000_000_000
_TFD_IOC_SET_TICKS: Final = 0x40085400
_TIOCGPTPEER: Final = 0x5441
_TIOCEXCL, _TIOCGEXCL = 0x540C, 0x80045440

Nanoseconds = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class DescriptorRecord(Struct, frozen=True):
    """State of a descriptor that CRIU does not save.

    `due`: when a timer expires that was set to an absolute time of the wall clock, in nanoseconds; 0 for others.
    `is_hung_up`: it is the master side of a pseudo terminal whose other side was closed. `is_exclusive`: only root can
    open the terminal.
    """

    pid: int
    fd: int
    due: Nanoseconds = 0
    is_hung_up: bool = False
    is_exclusive: bool = False


def read_descriptors(descriptors: Iterable[Descriptor], inside: dict[int, int]) -> Iterator[DescriptorRecord]:
    """Read the state of those that have any now. `inside`: the PIDs of their processes in their own namespace."""
    for found in descriptors:
        pid = inside.get(found.pid, 0)
        if found.target == _TIMER:
            with suppress(OSError):
                if due := _due(read_info(found.pid, found.fd)):
                    yield DescriptorRecord(pid, found.fd, due=due)
        elif found.tty_index is not None or found.target.startswith("/dev/pts/"):
            for fd, ours in borrow_each(found.pid, (found.fd,)):
                with suppress(OSError):
                    _refuse_other_device(ours)
                    is_hung_up = found.tty_index is not None and bool(poll_now(ours) & select.POLLHUP)
                    is_exclusive = any(fcntl.ioctl(ours, _TIOCGEXCL, bytes(4)))
                    if is_hung_up or is_exclusive:
                        yield DescriptorRecord(pid, fd, is_hung_up=is_hung_up, is_exclusive=is_exclusive)


def restore_descriptor(ours: int, pid: int, record: DescriptorRecord) -> None:
    """Set the state of a record. `pid` is the process that lends the descriptor. Raises OSError."""
    # CRIU has set a timer to expire as long after now as it was left at the dump. Leave alone one that has changed.
    if record.due and _due(info := read_info(pid, record.fd)):
        fields = parse_fields(info)
        interval = divmod(_nanoseconds(fields.get("it_interval", "")), _SECOND)
        times = _TIMES.pack(*interval, *divmod(record.due, _SECOND))
        check(LIBC.timerfd_settime(ours, int(fields["settime flags"], 8), times, None))
        # That has dropped the expirations that the program had not read.
        if (ticks := int(fields.get("ticks", "0"))) and record.due > time.time_ns():
            fcntl.ioctl(ours, _TFD_IOC_SET_TICKS, ctypes.c_uint64(ticks))
    if record.is_hung_up or record.is_exclusive:
        _refuse_other_device(ours)
    if record.is_hung_up and not poll_now(ours) & select.POLLHUP:
        # The kernel marks the master when the last descriptor of the other side is closed.
        os.close(fcntl.ioctl(ours, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    if record.is_exclusive:
        fcntl.ioctl(ours, _TIOCEXCL)


def _refuse_other_device(ours: int) -> None:
    """Raise OSError if it is no pseudo terminal: any file can have that path, and ioctl(2) acts on some devices."""
    found = os.fstat(ours)
    if not stat.S_ISCHR(found.st_mode) or not is_pseudo_terminal(found.st_rdev):
        raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))


def _due(info: str) -> int:
    """When such a timer expires, by its fdinfo; 0 if it is none or is not armed."""
    fields = parse_fields(info)
    left = _nanoseconds(fields.get("it_value", ""))
    is_wall_clock = fields.get("clockid") in _WALL_CLOCKS and int(fields.get("settime flags", "0"), 8) & _ABSOLUTE
    return time.time_ns() + left if left and is_wall_clock else 0


def _nanoseconds(said: str) -> int:
    seconds, _, rest = said.strip("()").partition(",")
    return int(seconds or 0) * _SECOND + int(rest or 0)
