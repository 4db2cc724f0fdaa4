"""Userfaultfds: asynchronous write protection (Linux 6.7), and pages that another process's memory lacks.

Where the kernel has guard pages (MADV_GUARD_INSTALL, Linux 6.13), it does not report that a program makes or removes
one, and UFFDIO_COPY replaces it (mm/userfaultfd.c, mfill_atomic_install_pte). So there each missing page gets the mark
of write protection. A guard page replaces the mark, and /proc/PID/pagemap shows it.
If the last descriptor is closed too early, the kernel supplies pages of zeros instead: see `crckpt.ops.lazy.family`.
Source: linux/userfaultfd.h, userfaultfd(2).
"""

from __future__ import annotations

import enum
import errno
import fcntl
import functools
import mmap
import os
import struct
from contextlib import suppress
from typing import Final, NamedTuple

from crckpt.errors import HostCannot
from crckpt.host.syscalls.kcmp import is_same_file
from crckpt.host.syscalls.libc import syscall
from crckpt.host.syscalls.pagemap import AddressRange
from crckpt.model import PAGE_SIZE

# linux/userfaultfd.h
# Without this flag a process needs CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd=1. Asynchronous protection, which the
# kernel resolves itself, loses nothing by it.
USER_MODE_ONLY: Final = 1
_API, _REGISTER, _UNREGISTER, _WAKE = 0xC018AA3F, 0xC020AA00, 0x8010AA01, 0x8010AA02
COPY, _ZEROPAGE, _WRITEPROTECT = 0xC028AA03, 0xC020AA04, 0xC018AA06
_API_VERSION: Final = 0xAA
MODE_MISSING, MODE_WP = 1, 2
_WRITEPROTECT_MODE_WP: Final = 1
# PAGEFAULT_FLAG_WP, WP_HUGETLBFS_SHMEM, WP_UNPOPULATED, WP_ASYNC
ASYNC_WRITE_PROTECTION: Final = 1 | 1 << 12 | 1 << 13 | 1 << 15
# UFFD_FEATURE_EVENT_FORK, _REMAP, _REMOVE, _UNMAP. Without them a fork, or memory that the program gives back, would
# not be noticed.
_EVENTS: Final = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6
# UFFD_FEATURE_PAGEFAULT_FLAG_WP, _THREAD_ID, _WP_UNPOPULATED.
_MARKS: Final = 1 << 0 | 1 << 8 | 1 << 13
_MADV_GUARD_INSTALL: Final = 102
# An address of 32-bit programs, too, at which nothing is supplied.
_NOWHERE: Final = 1 << 20
_MESSAGE: Final = struct.Struct("=B7x3Q")
_AT_ONCE: Final = 64


class Userfaultfd:
    """A userfaultfd: what it does to memory ends when it is closed."""

    def __init__(self, descriptor: int, features: int) -> None:
        """Own `descriptor` from now on. Features -1: it is of a fork, and has them already. Raises OSError."""
        self.descriptor = descriptor
        if features >= 0:
            fcntl.ioctl(descriptor, _API, struct.pack("<3Q", _API_VERSION, features, 0))

    def add(self, start: int, end: int, mode: int) -> None:
        """Register a mapping. Raises OSError.

        EBUSY: it is with another userfaultfd. ENOMEM, EINVAL, ENOENT: there is no such map any more, a new one is in
        between, it cannot be registered, or the process has ended or executed another program.
        """
        fcntl.ioctl(self.descriptor, _REGISTER, struct.pack("<4Q", start, end - start, mode, 0))

    def remove(self, start: int, end: int) -> None:
        """Unregister a mapping. Raises OSError; EINVAL, ENOMEM: there is no such map any more."""
        fcntl.ioctl(self.descriptor, _UNREGISTER, struct.pack("<2Q", start, end - start))

    def protect(self, start: int, end: int, mode: int = 0) -> None:
        """Write-protect pages of a mapping, or with no mode let them be written. Raises OSError."""
        fcntl.ioctl(self.descriptor, _WRITEPROTECT, struct.pack("<3Q", start, end - start, mode))

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed."""
        return self.descriptor >= 0

    def close(self) -> None:
        """Stop tracking; let the kernel supply zeros for what is still missing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class WriteProtection(Userfaultfd):
    """Asynchronous write protection of another process's memory, by a userfaultfd that we have taken from it.

    It ends with this object or with us: then every page reads as written again.
    """

    def __init__(self, descriptor: int, features: int = ASYNC_WRITE_PROTECTION) -> None:
        """Own `descriptor` from now on. Raises HostCannot if the kernel cannot do it."""
        try:
            super().__init__(descriptor, features)
        except OSError as error:
            self.close()
            raise HostCannot(
                f"this kernel cannot track writes by userfaultfd: {error.strerror}", hint="use Linux 6.7 or later"
            ) from error

    def register(self, found: AddressRange, *, is_new: bool = True) -> None:
        """Track this map; with `is_new`, every page of it reads as written. Raises OSError, as `add`."""
        self.add(found.start, found.end, MODE_WP)
        if is_new:
            # Pages that were moved here (mremap) may have bits, and would read as not written.
            try:
                self.protect(found.start, found.end)
            except OSError:
                self.remove(found.start, found.end)
                raise

    def is_held_by(self, pid: int, descriptor: int) -> bool:
        """Return whether that descriptor of a process is this userfaultfd too."""
        return self.is_open and is_same_file(pid, descriptor, self.descriptor)


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
    from crckpt.host.syscalls.registers import is_supported  # loads python-ptrace

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


class HasEnded(Exception):
    """The process has ended, or runs another program."""


class Changing(Exception):
    """The process changes its mappings: read messages, then try again."""


class MissingPages(Userfaultfd):
    """The missing pages of a process."""

    def __init__(self, descriptor: int, *, is_new: bool = True) -> None:
        """`is_new`: not of a fork. Raises OSError if this kernel cannot report forks and removed memory."""
        os.set_blocking(descriptor, False)
        super().__init__(descriptor, _EVENTS | (_MARKS if has_guard_pages() else 0) if is_new else -1)

    def register(self, start: int, end: int) -> None:
        """From now on, a thread that touches a missing page of this mapping waits for us. Raises OSError."""
        self.add(start, end, MODE_MISSING | (MODE_WP if has_guard_pages() else 0))

    def mark(self, start: int, end: int, *, is_set: bool = True) -> None:
        """Mark missing pages of a mapping, or remove the marks; guard pages stay as they are. Raises as `copy`."""
        try:
            self.protect(start, end, _WRITEPROTECT_MODE_WP if is_set else 0)
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
        found = []
        for number, first, second, third in _MESSAGE.iter_unpack(content):
            kind = Kind(number)
            # The number of a new descriptor, and a TID, have 32 bits; what follows is not defined.
            first_ = first & 0xFFFFFFFF if kind is Kind.FORK else first
            found.append(FaultMessage(kind, first_, second, third & 0xFFFFFFFF if kind is Kind.FAULT else third))
        return tuple(found)

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
        with suppress(Changing, OSError):
            try:
                self.copy(_NOWHERE, _NOWHERE, PAGE_SIZE)
            except HasEnded:
                return True
        return False

    def wake(self, address: int) -> None:
        """Let threads that wait for this page look again."""
        fcntl.ioctl(self.descriptor, _WAKE, struct.pack("<2Q", address, PAGE_SIZE))

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
