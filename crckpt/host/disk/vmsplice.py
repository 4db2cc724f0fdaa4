"""Send much data through a pipe: make it large, and lend it pages instead of copying. Source: vmsplice(2)."""

from __future__ import annotations

import ctypes
import fcntl
import select
from contextlib import suppress
from typing import Final

from crckpt.host.syscalls.libc import LIBC, check

PIPE_SIZE: Final = 1 << 20
"""Bytes that a pipe holds: the most that an unprivileged process may request."""


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_vmsplice = LIBC.vmsplice
_vmsplice.argtypes = (ctypes.c_int, ctypes.POINTER(_Vector), ctypes.c_ulong, ctypes.c_uint)
_vmsplice.restype = ctypes.c_ssize_t
_NONBLOCK: Final = 2  # SPLICE_F_NONBLOCK, linux/splice.h


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
        vector = _Vector(ctypes.addressof(ctypes.c_char.from_buffer(content)), len(content))
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
