"""Pipes through which much goes: large ones, and pages that are lent to them instead of copied."""

from __future__ import annotations

import ctypes
import fcntl
import select
from contextlib import suppress
from typing import Final

from crckpt.host.syscalls.libc import LIBC, check

PIPE_SIZE: Final = 1 << 20
"""Bytes that a pipe holds at most: what an unprivileged process may ask for."""


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_vmsplice = LIBC.vmsplice
_vmsplice.argtypes = (ctypes.c_int, ctypes.POINTER(_Vector), ctypes.c_ulong, ctypes.c_uint)
_vmsplice.restype = ctypes.c_ssize_t
_NONBLOCK: Final = 2  # SPLICE_F_NONBLOCK, linux/splice.h


class Lender:
    """Gives a pipe much content: it is made large, and refers to our pages instead of holding copies."""

    def __init__(self, pipe: int) -> None:
        """`pipe` is the end to write to, and stays the caller's."""
        self._pipe = pipe
        # In one of 64 KiB both ends wait for each other.
        with suppress(PermissionError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        self._room = select.epoll()
        self._room.register(pipe, select.EPOLLOUT | select.EPOLLET)

    def lend(self, content: memoryview) -> int:
        """Let the pipe refer to content (writable memory); how many bytes went in. Returns once there is room for more.

        It must not change until whoever reads has copied it: at the latest when PIPE_SIZE bytes more have gone in. So
        the reader must copy: were it to splice, no one knows how long the pages are in use. Raises BrokenPipeError if
        nobody reads any more. Source: vmsplice(2).
        """
        vector = _Vector(ctypes.addressof(ctypes.c_char.from_buffer(content)), len(content))
        try:
            done = check(_vmsplice(self._pipe, ctypes.byref(vector), 1, _NONBLOCK))
        except BlockingIOError:
            done = 0
        if done < len(content):
            # The kernel would wait for room by spinning, on a core that others need, as long as the reader copies.
            self._room.poll()
        return done

    def close(self) -> None:
        """The pipe stays open."""
        self._room.close()
