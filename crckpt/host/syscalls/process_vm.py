"""Move memory between processes: write and touch that of others, and lend pages to a pipe.

Source: process_vm_writev(2), vmsplice(2)."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from crckpt.host.syscalls.libc import LIBC, check

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MOST_ROWS: Final = 1024
"""Most rows of a call (IOV_MAX, linux/uio.h)."""

MOST_BYTES: Final = (1 << 31) - (1 << 12)
"""Most bytes of a call (MAX_RW_COUNT, linux/fs.h)."""

# Set the types once, as a restore makes many calls: (pid, our rows, their number, the process's rows, their number,
# flags).
_process_vm_writev = LIBC.process_vm_writev
_process_vm_writev.argtypes = (
    ctypes.c_int,
    *(ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong),
    ctypes.c_ulong,
)
_process_vm_writev.restype = ctypes.c_ssize_t


_process_vm_readv = LIBC.process_vm_readv
_process_vm_readv.argtypes = _process_vm_writev.argtypes
_process_vm_readv.restype = ctypes.c_ssize_t

PIPE_SIZE: Final = 1 << 20
"""Bytes that a pipe holds: the most that an unprivileged process may request."""
_vmsplice = LIBC.vmsplice
_vmsplice.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_uint)
_vmsplice.restype = ctypes.c_ssize_t
_NONBLOCK: Final = 2  # SPLICE_F_NONBLOCK, linux/splice.h


def can_write_memory() -> bool:
    """Return whether the kernel has the call, and allows it."""
    # ENOSYS without CONFIG_CROSS_MEMORY_ATTACH; a container's seccomp filter may refuse it.
    return bool(_process_vm_writev(os.getpid(), None, 0, None, 0, 0) == 0)


def write_memory(pid: int, ours: npt.NDArray[np.uint64], theirs: npt.NDArray[np.uint64]) -> None:
    """Copy from our memory to that of a process: rows of (address, bytes), equal bytes on both sides.

    At most MOST_ROWS and MOST_BYTES. Raises OSError, which names the process, if some of its memory is missing or
    cannot be written, or if it has ended.
    """
    done = _process_vm_writev(pid, ours.ctypes.data, len(ours), theirs.ctypes.data, len(theirs), 0)
    # If some pages were written, it stops at the first one that it cannot write, and reports no error.
    if done != int(ours[:, 1].sum()):
        error = ctypes.get_errno() if done < 0 else errno.EFAULT
        why = "it has ended" if error == errno.ESRCH else f"{os.strerror(error)} (perhaps no memory is left)"
        raise OSError(error, f"the memory of process {pid} cannot be filled: {why}")


def touch_memory(pid: int, address: int) -> None:
    """Read a byte of a process, or of one with that thread; wait if a userfaultfd supplies its page."""
    # A read of /proc/PID/mem does not wait: it fails.
    byte = ctypes.create_string_buffer(1)
    ours, theirs = ((ctypes.c_size_t * 2)(place, 1) for place in (ctypes.addressof(byte), address))
    _process_vm_readv(pid, ctypes.addressof(ours), 1, ctypes.addressof(theirs), 1, 0)


class Lender:
    """The writer of a large pipe, which refers to our pages instead of having copies."""

    def __init__(self, pipe: int) -> None:
        """`pipe` is the end to write to; the caller closes it."""
        self._pipe = pipe
        # In a pipe of 64 KiB, reader and writer would wait for each other.
        with suppress(PermissionError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        self._room = select.epoll()
        self._room.register(pipe, select.EPOLLOUT | select.EPOLLET)

    def lend(self, content: memoryview) -> int:
        """Let the pipe refer to `content` (writable memory). Wait for room for more; return how many bytes went in.

        The content must not change until the reader has copied it, at the latest when PIPE_SIZE more bytes have gone
        in. The reader must not splice: then nobody knows how long the pages are in use. Raises BrokenPipeError if there
        is no reader any more.
        """
        vector = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.c_char.from_buffer(content)), len(content))
        try:
            done = check(_vmsplice(self._pipe, ctypes.byref(vector), 1, _NONBLOCK))
        except BlockingIOError:
            done = 0
        if done < len(content):
            # vmsplice would wait for room by spinning, on a core that others need, while the reader copies: that cost
            # 130 ms of CPU time for 270 MB; poll costs 20 ms.
            self._room.poll()
        return done

    def close(self) -> None:
        """Free what we hold; the pipe stays open."""
        self._room.close()
