"""Supply pages that another process's memory lacks, when it touches them. Source: linux/userfaultfd.h, userfaultfd(2).

If the last descriptor is closed too early, the kernel supplies pages of zeros instead: see `crckpt.ops.lazy.guard`.

Where the kernel has guard pages (MADV_GUARD_INSTALL, Linux 6.13), it does not report that a program makes or removes
one, and UFFDIO_COPY replaces it (mm/userfaultfd.c, mfill_atomic_install_pte). So there each missing page gets the mark
of write protection. A guard page replaces the mark, and /proc/PID/pagemap shows it.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import functools
import mmap
import os
import struct
from typing import Final, NamedTuple

from crckpt.host.syscalls.libc import syscall
from crckpt.host.syscalls.registers import is_supported
from crckpt.host.syscalls.userfaultfd import (
    API,
    API_VERSION,
    COPY,
    MODE_MISSING,
    MODE_WP,
    REGISTER,
    UNREGISTER,
    WRITEPROTECT,
)
from crckpt.model import PAGE_SIZE

_ZEROPAGE: Final = 0xC020AA04
_WAKE: Final = 0x8010AA02
# UFFD_FEATURE_EVENT_FORK, _REMAP, _REMOVE, _UNMAP. Without them a fork, or memory that the program gives back, would
# not be noticed.
_FEATURES: Final = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6
# UFFD_FEATURE_PAGEFAULT_FLAG_WP, _THREAD_ID, _WP_UNPOPULATED.
_MARKS: Final = 1 << 0 | 1 << 8 | 1 << 13
_WRITEPROTECT_MODE_WP: Final = 1
_MADV_GUARD_INSTALL: Final = 102
# An address of 32-bit programs, too, at which nothing is supplied.
_NOWHERE: Final = 1 << 20
_MESSAGE: Final = struct.Struct("=B7x3Q")
_AT_ONCE: Final = 64


class Kind(enum.IntEnum):
    """The kinds of messages: UFFD_EVENT_..."""

    FAULT = 0x12
    FORK = 0x13
    MOVE = 0x14
    REMOVE = 0x15
    UNMAP = 0x16


@functools.cache
def has_guard_pages() -> bool:
    """Return whether programs can make guard pages on this kernel: then missing pages are marked."""
    with mmap.mmap(-1, PAGE_SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
        try:
            page.madvise(_MADV_GUARD_INSTALL)
        except OSError:
            return False
    return True


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
        return "this kernel's userfaultfd does not report forks, removed memory or guard pages"
    finally:
        os.close(descriptor)
    return ""


class FaultMessage(NamedTuple):
    """One message: its kind, and its three words.

    FAULT: flags, address, with marks the TID. FORK: the child's descriptor, which is ours. MOVE: from, to, length.
    REMOVE, UNMAP: start, end. The process waits until a message that is no FAULT is read.
    """

    kind: Kind
    first: int
    second: int
    third: int


def _decode(kind: Kind, first: int, second: int, third: int) -> FaultMessage:
    # The number of a new descriptor, and a TID, have 32 bits; what follows is not defined.
    if kind is Kind.FORK:
        first &= 0xFFFFFFFF
    if kind is Kind.FAULT:
        third &= 0xFFFFFFFF
    return FaultMessage(kind, first, second, third)


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
            features = _FEATURES | (_MARKS if has_guard_pages() else 0)
            fcntl.ioctl(descriptor, API, struct.pack("<3Q", API_VERSION, features, 0))

    def register(self, start: int, end: int) -> None:
        """From now on, a thread that touches a missing page of this mapping waits for us. Raises OSError."""
        mode = MODE_MISSING | (MODE_WP if has_guard_pages() else 0)
        fcntl.ioctl(self.descriptor, REGISTER, struct.pack("<4Q", start, end - start, mode, 0))

    def unregister(self, start: int, end: int) -> None:
        """Let the kernel supply zeros for what is missing in this mapping. Raises OSError."""
        fcntl.ioctl(self.descriptor, UNREGISTER, struct.pack("<2Q", start, end - start))

    def mark(self, start: int, end: int) -> None:
        """Mark missing pages of a mapping; guard pages stay as they are. Raises as `copy`."""
        self._protect(start, end, _WRITEPROTECT_MODE_WP)

    def unmark(self, start: int, end: int) -> None:
        """Remove the marks of missing pages. Raises as `copy`."""
        self._protect(start, end, 0)

    def _protect(self, start: int, end: int, mode: int) -> None:
        try:
            fcntl.ioctl(self.descriptor, WRITEPROTECT, struct.pack("<3Q", start, end - start, mode))
        except OSError as error:
            if error.errno == errno.EAGAIN:
                raise Changing from None
            if error.errno == errno.ESRCH:
                raise HasEnded from None
            # The program has removed the mapping, or a part.
            if error.errno != errno.ENOENT:
                raise

    def read(self) -> tuple[FaultMessage, ...]:
        """Read the messages that are there, without waiting."""
        try:
            content = os.read(self.descriptor, _MESSAGE.size * _AT_ONCE)
        except BlockingIOError:
            return ()
        return tuple(_decode(Kind(kind), *words) for kind, *words in _MESSAGE.iter_unpack(content))

    def copy(self, address: int, content: int, length: int) -> tuple[int, int]:
        """Copy `length` bytes at our address `content` to the missing pages at `address`; wake those that wait.

        Return the bytes copied, and why it stopped there: EEXIST, a page is not missing; ENOENT, the bytes do not lie
        in one registered mapping; 0. Raises HasEnded, Changing, OSError (ENOMEM).
        """
        return self._supply(COPY, struct.pack("<4Qq", address, content, length, 0, 0), length)

    def zero(self, address: int) -> bool:
        """Supply a page of zeros if it is missing and has no mark. Return whether it was. Raises as `copy`."""
        return self._supply(_ZEROPAGE, struct.pack("<3Qq", address, PAGE_SIZE, 0, 0), PAGE_SIZE)[1] == 0

    def has_ended(self) -> bool:
        """Return whether the process has ended, or runs another program."""
        try:
            self.copy(_NOWHERE, _NOWHERE, PAGE_SIZE)
        except HasEnded:
            return True
        except (Changing, OSError):
            pass
        return False

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
