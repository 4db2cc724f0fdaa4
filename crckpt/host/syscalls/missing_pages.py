"""Supply pages that another process's memory lacks, when it touches them. Source: linux/userfaultfd.h, userfaultfd(2).

If the last descriptor is closed too early, the kernel supplies pages of zeros instead: see `crckpt.ops.lazy.guard`.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import os
import struct
from typing import Final, NamedTuple

from crckpt.host.syscalls.libc import syscall
from crckpt.host.syscalls.registers import is_supported
from crckpt.host.syscalls.userfaultfd import API, API_VERSION, COPY, MODE_MISSING, REGISTER
from crckpt.model import PAGE_SIZE

_ZEROPAGE: Final = 0xC020AA04
_WAKE: Final = 0x8010AA02
# UFFD_FEATURE_EVENT_FORK, _REMAP, _REMOVE, _UNMAP. Without them a fork, or memory that the program gives back, would
# not be noticed.
_FEATURES: Final = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6
_MESSAGE: Final = struct.Struct("=B7x3Q")
_AT_ONCE: Final = 64


class Kind(enum.IntEnum):
    """The kinds of messages: UFFD_EVENT_..."""

    FAULT = 0x12
    FORK = 0x13
    MOVE = 0x14
    REMOVE = 0x15
    UNMAP = 0x16


def find_refusal() -> str:
    """Return why the missing pages of other processes cannot be supplied here, or an empty string."""
    if not is_supported():
        return f"crckpt cannot enter processes on {os.uname().machine} yet"
    try:
        descriptor = syscall("userfaultfd", os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return f"this kernel does not let crckpt supply missing pages (userfaultfd): {error.strerror}"
    try:
        MissingPages(descriptor)
    except OSError:
        return "this kernel's userfaultfd does not report forks and removed memory"
    finally:
        os.close(descriptor)
    return ""


class Message(NamedTuple):
    """One message: its kind, and its three words.

    FAULT: flags, address. FORK: the child's descriptor, which is ours. MOVE: from, to, length. REMOVE, UNMAP: start,
    end. The process waits until a message that is no FAULT is read.
    """

    kind: Kind
    first: int
    second: int
    third: int


class HasEnded(Exception):
    """The process has ended, or runs another program."""


class Changing(Exception):
    """The process changes its mappings: read messages, then try again."""


class MissingPages:
    """The missing pages of a process. Owns the descriptor."""

    def __init__(self, descriptor: int, *, is_new: bool = True) -> None:
        """`is_new`: not of a fork. Raises OSError if this kernel cannot report forks and removed memory."""
        self.descriptor = descriptor
        os.set_blocking(descriptor, False)
        if is_new:
            fcntl.ioctl(descriptor, API, struct.pack("<3Q", API_VERSION, _FEATURES, 0))

    def register(self, start: int, end: int) -> None:
        """From now on, a thread that touches a missing page of this mapping waits for us. Raises OSError."""
        fcntl.ioctl(self.descriptor, REGISTER, struct.pack("<4Q", start, end - start, MODE_MISSING, 0))

    def read(self) -> tuple[Message, ...]:
        """Read the messages that are there, without waiting."""
        try:
            content = os.read(self.descriptor, _MESSAGE.size * _AT_ONCE)
        except BlockingIOError:
            return ()
        found = (Message(Kind(kind), *words) for kind, *words in _MESSAGE.iter_unpack(content))
        # The number of a new descriptor has 32 bits; what follows is not defined.
        return tuple(each._replace(first=each.first & 0xFFFFFFFF) if each.kind is Kind.FORK else each for each in found)

    def copy(self, address: int, content: int, length: int) -> tuple[int, int]:
        """Copy `length` bytes at our address `content` to the missing pages at `address`; wake those that wait.

        Return the bytes copied, and why it stopped there: EEXIST, a page is not missing; ENOENT, the bytes do not lie
        in one registered mapping; 0. Raises HasEnded, Changing, OSError (ENOMEM).
        """
        return self._supply(COPY, struct.pack("<4Qq", address, content, length, 0, 0), length)

    def zero(self, address: int) -> None:
        """Supply a page of zeros if it is missing. Raises as `copy`."""
        self._supply(_ZEROPAGE, struct.pack("<3Qq", address, PAGE_SIZE, 0, 0), PAGE_SIZE)

    def wake(self, address: int) -> None:
        """Let threads that wait for this page look again."""
        fcntl.ioctl(self.descriptor, _WAKE, struct.pack("<2Q", address, PAGE_SIZE))

    def close(self) -> None:
        """Let the kernel supply what is still missing: pages of zeros."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _supply(self, request: int, words: bytes, length: int) -> tuple[int, int]:
        argument = bytearray(words)
        try:
            fcntl.ioctl(self.descriptor, request, argument)
        except OSError as error:
            # Partly done, it says EAGAIN and how far it came.
            done = max(0, struct.unpack_from("<q", argument, len(argument) - 8)[0])
            if done:
                return done, 0
            match error.errno:
                case errno.EEXIST | errno.ENOENT:
                    return 0, error.errno
                case errno.EAGAIN:
                    raise Changing from None
                case errno.ESRCH:
                    raise HasEnded from None
            raise
        return length, 0
