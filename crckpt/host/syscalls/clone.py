"""New processes and namespaces. Source: clone(2), setns(2), unshare(2), linux/sched.h."""

from __future__ import annotations

import ctypes
import signal
import struct
from typing import Final

from crckpt.host.syscalls.libc import LIBC, NUMBERS, check

_CLONE_FILES: Final = 0x400
CLONE_NEWTIME: Final = 0x80
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWNET: Final = 0x40000000

# PyDLL keeps Python's own lock: a child of clone3 has no other thread to get it back from.
_LOCKED_LIBC: Final = ctypes.PyDLL(None, use_errno=True)


def setns(namespace: int) -> None:
    """Join the namespace of an open descriptor. Raises OSError."""
    check(LIBC.setns(namespace, 0))


def unshare(kinds: int) -> None:
    """Leave these namespaces (CLONE_NEW...) for new ones. Raises OSError."""
    check(LIBC.unshare(kinds))


def fork_with_pid(pid: int) -> int:
    """Fork a child that has this PID; return its PID, and 0 in the child. Raises OSError."""
    # set_tid needs Linux 5.5, and CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE. EEXIST: the PID is in use.
    wanted = ctypes.c_int(pid)
    # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size
    words = struct.pack("=10Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(wanted), 1)
    return check(_LOCKED_LIBC.syscall(NUMBERS["clone3"], ctypes.c_char_p(words), len(words)))


def fork_with_same_descriptors() -> int:
    """Fork a child with which we share all descriptors from now on; return its PID, and 0 in the child.

    Nothing that one of them opened is closed by its end as long as the other lives. Call it before there are threads.
    Raises OSError.
    """
    words = struct.pack("=8Q", _CLONE_FILES, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    return check(_LOCKED_LIBC.syscall(NUMBERS["clone3"], ctypes.c_char_p(words), len(words)))
