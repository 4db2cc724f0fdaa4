"""System calls that Python has no names for. Numbers: linux/{sched,ptrace,prctl,seccomp}.h."""

from __future__ import annotations

import ctypes
import os
import signal
import struct

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
CLONE_NEWTIME = 0x80

_CLONE3 = 435
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_STRICT = 1
_PR_SET_MM = 35
_PR_SET_MM_MAP_SIZE = 15
_PTRACE_SEIZE = 0x4206
PTRACE_O_SUSPEND_SECCOMP = 1 << 21

# PyDLL keeps Python's own lock: a child that clone3 makes has no other thread to get it back from.
_LIBC = ctypes.PyDLL(None, use_errno=True)


def unshare(kinds: int) -> None:
    """Leave these namespaces for new ones. Raises OSError."""
    _checked(_LIBC.unshare(kinds))


def clone_as(pid: int) -> int:
    """Fork a child that has this PID; 0 in the child. Raises OSError."""
    wanted = ctypes.c_int(pid)
    # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size
    words = struct.pack("=10Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(wanted), 1)
    return _checked(_LIBC.syscall(_CLONE3, ctypes.c_char_p(words), len(words)))


def seize(pid: int, options: int = 0) -> None:
    """Trace a process without stopping it, until we end. Raises OSError."""
    _checked(_LIBC.ptrace(_PTRACE_SEIZE, pid, None, ctypes.c_void_p(options)))


def enter_strict_seccomp() -> None:
    """From now on only read, write and exit of a single thread are allowed to us. Raises OSError."""
    _checked(_LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_STRICT, 0, 0, 0))


def memory_map_size() -> int:
    """How long the description of a process's memory is that a restore sets. Raises OSError."""
    size = ctypes.c_uint()
    _checked(_LIBC.prctl(_PR_SET_MM, _PR_SET_MM_MAP_SIZE, ctypes.byref(size), 0, 0))
    return size.value


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
