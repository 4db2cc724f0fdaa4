"""The memory of other processes, written from here. Source: process_vm_writev(2)."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_AT_ONCE: Final = 1024
"""IOV_MAX, linux/uio.h."""

_process_vm_writev = ctypes.CDLL(None, use_errno=True).process_vm_writev
_process_vm_writev.argtypes = (
    ctypes.c_int,
    *(ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong),
    ctypes.c_ulong,
)
_process_vm_writev.restype = ctypes.c_ssize_t


def can_write_memory() -> bool:
    """Whether this kernel was built with it, and nothing forbids us the call."""
    return bool(_process_vm_writev(os.getpid(), None, 0, None, 0, 0) == 0)


def write_memory(pid: int, ours: npt.NDArray[np.uint64], theirs: npt.NDArray[np.uint64]) -> None:
    """Copy from our memory to that of the process: row by row an address and as many bytes on both sides.

    Raises OSError if some of it is not there, cannot be written, or if the process has ended.
    """
    for at in range(0, len(ours), _AT_ONCE):
        here, there = (side[at : at + _AT_ONCE] for side in (ours, theirs))
        done = _process_vm_writev(pid, here.ctypes.data, len(here), there.ctypes.data, len(there), 0)
        if done != int(here[:, 1].sum()):
            error = ctypes.get_errno() if done < 0 else errno.EFAULT
            raise OSError(error, os.strerror(error))
