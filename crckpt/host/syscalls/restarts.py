"""The result of a system call that a stop of the thread interrupted (x86-64, and 32-bit programs on it).

The kernel leaves it in the thread's registers. crckpt/tracking/preload/restart.c corrects it in CRIU, and has the same
table; this file corrects it after crckpt itself has attached to a process.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from msgspec import Struct

SOCKET: Final = -1
"""Of a call's first argument: a socket."""
_NO_HANDLER: Final = -514  # ERESTARTNOHAND: made again, unless a handler runs
_RESTART_BLOCK: Final = -516  # ERESTART_RESTARTBLOCK: made again by restart_syscall, unless a handler runs
_RESTART_SYSCALL: Final = {False: 219, True: 0}


class Again(Struct, frozen=True):
    """A call that returns EINTR without an effect: its numbers (-1: none), and with which first argument."""

    name: str
    number: int
    compat: int
    only: int = 0


AGAIN: Final = (
    Again("epoll_wait", 232, 256),
    Again("epoll_pwait", 281, 319),
    Again("epoll_pwait2", 441, 441),
    Again("semop", 65, -1),
    Again("semtimedop", 220, 420),
    Again("ipc: semop", -1, 117, 1),
    Again("ipc: semtimedop", -1, 117, 4),
    Again("rt_sigtimedwait", 128, 177),
    Again("rt_sigtimedwait_time64", -1, 421),
    Again("io_getevents", 208, 247),
    Again("io_pgetevents", 333, 385),
    Again("io_pgetevents_time64", -1, 416),
    Again("read", 0, 3, SOCKET),
    Again("readv", 19, 145, SOCKET),
    Again("recvfrom", 45, 371, SOCKET),
    Again("recvmsg", 47, 372, SOCKET),
    Again("recvmmsg", 299, 337, SOCKET),
    Again("recvmmsg_time64", -1, 417, SOCKET),
    Again("write", 1, 4, SOCKET),
    Again("writev", 20, 146, SOCKET),
    Again("sendto", 44, 369, SOCKET),
    Again("sendmsg", 46, 370, SOCKET),
    Again("sendmmsg", 307, 345, SOCKET),
    Again("sendfile", 40, 187, SOCKET),
    Again("sendfile64", -1, 239, SOCKET),
    Again("accept", 43, -1, SOCKET),
    Again("accept4", 288, 364, SOCKET),
    Again("connect", 42, 362, SOCKET),
    Again("socketcall: connect", -1, 102, 3),
    Again("socketcall: accept", -1, 102, 5),
    Again("socketcall: send", -1, 102, 9),
    Again("socketcall: recv", -1, 102, 10),
    Again("socketcall: sendto", -1, 102, 11),
    Again("socketcall: recvfrom", -1, 102, 12),
    Again("socketcall: sendmsg", -1, 102, 16),
    Again("socketcall: recvmsg", -1, 102, 17),
    Again("socketcall: accept4", -1, 102, 18),
    Again("socketcall: recvmmsg", -1, 102, 19),
    Again("socketcall: sendmmsg", -1, 102, 20),
)


def result_to_go_on(number: int, result: int, first: int, *, is_compat: bool, is_socket: Callable[[int], bool]) -> int:
    """What to put in place of the `result` of a call of this `number` and `first` argument; often the same.

    The kernel then makes the call again, unless a handler runs. `restart_syscall` would know how much of a timeout is
    left, but CRIU cannot save a thread in that.
    """
    if number < 0:
        return result
    if result == _RESTART_BLOCK and number != _RESTART_SYSCALL[is_compat]:
        return _NO_HANDLER
    if result == -errno.EINTR and any(
        is_socket(first) if again.only == SOCKET else again.only in (0, first & 0xFFFF)
        for again in AGAIN
        if number == (again.compat if is_compat else again.number)
    ):
        return _NO_HANDLER
    return result
