"""Requests of ptrace(2), and names of system calls: python-ptrace's where it has them, without types, else ours.

python-ptrace has the registers and their names for each architecture, and reads them as that needs (GETREGS or
GETREGSET). It lacks SEIZE, INTERRUPT, the signal mask, and what the kernel says of a stop. It takes 5 to 12 ms to load:
that is done when it is first needed. Sources: ptrace(2); linux/ptrace.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Final, Literal

from crckpt.host.syscalls.libc import LIBC, check
from crckpt.host.syscalls.restarted_calls import RESTARTED_CALLS

SUSPEND_SECCOMP: Final = 1 << 21
"""An option: the thread's system call filters do not run."""

_SEIZE: Final = 0x4206
_INTERRUPT: Final = 0x4207
_GETSIGMASK: Final = 0x420A
_SETSIGMASK: Final = 0x420B
# Request and the size of its answer: `ptrace_syscall_info` (Linux 5.3), `ptrace_rseq_configuration` (5.13),
# `ptrace_sud_config` (6.4).
SYSCALL_INFO: Final = 0x420E, 88
RSEQ: Final = 0x420F, 24
DISPATCH: Final = 0x4211, 32

_TABLES: Final = {("x86_64", True): "x86_64", ("x86_64", False): "i386", ("aarch64", True): "aarch64"}
# Its tables are those of Linux 5.8, for 32-bit programs 2.6. Since 403 a number is the same on all machines.
_NEWER: Final = {
    **{call.compat: call.plain_name for call in RESTARTED_CALLS},
    407: "clock_nanosleep",
    413: "pselect6",
    414: "ppoll",
    422: "futex",
    449: "futex_waitv",
}


def seize(tid: int, options: int = 0) -> None:
    """Trace a thread without stopping it, until we end. Raises OSError."""
    _request(_SEIZE, tid, options)


def interrupt(tid: int) -> None:
    """Ask a thread that was seized to stop. Raises OSError."""
    _request(_INTERRUPT, tid)


def get_signal_mask(tid: int) -> int:
    """The signals that a stopped thread blocks, as bits. Raises OSError."""
    mask = ctypes.c_uint64()
    _request(_GETSIGMASK, tid, mask, ctypes.sizeof(mask))
    return mask.value


def set_signal_mask(tid: int, mask: int) -> None:
    """Set the signals that a stopped thread blocks. Raises OSError."""
    bits = ctypes.c_uint64(mask)
    _request(_SETSIGMASK, tid, bits, ctypes.sizeof(bits))


def read_state(tid: int, state: tuple[int, int]) -> bytes:
    """The kernel's SYSCALL_INFO, RSEQ or DISPATCH of a stopped thread. Raises OSError, also if the kernel has none."""
    request, size = state
    content = ctypes.create_string_buffer(size)
    _request(request, tid, content, size)
    return content.raw


def _request(request: int, tid: int, data: object = 0, address: int = 0) -> None:
    pointer = ctypes.c_void_p(data) if isinstance(data, int) else ctypes.byref(data)  # type: ignore[arg-type]
    try:
        check(LIBC.ptrace(request, tid, ctypes.c_void_p(address), pointer))
    except OSError as error:
        # EIO means that the kernel does not know the request. Its text, "Input/output error", would mislead people to
        # look at a disk.
        if error.errno == errno.EIO:
            raise OSError(errno.EIO, "the kernel does not know this request") from None
        raise


Request = Literal["getregs", "setregs", "cont", "syscall", "setoptions", "detach"]


def call(name: Request, tid: int, *arguments: Any) -> Any:
    """Make a request of python-ptrace for a stopped thread. Raises OSError.

    `getregs` and `setregs`: its general registers, a ctypes structure with their names. `cont`, `syscall`: let it run
    on, or until it enters or leaves a system call, and deliver a signal. `setoptions`: replace its options
    (PTRACE_O_...).
    """
    try:
        return getattr(load("binding"), f"ptrace_{name}")(tid, *arguments)
    except load("error").PtraceError as error:
        raise OSError(error.errno, os.strerror(error.errno)) from None


def call_name(number: int, machine: str, *, is_native: bool = True) -> str:
    """The name of a system call of a `machine`, or of 32-bit programs on it; `call NUMBER` if none is known."""
    return _names((machine, is_native)).get(number) or f"call {number}"


@cache
def _names(kind: tuple[str, bool]) -> Mapping[int, str]:
    return {**_NEWER, **load(f"syscall.linux.{_TABLES[kind]}").SYSCALL_NAMES} if kind in _TABLES else {}


class _LoadedLibc(ModuleType):
    libc = ctypes.CDLL(None, use_errno=True)


@cache
def load(name: str) -> Any:
    """Import `ptrace.NAME` of python-ptrace."""
    # It looks for the C library by running ldconfig, or gcc where there is none: 4 ms. It is loaded already.
    sys.modules.setdefault("ptrace.ctypes_libc", _LoadedLibc("ptrace.ctypes_libc"))
    return import_module(f"ptrace.{name}")
