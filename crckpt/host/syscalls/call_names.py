"""Names of system calls, for people: python-ptrace's tables, and newer calls in which threads wait."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from crckpt.host.syscalls.python_ptrace import load

_TABLES: Final = {("x86_64", True): "x86_64", ("x86_64", False): "i386", ("aarch64", True): "aarch64"}

# Its tables are those of Linux 5.8, for 32-bit programs 2.6. Since 403 a number is the same on all machines.
_NEWER: Final = {
    364: "accept4",
    371: "recvfrom",
    372: "recvmsg",
    385: "io_pgetevents",
    407: "clock_nanosleep",
    413: "pselect6",
    414: "ppoll",
    416: "io_pgetevents",
    417: "recvmmsg",
    420: "semtimedop",
    421: "rt_sigtimedwait",
    422: "futex",
    441: "epoll_pwait2",
    449: "futex_waitv",
}


def call_name(number: int, machine: str, *, is_native: bool = True) -> str:
    """The name of a system call of a `machine`, or of 32-bit programs on it; `call NUMBER` if none is known."""
    return _names((machine, is_native)).get(number) or f"call {number}"


@cache
def _names(kind: tuple[str, bool]) -> Mapping[int, str]:
    return {**_NEWER, **load(f"syscall.linux.{_TABLES[kind]}").SYSCALL_NAMES} if kind in _TABLES else {}
