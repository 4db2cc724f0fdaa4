"""Numbers of pseudoterminals: the N of /dev/pts/N, of which the kernel gives the lowest free one. Source: pts(4)."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from crckpt.errors import HostCannot

# How many terminals CRIU opens at most until one has the number that it needs (criu/tty.c, __pty_open_ptmx_index).
_OPENED_BY_CRIU: Final = 32
# asm-generic/ioctls.h; Python's termios does not have it.
_TIOCGPTN: Final = 0x80045430


def read_used_numbers() -> frozenset[int]:
    """Read which numbers are in use."""
    with suppress(FileNotFoundError):
        return frozenset(int(path.name) for path in Path("/dev/pts").iterdir() if path.name.isdecimal())
    return frozenset()


@contextmanager
def lower_numbers_held(needed: frozenset[int], multiplexer: str = "/dev/ptmx") -> Iterator[None]:
    """Hold lower numbers than the `needed` ones, so that few enough are free for CRIU. Raises HostCannot, OSError."""
    last, number = max(needed, default=0) - _OPENED_BY_CRIU, -1
    with ExitStack() as held, ExitStack() as not_held:
        while number < last:
            descriptor = _open(multiplexer)
            closing = held.enter_context(ExitStack())
            closing.callback(os.close, descriptor)
            number = _read_number(descriptor)
            # Open until no lower number is free: the kernel would give it again.
            if number in needed or number > last:
                not_held.enter_context(closing.pop_all())
        not_held.close()
        yield


def _open(multiplexer: str) -> int:
    try:
        return os.open(multiplexer, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # Not the space of a disk.
        hint = "close terminals, or raise the limit: sysctl kernel.pty.max"
        raise HostCannot("all pseudoterminals of this host are in use", hint=hint) from error


def _read_number(descriptor: int) -> int:
    (number,) = struct.unpack("I", fcntl.ioctl(descriptor, _TIOCGPTN, bytes(4)))
    return int(number)
