"""Pipes through which much goes: large ones, and pages that are lent to them instead of copied."""

from __future__ import annotations

import ctypes
import fcntl
import os
from contextlib import suppress
from typing import Final

PIPE_SIZE: Final = 1 << 20
"""Bytes that a pipe holds at most: what an unprivileged process may ask for."""


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_vmsplice = ctypes.CDLL(None, use_errno=True).vmsplice
_vmsplice.argtypes = (ctypes.c_int, ctypes.POINTER(_Vector), ctypes.c_ulong, ctypes.c_uint)
_vmsplice.restype = ctypes.c_ssize_t


def widen(pipe: int) -> None:
    """Let a pipe hold PIPE_SIZE bytes, if we may: in one of 64 KiB both ends wait for each other."""
    with suppress(PermissionError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_SIZE)


def lend(pipe: int, content: memoryview) -> int:
    """Let a pipe refer to content (writable memory), which is not copied; how many bytes went in.

    It must not change until whoever reads has copied it: at the latest when PIPE_SIZE bytes more have gone in. So the
    reader must copy: were it to splice, no one knows how long the pages are in use. Raises BrokenPipeError if nobody
    reads any more. Source: vmsplice(2).
    """
    vector = _Vector(ctypes.addressof(ctypes.c_char.from_buffer(content)), len(content))
    done: int = _vmsplice(pipe, ctypes.byref(vector), 1, 0)
    if done < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return done
