"""Requests of ptrace(2) that python-ptrace lacks: SEIZE, INTERRUPT, the signal mask, and what it says of a stop.

Sources: ptrace(2); linux/ptrace.h.
"""

from __future__ import annotations

import ctypes
import errno
from typing import Final

from crckpt.host.syscalls.libc import LIBC, check

SUSPEND_SECCOMP: Final = 1 << 21
"""An option: the thread's system call filters do not run."""

_SEIZE: Final = 0x4206
_INTERRUPT: Final = 0x4207
_GETSIGMASK: Final = 0x420A
_SETSIGMASK: Final = 0x420B
_GET_SYSCALL_INFO: Final = 0x420E
_GET_RSEQ: Final = 0x420F
_GET_DISPATCH: Final = 0x4211
_SYSCALL_INFO_BYTES: Final = 88
_RSEQ_BYTES: Final = 24
_DISPATCH_BYTES: Final = 32


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


def get_system_call_info(tid: int) -> bytes:
    """The kernel's `ptrace_syscall_info` of a stopped thread. Raises OSError, also on a kernel before 5.3."""
    return _read(_GET_SYSCALL_INFO, tid, _SYSCALL_INFO_BYTES)


def get_rseq(tid: int) -> bytes:
    """The kernel's `ptrace_rseq_configuration` of a stopped thread. Raises OSError, also on a kernel before 5.13."""
    return _read(_GET_RSEQ, tid, _RSEQ_BYTES)


def get_dispatch(tid: int) -> bytes:
    """The kernel's `ptrace_sud_config` of a stopped thread. Raises OSError, also on a kernel before 6.4."""
    return _read(_GET_DISPATCH, tid, _DISPATCH_BYTES)


def _read(request: int, tid: int, size: int) -> bytes:
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
