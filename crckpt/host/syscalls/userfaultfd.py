"""Asynchronous write protection by a userfaultfd (Linux 6.7). Source: linux/userfaultfd.h."""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Final

from crckpt.errors import HostCannot
from crckpt.host.syscalls.kcmp import is_same_file
from crckpt.host.syscalls.pagemap import AddressRange

# linux/userfaultfd.h
# Without this flag a process needs CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd=1. Asynchronous protection, which the
# kernel resolves itself, loses nothing by it.
USER_MODE_ONLY: Final = 1
API: Final = 0xC018AA3F
REGISTER: Final = 0xC020AA00
UNREGISTER: Final = 0x8010AA01
COPY: Final = 0xC028AA03
WRITEPROTECT: Final = 0xC018AA06
API_VERSION: Final = 0xAA
# PAGEFAULT_FLAG_WP, WP_HUGETLBFS_SHMEM, WP_UNPOPULATED, WP_ASYNC
ASYNC_WRITE_PROTECTION: Final = 1 | 1 << 12 | 1 << 13 | 1 << 15
MODE_MISSING: Final = 1
MODE_WP: Final = 2


class WriteProtection:
    """Asynchronous write protection of another process's memory, by a userfaultfd that we have taken from it.

    It ends with this object or with us: then every page reads as written again.
    """

    def __init__(self, descriptor: int, features: int = ASYNC_WRITE_PROTECTION) -> None:
        """Own `descriptor` from now on. Raises HostCannot if the kernel cannot do it."""
        self._descriptor = descriptor
        try:
            fcntl.ioctl(descriptor, API, struct.pack("<3Q", API_VERSION, features, 0))
        except OSError as error:
            self.close()
            raise HostCannot(
                f"this kernel cannot track writes by userfaultfd: {error.strerror}", hint="use Linux 6.7 or later"
            ) from error

    def register(self, found: AddressRange, *, is_new: bool = True) -> None:
        """Track this map; with `is_new`, every page of it reads as written. Raises OSError.

        EBUSY: another userfaultfd tracks it. ENOMEM, EINVAL, ENOENT: there is no such map any more, a new one is in
        between, it cannot be tracked, or the process has ended or executed another program.
        """
        length = found.end - found.start
        fcntl.ioctl(self._descriptor, REGISTER, struct.pack("<4Q", found.start, length, MODE_WP, 0))
        if is_new:
            # Pages that were moved here (mremap) may have bits, and would read as not written.
            try:
                self.unprotect(found)
            except OSError:
                self.unregister(found)
                raise

    def unprotect(self, found: AddressRange) -> None:
        """Let every page of this map read as written. Raises OSError."""
        length = found.end - found.start
        fcntl.ioctl(self._descriptor, WRITEPROTECT, struct.pack("<3Q", found.start, length, 0))

    def unregister(self, found: AddressRange) -> None:
        """Stop tracking this map. Raises OSError; EINVAL, ENOMEM: there is no such map any more."""
        fcntl.ioctl(self._descriptor, UNREGISTER, struct.pack("<2Q", found.start, found.end - found.start))

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed."""
        return self._descriptor >= 0

    def is_held_by(self, pid: int, descriptor: int) -> bool:
        """Return whether that descriptor of a process is this userfaultfd too."""
        return self.is_open and is_same_file(pid, descriptor, self._descriptor)

    def close(self) -> None:
        """Stop tracking."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
